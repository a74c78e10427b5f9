"""What a service must withstand: nonsense, too much of it, and clients that never finish."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import struct
import threading
import time
import zlib
from collections import Counter
from types import SimpleNamespace

import httpx
import pytest
from starlette.requests import ClientDisconnect, Request

from tessera.gallery.gallery import Gallery
from tessera.serve.api.routes import Serving
from tessera.serve.app import create_app
from tessera.serve.middleware import InFlight, LimitInFlight
from tessera.serve.problems import ProblemError
from tessera.serve.server import PatientProtocol
from tessera.serve.settings import Settings
from tessera.serve.worker_pools import MOST_TOGETHER, WorkerPools

HEAD = b"POST /api/search HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=b\r\n"


def bomb() -> bytes:
    """A PNG of 50,000 x 50,000 that is a few hundred bytes long."""

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", 50_000, 50_000, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 100)) + chunk(b"IEND", b"")
    )


def test_bad_pictures(client, scenes_dir, check_problem):
    check_problem(client.post("/api/search", files={"file": ("a.jpg", b"this is text", "image/jpeg")}), 415)
    check_problem(client.post("/api/search", files={"file": ("a.png", bomb(), "image/png")}), 413)
    check_problem(client.post("/api/search", files={"file": ("a.jpg", b"", "image/jpeg")}), 415)
    whole = (scenes_dir / "scene03.jpg").read_bytes()
    check_problem(client.post("/api/search", files={"file": ("a.jpg", whole[: len(whole) // 2], "image/jpeg")}), 415)
    assert check_problem(client.post("/api/search"), 422) == "file is missing."
    assert "sent as a file" in check_problem(client.post("/api/search", data={"file": "text"}), 422)
    assert client.get("/health").status_code == 200


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"box": "500,500,600,600"}, "box"),
        ({"box": "40,40,10,10"}, "box"),
        ({"box": "1,2,3"}, "box"),
        ({"box": "a,b,c,d"}, "box"),
        ({"box": "nan,0,inf,10"}, "box"),
        ({"k": "0"}, "k"),
        ({"k": "100000"}, "k is at most 200"),
        ({"k": "many"}, "k"),
        ({"where": "place"}, "filter"),
        ({"expand": "magic"}, "expand"),
        ({"rerank": "magic"}, "rerank"),
    ],
)
def test_values_that_cannot_be_meant(client, values, words, picture, check_problem):
    assert words in check_problem(client.post("/api/search", files=picture(), data=values), 422)


def test_unknown_ids_and_addresses(client, check_problem):
    for address in ("/api/images/999999", "/api/images/999999/thumbnail", "/api/images/999999/search"):
        check_problem(client.get(address), 404)
    check_problem(client.get("/api/images/9999999999999999999999"), 422)
    check_problem(client.get("/api/images/-1"), 422)
    assert "openapi.json" in check_problem(client.get("/api/nothing"), 404)
    check_problem(client.put("/api/stats"), 405)
    check_problem(client.get("/api/stats/"), 404)  # and no redirection to whatever the Host header says
    assert client.get("/../../etc/passwd").status_code == 404
    assert client.get("/%2e%2e/%2e%2e/etc/passwd").status_code == 404


def test_filters_without_end_are_refused(client, check_problem):
    many = {"where": ["year>=1990"] * 1000}
    for address in ("/api/images", "/api/images/1/search"):
        assert "where" in check_problem(client.get(address, params=many), 422)
        said = check_problem(client.get(address, params={"where": "a" * 50_000}), 422)
        assert len(said) < 1000
    assert client.get("/api/images", params={"where": ["year>=1990"] * 32}).status_code == 200


@pytest.mark.parametrize("body", [b'{"key":', b"[]", b"NaN", b'{"key": 1}', b'{"key": "' + b"a" * 2000 + b'"}'])
def test_a_session_is_asked_for_in_json(client, check_problem, body):
    answer = client.post("/api/session", content=body, headers={"content-type": "application/json"})
    assert not check_problem(answer, 422)[0].isdigit()


def test_the_headers_of_a_form_may_be_anything(client, check_problem, scenes_dir):
    part = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.jpg"\r\n\r\n'
    body = part + (scenes_dir / "scene03.jpg").read_bytes() + b"\r\n--b--\r\n"

    def send(kind, content=body):
        return client.post("/api/search", content=content, headers={"content-type": kind})

    assert send("multipart/form-data; boundary=b").status_code == 200
    field = b'Content-Disposition: form-data; name="k"\r\n\r\n5\r\n--b\r\n'
    check_problem(send("multipart/form-data"), 400)
    check_problem(send("multipart/form-data; boundary="), 400)
    check_problem(send("multipart/form-data; boundary=" + "x" * 5000), 400)
    check_problem(send("multipart/form-data; boundary=b", b"--b\r\n\r\nabc\r\n--b--\r\n"), 400)
    check_problem(send("multipart/form-data; boundary=b", b"--b\r\n" + field * 2000), 400)
    check_problem(send("application/json", b"{}"), 422)
    check_problem(send("image/jpeg"), 422)


def connect(address: str) -> socket.socket:
    host, port = address.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=120)


def test_ten_thousand_wrong_addresses_make_no_new_series(tmp_path):
    app = create_app(Settings(tmp_path / "g"))
    statuses = Counter()

    async def send(message):
        statuses[message.get("status")] += 1

    async def ask(method, path):
        scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode(), "headers": []}
        await app({**scope, "query_string": b"", "root_path": "", "scheme": "http"}, None, send)

    async def main():
        for index in range(10_000):
            await ask(
                "GET" if index % 2 else f"METHOD{index}", f"/api/wrong/{index}" if index % 3 else f"/wrong{index}"
            )
        assert statuses[404] + statuses[405] == 10_000
        found = []

        async def keep(message):
            found.append(message.get("body", b""))

        scope = {"type": "http", "method": "GET", "path": "/metrics", "headers": [], "query_string": b""}
        await app({**scope, "raw_path": b"/metrics", "root_path": "", "scheme": "http"}, None, keep)
        return b"".join(found).decode()

    text = asyncio.run(main())
    assert "wrong" not in text
    assert "METHOD" not in text
    assert len(text.splitlines()) < 60


def test_bodies_that_are_too_large(running, served_gallery, check_problem):
    settings = Settings(served_gallery, threads=1, timeout_s=280, max_bytes=20_000, body_timeout_s=120)
    with running(settings) as address, httpx.Client(base_url=address, timeout=120) as client:
        check_problem(client.post("/api/search", files={"file": ("a.jpg", b"x" * 200_000)}), 413)
        check_problem(client.post("/api/search", files={"file": ("a.jpg", b"x" * 20_001)}), 413)
        head = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.jpg"\r\n\r\n'
        # Of unknown length, read as it comes; not more than the service throws away before it closes the connection.
        pieces = itertools.chain([head], itertools.repeat(b"x" * 10_000, 20))
        form = {"content-type": "multipart/form-data; boundary=b"}
        check_problem(client.post("/api/search", content=pieces, headers=form), 413)


def test_who_asks_first_is_told_at_once(client, address):
    with connect(address) as polite:
        polite.sendall(HEAD + b"Expect: 100-continue\r\nContent-Length: 999999999\r\n\r\n")
        assert polite.recv(1000).split(b"\r\n")[0].endswith(b" 413 Request Entity Too Large")


def test_a_client_that_stops_midway_is_told(running, served_gallery):
    with running(Settings(served_gallery, threads=1, body_timeout_s=0.2)) as address, connect(address) as hanging:
        hanging.sendall(HEAD + b"Content-Length: 1000\r\n\r\n--b\r\n")
        assert hanging.recv(1000).split(b"\r\n")[0].endswith(b" 408 Request Timeout")


@pytest.mark.parametrize(
    "rest", [b"Content-Length: 1000\r\n\r\n--b\r\n", b"Transfer-Encoding: chunked\r\n\r\n9\r\n--b"]
)
def test_who_sends_half_a_body_and_still_listens_is_told(client, address, rest):
    with connect(address) as half:
        half.sendall(HEAD + rest)
        half.shutdown(socket.SHUT_WR)
        answer = half.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"application/problem+json" in answer
    assert b"before its body was complete" in answer
    assert client.get("/health").status_code == 200


@pytest.mark.parametrize(
    "said",
    [
        b"nonsense\r\n\r\n",
        b"GET /health HTTP/1.1\r\n\r\n",  # no host
        b"GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        HEAD + b"Content-Length: -5\r\n\r\n",
        HEAD + b"Transfer-Encoding: gzip\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nhello",
        b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\r\n\r\n",  # TLS
    ],
)
def test_what_is_no_http_is_a_problem_too(client, address, said):
    with connect(address) as odd:
        odd.sendall(said)
        answer = odd.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"application/problem+json" in answer
    assert client.get("/health").status_code == 200


def test_silent_connections_make_room_for_those_who_speak(client, address, eventually, monkeypatch):
    before = len(socket_pairs := [connect(address) for _ in range(3)])
    monkeypatch.setattr(PatientProtocol, "max_connections", before)
    socket_pairs += [connect(address) for _ in range(20)]
    try:
        assert client.get("/health").status_code == 200
        assert socket_pairs[0].recv(100) == b""  # who was silent longest had to go
    finally:
        for one in socket_pairs:
            one.close()


def test_hanging_uploads_do_not_keep_others_from_searching(running, eventually, served_gallery, check_problem, picture):
    settings = Settings(served_gallery, threads=1, timeout_s=280, body_timeout_s=600, max_in_flight=3)
    with running(settings) as address, httpx.Client(base_url=address, timeout=120) as client:
        hanging = [connect(address) for _ in range(3)]
        for one in hanging:
            one.sendall(HEAD + b"Content-Length: 1000\r\n\r\n--b\r\n")
        eventually(lambda: "tessera_in_flight 3" in client.get("/metrics").text)
        assert client.get("/api/images/1/search").status_code == 200
        assert client.get("/api/images/1/thumbnail").status_code == 200
        check_problem(client.post("/api/search", files=picture()), 429)
        for one in hanging:
            one.close()
        eventually(lambda: client.post("/api/search", files=picture()).status_code == 200)


def test_clients_beyond_the_limit_are_put_off(running, eventually, served_gallery, check_problem, picture):
    settings = Settings(served_gallery, threads=1, timeout_s=280, body_timeout_s=600, max_in_flight=1)
    with running(settings) as address, httpx.Client(base_url=address, timeout=120) as client:
        for _ in range(20):  # whoever has an answer may ask again at once
            assert client.get("/api/stats").status_code == 200
        with connect(address) as hanging:  # holds the only place
            hanging.sendall(HEAD + b"Content-Length: 1000\r\n\r\n--b\r\n")
            # Seen from outside the limit: a question under /api/ could take the place before it arrives.
            eventually(lambda: "tessera_in_flight 1" in client.get("/metrics").text)
            busy = client.post("/api/search", files=picture())
            check_problem(busy, 429)
            assert busy.headers["retry-after"] == "1"
            assert client.get("/health").status_code == 200
        # It went away in the middle of its body: the place is free again.
        eventually(lambda: client.post("/api/search", files=picture()).status_code == 200)


def test_a_head_that_never_ends_is_not_waited_for(client, address, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(PatientProtocol, "head_timeout_s", 0.2)
        with connect(address) as silent, connect(address) as slow:
            # On a busy machine the service may have closed it already: then sending or receiving says so.
            with contextlib.suppress(ConnectionError):
                slow.sendall(b"GET /health HTTP/1.1\r\nHost:")
                assert slow.recv(100) == b""
            assert silent.recv(100) == b""
    assert client.get("/health").status_code == 200


def test_who_takes_nothing_of_an_answer_is_let_go(running, eventually, small_bundle, painter, tmp_path, monkeypatch):
    """Each such client would keep a whole file in memory, for ever. One that reads slowly gets all of it."""
    large = painter(tmp_path / "large.png", 1)
    with large.open("ab") as file:
        file.write(bytes(16 << 20))
    with Gallery(tmp_path / "g", str(small_bundle)) as gallery:
        gallery.index(large)
    monkeypatch.setattr(PatientProtocol, "stall_timeout_s", 0.5)
    ask = b"GET /api/images/1/original HTTP/1.1\r\nHost: x\r\n\r\n"
    with running(Settings(tmp_path / "g", threads=1)) as address, httpx.Client(base_url=address) as client:
        with connect(address) as deaf, connect(address) as slow:
            deaf.sendall(ask)
            slow.sendall(ask)
            received = 0
            while received < 16 << 20:
                received += len(slow.recv(1 << 18))
                time.sleep(0.02)

            def is_ended():
                try:
                    deaf.sendall(b"\r\n")
                except ConnectionError:
                    return True
                return False

            eventually(is_ended)
        assert client.get("/health").status_code == 200


def test_a_place_is_given_back_before_the_last_piece_and_once():
    gauge, seen = InFlight(), []

    async def answer(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"a", "more_body": True})
        await send({"type": "http.response.body", "body": b"b"})
        raise RuntimeError("after the answer")

    async def send(message):
        seen.append(gauge.count)

    limited = LimitInFlight(answer, gauge, limit=1)
    for _ in range(2):
        with pytest.raises(RuntimeError):
            asyncio.run(limited({"type": "http", "path": "/api/x", "method": "GET"}, None, send))
    assert seen == [1, 1, 0] * 2
    assert gauge.count == 0


def test_work_that_waited_too_long_is_never_begun():
    release, begun = threading.Event(), []

    async def main():
        pools = WorkerPools(cores=1, timeout_s=0.2)
        calls = [pools.run("network", release.wait, 120)]
        calls += [pools.run("network", begun.append, index) for index in range(3)]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(outcome, ProblemError) and outcome.status == 504 for outcome in outcomes)
        release.set()  # the first one kept its thread until now
        pools.timeout_s = 120
        assert await pools.run("network", len, "abc") == 3
        pools.close()

    asyncio.run(main())
    assert begun == []


def test_who_goes_away_while_waiting_is_not_worked_for():
    begun, held, release = [], threading.Event(), threading.Event()
    gone = asyncio.Event()

    async def receive():
        await gone.wait()
        return {"type": "http.disconnect"}

    def hold():
        held.set()
        return release.wait(120)

    async def main():
        pools = WorkerPools(cores=1, timeout_s=120)
        state = SimpleNamespace(service=None, pools=pools, settings=None)
        request = Request({"type": "http", "app": SimpleNamespace(state=state)}, receive)
        first = asyncio.ensure_future(pools.run("network", hold))
        await asyncio.to_thread(held.wait, 120)
        waiting = asyncio.ensure_future(Serving.of(request).run_network(begun.append, 1))
        await asyncio.sleep(0)
        gone.set()
        with pytest.raises(ClientDisconnect):
            await waiting
        release.set()
        assert await first
        gone.clear()
        assert await Serving.of(request).run_network(len, "abc") == 3  # and who stays is answered
        with pytest.raises(ZeroDivisionError):
            await Serving.of(request).run_network(divmod, 1, 0)
        pools.close()

    asyncio.run(main())
    assert begun == []


def test_calls_that_wait_at_once_are_made_as_one():
    release, asked = threading.Event(), []

    def double(numbers, *, plus):
        asked.append(numbers)
        return [ValueError("odd") if number % 2 else 2 * number + plus for number in numbers]

    async def main():
        pools = WorkerPools(cores=1, timeout_s=120)
        busy = asyncio.ensure_future(pools.run("search", release.wait, 120))
        given_up = asyncio.ensure_future(pools.run_together("search", double, 100, plus=0))
        calls = [pools.run_together("search", double, number, plus=0) for number in range(2 * MOST_TOGETHER)]
        calls.append(pools.run_together("search", double, 4, plus=1))
        waiting = [asyncio.ensure_future(call) for call in calls]
        await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.wait({given_up})
        release.set()
        outcomes = await asyncio.gather(busy, *waiting, return_exceptions=True)
        pools.close()
        return outcomes[1:]

    *doubled, other_kind = asyncio.run(main())
    assert other_kind == 9
    assert doubled[::2] == [2 * number for number in range(0, 2 * MOST_TOGETHER, 2)]
    assert all(isinstance(outcome, ValueError) for outcome in doubled[1::2])
    assert sorted(itertools.chain(*asked)) == sorted([*range(2 * MOST_TOGETHER), 4])
    assert max(map(len, asked)) >= MOST_TOGETHER - 1  # the one that was given up had the first place


def test_a_call_that_fails_fails_for_all_and_a_stop_leaves_nobody_waiting():
    begun, release = threading.Event(), threading.Event()

    def hold():
        begun.set()
        return release.wait(120)

    async def main():
        pools = WorkerPools(cores=1, timeout_s=120)
        with pytest.raises(TypeError):
            await pools.run_together("search", sum, "a")
        busy = asyncio.ensure_future(pools.run("search", hold))
        await asyncio.to_thread(begun.wait, 120)
        waiting = asyncio.ensure_future(pools.run_together("search", sum, 1))
        await asyncio.sleep(0)
        pools.close()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        release.set()
        await busy

    asyncio.run(main())
