"""A progress bar for extraction, on stderr: how many, how fast, how long still. Silent when nobody watches."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from tessera.extract.pipeline import Extraction


@contextlib.contextmanager
def extraction_progress(total: int | None, label: str = "describing") -> Iterator[Callable[[Extraction], None]]:
    """Yield the `progress` of `Extractor.extract`. total: None when it is not known, which shows no time left."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        TextColumn("[red]{task.fields[failures]}"),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task(label, total=total, rate="", failures="")
        failures = 0

        def advance(extraction: Extraction) -> None:
            nonlocal failures
            failures += extraction.error is not None
            speed = bar.tasks[0].speed
            rate = f"{speed:.1f} images/s" if speed else ""
            bar.update(task, advance=1, rate=rate, failures=f"{failures} not read" if failures else "")

        yield advance
