"""What a photograph says of itself: date, camera, lens and place, from EXIF, embedded XMP or a sidecar, typed.

EXIF is written by anybody's software. A field that cannot be right is left out with a sentence; the picture and its
other fields stay.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from PIL import Image

from tessera.data.photos.decoding import DEFAULT_LIMITS, open_image
from tessera.data.photos.xmp import read_xmp
from tessera.errors import ImageError, printable

Metadata: TypeAlias = dict[str, Any]
Complain: TypeAlias = Callable[[str], None]

_EXIF_IFD, _GPS_IFD = 0x8769, 0x8825
_MAKE, _MODEL, _DATE_TIME = 0x010F, 0x0110, 0x0132
_DATE_TAKEN, _DATE_DIGITIZED, _LENS = 0x9003, 0x9004, 0xA434
_LATITUDE_REF, _LATITUDE, _LONGITUDE_REF, _LONGITUDE = 1, 2, 3, 4
_DATE = re.compile(r"(\d{4})[:\-](\d\d)[:\-](\d\d)(?:[T ](\d\d):(\d\d)(?::(\d\d))?)?")
_LONGEST_TEXT = 200
_MOST_STARS = 100  # XMP has five, and -1 for what was rejected; some programs write percent


def read_metadata(source: bytes | str, sidecar: bytes | None = None) -> tuple[Metadata, list[str]]:
    """date (ISO 8601), camera, lens, latitude, longitude and rating, as far as they are known, and what was wrong.

    source: the content of a picture or its path. A sidecar was written later than the file, so it wins; EXIF wins over
    XMP inside the picture, which software copies from picture to picture.
    """
    problems: list[str] = []
    layers = [_embedded(source, problems.append)]
    if sidecar is not None:
        layers.append(_checked(read_xmp(sidecar, problems.append), problems.append))
    return {key: value for layer in layers for key, value in layer.items()}, problems


def _embedded(source: bytes | str, complain: Complain) -> Metadata:
    try:
        opened = open_image(source, DEFAULT_LIMITS)
    except ImageError:
        return {}  # the decoder says why
    try:
        found: Metadata = {}
        packet = opened.image.info.get("xmp")
        if isinstance(packet, bytes | str):
            found = _checked(read_xmp(packet.encode() if isinstance(packet, str) else packet, complain), complain)
        return {**found, **_checked(_from_exif(opened.image, complain), complain)}
    finally:
        opened.close()


def _from_exif(image: Image.Image, complain: Complain) -> Metadata:
    try:
        exif = image.getexif()
        taken, place = dict(exif.get_ifd(_EXIF_IFD)), dict(exif.get_ifd(_GPS_IFD))
        tags: dict[int, Any] = {**exif, **taken}
    except Exception as error:  # struct.error, KeyError and what else a parser meets in garbage
        complain(f"its EXIF cannot be read ({type(error).__name__}) and was left out")
        return {}
    dates = [tags[tag] for tag in (_DATE_TAKEN, _DATE_DIGITIZED, _DATE_TIME) if tags.get(tag)]
    return {
        "date": dates[0] if dates else None,
        "make": tags.get(_MAKE),
        "camera": tags.get(_MODEL),
        "lens": tags.get(_LENS),
        **_place(place, complain),
    }


def _place(gps: Mapping[int, Any], complain: Complain) -> Metadata:
    if not {_LATITUDE, _LONGITUDE} <= gps.keys():
        return {}
    try:
        south, west = str(gps.get(_LATITUDE_REF, "N")), str(gps.get(_LONGITUDE_REF, "E"))
        latitude, longitude = (
            sum(float(part) / 60**power for power, part in enumerate(gps[tag])) for tag in (_LATITUDE, _LONGITUDE)
        )
    except (TypeError, ValueError, ArithmeticError):
        complain("its GPS position is no position and was left out")
        return {}
    return {
        "latitude": -latitude if south.upper().startswith("S") else latitude,
        "longitude": -longitude if west.upper().startswith("W") else longitude,
    }


def _checked(raw: Mapping[str, Any], complain: Complain) -> Metadata:
    """The fields that can be right, typed; raw values are of EXIF or XMP."""
    found: Metadata = {}
    if raw.get("date"):
        date = parse_date(_text(raw["date"]))
        if date is None:
            complain(f"its date '{_text(raw['date'])}' is no date and was left out")
        else:
            found["date"] = date
    make, model, lens = (_text(raw.get(key)) for key in ("make", "camera", "lens"))
    if make or model:
        found["camera"] = model if model.lower().startswith(make.lower().split(" ")[0]) else f"{make} {model}".strip()
    if lens:
        found["lens"] = lens
    if isinstance(raw.get("rating"), int) and abs(raw["rating"]) <= _MOST_STARS:
        found["rating"] = raw["rating"]
    latitude, longitude = raw.get("latitude"), raw.get("longitude")
    if latitude is not None and longitude is not None:
        if abs(latitude) <= 90 and abs(longitude) <= 180:  # false for NaN, too
            found["latitude"], found["longitude"] = round(latitude, 6), round(longitude, 6)
        else:
            complain(f"its GPS position {latitude:.6g}, {longitude:.6g} is outside the globe and was left out")
    return found


def parse_date(text: str) -> str | None:
    """A date of EXIF (`2019:06:14 12:03:11`) or ISO 8601 as ISO 8601 without its zone; None for one that never was."""
    match = _DATE.match(text.strip())
    if match is None:
        return None
    try:
        day = datetime.datetime(*(int(part) for part in match.groups(default="0")))  # type: ignore[arg-type]  # six
    except ValueError:
        return None
    return day.isoformat() if match[4] else day.date().isoformat()


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if not isinstance(value, str):
        return ""
    return printable(value.split("\0")[0].strip())[:_LONGEST_TEXT]
