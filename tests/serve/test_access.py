"""Who may ask what: sessions, origins, and what no answer gives away."""

from __future__ import annotations

import time

import httpx
import pytest

from tessera.gallery.gallery import Gallery
from tessera.serve import access
from tessera.serve.access import COOKIE, SESSION_S, Sessions
from tessera.serve.service import GalleryService
from tessera.serve.settings import Settings


def test_a_session_is_signed_and_ends(monkeypatch):
    sessions = Sessions()
    cookie = sessions.open("reader")
    assert sessions.role_of(cookie) == "reader"
    assert sessions.role_of(sessions.open("writer")) == "writer"
    others = (cookie.replace("reader", "writer"), cookie[:-1], Sessions().open("writer"))
    for forged in ("", ".", "writer", "é.1.x", *others):
        assert sessions.role_of(forged) is None
    now = time.time()
    monkeypatch.setattr(access.time, "time", lambda: now + SESSION_S + 1)
    assert sessions.role_of(cookie) is None


@pytest.fixture(scope="module")
def keyed(running, tmp_path_factory, token_bundle, scenes_dir):
    path = tmp_path_factory.mktemp("keyed") / "g.tessera"
    with Gallery(path, model=str(token_bundle), threads=1) as gallery:
        gallery.index(scenes_dir / "scene00.jpg")
    with running(Settings(path, key="reader", writer_key="writer", threads=1, timeout_s=280)) as address:
        yield address


def test_the_cookie_is_not_the_key_and_knows_its_origin(keyed, picture, check_problem):
    with httpx.Client(base_url=keyed, timeout=280) as client:
        answer = client.post("/api/session", json={"key": "writer"}, headers={"X-Forwarded-Proto": "https"})
        said = answer.headers["set-cookie"]
        assert "writer." in said and "writer;" not in said
        assert all(word in said for word in ("HttpOnly", "SameSite=strict", "Secure", f"Max-Age={SESSION_S}"))
        cookie = {"Cookie": f"{COOKIE}={said.partition('=')[2].partition(';')[0]}"}
        own, other = {"Origin": keyed}, {"Origin": "http://127.0.0.1:9"}
        assert client.get("/api/stats", headers=cookie).status_code == 200
        check_problem(client.post("/api/images", files=picture(), headers=cookie | other), 403)
        check_problem(client.delete("/api/images/1", headers=cookie | other | {"Origin": "null"}), 403)
        assert client.post("/api/images", files=picture(), headers=cookie | own).status_code == 201
        client.cookies.clear()
        client.post("/api/session", json={"key": "reader"})
        check_problem(client.post("/api/images", files=picture(), headers=own), 401)


def test_no_path_is_in_the_statistics(keyed, token_bundle):
    answer = httpx.get(f"{keyed}/api/stats", headers={"Authorization": "Bearer reader"}, timeout=280)
    assert answer.json()["model"] == token_bundle.name
    assert "/" not in answer.text.replace("application/json", "")


def test_a_fault_has_its_headers_and_its_id(keyed, monkeypatch, check_problem):
    def fail(self):
        raise RuntimeError("a fault")

    monkeypatch.setattr(GalleryService, "facets", fail)
    headers = {"Authorization": "Bearer reader", "X-Request-ID": "asked-17"}
    answer = httpx.get(f"{keyed}/api/facets", headers=headers, timeout=280)
    assert "log" in check_problem(answer, 500)
    assert answer.headers["x-request-id"] == "asked-17"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "content-security-policy" in answer.headers


def test_metadata_of_an_upload_is_bounded(keyed, picture, check_problem):
    headers = {"Authorization": "Bearer writer"}
    with httpx.Client(base_url=keyed, timeout=280, headers=headers) as client:
        absurd = client.post("/api/images", files=picture(), data={"metadata": "a=" + "x" * 900_000})
        assert absurd.status_code in (400, 413, 422)
        answer = client.post("/api/images", files=picture("scene04.jpg"), data={"metadata": "a=" + "x" * 20_000})
        assert "16,384" in check_problem(answer, 422)
