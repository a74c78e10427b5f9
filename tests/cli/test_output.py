"""What commands print: for a terminal, for a pipe."""

from __future__ import annotations

import sys
import time

import pytest

from tessera.cli.output import counted, progress_bar, size_text


def test_no_bar_when_nobody_watches(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("describing") as bar:
        assert bar is None
    assert capsys.readouterr() == ("", "")


def test_a_bar_shows_rate_and_failures_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (("TTY_COMPATIBLE", "1"), ("FORCE_COLOR", "1"), ("COLUMNS", "140")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress_bar("describing") as bar:
        assert bar is not None
        for done in range(1, 4):
            time.sleep(0.06)
            bar(done, 3, 1)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert all(part in captured.err for part in ("describing", "3/3", "images/s", "1 not read"))


def test_numbers_read_as_people_say_them() -> None:
    assert [counted(count, "image") for count in (0, 1, 2)] == ["0 images", "1 image", "2 images"]
    assert [size_text(count) for count in (999, 1000, 2_500_000)] == ["999 B", "1.0 kB", "2.5 MB"]
