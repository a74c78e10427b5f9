"""`pq1`: 256 k-means words in each dimension, a byte a dimension, as the paper has it.

Looking every byte up in its table costs several times a flat search: the tables make a megabyte, which no near cache
holds. Here the words of a dimension are sorted, so that a code's word is nearly an affine function of the code (two
numbers a dimension), and that function is what SIMD is good at. So every row is scored by the affine words first, and
those that can be among the best are scored again by the words themselves. The margin is taken from the differences
seen, and a search goes deeper until no row outside it can come in.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import faiss
import numpy as np
import numpy.typing as npt

from tessera.index.codec import Arrays, Codec, Float32s, Int64s, for_each, parameters
from tessera.index.rows import Keep
from tessera.index.sampling import training_rows
from tessera.index.scan import BLOCK_ROWS, LEAST_BATCH, scan_blocks
from tessera.index.store import DescriptorStore

Bytes = npt.NDArray[np.uint8]

WORDS = 256
_TRAINING_ROWS = 32768
_ITERATIONS = 30
_LEAST_DEPTH = 1024
_STEP_ROWS = 128
_MARGIN = 4.0  # standard deviations of the affine score around the score by the words


class Pq1Codec(Codec):
    """Codes in a FAISS scalar-quantiser index (its kernel is affine), and the words beside it."""

    name = "pq1"
    exact = False

    def __init__(self, words: Float32s, affine: Float32s) -> None:
        """words: D 256, ascending in each row. affine: 2 D, the word of code 0 and the step from 0 to 255, fitted."""
        self._words = words
        self._affine = affine
        self._middles = (words[:, 1:] + words[:, :-1]) / 2
        self._index = faiss.IndexScalarQuantizer(len(words), faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT)
        # FAISS reads a code as first + (code + 1/2) / 255 * range.
        first, scale = affine
        trained = np.concatenate([first - scale * np.float32(0.5 / 255), scale]).astype(np.float32)
        faiss.copy_array_to_vector(trained, self._index.sq.trained)
        self._index.is_trained = True

    @classmethod
    def fit(cls, store: DescriptorStore, *, seed: int, target_recall: float) -> Pq1Codec:
        sample = store.take(training_rows(len(store), _TRAINING_ROWS, seed)).astype(np.float32)
        words, affine = train_words(sample)
        codec = cls(words, affine)
        for _, block in store.blocks():
            codec.append(block)
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
        self._index.add_sa_codes(self.encode(descriptors))

    def _codes(self) -> Bytes:
        size = self._index.ntotal * len(self._words)
        if size == 0:
            return np.empty((0, len(self._words)), np.uint8)
        flat: Bytes = faiss.rev_swig_ptr(self._index.codes.data(), size)
        return flat.reshape(self._index.ntotal, len(self._words))

    def decode(self, codes: Bytes) -> Float32s:
        """The words of codes N D."""
        places = codes.astype(np.int32)
        places += np.arange(0, WORDS * len(self._words), WORDS, dtype=np.int32)
        return np.take(self._words.reshape(-1), places)

    def search(self, queries: Float32s, k: int, keep: Keep | None, store: DescriptorStore) -> tuple[Float32s, Int64s]:
        possible = self._index.ntotal if keep is None else len(keep)
        wanted = min(k, possible)
        scores = np.full((len(queries), wanted), -np.inf, dtype=np.float32)
        rows = np.full((len(queries), wanted), -1, dtype=np.int64)
        waiting = np.arange(len(queries))
        depth = min(max(8 * k, _LEAST_DEPTH), possible)
        while len(waiting):
            rough, found = self._scan(queries[waiting], depth, keep)
            settled = np.ones(len(waiting), dtype=bool)

            def settle(
                i: int,
                rough: Float32s = rough,
                found: Int64s = found,
                waiting: Int64s = waiting,
                settled: Any = settled,
            ) -> None:
                q = waiting[i]
                scores[q], rows[q], settled[i] = self._settle(queries[q], rough[i], found[i], wanted)

            for_each(settle, len(waiting))
            waiting = waiting[~settled] if depth < possible else waiting[:0]
            depth = min(4 * depth, possible)
        return scores, rows

    def _settle(self, query: Float32s, rough: Float32s, found: Int64s, k: int) -> tuple[Float32s, Int64s, bool]:
        """Score rows by their words from the top of the affine order on, until no row further down can come in.

        Returns scores k, rows k, and whether the list was long enough to be sure.
        """
        order = np.argsort(-rough, kind="stable")
        rough, found = rough[order], found[order]
        codes, by_words = self._codes(), np.empty(len(found), dtype=np.float32)
        done, sure = 0, False
        while done < len(found) and not sure:
            end = min(max(done + _STEP_ROWS, k), len(found))
            by_words[done:end] = self.decode(codes[found[done:end]]) @ query
            done = end
            differences = by_words[:done] - rough[:done]
            reach = rough[done - 1] + differences.mean() + _MARGIN * differences.std()
            sure = reach < np.partition(by_words[:done], done - k)[done - k]
        chosen = np.lexsort((found[:done], -by_words[:done]))[:k]
        return by_words[chosen], found[chosen], sure

    def _scan(self, queries: Float32s, depth: int, keep: Keep | None) -> tuple[Float32s, Int64s]:
        if len(queries) >= LEAST_BATCH:
            # The affine words are put into the queries, so that the codes need no more than to become floats.
            first, scale = self._affine
            scores, rows = scan_blocks(queries * (scale / 255), self._blocks(), depth, keep)
            scores += (queries @ first)[:, None]
            return scores, rows
        scores, rows = self._index.search(queries, depth, params=parameters(keep))
        return scores, rows

    def _blocks(self) -> Iterator[tuple[int, Float32s]]:
        codes = self._codes()
        for i in range(0, len(codes), BLOCK_ROWS):
            yield i, codes[i : i + BLOCK_ROWS].astype(np.float32)

    def select(self, rows: Int64s) -> None:
        kept = self._codes()[rows]
        self._index.reset()
        self._index.add_sa_codes(kept)

    def state(self) -> tuple[dict[str, Any], Arrays]:
        return {}, {"words": self._words, "affine": self._affine, "codes": self._codes()}

    @classmethod
    def restore(cls, values: dict[str, Any], arrays: Arrays, store: DescriptorStore) -> Pq1Codec:
        codec = cls(arrays["words"], arrays["affine"])
        codec._index.add_sa_codes(arrays["codes"])
        return codec

    def settings(self) -> dict[str, Any]:
        return {"code_bytes": len(self._words), "words": WORDS}

    def error(self, descriptors: Float32s) -> float:
        return float(
            np.square(self.decode(self.encode(descriptors)) - descriptors).sum() / np.square(descriptors).sum()
        )

    @property
    def memory_bytes(self) -> int:
        return int(self._index.ntotal * len(self._words) + 2 * self._words.nbytes + self._affine.nbytes)


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
