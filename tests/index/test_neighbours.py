"""All neighbours of all, against every product."""

from __future__ import annotations

import numpy as np
import pytest

from tessera.index.neighbours import NeighbourSearch, neighbour_pairs


def unit(count: int, dim: int, seed: int = 0) -> np.ndarray:
    vectors = np.random.default_rng(seed).normal(size=(count, dim))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float16)


@pytest.mark.parametrize("exact_rows", [10_000, 100])
def test_near_copies_are_found_with_their_products(exact_rows: int) -> None:
    vectors = unit(600, 128)
    copies = vectors[:50].astype(np.float32) + 0.03 * np.random.default_rng(1).normal(size=(50, 128))
    vectors[300:350] = copies / np.linalg.norm(copies, axis=1, keepdims=True)
    found = neighbour_pairs(vectors, 4, 0.8, exact_rows=exact_rows)
    assert list(zip(found.queries.tolist(), found.rows.tolist(), strict=True)) == [(i, 300 + i) for i in range(50)]
    expected = np.einsum("nd,nd->n", vectors[:50].astype(np.float32), vectors[300:350].astype(np.float32))
    np.testing.assert_allclose(found.scores, expected, atol=1e-5)


def test_few_and_none() -> None:
    vectors = unit(2, 8)
    assert len(neighbour_pairs(vectors, 8, -1.0).rows) == 1
    assert len(neighbour_pairs(vectors[:1], 8, -1.0).rows) == 0
    assert len(NeighbourSearch(vectors).search(vectors[:0], 3, 0.0).rows) == 0
