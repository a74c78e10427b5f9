"""What photographs say of themselves, and the nonsense that some of them say."""

from __future__ import annotations

import io
from typing import Any

import pytest
from PIL import Image

from tessera.data.photos.photo_metadata import parse_date, read_metadata

XMP = """<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
<rdf:Description xmlns:exif="http://ns.adobe.com/exif/1.0/" xmlns:tiff="http://ns.adobe.com/tiff/1.0/"
 xmlns:xmp="http://ns.adobe.com/xap/1.0/" exif:GPSLatitude="41,53.4N" exif:GPSLongitude="12,29,32W" xmp:Rating="4">
<exif:DateTimeOriginal>2018-01-02T03:04:05+02:00</exif:DateTimeOriginal><tiff:Model>Pixel 3</tiff:Model>
</rdf:Description></rdf:RDF></x:xmpmeta>"""


def jpeg(*, xmp: bytes | None = None, exif: bytes | None = None, **tags: Any) -> bytes:
    """A JPEG with EXIF: date, make, model, lens, latitude and longitude (with refs), as a camera would write them."""
    block = Image.Exif()
    if "make" in tags:
        block[0x010F] = tags["make"]
    if "model" in tags:
        block[0x0110] = tags["model"]
    inner = {0x9003: tags.get("date"), 0xA434: tags.get("lens")}
    if any(inner.values()):
        block.get_ifd(0x8769).update({tag: value for tag, value in inner.items() if value})
    if "latitude" in tags:
        block.get_ifd(0x8825).update(
            {1: tags.get("south", "N"), 2: tags["latitude"], 3: tags.get("west", "E"), 4: tags["longitude"]}
        )
    file = io.BytesIO()
    options: dict[str, Any] = {} if xmp is None else {"xmp": xmp}
    Image.new("RGB", (8, 8)).save(file, "JPEG", exif=block.tobytes() if exif is None else exif, **options)
    return file.getvalue()


def test_a_camera_is_understood() -> None:
    content = jpeg(
        date="2019:06:14 12:03:11",
        make="Canon",
        model="Canon EOS 5D",
        lens="EF24-105mm",
        latitude=(41.0, 53.0, 24.72),
        longitude=(12.0, 29.0, 31.92),
        west="W",
    )
    assert read_metadata(content) == (
        {
            "date": "2019-06-14T12:03:11",
            "camera": "Canon EOS 5D",
            "lens": "EF24-105mm",
            "latitude": 41.8902,
            "longitude": -12.4922,
        },
        [],
    )


def test_a_maker_is_named_once() -> None:
    assert read_metadata(jpeg(make="NIKON CORPORATION", model="NIKON D90"))[0] == {"camera": "NIKON D90"}
    assert read_metadata(jpeg(make="Apple", model="iPhone 6"))[0] == {"camera": "Apple iPhone 6"}


def test_a_picture_that_says_nothing() -> None:
    assert read_metadata(jpeg()) == ({}, [])
    assert read_metadata(b"no picture") == ({}, [])


def test_a_sidecar_goes_before_exif_and_exif_before_xmp_inside() -> None:
    content = jpeg(date="2019:06:14 12:03:11", xmp=XMP.encode())
    assert read_metadata(content)[0] == {
        "date": "2019-06-14T12:03:11",
        "camera": "Pixel 3",
        "rating": 4,
        "latitude": 41.89,
        "longitude": -12.492222,
    }
    assert read_metadata(content, XMP.encode())[0]["date"] == "2018-01-02T03:04:05"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (jpeg(date="0000:00:00 00:00:00"), "its date '0000:00:00 00:00:00' is no date"),
        (jpeg(date="2019:13:41 12:00:00"), "is no date"),
        (jpeg(date="yesterday"), "its date 'yesterday' is no date"),
        (jpeg(latitude=(141.0, 0.0, 0.0), longitude=(12.0, 0.0, 0.0)), "outside the globe"),
        (jpeg(latitude=(41.0, 0.0, 0.0), longitude=(212.0, 0.0, 0.0)), "outside the globe"),
        (jpeg(exif=b"Exif\0\0MM\0*\0\0\0\x08\xff\xff" + b"\xee" * 60), ""),
        (jpeg(exif=b"Exif\0\0garbage"), ""),
    ],
)
def test_nonsense_is_left_out_with_a_sentence(content: bytes, sentence: str) -> None:
    metadata, problems = read_metadata(content)
    assert metadata == {}
    assert sentence in " ".join(problems)


@pytest.mark.parametrize(
    "packet",
    [b"", b"<x", b"\xff\xfe<", b'<!DOCTYPE x [<!ENTITY a "b">]><x>&a;</x>', b"<x>" + b" " * (1 << 20) + b"</x>"],
)
def test_xmp_that_is_none_is_left_out_with_a_sentence(packet: bytes) -> None:
    metadata, problems = read_metadata(jpeg(model="Pixel 3"), packet)
    assert metadata == {"camera": "Pixel 3"}
    assert len(problems) == 1
    assert "XMP" in problems[0]


@pytest.mark.parametrize(
    ("text", "date"),
    [
        ("2019:06:14 12:03:11", "2019-06-14T12:03:11"),
        ("2019-06-14", "2019-06-14"),
        ("2019-06-14T12:03Z", "2019-06-14T12:03:00"),
        ("2020:02:29 00:00:00", "2020-02-29T00:00:00"),
        ("2019:02:29 00:00:00", None),
        ("0000:01:01 00:00:00", None),
        ("    :  :     :  :  ", None),
        ("", None),
    ],
)
def test_dates(text: str, date: str | None) -> None:
    assert parse_date(text) == date


def test_text_is_cut_and_shows_no_control_characters() -> None:
    camera = read_metadata(jpeg(model="a\x1b[31mb" + "c" * 500))[0]["camera"]
    assert camera.startswith("a\\x1b[31mb")
    assert len(camera) == 200
