"""What strangers write: parsers either understand it or raise a TesseraError, whatever it is.

`TESSERA_FUZZ_EXAMPLES=20000 pytest tests/faults/test_parsers.py` tries longer than the default two hundred a parser.
"""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tessera.data.boxes import clip_box, parse_box
from tessera.data.ground_truth import read_ground_truth
from tessera.data.images import Limits, read_photo
from tessera.data.photos.photo_metadata import read_metadata
from tessera.errors import TesseraError
from tessera.gallery.catalog.filters import number, parse_where, to_sql
from tessera.gallery.catalog.metadata import encode_metadata
from tessera.gallery.ingest.source_lists import read_list
from tessera.models.bundle import Bundle

EXAMPLES = int(os.environ.get("TESSERA_FUZZ_EXAMPLES", "200"))
fuzz = settings(
    max_examples=EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
LIMITS = Limits(max_pixels=1_000_000, max_bytes=1 << 20)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@pytest.fixture(scope="module")
def pictures() -> list[bytes]:
    import io

    from PIL import Image

    found = []
    for form, options in (("JPEG", {}), ("JPEG", {"progressive": True}), ("PNG", {}), ("GIF", {}), ("TIFF", {}),
                          ("WEBP", {}), ("BMP", {})):  # fmt: skip
        buffer = io.BytesIO()
        Image.effect_noise((40, 30), 50).convert("RGB").save(buffer, form, **options)
        found.append(buffer.getvalue())
    return found


@fuzz
@given(st.data())
def test_pictures(pictures: list[bytes], data: st.DataObject) -> None:
    content = bytearray(data.draw(st.sampled_from(pictures)))
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
    try:
        photo = read_photo(bytes(content), size=32, limits=LIMITS)
    except TesseraError:
        return
    assert photo.pixels.ndim == 3
    assert max(photo.pixels.shape[:2]) <= 32


@pytest.fixture(scope="module")
def described() -> list[bytes]:
    """Pictures that say when, where and by what they were taken, in EXIF and in XMP."""
    import io

    from PIL import Image

    exif = Image.Exif()
    exif[0x010F], exif[0x0110], exif[0x0132] = "Maker", "Camera 3", "2019:06:14 12:03:11"
    exif.get_ifd(0x8825).update({1: "N", 2: (41.0, 53.0, 24.0), 3: "E", 4: (12.0, 29.0, 32.0)})
    xmp = b"<x:xmpmeta xmlns:x='adobe:ns:meta/' xmlns:a='a'><a:b a:Rating='3' a:GPSLatitude='41,53.4N'/></x:xmpmeta>"
    found = []
    for form in ("JPEG", "PNG", "WEBP", "TIFF"):
        buffer = io.BytesIO()
        Image.new("RGB", (8, 8)).save(buffer, form, exif=exif, **({} if form == "PNG" else {"xmp": xmp}))
        found.append(buffer.getvalue())
    return found


@pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow's, of EXIF that is not as it should be
@fuzz
@given(st.data())
def test_what_photos_say_of_themselves(described: list[bytes], data: st.DataObject) -> None:
    content = bytearray(data.draw(st.sampled_from(described)))
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
    sidecar = data.draw(
        st.none() | st.binary(max_size=60) | st.text("<>&;:='/ aRating193-NSEW,.", max_size=60).map(str.encode)
    )
    facts, problems = read_metadata(bytes(content), sidecar)
    assert len(encode_metadata(facts)) < 2000
    assert all(isinstance(problem, str) for problem in problems)
    assert abs(facts.get("latitude", 0)) <= 90
    for value in facts.values():
        number(value)


@fuzz
@given(st.binary(max_size=300), st.sampled_from([".csv", ".tsv", ".txt"]))
def test_lists(tmp_path: Path, content: bytes, suffix: str) -> None:
    path = tmp_path / f"list{suffix}"
    path.write_bytes(b"path,label\n" * (len(content) % 2) + content)
    try:
        found = list(read_list(os.fsencode(path), lambda _, reason: None))
    except TesseraError:
        return
    for name, metadata in found:
        assert b"\0" not in name
        assert metadata is None or isinstance(json.loads(metadata), dict)


@fuzz
@given(
    st.text(max_size=40)
    | st.tuples(st.text(max_size=6), st.sampled_from(["=", "!=", ">=", "<", ">"]), st.text(max_size=9)).map("".join)
)
def test_filters(text: str) -> None:
    try:
        clause, parameters = to_sql(parse_where(text))
    except TesseraError:
        return
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.create_function("tessera_number", 1, number, deterministic=True)
        connection.execute(
            "CREATE TABLE images (metadata TEXT, facts TEXT, path BLOB, size INTEGER, content_id INTEGER)"
        )
        connection.execute("""INSERT INTO images (metadata) VALUES ('{"a":1,"b":"x","c":null,"d":[1],"e":true}')""")
        with suppress(UnicodeEncodeError):  # a text with half a character, which no request can carry
            connection.execute(f"SELECT count(*) FROM images WHERE {clause}", parameters).fetchone()


@fuzz
@given(st.text(max_size=30) | st.lists(st.floats(), min_size=4, max_size=4).map(lambda box: ",".join(map(str, box))))
def test_boxes(text: str) -> None:
    try:
        x0, y0, x1, y1 = clip_box(parse_box(text), 60, 40)
    except TesseraError:
        return
    assert 0 <= x0 < x1 <= 60
    assert 0 <= y0 < y1 <= 40


@fuzz
@given(JSON)
def test_ground_truths(tmp_path: Path, content: object) -> None:
    (tmp_path / "gnd.json").write_text(json.dumps({"gnd": content, "imlist": ["a", "b"]}))
    with suppress(TesseraError):
        read_ground_truth(tmp_path / "gnd.json")


@fuzz
@given(st.binary(max_size=60))
def test_pickled_ground_truths(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "gnd.pkl").write_bytes(b"\x80\x04" + content)
    with suppress(TesseraError):
        read_ground_truth(tmp_path / "gnd.pkl")


@fuzz
@given(JSON, st.sampled_from(["name", "kind", "architecture", "dim", "stride", "preprocessing", "figures", "other"]))
def test_cards(tmp_path: Path, value: object, key: str) -> None:
    card = {"name": "x", "kind": "global", "architecture": {"model": "gem"}, "dim": 8, "fingerprint": "0" * 16}
    (tmp_path / "model.json").write_text(json.dumps(card | {key: value}))
    with pytest.raises(TesseraError):  # its files are not there, whatever it says
        Bundle.open(tmp_path)


@fuzz
@given(JSON, st.text(max_size=20))
def test_recipes(tmp_path: Path, value: object, text: str) -> None:
    pytest.importorskip("torch")
    from tessera.train.recipe import load_recipe

    (tmp_path / "recipe.toml").write_text(
        f"name = {json.dumps(text)}\n[network]\nmodel = {json.dumps(value)}\n", "utf-8"
    )
    with suppress(TesseraError):
        load_recipe(tmp_path / "recipe.toml", [text])
