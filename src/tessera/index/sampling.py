"""Rows to train and measure on, drawn so that they are the same on every machine."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def sample_rows(total: int, count: int, seed: int) -> npt.NDArray[np.int64]:
    """Distinct rows in ascending order, the same for the same seed; all of them where there are no more."""
    if total <= count:
        return np.arange(total)
    return np.sort(np.random.Generator(np.random.PCG64(seed)).choice(total, size=count, replace=False))
