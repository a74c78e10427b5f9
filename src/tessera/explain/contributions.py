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


def share_out(parts: Array) -> Array:
    """Give each token its part of the constant, the same to each: the rows, L D, still sum to the descriptor.

    The constant takes away what tokens have in every picture, so it belongs to what they say: a token's part alone is
    the same large number for any pair, and the constant's a larger one against it. parts: (L+1) D, the constant last.
    """
    return np.asarray(parts[:-1] + parts[-1] / max(len(parts) - 1, 1), dtype=np.float32)


def contribution_matrix(query_parts: Array, other_parts: Array) -> Array:
    """What each token of the query (rows) and of the other picture (columns) added to their similarity, L L.

    The matrix sums to the score. query_parts, other_parts: L D, from `share_out`.
    """
    return np.asarray(query_parts.astype(np.float64) @ other_parts.astype(np.float64).T, dtype=np.float32)


def strongest_pairs(matrix: Array) -> list[tuple[int, int]]:
    """Token pairs by contribution, strongest first."""
    order = np.argsort(-matrix, axis=None, kind="stable")
    rows, columns = np.unravel_index(order, matrix.shape)
    return [(int(row), int(column)) for row, column in zip(rows, columns, strict=True)]
