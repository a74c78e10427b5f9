"""A progress bar a stage, on stderr; silent when stderr is no terminal."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tessera.evaluate.method import Progress


@contextlib.contextmanager
def stage_progress() -> Iterator[Progress]:
    """Yield the `progress` of `run_benchmark`."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bars(*columns, console=console, disable=not console.is_terminal, transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def advance(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total)
            bars.update(tasks[stage], completed=done)

        yield advance
