"""Small clustered descriptors for the index tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

Float32s = npt.NDArray[np.float32]


def make_descriptors(count: int, dim: int, seed: int, clusters: int = 40, spread: float = 0.6) -> Float32s:
    """Unit vectors around common centres, on the fp16 grid, so that exact scores are the same everywhere."""
    shared = np.random.default_rng(99).standard_normal((clusters, dim)) / np.sqrt(dim)
    rng = np.random.default_rng(seed)
    raw = shared[rng.integers(0, clusters, count)] + spread * rng.standard_normal((count, dim)) / np.sqrt(dim)
    raw /= np.linalg.norm(raw, axis=1, keepdims=True)
    return raw.astype(np.float16).astype(np.float32)


@pytest.fixture(scope="session", name="make_descriptors")
def _make_descriptors() -> Callable[..., Float32s]:
    return make_descriptors


@pytest.fixture(scope="session", name="slow_search")
def _slow_search() -> Callable[..., Any]:
    return slow_search


@pytest.fixture(scope="session")
def gallery() -> Float32s:
    return make_descriptors(3000, 64, seed=1)


@pytest.fixture(scope="session")
def queries() -> Float32s:
    return make_descriptors(12, 64, seed=2)


def slow_search(
    descriptors: Float32s, ids: npt.NDArray[np.int64], queries: Float32s, k: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """The second writing: every product in double precision, sorted by (-score, id)."""
    scores = queries.astype(np.float64) @ descriptors.astype(np.float64).T
    order = np.stack([np.lexsort((ids, -row))[:k] for row in scores])
    return np.take_along_axis(scores, order, axis=1), ids[order]
