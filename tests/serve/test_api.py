"""The service through its real entry point: a server on a socket, a client on the other end."""

from __future__ import annotations

import itertools
import shutil
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from pydantic import BaseModel

from tessera.errors import GalleryLockedError, IndexingError, ModelError
from tessera.gallery.catalog.lock import writer_lock
from tessera.gallery.gallery import Gallery
from tessera.refiners import EXPANSIONS, RERANKERS
from tessera.serve import service as service_module
from tessera.serve.api import schemas
from tessera.serve.app import create_app
from tessera.serve.service import GalleryService
from tessera.serve.settings import Settings


def test_an_upload_finds_itself_and_the_answer_is_the_librarys(client, scenes_dir, served_gallery, picture):
    answer = client.post("/api/search", files=picture(), data={"k": 5}).json()
    assert [hit["rank"] for hit in answer["results"]] == [0, 1, 2, 3, 4]
    assert answer["results"][0]["name"] == "scene03.jpg"
    assert answer["results"][0]["score"] == pytest.approx(1.0, abs=2e-3)
    assert set(answer["timing_ms"]) == {"embed", "search", "total"}
    with Gallery(served_gallery) as gallery:
        expected = gallery.search(scenes_dir / "scene03.jpg", 5)
    assert [hit["id"] for hit in answer["results"]] == [hit.id for hit in expected]
    assert [hit["score"] for hit in answer["results"]] == pytest.approx([hit.score for hit in expected], abs=1e-5)


def test_a_box_a_filter_and_a_gallery_picture(client, picture):
    boxed = client.post("/api/search", files=picture(), data={"box": "0,0,40,40"}).json()
    whole = client.post("/api/search", files=picture()).json()
    assert boxed["results"][0]["score"] != whole["results"][0]["score"]
    filtered = client.post("/api/search", files=picture(), data={"where": ["place=north", "year>=2002"]}).json()
    assert {hit["metadata"]["place"] for hit in filtered["results"]} == {"north"}
    assert len(filtered["results"]) == 3
    first = whole["results"][0]["id"]
    by_id = client.get(f"/api/images/{first}/search", params={"k": 3}).json()
    assert by_id["results"][0]["id"] == first
    assert client.get(f"/api/images/{first}/search", params={"k": 3, "box": "0,0,50,50"}).status_code == 200


def test_pictures_come_by_id_and_are_cached(client):
    page = client.get("/api/images", params={"limit": 5}).json()
    assert page["total"] == 12
    assert len(page["images"]) == 5
    rest = client.get("/api/images", params={"after": page["next"], "limit": 500}).json()
    assert len(rest["images"]) == 7
    assert rest["next"] is None
    image_id = page["images"][0]["id"]
    thumbnail = client.get(f"/api/images/{image_id}/thumbnail")
    assert thumbnail.headers["content-type"] == "image/jpeg"
    assert thumbnail.content[:2] == b"\xff\xd8"
    again = client.get(f"/api/images/{image_id}/thumbnail", headers={"If-None-Match": thumbnail.headers["etag"]})
    assert again.status_code == 304
    several = {"If-None-Match": f'"other", W/{thumbnail.headers["etag"]}'}
    assert client.get(f"/api/images/{image_id}/thumbnail", headers=several).status_code == 304
    assert client.get(f"/api/images/{image_id}/file").content[:2] == b"\xff\xd8"
    assert client.get(f"/api/images/{image_id}").json() == page["images"][0]


def test_why_sums_to_the_score(client, picture):
    hits = client.post("/api/search", files=picture(), data={"k": 2, "by": "global"}).json()["results"]
    answer = client.post(f"/api/explain/{hits[1]['id']}", files=picture()).json()
    assert sum(map(sum, answer["matrix"])) == pytest.approx(answer["score"], abs=1e-4)
    assert answer["score"] == pytest.approx(hits[1]["score"], abs=2e-3)
    assert len(answer["query"]["tokens"]) == len(answer["other"]["tokens"]) == 4
    pair = client.get(f"/api/images/{hits[0]['id']}/explain/{hits[1]['id']}", params={"box": "0,0,60,60"}).json()
    assert pair["query"]["crop"] == pytest.approx([0, 0, 60 / 120, 60 / 160])


def test_facets_stats_health_metrics_and_the_page(client):
    assert set(client.get("/api/facets").json()["facets"]["place"]) == {"north", "south"}
    stats = client.get("/api/stats").json()
    assert stats["images"] == 12
    assert stats["gallery"] == "scenes.tessera"
    assert client.get("/health").json() == {"status": "ok"}
    metrics = client.get("/metrics").text
    assert 'tessera_requests_total{method="GET",route="/health",status="200"}' in metrics
    assert "tessera_images 12" in metrics
    page = client.get("/")
    assert "<title>Tessera</title>" in page.text
    assert "default-src 'self'" in page.headers["content-security-policy"]
    assert page.headers["x-content-type-options"] == "nosniff"
    assert client.get("/health", headers={"X-Request-ID": "abc"}).headers["x-request-id"] == "abc"
    assert client.get("/health", headers={"X-Request-ID": "a b\tc"}).headers["x-request-id"] != "a b\tc"


def test_head_is_answered_as_get_is(client):
    for address in ("/", "/health", "/ready", "/api/stats", "/api/images/1/thumbnail"):
        head, whole = client.head(address), client.get(address)
        assert head.status_code == 200
        assert head.content == b""
        assert head.headers["content-type"] == whole.headers["content-type"]
        assert head.headers["content-length"] == str(len(whole.content))


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200), ("localhost:8642", 200), ("[::1]:8642", 200), ("photos.localhost", 200), ("desk", 200),
        ("evil.example", 421), ("evil.example:8642", 421), ("127.0.0.1.evil.example", 421),
        ("localhost.evil.example", 421),
    ],
)  # fmt: skip
def test_a_foreign_name_for_this_machine_is_not_answered_to(client, host, status, check_problem):
    for address in ("/", "/api/stats", "/api/images/1/file"):
        answer = client.get(address, headers={"Host": host})
        assert answer.status_code == status
        if status != 200:
            assert "--key" in check_problem(answer, status)


def test_writing_needs_its_own_key(client, picture, check_problem):
    check_problem(client.post("/api/images", files=picture()), 403)
    check_problem(client.delete("/api/images/1"), 403)


def test_keys_adding_removing_and_following_another_process(
    running, eventually, tmp_path, token_bundle, scenes_dir, picture, check_problem
):
    path = tmp_path / "g.tessera"
    with Gallery(path, model=str(token_bundle), threads=1) as gallery:
        gallery.index(scenes_dir / "scene00.jpg", scenes_dir / "scene01.jpg")
    settings = Settings(path, key="reader", writer_key="writer", threads=1, timeout_s=280)
    with running(settings) as address, httpx.Client(base_url=address, timeout=120) as client:
        check_problem(client.get("/api/stats"), 401)
        check_problem(client.get("/api/stats", headers={"Authorization": "Bearer wrong"}), 401)
        check_problem(client.post("/api/session", json={"key": "wrong"}), 401)
        assert (
            client.get("/health", headers={"Host": "photos.example"}).status_code == 200
        )  # with a key, any name will do
        reader, writer = ({"Authorization": f"Bearer {key}"} for key in ("reader", "writer"))
        check_problem(client.post("/api/images", files=picture(), headers=reader), 401)
        added = client.post("/api/images", files=picture(), data={"metadata": "place=new"}, headers=writer)
        assert added.status_code == 201
        image = added.json()
        assert image["metadata"] == {"place": "new"}
        found = client.post("/api/search", files=picture(), headers=reader).json()["results"]
        assert found[0]["id"] == image["id"]
        assert client.delete(f"/api/images/{image['id']}", headers=writer).status_code == 204
        check_problem(client.get(f"/api/images/{image['id']}", headers=reader), 404)
        found = client.post("/api/search", files=picture(), headers=reader).json()["results"]
        assert image["id"] not in [hit["id"] for hit in found]
        assert client.post("/api/session", json={"key": "reader"}).status_code == 204
        assert client.get("/api/stats").json()["images"] == 2  # by the cookie
        with Gallery(path) as other:
            other.index(scenes_dir / "scene05.jpg")

        def names():
            found = client.post("/api/search", files=picture("scene05.jpg")).json()["results"]
            return {hit["name"] for hit in found}

        eventually(lambda: "scene05.jpg" in names())


def test_an_empty_gallery_answers_and_says_what_to_do(running, tmp_path, token_bundle, picture):
    with Gallery(tmp_path / "empty.tessera", model=str(token_bundle), threads=1):
        pass
    with running(Settings(tmp_path / "empty.tessera", threads=1, timeout_s=280)) as address:
        assert httpx.get(f"{address}/api/images", timeout=120).json() == {"images": [], "total": 0, "next": None}
        assert httpx.get(f"{address}/api/stats", timeout=120).json()["images"] == 0
        found = httpx.post(f"{address}/api/search", files=picture(), timeout=120).json()
        assert found["results"] == []
        assert "tessera index" in found["note"]


def test_the_service_refuses_to_be_open_to_others_without_a_key(tmp_path):
    from tessera.errors import UsageError

    for host in ("0.0.0.0", "192.168.1.5", "::"):
        with pytest.raises(UsageError, match="needs a key"):
            Settings(tmp_path, host=host)
        assert Settings(tmp_path, host=host, key="k").key == "k"
    for host in ("127.0.0.1", "localhost", "::1"):
        assert Settings(tmp_path, host=host).is_loopback


def test_the_schema_is_worth_reading(tmp_path):
    schema = create_app(Settings(tmp_path / "g")).openapi()
    assert "/api/images/{image_id}/search" in schema["paths"]
    names = []
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            names.append(operation["operationId"])
            assert operation["summary"], f"{method} {path}"
            for status, response in operation["responses"].items():
                if status >= "400":
                    reference = {"schema": {"$ref": "#/components/schemas/Problem"}}
                    assert response["content"] == {"application/problem+json": reference}, f"{method} {path}: {status}"
                elif status in ("200", "201"):
                    assert response["content"], f"{method} {path}: {status}"
                if status in ("429", "503"):
                    assert "Retry-After" in response["headers"]
    assert len(set(names)) == len(names)
    assert "search_by_upload" in names  # what a client made from the schema is called by
    assert schema["paths"]["/api/images"]["post"]["security"] == [{"writer_key": []}]
    assert "security" not in schema["paths"]["/health"]["get"]
    assert set(schema["components"]["securitySchemes"]) == {"key", "cookie", "writer_key"}


def test_a_route_without_a_group_is_in_the_schema_too(tmp_path):
    """As the planted fault of scripts/fuzz_api.py, which must be seen to be found."""
    app = create_app(Settings(tmp_path / "g"))
    app.get("/api/planted")(lambda: None)
    assert app.openapi()["paths"]["/api/planted"]["get"]["security"]


def test_the_examples_of_the_schema_are_what_it_describes():
    shown = 0
    for model in vars(schemas).values():
        if isinstance(model, type) and issubclass(model, BaseModel) and model is not BaseModel:
            for example in model.model_json_schema().get("examples", []):
                model.model_validate(example, strict=True)
                shown += 1
    assert shown > 8


def test_a_file_that_is_gone_is_told_without_its_path(running, tmp_path, token_bundle, scenes_dir, check_problem):
    photos = tmp_path / "photos"
    photos.mkdir()
    for name in ("scene00.jpg", "scene01.jpg", "scene02.jpg"):
        shutil.copy(scenes_dir / name, photos)
    with Gallery(tmp_path / "g.tessera", model=str(token_bundle), threads=1) as gallery:
        gallery.index(photos)
    (photos / "scene01.jpg").unlink()
    (photos / "scene02.jpg").write_bytes(b"something else")
    settings = Settings(tmp_path / "g.tessera", threads=1, timeout_s=280)
    with running(settings) as address, httpx.Client(base_url=address, timeout=280) as client:
        kept, *lost = [image["id"] for image in client.get("/api/images").json()["images"]]
        for image_id in lost:
            for what in ("thumbnail", "file", "search?box=0,0,20,20", f"explain/{kept}"):
                check_problem(client.get(f"/api/images/{image_id}/{what}"), 410)
            check_problem(client.get(f"/api/images/{kept}/explain/{image_id}"), 410)
            assert client.get(f"/api/images/{image_id}/search").status_code == 200  # its descriptor is still there


def test_the_same_content_twice_is_the_same_picture(running, tmp_path, token_bundle, picture):
    writer = {"Authorization": "Bearer w"}
    settings = Settings(tmp_path / "g.tessera", writer_key="w", threads=1, timeout_s=280)
    with Gallery(settings.gallery_path, model=str(token_bundle), threads=1):
        pass
    with running(settings) as address, httpx.Client(base_url=address, timeout=280, headers=writer) as client:
        content = picture()["file"][1]
        first, second = (
            client.post("/api/images", files={"file": (name, content)}).json() for name in ("one.jpg", "two.jpg")
        )
        assert second == first
        assert first["name"] == "one.jpg"
        long = client.post(
            "/api/images", files={"file": (f"../../{'塔' * 300}.jpg", picture("scene04.jpg")["file"][1])}
        )
        assert long.status_code == 201
        assert long.json()["name"].endswith("塔.jpg")
        assert client.delete(f"/api/images/{long.json()['id']}").status_code == 204
        assert client.get("/api/stats").json()["images"] == 1
        assert client.delete(f"/api/images/{first['id']}").status_code == 204
        assert list((settings.gallery_path / "uploads").iterdir()) == []
        with writer_lock(settings.gallery_path):
            assert client.post("/api/images", files={"file": ("one.jpg", content)}).status_code == 503
        assert list((settings.gallery_path / "uploads").iterdir()) == []  # nothing is left that nobody knows of
        shutil.rmtree(settings.gallery_path)
        assert client.post("/api/images", files={"file": ("one.jpg", content)}).status_code == 409
        assert not settings.gallery_path.exists()  # what was written there would be lost


def test_another_model_and_a_gallery_made_anew_are_followed(
    running, eventually, tmp_path, token_bundle, small_bundle, scenes_dir, picture
):
    path = tmp_path / "g.tessera"
    with Gallery(path, model=str(token_bundle), threads=1) as gallery:
        gallery.index(scenes_dir / "scene00.jpg", scenes_dir / "scene01.jpg")
    with (
        running(Settings(path, threads=1, timeout_s=280)) as address,
        httpx.Client(base_url=address, timeout=280) as client,
    ):

        def method():
            first = client.get("/api/images").json()["images"][0]["id"]  # pictures described anew have new ids
            answer = client.post(f"/api/explain/{first}", files=picture("scene01.jpg"))
            return answer.json()["query"]["method"] if answer.status_code == 200 else None

        assert method() == "tokens"
        with Gallery(path, model=str(small_bundle), threads=1) as other:
            other.index(rebuild=True)
        eventually(lambda: method() == "occlusion")
        found = client.post("/api/search", files=picture("scene01.jpg")).json()["results"]
        assert found[0]["name"] == "scene01.jpg"
        shutil.rmtree(path)
        with Gallery(path, model=str(token_bundle), threads=1) as other:
            other.index(scenes_dir / "scene05.jpg")
        eventually(lambda: client.get("/api/stats").json()["images"] == 1)
        eventually(lambda: method() == "tokens")


def test_searches_made_as_one_answer_as_each_by_itself(eventually, served_gallery):
    service = GalleryService(Settings(served_gallery, threads=1))
    service.start()
    try:
        eventually(lambda: service.is_ready)
        for where in ((), ("place=tower",)):
            alone = [service.search(image_id, k=5, by="global", where=list(where))["results"] for image_id in (3, 1, 3)]
            together = service.search_ids([3, 1, 3], k=5, where=where)
            assert [answer["results"] for answer in together] == alone
            assert together[0]["timing_ms"]["total"] > 0
        known, unknown = service.search_ids([2, 999_999], k=5, where=())
        assert known["results"] == service.search(2, k=5, by="global")["results"]
        assert unknown.status == 404
        assert [str(error) for error in service.search_ids([1, 2], k=5, where=("place",))] == [
            str(service.search_ids([1], k=5, where=("place",))[0])
        ] * 2
    finally:
        service.stop()


def test_reranking_ends_with_its_time(eventually, served_gallery, scenes_dir):
    pytest.importorskip("cv2")
    service = GalleryService(Settings(served_gallery, threads=1))
    service.start()
    try:
        eventually(lambda: service.is_ready)
        content = (scenes_dir / "scene03.jpg").read_bytes()
        plain = service.search(content, k=12, by="global")
        full = service.search(content, k=12, rerank="sp", rerank_until=time.monotonic() + 3600)
        assert None not in {hit["inliers"] for hit in full["results"]}
        assert "best hits" not in full["note"]
        late = service.search(content, k=12, rerank="sp", rerank_until=time.monotonic())
        assert [hit["id"] for hit in late["results"]] == [hit["id"] for hit in plain["results"]]
        assert {hit["inliers"] for hit in late["results"]} == {None}
        assert "compare 0 of the 12 best hits" in late["note"]
    finally:
        service.stop()


def test_reranking_stops_in_the_middle(served_gallery, scenes_dir, monkeypatch):
    pytest.importorskip("cv2")
    ticks = itertools.count()
    monkeypatch.setattr(
        "tessera.gallery.search.local_feature_index.time", SimpleNamespace(monotonic=lambda: next(ticks))
    )
    monkeypatch.setattr("tessera.gallery.search.local_feature_index.default_threads", lambda: 2)
    with Gallery(served_gallery, threads=1) as gallery:
        found = gallery.search(scenes_dir / "scene03.jpg", 12, rerank="sp", rerank_timeout_s=3.5)
    assert "compare 6 of the 12 best hits" in " ".join(found.notes)
    assert sum(hit.inliers is None for hit in found) == 6


def test_a_gallery_that_cannot_be_searched_now_is_a_problem(running, served_gallery, monkeypatch, check_problem):
    settings = Settings(served_gallery, threads=1, timeout_s=280)
    with running(settings) as address, httpx.Client(base_url=address, timeout=280) as client:

        def fail(*_, **__):
            raise IndexingError("The index file /g is damaged.")

        monkeypatch.setattr(Gallery, "search", fail)
        late = client.get("/api/images/1/search")
        check_problem(late, 503)
        assert late.headers["retry-after"]


def test_the_api_says_what_may_follow_a_search(client):
    answer = client.get("/api/refiners").json()["refiners"]
    assert [entry["name"] for entry in answer] == [*EXPANSIONS, *RERANKERS]
    assert all(entry["available"] for entry in answer if not entry["install"])
    options = client.get("/openapi.json").json()["components"]["schemas"]["SearchForm"]["properties"]
    assert options["rerank"]["anyOf"][0]["enum"] == [*RERANKERS]
    assert options["expand"]["anyOf"][0]["enum"] == [*EXPANSIONS]


def test_the_service_is_ready_when_its_index_is_loaded_and_says_what_it_does(served_gallery, eventually, monkeypatch):
    service = GalleryService(Settings(served_gallery, threads=1))
    said, closed = [], []
    refresh, close = Gallery.refresh, Gallery.close

    def refresh_badly_at_first(gallery):
        if threading.current_thread() is service._thread:  # other services of these tests have galleries too
            said.append((service.is_ready, service.loading_note))
            if len(said) == 1:
                raise ModelError("The first try fails.")
        refresh(gallery)

    def note_closing(gallery):
        if threading.current_thread() is service._thread:
            closed.append(gallery)
        close(gallery)

    monkeypatch.setattr(Gallery, "refresh", refresh_badly_at_first)
    monkeypatch.setattr(Gallery, "close", note_closing)
    monkeypatch.setattr(service_module, "POLL_S", 0.05)
    service.start()
    try:
        eventually(lambda: service.is_ready)
        assert said[0] == (False, "The index of 12 pictures is being loaded; it is made first where there is none.")
        assert said[1] == (False, "The gallery cannot be opened. The service's log says why.")
        assert len(closed) == 1  # what could not be opened whole is not left open
    finally:
        service.stop()


@pytest.mark.parametrize("name", ["x.csv", "x.TXT", "x.tsv", ".txt", "x"])
def test_an_upload_is_one_picture_whatever_its_name_says(running, tmp_path, token_bundle, scenes_dir, picture, name):
    settings = Settings(tmp_path / "g.tessera", writer_key="w", threads=1, timeout_s=280)
    with Gallery(settings.gallery_path, model=str(token_bundle), threads=1):
        pass
    secret = scenes_dir / "scene05.jpg"
    listing = picture()["file"][1] + f"\npath\n{secret}\n".encode()
    writer = {"Authorization": "Bearer w"}
    with running(settings) as address, httpx.Client(base_url=address, timeout=280, headers=writer) as client:
        added = client.post("/api/images", files={"file": (name, listing)})
        assert added.status_code == 201
        assert added.json()["name"].endswith(".jpg")
        assert [image["name"] for image in client.get("/api/images").json()["images"]] == [added.json()["name"]]


def test_two_services_keep_the_picture_that_both_are_given(tmp_path, token_bundle, picture, eventually):
    """Whoever is refused because the other writes must not take away the file that the other has just kept."""
    settings = Settings(tmp_path / "g.tessera", writer_key="w", threads=1)
    with Gallery(settings.gallery_path, model=str(token_bundle), threads=1):
        pass
    services = [GalleryService(settings) for _ in range(2)]
    for service in services:
        service.start()
    try:
        for service in services:
            eventually(lambda service=service: service.is_ready)
        name, content, _ = picture()["file"]
        for turn in range(25):
            upload = content + str(turn).encode()
            barrier, answers = threading.Barrier(2), []

            def send(service, upload=upload, barrier=barrier, answers=answers):
                barrier.wait()
                try:
                    answers.append(service.add(name, upload, {}))
                except GalleryLockedError:
                    answers.append(None)

            threads = [threading.Thread(target=send, args=[service]) for service in services]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            accepted = [answer for answer in answers if answer is not None]
            assert accepted
            for answer in accepted:
                assert services[0].thumbnail(answer["id"])[0]
                assert Path(services[0].record(answer["id"]).path).read_bytes() == upload
    finally:
        for service in services:
            service.stop()
