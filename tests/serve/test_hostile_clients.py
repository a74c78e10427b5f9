"""What a reader, a writer or whoever may put files into a served folder could try, and does not get."""

from __future__ import annotations

import csv
import io
import logging
import os
import re
import zipfile
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image

from tessera.gallery.gallery import Gallery
from tessera.serve.app import create_app
from tessera.serve.settings import Settings

READER, WRITER = {"Authorization": "Bearer reader"}, {"Authorization": "Bearer writer"}
FORMULA = '=HYPERLINK("http://evil.example")'
NAMES = [
    "=cmd.png",
    "@SUM(1).png",
    "-1+1.png",
    "-5.png",
    "a\\..\\..\\evil.png",
    "a\nb.png",
    "CON.png",
    "\u202egnp.exe.png",
]
# What answers to a POST and changes nothing.
READ_ONLY_POSTS = {"/api/search", "/api/explain/{image_id}", "/api/archive", "/api/list", "/api/session"}


def draw(path: Path, seed: int) -> bytes:
    Image.fromarray(np.random.default_rng(seed).integers(0, 255, (48, 64, 3), np.uint8)).save(path)
    return path.read_bytes()


@pytest.fixture(scope="module")
def settings(tmp_path_factory, token_bundle) -> Settings:
    """A gallery of files with names that mean harm, and one that could not be read."""
    root = tmp_path_factory.mktemp("hostile")
    (root / "photos").mkdir()
    for seed, name in enumerate(NAMES):
        draw(root / "photos" / name, seed)
    (root / "photos" / "broken.png").write_bytes(b"no picture")
    with Gallery(root / "g.tessera", model=str(token_bundle), threads=1) as gallery:
        report = gallery.index(root / "photos", metadata={"note": FORMULA, "offset": "-5", "quoted": "'=1"})
        assert (report.added, report.failed) == (len(NAMES), 1)
    return Settings(root / "g.tessera", key="reader", writer_key="writer", threads=1, timeout_s=280)


@pytest.fixture(scope="module")
def client(running, settings):
    with (
        running(settings) as address,
        httpx.Client(base_url=address, timeout=280, headers=READER) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def ids(client) -> dict[str, int]:
    return {image["name"]: image["id"] for image in client.get("/api/images").json()["images"]}


def test_no_cell_of_a_list_is_a_formula_and_the_list_says_the_same_again(client, ids, settings, tmp_path, token_bundle):
    text = client.post("/api/list", data={"ids": ",".join(map(str, ids.values()))}).text
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == len(NAMES)
    for row in rows:
        for cell in row.values():
            assert not re.match(r"[=@\t\r]|[+-](?!\d+$)", cell), cell
    assert {row["note"] for row in rows} == {f"'{FORMULA}"}
    assert {row["offset"] for row in rows} == {"-5"}
    listed = tmp_path / "list.csv"
    lines = [f"{settings.gallery_path.parent}/photos/-5.png,'{FORMULA.replace(chr(34), '')},-5,''=1"]
    listed.write_text("\n".join(["path,note,offset,quoted", *lines]))
    with Gallery(tmp_path / "again", model=str(token_bundle), threads=1) as gallery:
        gallery.index(listed)
        (record,) = gallery.images()
    assert record.metadata == {"note": FORMULA.replace('"', ""), "offset": "-5", "quoted": "'=1"}


def test_names_in_a_zip_are_names_everywhere(client, ids):
    answer = client.post("/api/archive", data={"ids": ",".join(map(str, ids.values()))})
    with zipfile.ZipFile(io.BytesIO(answer.content)) as packed:
        names = packed.namelist()
    assert len(set(names)) == len(NAMES)
    for name in names:
        assert name.isprintable() and not set(name) & set('/\\:*?"<>|')
        assert name.partition(".")[0].upper() != "CON" and not name.startswith(".")
    assert "a_.._.._evil.png" in names
    answer = client.get(f"/api/images/{ids['a' + chr(10) + 'b.png']}/original")
    assert answer.headers["content-disposition"].endswith("a_b.png")


@pytest.mark.parametrize("text", ["\U0001f600" * 1000, "é" * 1000], ids=["emoji", "accents"])
def test_what_no_code_can_say_is_a_sentence_and_holds_up_nobody(client, text, check_problem):
    answer = client.get("/api/code", params={"text": text})
    if answer.status_code != 200:
        assert "QR code" in check_problem(answer, 422)


def test_no_id_is_a_fault(client, check_problem, settings):
    with Gallery(settings.gallery_path, create=False) as gallery:
        (failed,) = (record.id for record in gallery.failures())
    for given in ([failed, failed], [failed], [2**63 - 1], [999_999]):
        check_problem(client.post("/api/duplicates/apart", json={"ids": given}, headers=WRITER), 422)
    for given in ({"ids": [2**63]}, {"ids": []}, [], None, {"ids": {"a": 1}}):
        check_problem(client.post("/api/duplicates/apart", json=given, headers=WRITER), 422)
    check_problem(client.post(f"/api/images/{failed}/leave-group", headers=WRITER), 404)
    for path in ("original", "thumbnail", "file", "search", "explain/2"):
        check_problem(client.get(f"/api/images/{failed}/{path}"), 404)
    for text in ("1" * 5000, "9" * 19, ",", "-1", "\u0661", "1;2"):
        for route in ("archive", "list"):
            check_problem(client.post(f"/api/{route}", data={"ids": text}), 422)
    deep = {"Content-Type": "application/json", **WRITER}
    for route in ("/api/duplicates/apart", "/api/session"):
        check_problem(client.post(route, content=b"[" * 200_000, headers=deep), 400)


@pytest.mark.parametrize(
    "path",
    ["/..%2f..%2fetc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "//etc/passwd", "/page/../service.py", "/app.js%00",
     "/api/images/1/../../../etc/passwd", "/api/images/1%2f..%2fstats", "/api/images/0x1", "/api/images/1e0"],
)  # fmt: skip
def test_no_address_is_a_path(client, path):
    assert client.get(path).status_code in (404, 422)


@pytest.mark.parametrize(
    "where",
    ["near=nan,nan,1km", "near=1,1,1e999km", "near=1,1,-5km", "x>=nan", "name~" + "%" * 400, "name~\x00", "\x00=1",
     "a'\"--=1", "$.a[*]=1", "width=" + "9" * 400, "bytes>=" + "9" * 30, "folder=" + "../" * 100],
    ids=range(12),
)  # fmt: skip
def test_no_filter_is_a_fault(client, ids, where):
    for path in ("/api/images", "/api/months", f"/api/images/{next(iter(ids.values()))}/search"):
        assert client.get(path, params={"where": where, "by": "global"}).status_code in (200, 422)


def test_only_the_writers_key_changes_anything(client, ids, settings):
    """Every route of the application that is no GET, so that a new one is asked about, too."""
    changing = {
        (method, path)
        for path, methods in create_app(settings).openapi()["paths"].items()
        for method in methods
        if method != "get" and path not in READ_ONLY_POSTS
    }
    assert ("post", "/api/images") in changing and ("delete", "/api/images/{image_id}") in changing
    before = client.get("/api/stats").json()["generation"]
    for method, path in changing:
        answer = client.request(method, path.replace("{image_id}", str(next(iter(ids.values())))), headers=READER)
        assert answer.status_code in (401, 403), (method, path, answer.text)
    assert client.get("/api/stats").json()["generation"] == before


def test_what_takes_the_place_of_a_picture_is_not_given(client, ids, settings, tmp_path, check_problem):
    """A pipe would be read for ever; a link or another file could be anything that the service may read."""
    photos = settings.gallery_path.parent / "photos"
    draw(tmp_path / "private.png", 99)
    inside, own = photos / "-5.png", (photos / "-5.png").read_bytes()
    kinds = ("original", "thumbnail", "file", "explain/" + str(ids["-1+1.png"]))
    for replace in (os.mkfifo, lambda path: path.symlink_to(tmp_path / "private.png"), lambda path: draw(path, 98)):
        inside.unlink()
        replace(inside)
        for kind in kinds:
            check_problem(client.get(f"/api/images/{ids['-5.png']}/{kind}"), 410)  # or the client gives up
    inside.unlink()
    inside.write_bytes(own)
    assert client.get(f"/api/images/{ids['-5.png']}/thumbnail").status_code == 200


class Kept(logging.Handler):
    """Every record, whatever other tests have made of the loggers above."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(f"{record.getMessage()} {vars(record)}")


def test_no_key_is_written_to_the_log(client, picture, monkeypatch):
    kept = Kept()
    for name in ("tessera.serve", "tessera.serve.access"):
        monkeypatch.setattr(logging.getLogger(name), "level", logging.DEBUG)
        monkeypatch.setattr(logging.getLogger(name), "handlers", [kept])
        logging.getLogger(name).manager._clear_cache()
    client.post("/api/session", json={"key": "writer"})
    client.post("/api/session", json={"key": "not-the-secret"})
    client.get("/api/stats?key=not-the-secret", headers={"Authorization": "Bearer not-the-secret"})
    client.post("/api/images", files=picture(), headers={"Authorization": "Bearer not-the-secret"})
    said = "\n".join(kept.said)
    assert "/api/session" in said
    assert "not-the-secret" not in said and "Bearer" not in said
