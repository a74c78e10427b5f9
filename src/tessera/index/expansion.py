"""Ask again with what the first answer taught: alpha query expansion, database augmentation, diffusion.

Pure functions on descriptors. `tessera.index.refinement` joins them to an index.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Float32s = npt.NDArray[np.float32]
Float64s = npt.NDArray[np.float64]

ALPHA = 3.0
_EPS = 1e-12


def normalise(rows: npt.NDArray[np.floating]) -> Float32s:
    """Rows of unit length; a row of zeros stays as it is."""
    exact = rows.astype(np.float64)
    unit: Float64s = exact / np.maximum(np.linalg.norm(exact, axis=-1, keepdims=True), _EPS)
    return unit.astype(np.float32)


def expand_query(query: Float32s, neighbours: Float32s, alpha: float = ALPHA) -> Float32s:
    """Alpha query expansion: the query D and its best answers K D, each weighted by its score to the power alpha.

    Radenovic et al., "Fine-tuning CNN image retrieval with no human annotation". The query itself has
    weight one; answers with a negative score have none. alpha = 0 is the plain average.
    """
    scores = np.clip(neighbours.astype(np.float64) @ query.astype(np.float64), 0, None)
    weights = np.where(scores > 0, scores**alpha, 0.0)
    return normalise(query.astype(np.float64) + weights @ neighbours.astype(np.float64))


def augment(descriptors: Float32s, neighbours: npt.NDArray[np.int64], alpha: float = ALPHA) -> Float32s:
    """Database augmentation: each of N D descriptors expanded by its own neighbours, N K rows, -1 where there is none.

    Every sum is taken of the descriptors as they were, not of those already augmented.
    """
    out = np.empty(descriptors.shape, dtype=np.float32)
    for i, rows in enumerate(neighbours):
        others = rows[(rows >= 0) & (rows != i)]
        out[i] = expand_query(descriptors[i], descriptors[others], alpha)
    return out


def mutual_graph(descriptors: Float32s, neighbours: int, gamma: float) -> Float64s:
    """The affinities T T of descriptors T D: cosine to the power gamma, kept where each is among the other's nearest.

    Iscen et al., "Efficient diffusion on region manifolds". No loops.
    """
    exact = descriptors.astype(np.float64)
    cosines = np.clip(exact @ exact.T, 0, None)
    np.fill_diagonal(cosines, 0)
    kept = min(neighbours, len(cosines) - 1)
    if kept < 1:
        return np.zeros_like(cosines)
    near = np.zeros(cosines.shape, dtype=bool)
    np.put_along_axis(near, np.argsort(-cosines, axis=1, kind="stable")[:, :kept], True, axis=1)
    return np.where(near & near.T, cosines**gamma, 0.0)


def diffuse(
    query: Float32s,
    descriptors: Float32s,
    *,
    neighbours: int = 10,
    seeds: int = 10,
    gamma: float = 3.0,
    damping: float = 0.8,
) -> Float32s:
    """Scores T of the best answers T D by diffusion from the query over their neighbour graph.

    It starts from the query's own affinities to its nearest `seeds`. T is the short list, not the gallery: the graph is
    made of what the first search found (truncated diffusion). So walks are short and neighbours few: with the 50 and
    0.99 that suit a whole gallery, a small list is one dense clump whose walk forgets where it began.
    """
    start = np.clip(descriptors.astype(np.float64) @ query.astype(np.float64), 0, None) ** gamma
    far = np.argsort(-start, kind="stable")[seeds:]
    start[far] = 0
    return spread(start, descriptors, neighbours=neighbours, gamma=gamma, damping=damping)


def spread(
    start: Float64s, descriptors: Float32s, *, neighbours: int = 10, gamma: float = 3.0, damping: float = 0.8
) -> Float32s:
    """How much of `start`, T, arrives at each of T D descriptors along their neighbour graph, T.

    Solves (I - damping * S) f = start: S the affinities normalised on both sides by the square root of their sums.
    """
    graph = mutual_graph(descriptors, neighbours, gamma)
    sums = graph.sum(axis=1)
    scale = np.where(sums > 0, 1 / np.sqrt(np.maximum(sums, _EPS)), 0.0)
    system = np.eye(len(graph)) - damping * (scale[:, None] * graph * scale)
    return np.linalg.solve(system, start).astype(np.float32)
