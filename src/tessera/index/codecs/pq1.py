"""`pq1`: 256 k-means words in each dimension, a byte a dimension, as the paper has it.

Looking every byte up in its table costs several times a flat search: the tables make a megabyte, which no near cache
holds. So 32 bytes more a row take a first look (see `first_look`), and only the rows that it puts first are scored by
their words. Of those, most are settled more cheaply still: the words of a dimension are sorted, so that a code's word
is nearly an affine function of the code, and going down that order it soon is clear that no row below can come in.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tessera.index.codecs.calibration import Calibration, Probe, calibrate
from tessera.index.codecs.coarse_scan import LADDER, SUBSPACE, FirstLook
from tessera.index.codecs.codec import Arrays, Codec, Float32s, Int64s, for_each
from tessera.index.codecs.sampling import training_rows
from tessera.index.descriptor_file import BLOCK_ROWS, DescriptorStore, inner_products
from tessera.index.rows import Keep

Bytes = npt.NDArray[np.uint8]

WORDS = 256
_TRAINING_ROWS = 32768
_ITERATIONS = 30
_STEP_ROWS = 128
_CACHED_ROWS = 256  # as floats, they still fit in a core's own cache
_MARGIN = 4.0  # standard deviations of the affine score around the score by the words


class Pq1Codec(Codec):
    """Codes N D and the words that they stand for, behind a first look."""

    name = "pq1"
    exact = False

    def __init__(
        self, words: Float32s, affine: Float32s, codes: Bytes, first: FirstLook, calibration: Calibration
    ) -> None:
        """words: D 256, ascending in each row. affine: 2 D, the word of code 0 and the step from 0 to 255, fitted."""
        self._words = words
        self._affine = affine
        self._codes = codes
        self._first = first
        self._calibration = calibration
        self._middles = (words[:, 1:] + words[:, :-1]) / 2

    @classmethod
    def fit(cls, store: DescriptorStore, *, seed: int, target_recall: float) -> Pq1Codec:
        probe = Probe.draw(store, seed)
        coordinates = min(-(-(store.dim + 1) // SUBSPACE) * SUBSPACE, LADDER[0] * SUBSPACE)
        first, _ = FirstLook.fit(
            store, probe, coordinates=coordinates, ladder=LADDER[:1], seed=seed, target_recall=target_recall
        )
        sample = store.take(training_rows(len(store), _TRAINING_ROWS, seed)).astype(np.float32)
        codes = np.empty((len(store), store.dim), np.uint8)
        codec = cls(*train_words(sample), codes, first, Calibration.cautious())
        for start, block in store.blocks(BLOCK_ROWS):
            codes[start : start + len(block)] = codec.encode(block)
            first.append(first.projection.apply(block))
        codec._calibration = calibrate(codec._rough, probe, len(store), probes=(1,), target=target_recall)
        return codec

    def encode(self, descriptors: Float32s) -> Bytes:
        """The nearest word of each value: N D."""
        codes = np.empty(descriptors.shape, dtype=np.uint8)
        columns = np.ascontiguousarray(descriptors.T)

        def code(d: int) -> None:
            codes[:, d] = np.searchsorted(self._middles[d], columns[d], side="left")

        for_each(code, len(self._words))
        return codes

    def append(self, descriptors: Float32s) -> None:
        self._codes = np.concatenate([self._codes, self.encode(descriptors)])
        self._first.append(self._first.projection.apply(descriptors))

    def decode(self, codes: Bytes) -> Float32s:
        """The words of codes N D."""
        places = codes.astype(np.int32)
        places += np.arange(0, WORDS * len(self._words), WORDS, dtype=np.int32)
        return np.take(self._words.reshape(-1), places)

    def search(self, queries: Float32s, k: int, keep: Keep | None, store: DescriptorStore) -> tuple[Float32s, Int64s]:
        possible = len(self._codes) if keep is None else len(keep)
        wanted, depth = min(k, possible), self._calibration.depth_for(k, len(self._codes))
        every = None
        if possible <= depth:
            every = np.arange(possible) if keep is None else keep.rows
        coordinates = self._first.projection.apply_query(queries)
        scores = np.full((len(queries), wanted), -np.inf, dtype=np.float32)
        rows = np.full((len(queries), wanted), -1, dtype=np.int64)

        def settle(q: int) -> None:
            mine = self._first.keep_about(coordinates[q : q + 1], depth, keep)[0] if every is None else every
            top_scores, top_rows = self._settle(queries[q], self._affine_scores(queries[q], mine), mine, wanted)
            scores[q, : len(top_rows)], rows[q, : len(top_rows)] = top_scores, top_rows

        for_each(settle, len(queries))
        return scores, rows

    def _rough(self, queries: Float32s, depth: int, probes: int) -> tuple[Int64s, Float32s]:
        found, scores = self._first.best(self._first.projection.apply_query(queries), depth)

        def look(q: int) -> None:
            scores[q] = self._affine_scores(queries[q], found[q])

        for_each(look, len(queries))
        scores[found < 0] = -np.inf
        return found, scores

    def _affine_scores(self, query: Float32s, rows: Int64s) -> Float32s:
        """The scores of some rows by affine words: those are put into the query, so that bytes need only be widened."""
        first, scale = self._affine
        scaled = query * (scale / np.float32(WORDS - 1))
        parts = [rows[i : i + _CACHED_ROWS] for i in range(0, len(rows), _CACHED_ROWS)]
        scores = [self._codes[part].astype(np.float32) @ scaled for part in parts]
        together: Float32s = np.concatenate([np.empty(0, np.float32), *scores])
        together += query @ first
        return together

    def _settle(self, query: Float32s, rough: Float32s, found: Int64s, k: int) -> tuple[Float32s, Int64s]:
        """Score rows by their words from the top of the affine order on, until no row further down can come in."""
        order = np.argsort(-rough, kind="stable")
        rough, found = rough[order], found[order]
        by_words = np.empty(len(found), dtype=np.float32)
        done, sure = 0, False
        while done < len(found) and not sure:
            end = min(max(done + _STEP_ROWS, k), len(found))
            by_words[done:end] = inner_products(query, self.decode(self._codes[found[done:end]]))
            done = end
            differences = by_words[:done] - rough[:done]
            reach = rough[done - 1] + differences.mean() + _MARGIN * differences.std()
            sure = done >= k and reach < np.partition(by_words[:done], done - k)[done - k]
        chosen = np.lexsort((found[:done], -by_words[:done]))[:k]
        return by_words[chosen], found[chosen]

    def select(self, rows: Int64s) -> None:
        self._codes = self._codes[rows]
        self._first.select(rows)

    def state(self) -> tuple[dict[str, Any], Arrays]:
        arrays: Arrays = {"words": self._words, "affine": self._affine, "codes": self._codes}
        return self._calibration.to_values(), arrays | self._first.state()

    @classmethod
    def restore(cls, values: dict[str, Any], arrays: Arrays, store: DescriptorStore) -> Pq1Codec:
        first, calibration = FirstLook.restore(arrays), Calibration.from_values(values)
        return cls(arrays["words"], arrays["affine"], arrays["codes"], first, calibration)

    def settings(self) -> dict[str, Any]:
        chosen = {"code_bytes": len(self._words), "words": WORDS, "first_look_bytes": self._first.code_bytes}
        return chosen | {"depth_10": self._calibration.depth_10, "depth_100": self._calibration.depth_100}

    def error(self, descriptors: Float32s) -> float:
        return float(
            np.square(self.decode(self.encode(descriptors)) - descriptors).sum() / np.square(descriptors).sum()
        )

    @property
    def memory_bytes(self) -> int:
        return self._codes.nbytes + 2 * self._words.nbytes + self._affine.nbytes + self._first.memory_bytes


def first_words(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Where the words of sorted values begin: as dense as the cube root of the values' own density.

    That is where the best words of a smooth density lie; from quantiles Lloyd's iteration takes hundreds of rounds.
    """
    low, high = values[0], values[-1]
    if low == high:
        return np.full(WORDS, low)
    counts, edges = np.histogram(values, bins=WORDS, range=(low, high))
    smooth = np.convolve(np.pad(counts.astype(np.float64), 2, mode="edge"), np.full(5, 0.2), mode="valid")
    mass = np.concatenate([[0.0], np.cumsum(np.cbrt(smooth))])
    words: npt.NDArray[np.float64] = np.interp((np.arange(WORDS) + 0.5) / WORDS * mass[-1], mass, edges)
    return words


def train_words(sample: Float32s) -> tuple[Float32s, Float32s]:
    """Lloyd's k-means in each of D dimensions of a sample N D: words D 256 ascending, and their affine fit 2 D.

    In one dimension a cell is an interval of the sorted values, so an iteration is 255 binary searches and differences
    of running sums: exact, without a random start, and the same on any number of threads.
    """
    dim = sample.shape[1]
    words = np.empty((dim, WORDS), dtype=np.float32)
    affine = np.zeros((2, dim), dtype=np.float32)
    codes = np.arange(WORDS)
    for d in range(dim):
        values = np.sort(sample[:, d].astype(np.float64))
        if len(values) == 0:
            words[d] = 0
            continue
        sums = np.concatenate([[0.0], np.cumsum(values)])
        centres = first_words(values)
        for _ in range(_ITERATIONS):
            edges = np.searchsorted(values, (centres[1:] + centres[:-1]) / 2)
            edges = np.concatenate([[0], edges, [len(values)]])
            counts = np.diff(edges)
            means = np.diff(sums[edges]) / np.maximum(counts, 1)
            # Where rounding of the running sums or an empty cell would break the order, the old centre stays.
            centres = np.maximum.accumulate(np.where(counts > 0, means, centres))
        words[d] = centres
        mean_code = (counts * codes).sum() / len(values)
        mean_word = (counts * centres).sum() / len(values)
        spread = (counts * (codes - mean_code) ** 2).sum()
        slope = (counts * (codes - mean_code) * (centres - mean_word)).sum() / spread if spread > 0 else 0.0
        affine[:, d] = mean_word - slope * mean_code, slope * 255
    return words, affine
