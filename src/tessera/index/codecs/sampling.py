"""Rows to train and measure on, drawn so that they are the same on every machine."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_LEAST_TO_SPARE = 1000
_HELD_OUT = 4096


def sample_rows(total: int, count: int, seed: int) -> npt.NDArray[np.int64]:
    """Distinct rows in ascending order, the same for the same seed; all of them where there are no more."""
    if total <= count:
        return np.arange(total)
    return np.sort(np.random.Generator(np.random.PCG64(seed)).choice(total, size=count, replace=False))


def thinned(rows: npt.NDArray[np.float32], count: int) -> npt.NDArray[np.float32]:
    """Some of the rows N D, taken at even steps: the first of them alone would be the oldest of a gallery."""
    return rows[:: max(len(rows) // count, 1)][:count]


def held_out_rows(total: int, seed: int) -> npt.NDArray[np.int64]:
    """A tenth of the rows, 4096 at most, that `training_rows` leaves out.

    They are there to measure a codec's error: on what it was fitted on, the error flatters. Of fewer than a thousand
    rows none can be spared: then it is all of them.
    """
    if total < _LEAST_TO_SPARE:
        return np.arange(total)
    return sample_rows(total, min(total // 10, _HELD_OUT), seed + 1_000_003)


def training_rows(total: int, count: int, seed: int) -> npt.NDArray[np.int64]:
    """Rows to fit a codec on, none of them held out."""
    if total < _LEAST_TO_SPARE:
        return sample_rows(total, count, seed)
    rest = np.delete(np.arange(total), held_out_rows(total, seed))
    return rest[sample_rows(len(rest), count, seed)]
