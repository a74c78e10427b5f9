"""Cells that a spreadsheet would run, and their way back."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.cli.output import write_csv
from tessera.gallery.cells import guard_cell, unguard_cell


@given(st.text() | st.text(alphabet="'=+-@\t\r0.e", max_size=6))
def test_a_guarded_cell_is_no_formula_and_says_the_same(text: str) -> None:
    cell = guard_cell(text)
    assert unguard_cell(cell) == text
    if cell[:1] in ("=", "@", "\t", "\r", "+", "-"):
        float(cell)


@pytest.mark.parametrize("value", ["", "-5", "+1e3", "tower", 7, -0.5, None, "'", "'tower'"])
def test_what_is_none_stays_as_it_is(value: object) -> None:
    assert guard_cell(value) is value


def test_tables_of_the_command_line_are_guarded(tmp_path: Path) -> None:
    write_csv(tmp_path / "t.csv", ("path", "score"), [("=cmd.png", -0.5), ("/a,b.png", "-0.5")])
    assert list(csv.reader(io.StringIO((tmp_path / "t.csv").read_text()))) == [
        ["path", "score"],
        ["'=cmd.png", "-0.5"],
        ["/a,b.png", "-0.5"],
    ]
