"""Conditions on metadata, against a plain reading of the same words."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from typing import Any

import pytest

from tessera.errors import UsageError
from tessera.gallery.catalog.filters import (
    Condition,
    Near,
    distance_m,
    number,
    parse_condition,
    parse_near,
    parse_where,
    to_sql,
)

ROWS: dict[int, dict[str, Any]] = {
    1: {"label": "tower", "year": "1990"},
    2: {"label": "tower", "year": "2004", "city": "Pisa"},
    3: {"label": "bridge", "year": 1985},
    4: {"label": "Turm, schön", "day": "2020-02-03", "year": "unknown"},
    5: {},
    6: {"flag": True, "weight": 0.5, "label": "1990"},
}
# What the files themselves say: 3 and 6 in Rome, 5 in Pisa.
FACTS: dict[int, dict[str, Any]] = {
    1: {"date": "2019-06-30T23:59:59", "camera": "Canon EOS 5D"},
    3: {"date": "2019-07-01T00:00:00", "latitude": 41.8902, "longitude": 12.4922},
    5: {"date": "2018-12-31", "latitude": 43.723, "longitude": 10.3966},
    6: {"latitude": 41.9022, "longitude": 12.4539, "label": "of the file"},
}
PATHS = {
    1: "/photos/2019/Rome/a.jpg",
    2: "/photos/2019/Romeo/b.jpg",
    3: "/photos/Rome/day 1/c.jpg",
    4: "/photos/Rome.jpg",
    5: "/photos/pisa/d.jpg",
    6: "/photos/100%/e.jpg",
}


def as_json(values: dict[str, Any] | None) -> str | None:
    return None if values is None else json.dumps(values, ensure_ascii=False)


@pytest.fixture(scope="module")
def table():
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.create_function("tessera_number", 1, number, deterministic=True)
        connection.create_function("tessera_distance", 4, distance_m, deterministic=True)
        connection.execute("CREATE TABLE contents (id INTEGER PRIMARY KEY, width INTEGER, height INTEGER)")
        connection.execute("INSERT INTO contents VALUES (1, 640, 480), (2, 1024, 768)")
        connection.execute(
            "CREATE TABLE images (id INTEGER PRIMARY KEY, path BLOB, size INTEGER, content_id INTEGER, "
            "metadata TEXT, facts TEXT)"
        )
        connection.executemany(
            "INSERT INTO images VALUES (?, ?, 1000 * ?, 1 + ? % 2, ?, ?)",
            [
                (
                    image_id,
                    PATHS[image_id].encode(),
                    image_id,
                    image_id,
                    as_json(metadata),
                    as_json(FACTS.get(image_id)),
                )
                for image_id, metadata in ROWS.items()
            ],
        )
        yield connection


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (None, [1, 2, 3, 4, 5, 6]),
        ("label=tower", [1, 2]),
        ("label==tower", [1, 2]),
        ("label!=tower", [3, 4, 6]),
        (["label=tower", "city=Pisa"], [2]),
        ({"label": "tower", "year": 1990}, [1]),
        ("year=1985", [3]),
        ("year>=1990", [1, 2]),
        ("year<1990", [3]),
        ("year > 1985", [1, 2]),
        ("weight<=0.5", [6]),
        ("day>=2020-01-31", [4]),
        ("day<2020-01-31", []),
        ("label=Turm, schön", [4]),
        ({"flag": True}, [6]),
        ("flag=true", [6]),
        ("nothing=1", []),
        ("label=1990", [6]),
        ("date=2019-06", [1]),
        ("date!=2019-06", [3, 5]),
        ("date>=2019-06", [1, 3]),
        ("date<=2019-06", [1, 5]),
        ("date>2019-06", [3]),
        ("date<2019", [5]),
        ("date=2019", [1, 3]),
        ("date<=2019-06-30T23:59", [1, 5]),
        ("date>=2019-06-30 23:59:59", [1, 3]),
        ("day=2020", [4]),
        ("camera=Canon EOS 5D", [1]),
        ("folder=Rome", [1, 3]),
        ("folder=2019/Rome/", [1]),
        ("folder=/photos/Rome", [3]),
        ("folder!=Rome", [2, 4, 5, 6]),
        ("folder=100%", [6]),
        ("width>=1024", [1, 3, 5]),
        ("height=480", [2, 4, 6]),
        ("bytes>4500", [5, 6]),
        (parse_near("41.8902,12.4922,2km"), [3]),
        (parse_near("41.8902,12.4922,4000m"), [3, 6]),
        ([parse_near("41.8902,12.4922,300km"), "date<2019"], [5]),
        ("lab'el=x", []),
    ],
)
def test_conditions_find_what_they_say(table: sqlite3.Connection, where: Any, expected: list[int]) -> None:
    clause, parameters = to_sql(parse_where(where))
    rows = table.execute(f"SELECT id FROM images WHERE {clause} ORDER BY id", parameters).fetchall()
    assert [row[0] for row in rows] == expected


def test_a_value_may_hold_operators() -> None:
    assert parse_condition("note=a>=b=c") == Condition("note", "=", "a>=b=c")
    assert parse_condition(" year >= 1990 ") == Condition("year", ">=", "1990")


@pytest.mark.parametrize("text", ["", "label", "=tower", 'la"bel=x', "la\\bel=x"])
def test_what_is_no_condition_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_condition(text)


def test_folders_have_no_order() -> None:
    with pytest.raises(UsageError, match="= and != only"):
        to_sql(parse_where("folder>=Rome"))


def test_a_place_has_a_radius_in_metres_or_kilometres() -> None:
    assert parse_near("41.89, 12.49, 2km") == Near(41.89, 12.49, 2000.0)
    assert parse_near("-41.89,-12.49,500") == parse_near("-41.89,-12.49,500 m") == Near(-41.89, -12.49, 500.0)


@pytest.mark.parametrize("text", ["", "41,12", "41,12,2miles", "x,12,2km", "91,12,2km", "41,181,2km", "nan,12,2km"])
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"radius|outside the globe"):
        parse_near(text)


def test_distances_are_those_of_the_globe() -> None:
    rome, pisa = (41.8902, 12.4922), (43.7230, 10.3966)
    assert distance_m(*rome, *pisa) == pytest.approx(266_000, rel=0.01)
    assert distance_m(0, 179.9, 0, -179.9) == pytest.approx(22_239, rel=0.001)  # over the date line
    assert distance_m(None, 1, 0, 0) is None


def test_a_number_without_end_is_none() -> None:
    assert number(10**400) is None and number("1" * 400) == float("inf") and number(float("nan")) is None
