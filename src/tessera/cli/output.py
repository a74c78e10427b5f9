"""What commands print: data on stdout, everything else on stderr, bars and colours only for a terminal."""

from __future__ import annotations

import contextlib
import csv
import enum
import io
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import typer

from tessera.errors import printable
from tessera.storage import write_atomically


class LogLevel(enum.StrEnum):
    """How much is logged to stderr, as `--log-level` names it."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def log_to_stderr(level: LogLevel) -> None:
    """Tessera's own messages as plain lines; a service writes lines of JSON instead."""
    logger = logging.getLogger("tessera")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    logger.handlers = [handler]
    logger.setLevel(level.upper())


def print_json(answer: Any) -> None:
    """One JSON document on stdout. Pure ASCII: a path that is no UTF-8 survives as escaped surrogates."""
    print(json.dumps(answer, ensure_ascii=True, allow_nan=False))


def say(message: str, colour: str | None = None) -> None:
    """A line for people, on stderr; in colour only in a terminal, and not where NO_COLOR is set."""
    if colour is None or os.environ.get("NO_COLOR"):
        print(message, file=sys.stderr)
    else:
        typer.secho(message, fg=colour, err=True)


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, cut: str | None = None) -> None:
    """A table for a terminal; for a pipe, one line a row with tabs, which other tools can cut.

    cut: the column that is cut short where a line would not fit, instead of being folded.
    """
    if not sys.stdout.isatty():
        for row in rows:
            print("\t".join(row))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=any(header))
    for name in header:
        table.add_column(name, overflow="ellipsis" if name == cut else "fold", no_wrap=cut is not None)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))  # Text: a path may hold what looks like markup
    Console().print(table)


def print_rows(header: Sequence[str], rows: Sequence[Sequence[str]], *, after: tuple[int, str] | None = None) -> None:
    """Rows whose last cell is never wrapped, so that it can be copied; for a pipe, cut by tabs and without a header.

    after: how many rows a line of words follows. People do not see it in a pipe, nor columns that hold nothing.
    """
    if not sys.stdout.isatty():
        for row in rows:
            print("\t".join(row))
        return
    kept = [i for i in range(len(header)) if i == len(header) - 1 or any(row[i] for row in rows)]
    shown = [[row[i] for i in kept] for row in (header, *rows)]
    widths = [max(len(row[i]) for row in shown) for i in range(len(kept) - 1)]
    for number, row in enumerate(shown):
        print("  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]))
        if after is not None and number == after[0]:
            print(after[1])


@contextlib.contextmanager
def progress_bar(label: str, unit: str = "images") -> Iterator[Callable[[int, int, int], None] | None]:
    """Yield what draws a bar, told how many are done, of how many, how many failed; None when stderr is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn(label),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        TextColumn("[red]{task.fields[failures]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None, rate="", failures="")

        def draw(done: int, total: int, failed: int) -> None:
            speed = bar.tasks[0].speed
            rate = f"{speed:.1f} {unit}/s" if speed else ""
            bar.update(task, completed=done, total=total, rate=rate, failures=f"{failed} not read" if failed else "")

        yield draw


def link_to(path: str) -> str:
    """A path for a terminal, relative to here where that is shorter, as a hyperlink where the terminal has them."""
    absolute = os.path.abspath(path)  # noqa: PTH100 - links stay
    relative = os.path.relpath(absolute)
    shown = printable(relative if len(relative) < len(absolute) else absolute)
    if not sys.stdout.isatty() or os.environ.get("TERM") in (None, "dumb", "linux"):
        return shown
    return f"\x1b]8;;{Path(absolute).as_uri()}\x1b\\{shown}\x1b]8;;\x1b\\"


def write_csv(path: Path, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """A table in a file, or on stdout for `-`; a path that is no UTF-8 is spelt out."""
    from tessera.gallery.cells import guard_cell

    text = io.StringIO(newline="")
    table = csv.writer(text, lineterminator="\n")
    table.writerow(header)
    table.writerows([guard_cell(printable(cell) if isinstance(cell, str) else cell) for cell in row] for row in rows)
    if str(path) == "-":
        print(text.getvalue(), end="")
    else:
        write_atomically(path, text.getvalue().encode("utf-8"))
        say(f"{path} written")


def counted(count: int, noun: str, several: str | None = None) -> str:
    """A number with its noun, which has an s unless it is one, or is another word for several."""
    return f"{count} {noun if count == 1 else several or f'{noun}s'}"


def size_text(count: int) -> str:
    """Bytes in the unit that suits them."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
