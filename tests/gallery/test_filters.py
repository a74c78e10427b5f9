"""Conditions on metadata, against a plain reading of the same words."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from typing import Any

import pytest

from tessera.errors import UsageError
from tessera.gallery.catalog.filters import Condition, number, parse_condition, parse_where, to_sql

ROWS: dict[int, dict[str, Any]] = {
    1: {"label": "tower", "year": "1990"},
    2: {"label": "tower", "year": "2004", "city": "Pisa"},
    3: {"label": "bridge", "year": 1985},
    4: {"label": "Turm, schön", "day": "2020-02-03", "year": "unknown"},
    5: {},
    6: {"flag": True, "weight": 0.5, "label": "1990"},
}


@pytest.fixture(scope="module")
def table():
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.create_function("tessera_number", 1, number, deterministic=True)
        connection.execute("CREATE TABLE images (id INTEGER PRIMARY KEY, metadata TEXT)")
        connection.executemany(
            "INSERT INTO images VALUES (?, ?)",
            [(image_id, json.dumps(metadata, ensure_ascii=False)) for image_id, metadata in ROWS.items()],
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
