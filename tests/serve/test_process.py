"""`tessera serve` as a process: how it starts, follows other processes, logs and stops."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import types

import httpx
import pytest

from tessera.cli.main import main
from tessera.gallery.gallery import Gallery

TESSERA = [sys.executable, "-m", "tessera.cli.main"]


@pytest.fixture
def process(tmp_path, token_bundle, scenes_dir):
    """A service on a gallery of two pictures: (process, address, gallery's path, lines of its log)."""
    path = tmp_path / "g.tessera"
    with Gallery(path, model=str(token_bundle), threads=1) as gallery:
        gallery.index(scenes_dir / "scene00.jpg", scenes_dir / "scene01.jpg")
    command = [*TESSERA, "serve", "-g", str(path), "--port", "0", "--timeout", "280"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        found = re.search(r"http://\S+", running.stderr.readline())
        lines: list[str] = []
        reader = threading.Thread(target=lambda: lines.extend(running.stderr))
        reader.start()
        yield running, found.group(0), path, lines
        if running.poll() is None:
            running.terminate()
        running.wait()
        reader.join()


def answers(address):
    try:
        return httpx.get(f"{address}/ready", timeout=60).status_code == 200
    except httpx.TransportError:
        return False


def test_a_request_is_finished_when_the_service_is_told_to_stop(process, eventually, picture):
    running, address, _, lines = process
    eventually(lambda: answers(address))
    request = httpx.Request("POST", f"{address}/api/search", files=picture("scene00.jpg"))
    body = request.read()
    host, port = address.removeprefix("http://").split(":")
    head = f"POST /api/search HTTP/1.1\r\nHost: x\r\nX-Request-ID: last-one\r\nContent-Length: {len(body)}\r\n"
    with socket.create_connection((host, int(port)), timeout=120) as stranger:
        stranger.sendall(b"nonsense\r\n\r\n")
        assert stranger.recv(100).startswith(b"HTTP/1.1 400")
    form = {"content-type": "multipart/form-data; boundary=b"}
    assert httpx.post(f"{address}/api/search", content=b"no form", headers=form, timeout=60).status_code == 400
    with socket.create_connection((host, int(port)), timeout=120) as client:
        client.sendall(f"{head}Content-Type: {request.headers['content-type']}\r\n\r\n".encode() + body[:-10])
        metrics = lambda: httpx.get(f"{address}/metrics", timeout=60).text  # noqa: E731
        eventually(lambda: "tessera_in_flight 1" in metrics())
        running.send_signal(signal.SIGTERM)
        client.sendall(body[-10:])
        assert client.recv(100).startswith(b"HTTP/1.1 200")
    running.wait(120)
    eventually(lambda: any("last-one" in line for line in lines))
    answered = next(json.loads(line) for line in lines if "last-one" in line)
    assert answered["request_id"] == "last-one"
    assert (answered["route"], answered["method"], answered["status"]) == ("/api/search", "POST", 200)
    assert answered["ms"] > 0
    messages = [json.loads(line)["message"] for line in lines]  # each line is JSON, the server's own too
    assert any("Invalid HTTP" in message for message in messages)


def test_another_process_indexes_while_searches_go_on(process, eventually, picture, scenes_dir):
    _, address, path, _ = process
    eventually(lambda: answers(address))
    writer = subprocess.Popen([*TESSERA, "index", str(scenes_dir / "scene05.jpg"), "-g", str(path)])
    with httpx.Client(base_url=address, timeout=120) as client:

        def names():
            answer = client.post("/api/search", files=picture("scene05.jpg"))
            assert answer.status_code == 200
            return [hit["name"] for hit in answer.json()["results"]]

        eventually(lambda: names()[0] == "scene05.jpg")
        assert len(names()) == 3
    assert writer.wait(120) == 0


def test_other_machines_and_taken_ports_are_refused(tmp_path, capsys, monkeypatch):
    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["tessera", "serve", "-g", str(tmp_path / "g"), *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, capsys.readouterr().err

    code, said = run("--host", "0.0.0.0")
    assert code == 2
    assert "needs a key" in said
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, said = run("--port", str(taken.getsockname()[1]))
    assert code == 2
    assert "--port" in said
    assert not (tmp_path / "g").exists()  # a run that cannot serve leaves no gallery behind
    (tmp_path / "g").mkdir()
    (tmp_path / "g" / "thesis.txt").write_text("mine")
    code, said = run("--port", "0")
    assert code == 1
    assert "other things in it (thesis.txt)" in said


def test_the_page_opens_where_it_is_asked_for(tmp_path, monkeypatch, capfd):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr("tessera.serve.server.make_server", lambda _: types.SimpleNamespace(run=lambda _: None))
    monkeypatch.setattr(sys, "argv", ["tessera", "serve", "-g", str(tmp_path / "g.tessera"), "--port", "0", "--open"])
    with contextlib.suppress(SystemExit):
        main()
    assert opened[0] in capfd.readouterr().err
