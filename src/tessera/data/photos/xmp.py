"""XMP: the metadata that photo software writes beside a picture (`a.xmp`, `a.jpg.xmp`) or into it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any
from xml.etree import ElementTree

MAX_BYTES = 1 << 20
# What we look for, in order of preference, by local name: the namespaces are Adobe's, but programs disagree on them.
_DATES = ("DateTimeOriginal", "DateCreated", "CreateDate")
_LENSES = ("LensModel", "Lens")
_POSITION = re.compile(r"(\d+),(\d+(?:\.\d+)?)(?:,(\d+(?:\.\d+)?))?([NSEW])")


def read_xmp(packet: bytes, complain: Callable[[str], None]) -> dict[str, Any]:
    """The raw fields date, make, camera, lens, rating, latitude and longitude, as far as they are there."""
    if len(packet) > MAX_BYTES or b"<!DOCTYPE" in packet or b"<!ENTITY" in packet:
        complain("its XMP is larger than a megabyte or declares entities, and was left out")
        return {}
    try:
        root = ElementTree.fromstring(packet.strip(b"\0 \r\n\t"))
    except (ElementTree.ParseError, ValueError, LookupError):
        complain("its XMP is no XML and was left out")
        return {}
    fields = dict(reversed(list(_fields(root))))  # the first of a name counts
    found: dict[str, Any] = {
        "date": next((fields[name] for name in _DATES if name in fields), None),
        "lens": next((fields[name] for name in _LENSES if name in fields), None),
        "make": fields.get("Make"),
        "camera": fields.get("Model"),
        "latitude": _degrees(fields.get("GPSLatitude", "")),
        "longitude": _degrees(fields.get("GPSLongitude", "")),
    }
    with contextlib.suppress(KeyError, ValueError):
        found["rating"] = int(fields["Rating"])
    return {key: value for key, value in found.items() if value is not None}


def _fields(root: ElementTree.Element) -> Iterator[tuple[str, str]]:
    """Names without namespaces and their texts: XMP writes a field as an attribute or as an element, as it likes."""
    for element in root.iter():
        for name, value in element.attrib.items():
            yield name.rpartition("}")[2], value
        if element.text and element.text.strip():
            yield element.tag.rpartition("}")[2], element.text.strip()


def _degrees(text: str) -> float | None:
    """`41,53.4N` or `41,53,24N`, as XMP writes an angle."""
    match = _POSITION.fullmatch(text.strip())
    if match is None:
        return None
    degrees = int(match[1]) + float(match[2]) / 60 + float(match[3] or 0) / 3600
    return -degrees if match[4] in "SW" else degrees
