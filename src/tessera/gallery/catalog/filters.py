"""Conditions on metadata: `label=tower`, `year>=1990`, `date>=2019-06`, `name~tower`; several must all hold.

A picture without the key meets no condition on it, `!=` included. Metadata from a CSV is text, so values compare as
numbers where both sides are numbers (`year>=1990` finds "2004") and else as text. A date compares to the precision that
is asked for: all of June 2019 is `=`, `>=` and `<=` 2019-06, and the year alone will do. `~` holds where a text is
part of the value, whatever its case.

`folder`, `name`, `width`, `height` and `bytes` are known of every picture; metadata of these names goes before them.
`near=41.89,12.49,2km` is a place with a radius.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tessera.errors import UsageError

_CONDITION = re.compile(r"(?P<key>[^<>=!~]+?)\s*(?P<operator>>=|<=|!=|==|=|>|<|~)\s*(?P<value>.*)", re.DOTALL)
_OPERATORS = ("=", "!=", ">=", "<=", ">", "<", "~")
_DATE = re.compile(r"\d{4}(-\d\d(-\d\d([T ]\d\d(:\d\d(:\d\d)?)?)?)?)?")
_DATED = re.compile(r"[0-9]{4}-[0-9]{2}")
_NEAR = re.compile(r"near\s*=\s*(?P<place>-?[\d.]+\s*,\s*-?[\d.]+\s*,[^,]+)")
_RADIUS = re.compile(r"(\d+(?:\.\d+)?)\s*(km|m)?")
_EARTH_M = 6_371_000.0

# Known of every picture without a word of metadata: an SQL expression each.
BUILT_IN = {
    "width": "(SELECT contents.width FROM contents WHERE contents.id = images.content_id)",
    "height": "(SELECT contents.height FROM contents WHERE contents.id = images.content_id)",
    "bytes": "images.size",
    "name": "tessera_name(images.path)",
}
BUILT_IN_KEYS = ("folder", *BUILT_IN)


@dataclass(frozen=True)
class Condition:
    key: str
    operator: str
    value: str


@dataclass(frozen=True)
class Near:
    """Within `radius_m` metres of a place, over the ground."""

    latitude: float
    longitude: float
    radius_m: float


AnyCondition = Condition | Near
Where = str | Near | Iterable[str | Near] | Mapping[str, Any]


def parse_where(where: Where | None) -> tuple[AnyCondition, ...]:
    """Conditions from `"year>=1990"`, from several such, or from a mapping of keys to the values they must equal."""
    if where is None:
        return ()
    if isinstance(where, str | Near):
        return (_parsed(where),)
    if isinstance(where, Mapping):
        return tuple(_checked(Condition(str(key), "=", _text(value))) for key, value in where.items())
    return tuple(_parsed(item) for item in where)


def _parsed(item: str | Near) -> AnyCondition:
    if isinstance(item, Near):
        return item
    near = _NEAR.fullmatch(item.strip())
    return parse_condition(item) if near is None else parse_near(near["place"])


def parse_condition(text: str) -> Condition:
    match = _CONDITION.fullmatch(text.strip())
    if match is None:
        raise UsageError(
            f"The filter '{text}' has no comparison. Write KEY=VALUE, or with {', '.join(_OPERATORS[1:])}."
        )
    operator = "=" if match["operator"] == "==" else match["operator"]
    return _checked(Condition(match["key"].strip(), operator, match["value"].strip()))


def parse_near(text: str) -> Near:
    """`LAT,LON,RADIUS`: degrees, and metres or kilometres (`500m`, `2km`; a bare number is metres)."""
    parts = [part.strip() for part in text.split(",")]
    radius = _RADIUS.fullmatch(parts[2]) if len(parts) == 3 else None
    latitude, longitude = (number(part) for part in parts[:2]) if radius else (None, None)
    if radius is None or latitude is None or longitude is None:
        raise UsageError(f"'{text}' is no place with a radius. Write LATITUDE,LONGITUDE,RADIUS: 41.89,12.49,2km.")
    if not (abs(latitude) <= 90 and abs(longitude) <= 180):
        raise UsageError(f"The place {parts[0]},{parts[1]} is outside the globe: -90 to 90, then -180 to 180 degrees.")
    return Near(latitude, longitude, float(radius[1]) * (1000 if radius[2] == "km" else 1))


def to_sql(conditions: Iterable[AnyCondition]) -> tuple[str, list[Any]]:
    """A boolean SQL expression over the table `images`, and its parameters."""
    clauses, parameters = ["1"], []
    for condition in conditions:
        clause, values = _clause(condition)
        clauses.append(clause)
        parameters.extend(values)
    return " AND ".join(clauses), parameters


def number(value: Any) -> float | None:
    """The number that a metadata value spells, or None. Registered with SQLite as `tessera_number`."""
    if value is None or isinstance(value, bytes):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):  # a number of hundreds of digits is none that can be compared
        return None
    return None if math.isnan(found) else found


def spells_date(text: str, *, alone: bool = False) -> bool:
    """Whether a text begins as a date does, with year and month; alone: is one, and nothing else, or a year."""
    return (_DATE.fullmatch(text) if alone else _DATED.match(text)) is not None


def file_name(path: bytes) -> str:
    """A picture's name without its folder. Registered with SQLite as `tessera_name`."""
    return path.rpartition(b"/")[2].decode(errors="replace")


def contains(value: Any, part: str) -> bool:
    """Whether a text is part of a metadata value, whatever its case. Registered with SQLite as `tessera_contains`."""
    return value is not None and part.casefold() in str(value).casefold()


def distance_m(latitude: Any, longitude: Any, other_latitude: float, other_longitude: float) -> float | None:
    """Metres over the ground, by the haversine formula. Registered with SQLite as `tessera_distance`."""
    here = number(latitude), number(longitude)
    if here[0] is None or here[1] is None:
        return None
    a, b, c, d = (math.radians(angle) for angle in (here[0], here[1], other_latitude, other_longitude))
    root = math.sin((a - c) / 2) ** 2 + math.cos(a) * math.cos(c) * math.sin((b - d) / 2) ** 2
    return 2 * _EARTH_M * math.asin(math.sqrt(min(1.0, root)))


def _clause(condition: AnyCondition) -> tuple[str, list[Any]]:
    if isinstance(condition, Near):
        latitude, longitude = _found("latitude"), _found("longitude")
        place = [condition.latitude, condition.longitude, condition.radius_m]
        return f"tessera_distance({latitude}, {longitude}, ?, ?) <= ?", place
    found, value = _found(condition.key), condition.value
    as_number = number(value)
    if condition.key == "folder":
        return _folder_clause(condition, found)
    if condition.operator == "~":
        return f"tessera_contains({found}, ?)", [value]
    is_date = spells_date(value, alone=True)
    asked = value.replace(" ", "T")
    dated = f"{found} GLOB '[0-9][0-9][0-9][0-9]-[0-9][0-9]*'"
    cut = f"replace(substr({found}, 1, {len(asked)}), ' ', 'T')"
    if condition.operator in ("=", "!="):
        # JSON's true is 1 to json_extract. Numbers are equal however they are spelt: 1990.0 finds "1990".
        ways = [f"CAST({found} AS TEXT) = ?", f"{_kind(condition.key)} = ?"]
        values: list[Any] = [value, value if value in ("true", "false") else "none"]
        if as_number is not None:
            ways.append(f"coalesce(tessera_number({found}) = ?, 0)")
            values.append(as_number)
        if is_date:
            ways.append(f"({dated} AND {cut} = ?)")
            values.append(asked)
        equal = f"({' OR '.join(ways)})"
        if condition.operator == "=":
            return equal, values
        return f"({found} IS NOT NULL AND NOT {equal})", values
    compared = value if as_number is None else as_number
    side = f"CAST({found} AS TEXT)" if as_number is None else f"tessera_number({found})"
    plain = f"{side} {condition.operator} ?"
    if is_date:
        return f"CASE WHEN {dated} THEN {cut} {condition.operator} ? ELSE {plain} END", [asked, compared]
    return plain, [compared]


def _folder_clause(condition: Condition, found: str) -> tuple[str, list[Any]]:
    """Whether a folder on the way to the picture has this name, or these names one below the other."""
    if condition.operator not in ("=", "!="):
        raise UsageError(f"folder{condition.operator} cannot be asked: folders are compared by = and != only.")
    inside = f"/{condition.value.strip('/')}/".encode("utf-8", "surrogateescape")
    sign = ">" if condition.operator == "=" else "="
    mark = "=" if condition.operator == "=" else "!="
    return f"CASE WHEN {found} IS NULL THEN instr(images.path, ?) {sign} 0 ELSE {found} {mark} ? END", [
        inside,
        condition.value,
    ]


def _found(key: str) -> str:
    """What is known under a key: of a caller, of the file, or of every picture. `_checked` keeps quotes out of it."""
    path = _path(key)
    sources = [f"json_extract(metadata, {path})", f"json_extract(facts, {path})"]
    return f"coalesce({', '.join([*sources, *filter(None, [BUILT_IN.get(key)])])})"


def _kind(key: str) -> str:
    return f"coalesce(json_type(metadata, {_path(key)}), json_type(facts, {_path(key)}), '')"


def _path(key: str) -> str:
    return "'$.\"" + key.replace("'", "''") + "\"'"


def _checked(condition: Condition) -> Condition:
    if not condition.key or any(character in '"\\' or not character.isprintable() for character in condition.key):
        raise UsageError(
            f"'{condition.key}' cannot be the key of a filter: a quote or a backslash is in it, or nothing."
        )
    return condition


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
