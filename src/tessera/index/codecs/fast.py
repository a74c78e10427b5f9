"""`fast`: short codes for a first look at every row, and two more looks at the best of them.

First look: 32 to 64 bytes a row that SIMD goes through (see `first_look`). Second: what those codes missed, in the rest
of 128 bytes (see `residual`), for a thousand rows or so. Third: the fp16 descriptors of some hundred, read in place;
they decide order and scores. How many each look passes on is measured when the index is built: see `calibration`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tessera.index.codecs.calibration import Calibration, Probe, calibrate
from tessera.index.codecs.coarse_scan import LADDER, SUBSPACE, FirstLook
from tessera.index.codecs.codec import Arrays, Codec, Float32s, Int64s, for_each
from tessera.index.codecs.residual_rescoring import ResidualCodes
from tessera.index.descriptor_file import BLOCK_ROWS, DescriptorStore, score_rows
from tessera.index.rows import Keep

_CODE_BYTES = 128
_MOST_A_BYTE = 8  # coordinates to a byte of the second look: with more, its 256 words say little of each


class FastCodec(Codec):
    """The short codes, the residuals' codes, and how deep to look."""

    name = "fast"
    exact = True
    target_recall = 0.985

    def __init__(self, first: FirstLook, residual: ResidualCodes, calibration: Calibration) -> None:
        self._first = first
        self._residual = residual
        self._calibration = calibration

    @classmethod
    def fit(cls, store: DescriptorStore, *, seed: int, target_recall: float) -> FastCodec:
        probe = Probe.draw(store, seed)
        first, sample = FirstLook.fit(
            store,
            probe,
            coordinates=_coordinates(store.dim),
            lists=cls._lists(len(store)),
            seed=seed,
            target_recall=target_recall,
        )
        missed = sample - first.decoded(sample)
        width = min(_CODE_BYTES - first.code_bytes, missed.shape[1] // SUBSPACE)
        coded = width * min(missed.shape[1] // width, _MOST_A_BYTE)
        residual = ResidualCodes.fit(missed[:, :coded], width, seed)
        first.projection = first.projection.leading(coded)
        codec = cls(first, residual, Calibration.cautious())
        for _, block in store.blocks(BLOCK_ROWS):
            codec.append(block)
        ladder = codec._probe_ladder(probe, store, target_recall)
        codec._calibration = calibrate(
            codec.rough, probe, len(store), probes=ladder, target=target_recall, cost=codec.cost_ns
        )
        return codec

    @staticmethod
    def _lists(total: int) -> int:
        return 1

    def _probe_ladder(self, probe: Probe, store: DescriptorStore, target: float) -> tuple[int, ...]:
        return (1,)

    def cost_ns(self, calibration: Calibration) -> float:
        """What a query would cost: only where there is something to choose does it matter."""
        return 0.0

    def append(self, descriptors: Float32s) -> None:
        coordinates = self._first.projection.apply(descriptors)
        self._first.append(coordinates)
        self._residual.append(self._residual.encode(coordinates - self._first.decoded(coordinates)))

    def rough(self, queries: Float32s, depth: int, probes: int) -> tuple[Int64s, Float32s]:
        """The rows that the first look puts first, and their scores after the second: Q depth, padded with -1, -inf."""
        coordinates = self._first.projection.apply_query(queries)
        found, scores = self._first.best(coordinates, depth, None, probes)

        def look(q: int) -> None:
            scores[q] += self._residual.score(self._residual.table(coordinates[q]), found[q])

        for_each(look, len(queries))
        return found, scores

    def search(self, queries: Float32s, k: int, keep: Keep | None, store: DescriptorStore) -> tuple[Float32s, Int64s]:
        possible = len(self._first) if keep is None else len(keep)
        calibration, total = self._calibration, len(self._first)
        depth, exact = (min(n, possible) for n in (calibration.depth_for(k, total), calibration.exact_for(k, total)))
        few = keep.rows if keep is not None and possible <= 2 * exact else None
        coordinates, probes = self._first.projection.apply_query(queries), self._probes(k, keep)
        wide = exact if few is None else possible
        rows = np.full((len(queries), wide), -1, dtype=np.int64)
        scores = np.full((len(queries), wide), -np.inf, dtype=np.float32)

        def answer(q: int) -> None:
            mine = few
            if mine is None:
                mine = self._short_list(coordinates[q : q + 1], max(depth, exact), exact, keep, probes)
            rows[q, : len(mine)] = mine
            scores[q, : len(mine)] = score_rows(queries[q], mine, store)

        for_each(answer, len(queries))
        return scores, rows

    def _short_list(self, coordinates: Float32s, depth: int, exact: int, keep: Keep | None, probes: int) -> Int64s:
        """The rows whose descriptors are to be read for a projected query 1 C, in the order in which they lie."""
        found, scores = self._first.keep_about(coordinates, depth, keep, probes)
        if len(found) > exact:
            found = self._residual.best(coordinates[0], found, scores, exact)
        return np.sort(found)

    def _probes(self, k: int, keep: Keep | None) -> int:
        return 1

    def select(self, rows: Int64s) -> None:
        self._first.select(rows)
        self._residual.codes = self._residual.codes[rows]

    def state(self) -> tuple[dict[str, Any], Arrays]:
        return self._calibration.to_values(), self._first.state() | self._residual.state()

    @classmethod
    def restore(cls, values: dict[str, Any], arrays: Arrays, store: DescriptorStore) -> FastCodec:
        return cls(FirstLook.restore(arrays), ResidualCodes.restore(arrays), Calibration.from_values(values))

    def settings(self) -> dict[str, Any]:
        first, second = self._first.code_bytes, len(self._residual.words)
        chosen = {"code_bytes": first + second, "first_look_bytes": first, "lists": len(self._first.lists)}
        return chosen | self._calibration.to_values()

    def error(self, descriptors: Float32s) -> float:
        if len(descriptors) == 0:
            return 0.0
        coordinates = self._first.projection.apply(descriptors)
        missed = coordinates - self._first.decoded(coordinates)
        missed -= self._residual.decode(self._residual.encode(missed))
        # Without coordinate 0: its weight would outshout the others.
        return float(np.square(missed[:, 1:]).sum() / max(np.square(coordinates[:, 1:]).sum(), 1e-12))

    @property
    def memory_bytes(self) -> int:
        return self._first.memory_bytes + self._residual.memory_bytes


def _coordinates(dim: int) -> int:
    """How many coordinates of a descriptor may be coded: all of them, if it is short."""
    step = 64 if dim >= 256 else SUBSPACE
    return min(-(-(dim + 1) // step) * step, _MOST_A_BYTE * (_CODE_BYTES - LADDER[0] // 2))
