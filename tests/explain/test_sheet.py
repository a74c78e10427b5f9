"""The contact sheet: pictures, boxes and matches land where they belong."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tessera.explain.sheet import CELL, CERTAIN, QUERY, SheetHit, SheetRow, compare_pictures, draw_sheet
from tessera.local.spatial_reranking import open_reranker

EXAMPLES = Path(__file__).parents[2] / "examples"
GREY = np.full((95, 118, 3), 128, np.uint8)  # half a cell: drawn twice as large


def matched(*places: tuple[float, float, float, float]) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.array(places, np.float32)


def count(sheet: np.ndarray[tuple[int, ...], np.dtype[np.uint8]], colour: tuple[int, int, int]) -> int:
    return int((sheet == colour).all(axis=-1).sum())


def test_certain_hits_are_outlined_and_others_are_not() -> None:
    square = matched((10, 10, 20, 20), (60, 10, 80, 20), (60, 60, 80, 70), (10, 60, 20, 70))
    certain = draw_sheet([SheetRow(GREY, "a", [SheetHit(GREY, ["x"], True, square)])])
    uncertain = draw_sheet([SheetRow(GREY, "a", [SheetHit(GREY, ["x"], False)])])
    outline = 2 * 2 * (60 + 50)  # twice the hull's length, at a scale of two
    assert count(np.asarray(certain), CERTAIN) > outline
    assert count(np.asarray(uncertain), CERTAIN) == 0


def test_the_box_is_drawn_on_the_query() -> None:
    plain = draw_sheet([SheetRow(GREY, "a", [])])
    boxed = draw_sheet([SheetRow(GREY, "a", [], box=(10, 10, 60, 60))])
    assert plain.size == boxed.size
    assert count(np.asarray(boxed), QUERY) - count(np.asarray(plain), QUERY) > 2 * 4 * 100 * 0.9


def test_short_rows_stand_side_by_side() -> None:
    hit = SheetHit(GREY, ["x"], True)
    long, short = SheetRow(GREY, "a", [hit] * 4), SheetRow(GREY, "b", [hit])
    together, apart = draw_sheet([long, short, short]), draw_sheet([long, short, long])
    assert together.width == apart.width
    assert apart.height - together.height > CELL[1]


def test_an_empty_sheet_and_extreme_pictures_are_drawn() -> None:
    assert draw_sheet([]).width > 0
    thin = np.zeros((2, 900, 3), np.uint8)
    assert draw_sheet([SheetRow(thin, "a", [SheetHit(thin, [], False)])]).height > CELL[1]


def test_matches_of_a_box_lie_in_it_and_on_the_same_thing() -> None:
    box = (150, 100, 500, 350)
    whole, found, matches = compare_pictures(
        open_reranker("sp"),
        EXAMPLES / "queries" / "cookie-box.jpg",
        box,
        EXAMPLES / "photos" / "views" / "table" / "cookie-box-2.jpg",
    )
    assert whole.shape == (480, 718, 3)
    assert len(matches) > 30
    assert (matches[:, :2] >= box[:2]).all()
    assert (matches[:, :2] <= box[2:]).all()
    assert (matches[:, 2:] <= (found.shape[1], found.shape[0])).all()
    assert matches[:, 3].max() < 0.75 * found.shape[0]  # the tin is held above the table
    other = EXAMPLES / "photos" / "free.jpg"
    assert len(compare_pictures(open_reranker("sp"), EXAMPLES / "queries" / "cookie-box.jpg", box, other)[2]) == 0
