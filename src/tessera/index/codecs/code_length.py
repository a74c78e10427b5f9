"""How many bytes a row is coded in: more take longer to scan, fewer need more candidates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import faiss
import numpy as np

from tessera.index.codecs.codec import Float32s, Int64s
from tessera.index.codecs.projection import Projection, allocate_dimensions
from tessera.index.codecs.recall_calibration import CalibrationSet, estimate_num_candidates
from tessera.index.codecs.sampling import thinned
from tessera.index.descriptor_file import DescriptorStore, widen

SUBSPACE = 4  # dimensions to 4 bits, or 3 where there are no more
# Measured on one core: a byte of codes or of the projection, in the cache, and what it takes longer beyond.
_BYTE_NS, _FAR_BYTE_NS, _CACHE_BYTES = 0.02, 0.04, 1 << 24
_CENTROID_ROWS = 8192  # 16 centroids a subspace need no more
_ROUGHLY = 8, 4096  # iterations and rows: enough to compare numbers of bytes


def scan_ns(num_bytes: float) -> float:
    """What scanning so many bytes of codes takes."""
    return num_bytes * _BYTE_NS + max(num_bytes - _CACHE_BYTES, 0) * _FAR_BYTE_NS


def recoded(pq: Any, rows: Float32s) -> Float32s:
    decoded: Float32s = pq.decode(pq.compute_codes(np.ascontiguousarray(rows)))
    return decoded


def num_coded(subspaces: int, coordinates: int) -> int:
    """How many of the coordinates so many subspaces code."""
    return subspaces * min(SUBSPACE, coordinates // subspaces)


def prepare_training(pq: Any, seed: int, iterations: int = 12, rows: int = _CENTROID_ROWS) -> None:
    pq.cp.seed, pq.cp.niter = seed + 1, iterations
    pq.cp.min_points_per_centroid, pq.cp.max_points_per_centroid = 1, rows // 16


def choose_subspaces(
    projection: Projection,
    sample: Float32s,
    calibration_set: CalibrationSet,
    store: DescriptorStore,
    ladder: tuple[int, ...],
    seed: int,
    kept: dict[int, float],
    cost: Callable[[int, list[int]], float],
    share_of_energy: float,
) -> int:
    """How many subspaces to code: more bytes take longer to scan, fewer need more candidates.

    Each number is tried on a sample's coordinates and on the true neighbours of the calibration set.
    kept: the recall@k that the candidates must have. cost: of so many subspaces, with so many candidates for each k.
    share_of_energy: of a code's energy, what is taken from its score.
    """
    fitting = [subspaces for subspaces in ladder if subspaces * (SUBSPACE - 1) <= sample.shape[1]]
    if len(fitting) < 2 or len(calibration_set) < 2:
        return fitting[0] if fitting else sample.shape[1] // 2
    queries = projection.apply_query(calibration_set.queries)
    near = [projection.apply(widen(store.take(rows))) for rows in calibration_set.neighbours]
    costs = []
    for subspaces in fitting:
        dim = num_coded(subspaces, sample.shape[1])
        order = allocate_dimensions(sample[:, :dim].var(axis=0), subspaces)
        pq: Any = faiss.ProductQuantizer(dim, subspaces, 4)
        prepare_training(pq, seed, *_ROUGHLY)
        pq.train(np.ascontiguousarray(thinned(sample, _ROUGHLY[1])[:, order]))
        asked = queries[:, order]
        mean = int(np.flatnonzero(order == 0)[0])

        def estimates(
            queries: Float32s, rows: Float32s, pq: Any = pq, order: Int64s = order, mean: int = mean
        ) -> Float32s:
            coded = recoded(pq, rows[:, order])
            energy = np.square(coded).sum(axis=1) - np.square(coded[:, mean])
            scores: Float32s = queries @ coded.T - np.float32(share_of_energy) * energy
            return scores

        theirs = [estimates(query, rows) for rows, query in zip(near, asked, strict=True)]
        scores = estimates(asked, thinned(sample, _CENTROID_ROWS))
        costs.append(cost(subspaces, estimate_num_candidates(scores, theirs, len(store), kept)))
    return fitting[int(np.argmin(costs))]
