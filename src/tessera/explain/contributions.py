"""Which pair of tokens contributed what to a similarity, exactly."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]


def merge_scales(parts: Sequence[Array]) -> Array:
    """Carry each token's share through both normalisations, of every scale and of the whole.

    The descriptor is d = m / |m| with m the mean over scales of r / |r|, and r the sum of the parts of a scale. All
    of it is linear in the parts once the norms are known, so the shares stay additive: the result's rows sum to d.

    parts: a scale each, (L+1) D, before normalisation.
    Returns (L+1) D.
    """
    return np.asarray(sum(part / scale_weight(parts, index) for index, part in enumerate(parts)), dtype=np.float32)


def scale_weight(parts: Sequence[Array], index: int) -> float:
    """By what a scale's shares are divided on their way into the descriptor: its own norm, then that of the whole.

    parts: as for `merge_scales`; index: of the scale.
    """
    norms = [max(float(np.linalg.norm(part.sum(axis=0))), 1e-12) for part in parts]
    whole = np.sum([part.sum(axis=0) / norm for part, norm in zip(parts, norms, strict=True)], axis=0)
    return norms[index] * max(float(np.linalg.norm(whole)), 1e-12)


def contribution_matrix(query_parts: Array, other_parts: Array) -> Array:
    """What each token of the query (rows) and of the other picture (columns) added to their similarity.

    The last row and column are the constant parts. The matrix sums to the score.

    query_parts, other_parts: (L+1) D, from `merge_scales`.
    Returns (L+1) (L+1).
    """
    return np.asarray(query_parts.astype(np.float64) @ other_parts.astype(np.float64).T, dtype=np.float32)


def strongest_pairs(matrix: Array) -> list[tuple[int, int]]:
    """Token pairs by contribution, strongest first; the constant part binds to no region and is left out."""
    tokens = matrix[:-1, :-1]
    order = np.argsort(-tokens, axis=None, kind="stable")
    rows, columns = np.unravel_index(order, tokens.shape)
    return [(int(row), int(column)) for row, column in zip(rows, columns, strict=True)]
