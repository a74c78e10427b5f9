"""Every number of a run: a CSV that anything can read, and TensorBoard beside it where it is installed.

A resumed run goes on from its checkpoint: rows of steps that were lost with the process are taken out first, so that
each step is there once.
"""

from __future__ import annotations

import csv
import os
from pathlib import Path
from typing import Any

from tessera.storage import write_atomically

COLUMNS = ("epoch", "step", "name", "value")


class ScalarLog:
    """`scalars.csv` with one row a number (epoch, step, name, value), and `tensorboard/`."""

    def __init__(self, run_dir: Path, from_step: int = 0) -> None:
        run_dir.mkdir(parents=True, exist_ok=True)
        self.path = run_dir / "scalars.csv"
        kept = [row for row in read_scalars(self.path) if row["step"] <= from_step] if from_step else []
        lines = [",".join(COLUMNS), *(f"{r['epoch']},{r['step']},{r['name']},{r['value']!r}" for r in kept)]
        write_atomically(self.path, ("\n".join(lines) + "\n").encode())
        self._file = self.path.open("a", newline="", encoding="utf-8")
        self._writer = csv.writer(self._file, lineterminator="\n")
        self._board = _open_board(run_dir / "tensorboard", from_step)

    def write(self, epoch: int, step: int, **values: float) -> None:
        """step: steps done since the start of the run."""
        for name, value in values.items():
            self._writer.writerow((epoch, step, name, repr(float(value))))
            if self._board is not None:
                self._board.add_scalar(name, value, step)
        self._file.flush()

    def sync(self) -> None:
        """Let what was written survive a power cut: before the checkpoint that goes on after it."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()
        if self._board is not None:
            self._board.close()


def read_scalars(path: Path) -> list[dict[str, Any]]:
    """The rows of a `scalars.csv`; a last line that a crash cut short is left out."""
    if not path.is_file():
        return []
    rows = []
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.reader(file):
            if len(row) != len(COLUMNS) or row == list(COLUMNS):
                continue
            try:
                rows.append({"epoch": int(row[0]), "step": int(row[1]), "name": row[2], "value": float(row[3])})
            except ValueError:
                continue
    return rows


def _open_board(folder: Path, from_step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder), purge_step=from_step + 1 if from_step else None)
