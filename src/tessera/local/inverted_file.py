"""The inverted file of ASMK and ASMK*: for each visual word, the images that have it and what they have there.

The norm of an image is its number of words (their summed idf where idf is used), which is its similarity with itself.
A search gathers the inverted lists of the query's words in one block and scores them with a few array operations: no
loop over words, which is what makes it fast.
"""

from __future__ import annotations

import hashlib
import io
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tessera.errors import ConfigError, IndexingError
from tessera.local.aggregation import Aggregate, Values, aggregate, padded_length
from tessera.local.codebook import Codebook
from tessera.local.features import Vectors
from tessera.storage import atomic_path

_BLOCK_ENTRIES = 1 << 15  # entries scored at once: they and their codes stay in the cache
_MERGE_SEGMENTS = 8


@dataclass(frozen=True)
class KernelConfig:
    """The defaults are HOW's: signs, five words a query feature, alpha 3, threshold 0, no idf.

    nprobe: 0 finds the nearest words exactly, as the published package; 32 is five times faster with 65,536 words and
    misses a few (docs/systems.md has figures).
    """

    binary: bool = True
    db_assignment: int = 1
    query_assignment: int = 5
    alpha: float = 3.0
    threshold: float = 0.0
    idf: bool = False
    nprobe: int = 0

    def __post_init__(self) -> None:
        if min(self.db_assignment, self.query_assignment) < 1 or self.nprobe < 0 or not self.alpha > 0:
            raise ConfigError(f"a kernel assigns a feature to at least one word and has an alpha above 0: {self}")


@dataclass(frozen=True)
class _Segment:
    """Entries ordered by word: offsets K+1 into image slots and values."""

    offsets: npt.NDArray[np.int64]
    slots: npt.NDArray[np.int32]
    values: Values


class InvertedFile:
    """Images by their aggregated local features; `add`, `remove`, `search`, `save`, `load`."""

    def __init__(self, codebook: Codebook, config: KernelConfig | None = None) -> None:
        self.codebook = codebook
        self.config = config or KernelConfig()
        self._segments: list[_Segment] = []
        self._ids = np.empty(0, np.int64)  # the image of a slot
        self._live = np.empty(0, bool)
        self._word_counts = np.zeros(codebook.size, np.int64)  # images that have the word
        self._norms: npt.NDArray[np.float64] | None = None

    def __len__(self) -> int:
        return int(self._live.sum())

    def search_ids(self) -> npt.NDArray[np.int64]:
        """The images that a search may find: those that have a word and were not removed."""
        return self._ids[self._live]

    @property
    def num_bytes(self) -> int:
        """What a search needs in memory, the codebook apart."""
        return sum(s.offsets.nbytes + s.slots.nbytes + s.values.nbytes for s in self._segments) + self._ids.nbytes

    def add(self, image_ids: npt.NDArray[np.int64], features: Vectors) -> None:
        """Add images by their features. image_ids: N, the image of each feature; none of them may be known already."""
        config = self.config
        entries = aggregate(
            self.codebook,
            features,
            image_ids,
            nearest=config.db_assignment,
            binary=config.binary,
            nprobe=config.nprobe,
        )
        self.add_aggregate(entries)

    def add_aggregate(self, entries: Aggregate) -> None:
        fresh, slots = np.unique(entries.image_ids, return_inverse=True)
        known = np.intersect1d(fresh, self._ids[self._live])
        if len(known):
            raise IndexingError(f"image {known[0]} is in the inverted file already: remove it first.")
        order = np.argsort(entries.words, kind="stable")
        counts = np.bincount(entries.words, minlength=self.codebook.size)
        self._segments.append(
            _Segment(
                np.concatenate([[0], np.cumsum(counts)]),
                (slots[order] + len(self._ids)).astype(np.int32),
                entries.values[order],
            )
        )
        self._ids = np.concatenate([self._ids, fresh])
        self._live = np.concatenate([self._live, np.ones(len(fresh), bool)])
        self._word_counts += counts
        self._norms = None
        if len(self._segments) > _MERGE_SEGMENTS:
            self.compact()

    def remove(self, image_ids: npt.ArrayLike) -> None:
        """Take images out; visible in the next search, their space is freed by `compact`."""
        gone = np.isin(self._ids, np.asarray(image_ids)) & self._live
        self._live &= ~gone
        for segment in self._segments:
            words = np.repeat(np.arange(self.codebook.size), np.diff(segment.offsets))
            self._word_counts -= np.bincount(words[gone[segment.slots]], minlength=self.codebook.size)
        self._norms = None

    def compact(self) -> None:
        """One segment, without what was removed."""
        if not self._segments:
            return
        words = np.concatenate([np.repeat(np.arange(self.codebook.size), np.diff(s.offsets)) for s in self._segments])
        slots = np.concatenate([s.slots for s in self._segments])
        keep = self._live[slots]
        words, slots = words[keep], slots[keep]
        values = np.concatenate([s.values for s in self._segments])[keep]
        order = np.argsort(words, kind="stable")
        renumbered = np.cumsum(self._live) - 1
        counts = np.bincount(words, minlength=self.codebook.size)
        offsets = np.concatenate([[0], np.cumsum(counts)])
        self._segments = [_Segment(offsets, renumbered[slots[order]].astype(np.int32), values[order])]
        self._ids, self._live = self._ids[self._live], np.ones(int(self._live.sum()), bool)
        self._norms = None

    def idf(self) -> npt.NDArray[np.float64]:
        """ln(N / count)^2 of each word; 1 for a word that no image has, as the published kernel leaves it."""
        counts = np.maximum(self._word_counts, 1)
        values = np.log(max(len(self), 1) / counts) ** 2
        return np.where(self._word_counts > 0, values, 1.0)

    def norms(self) -> npt.NDArray[np.float64]:
        """The squared norm of each slot's image, N."""
        if self._norms is None:
            total = np.zeros(len(self._ids))
            weights = self.idf() if self.config.idf else None
            for segment in self._segments:
                lengths = np.diff(segment.offsets)
                values = None if weights is None else np.repeat(weights, lengths)
                total += np.bincount(segment.slots, values, minlength=len(self._ids))
            self._norms = total
        return self._norms

    def scores(self, features: Vectors) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """The similarity of a query, given by its local features (N D), with every image: ids and scores."""
        config = self.config
        query = aggregate(
            self.codebook,
            features,
            np.zeros(len(features), np.int64),
            nearest=config.query_assignment,
            binary=config.binary,
            nprobe=config.nprobe,
        )
        return self.score_aggregate(query)

    def score_aggregate(self, query: Aggregate) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """The same for a query that is aggregated already."""
        config = self.config
        idf = self.idf() if config.idf else None
        total = np.zeros(len(self._ids))
        for segment in self._segments:
            self._score_segment(segment, query, idf, total)
        query_norm = float(len(query)) if idf is None else float(idf[query.words].sum())
        total /= np.sqrt(np.maximum(self.norms(), 1e-12)) * max(np.sqrt(query_norm), 1e-12)
        return self._ids[self._live], total[self._live]

    def search(self, features: Vectors, k: int | None = None) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """The k most similar images (all if None), best first, equal scores by id."""
        return _best(*self.scores(features), k)

    def rank_aggregate(
        self, query: Aggregate, k: int | None = None
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """As `search`, for a query that is aggregated already."""
        return _best(*self.score_aggregate(query), k)

    def _score_segment(
        self, segment: _Segment, query: Aggregate, idf: npt.NDArray[np.float64] | None, total: npt.NDArray[np.float64]
    ) -> None:
        starts, lengths = segment.offsets[query.words], segment.offsets[query.words + 1] - segment.offsets[query.words]
        used = np.flatnonzero(lengths)
        bounds = np.concatenate([[0], np.cumsum(lengths[used])])
        begin = 0
        while begin < len(used):
            end = max(begin + 1, int(np.searchsorted(bounds, bounds[begin] + _BLOCK_ENTRIES, side="right")) - 1)
            part, sizes = used[begin:end], lengths[used[begin:end]]
            entries = np.arange(bounds[end] - bounds[begin])
            entries += np.repeat(starts[part] - (bounds[begin:end] - bounds[begin]), sizes)
            similarity = self._similarity(query.values[part], sizes, segment.values, entries)
            if idf is not None:
                similarity *= np.repeat(idf[query.words[part]], sizes)
            total += np.bincount(segment.slots[entries], similarity, minlength=len(total))
            begin = end

    def _similarity(
        self, query: Values, sizes: npt.NDArray[np.int64], stored: Values, entries: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float64]:
        """The selective kernel, E: below the threshold nothing, else the power alpha.

        query: a row for each list; sizes: the entries of each list; entries: E, the rows of stored in all lists.
        """
        if not self.config.binary:
            pairs = np.repeat(query, sizes, axis=0), stored[entries]
            return self._selective(np.einsum("ed,ed->e", *pairs, dtype=np.float32).astype(np.float64))
        dim = self.codebook.dim
        distance: Values = np.zeros(len(entries), np.uint8 if dim < 256 else np.int64)
        for column in range(stored.shape[1]):  # 64 bits at a time: whole rows take three times as long
            bits = stored[:, column][entries]
            bits ^= np.repeat(query[:, column], sizes)
            distance += np.bitwise_count(bits)
        table = self._selective(1.0 - 2.0 * np.arange(dim + 1) / padded_length(dim))
        return np.asarray(table[distance], np.float64)

    def _selective(self, similarity: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        kept = np.sign(similarity) * np.abs(similarity) ** self.config.alpha
        return np.where(similarity >= self.config.threshold, kept, 0.0)

    def save(self, path: Path) -> None:
        """Write the file and its checksum under one name, atomically."""
        self.compact()
        segment = self._segments[0] if self._segments else None
        config: dict[str, Any] = {f"config_{key}": np.array(value) for key, value in asdict(self.config).items()}
        buffer = io.BytesIO()
        np.savez(
            buffer,
            centroids=self.codebook.centroids,
            ids=self._ids,
            offsets=segment.offsets if segment else np.zeros(self.codebook.size + 1, np.int64),
            slots=segment.slots if segment else np.empty(0, np.int32),
            values=segment.values if segment else np.empty((0, 0), np.uint64),
            **config,
        )
        content = buffer.getvalue()
        with atomic_path(path) as temporary:
            temporary.write_bytes(hashlib.sha256(content).digest() + content)

    @classmethod
    def load(cls, path: Path) -> InvertedFile:
        try:
            content = path.read_bytes()
        except OSError as error:
            raise IndexingError(f"{path} cannot be read: {error.strerror}. Build the inverted file again.") from error
        if hashlib.sha256(content[32:]).digest() != content[:32]:
            raise IndexingError(f"{path} is damaged: its checksum does not match. Build the inverted file again.")
        arrays = np.load(io.BytesIO(content[32:]), allow_pickle=False)
        stored = {key.removeprefix("config_"): arrays[key] for key in arrays if key.startswith("config_")}
        stored["nprobe"] = stored.pop("effort", stored.get("nprobe", 0))  # its name in 0.1
        known = {key: value for key, value in asdict(KernelConfig()).items() if key in stored}
        config = KernelConfig(**{key: type(value)(stored[key]) for key, value in known.items()})
        built = cls(Codebook(arrays["centroids"]), config)
        if len(arrays["slots"]):
            built._segments = [_Segment(arrays["offsets"], arrays["slots"], arrays["values"])]
            built._word_counts = np.diff(arrays["offsets"])
        built._ids = arrays["ids"]
        built._live = np.ones(len(built._ids), bool)
        return built


def _best(
    ids: npt.NDArray[np.int64], scores: npt.NDArray[np.float64], k: int | None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    order = np.lexsort((ids, -scores))[:k]
    return ids[order], scores[order]
