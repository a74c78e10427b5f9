"""A searchable set of descriptors with a life: adding and removing are seen by the next search.

Four parts: coded rows (a codec), the fp16 descriptors behind them (a store), bits that say which rows are live, and
an exact tail of what was added since. `maintain` folds the tail in and drops deleted rows when they pass a tenth.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tessera.config import to_mapping
from tessera.errors import IndexingError
from tessera.index.codecs.codec import Codec, use_threads
from tessera.index.codecs.sampling import held_out_rows
from tessera.index.descriptor_file import DescriptorStore, best, candidates_for_best
from tessera.index.exact_scores import inner_products
from tessera.index.files import write_array, write_manifest
from tessera.index.locks import SharedLock
from tessera.index.rows import RowFilter, Rows
from tessera.index.tail import Tail

Float32s = npt.NDArray[np.float32]
Int64s = npt.NDArray[np.int64]

TAIL_ROWS = 4096  # a tail of this length costs about a millisecond a query
DELETED_SHARE = 0.1
DRIFT_RATIO = 1.25  # a quarter more error than when it was fitted: retraining pays
_DRIFT_ROWS = 4096
_REFIT_ROWS = 50_000


@dataclass(frozen=True)
class Fitted:
    """How the codec came about, and how well it coded the gallery it was fitted on."""

    seed: int = 0
    target_recall: float = 0.99
    error: float = 0.0
    total: int = 0


def measure_error(codec: Codec, store: DescriptorStore, seed: int) -> float:
    """The codec's coding error on rows that it was not fitted on: what later additions are compared with."""
    if codec.lossless:
        return 0.0  # and nothing need be read
    return codec.error(store.take(held_out_rows(len(store), seed)).astype(np.float32))


class SearchIndex:
    """The `search`, `add`, `remove` and `save` of a gallery, whatever its codec. Safe to use from several threads."""

    def __init__(self, codec: Codec, store: DescriptorStore, rows: Rows, *, fitted: Fitted) -> None:
        self._codec = codec
        self._store = store
        self._rows = rows
        self._tail = Tail(store.dim)
        self._fitted = fitted
        self._recent: list[Float32s] = []
        self._lock = threading.RLock()  # the tail, the tombstones and the order of writers
        self._coded = SharedLock()  # the coded rows: searches share them, maintenance has them alone
        self._written: dict[str, dict[str, Any]] = {}
        self._written_to: Path | None = None

    @property
    def codec(self) -> str:
        return self._codec.name

    @property
    def exact(self) -> bool:
        """Whether every score is the inner product with the stored descriptor (else the codec's estimate of it)."""
        return self._codec.exact

    @property
    def dim(self) -> int:
        return self._store.dim

    @property
    def size(self) -> int:
        """How many descriptors a search can find."""
        with self._lock:  # merging moves them from one to the other
            return self._rows.live + self._tail.size

    @property
    def deleted(self) -> int:
        """How many coded rows are only waiting to be dropped."""
        return self._rows.deleted

    @property
    def tail_size(self) -> int:
        return self._tail.size

    @property
    def memory_bytes(self) -> int:
        """What the index holds in memory; pages of the mapped descriptors aside."""
        return self._codec.memory_bytes + self._rows.memory_bytes + self._tail.memory_bytes

    @property
    def grown(self) -> float:
        """How many times as many images there are as when the codec was fitted; 1 where that is not known."""
        return self.size / self._fitted.total if self._fitted.total else 1.0

    def describe(self) -> dict[str, Any]:
        """What the codec chose when it was fitted, for `stats` and for reports."""
        return {
            "codec": self.codec,
            "dim": self.dim,
            "size": self.size,
            "deleted": self.deleted,
            "tail": self.tail_size,
        } | {"settings": self._codec.settings()}

    def ids(self) -> Int64s:
        """Every id that a search can find, ascending."""
        with self._lock:
            live = self._rows.live_filter()
            coded = self._rows.ids() if live is None else self._rows.ids(live.rows)
            return np.sort(np.concatenate([coded, self._tail.ids]))

    def descriptors(self, ids: npt.ArrayLike) -> Float32s:
        """The stored descriptors of some ids, len(ids) D; an id that is not here is an error."""
        wanted = np.asarray(ids, dtype=np.int64).reshape(-1)
        with self._lock:
            out = np.empty((len(wanted), self.dim), dtype=np.float32)
            positions = self._tail.find(wanted)
            rows = self._rows.find(wanted)
            missing = (positions < 0) & (rows < 0)
            if missing.any():
                raise IndexingError(f"The index holds no descriptor of id {wanted[missing][0]}.")
            in_tail = positions >= 0
            out[in_tail] = self._tail.descriptors[positions[in_tail]]
            out[~in_tail] = self._store.take(rows[~in_tail])
            return out

    def search(
        self, queries: npt.ArrayLike, k: int, *, allowed: npt.ArrayLike | None = None, threads: int | None = None
    ) -> tuple[Float32s, Int64s]:
        """The k best of each of Q D queries: scores Q K, ids Q K, best first, equal scores by id.

        allowed: only these ids may be answered; applied inside the search, so k of them are found if there are k.
        Where there are fewer than k, scores end in -inf and ids in -1.
        """
        asked = self._check(queries, "queries")
        if k < 1:
            raise IndexingError(f"k must be at least 1, not {k}.")
        wanted = None if allowed is None else np.asarray(allowed, dtype=np.int64).reshape(-1)
        with self._coded.shared():
            with self._lock:
                tail = self._search_tail(asked, k, wanted) if self._tail.size else None
                rows = self._rows
                row_filter = rows.live_filter() if wanted is None else rows.allowed_filter(wanted)
            if rows.total == 0 or (row_filter is not None and len(row_filter) == 0):
                coded_rows = np.empty((len(asked), 0), np.int64)
                coded_scores = np.empty((len(asked), 0), np.float32)
            else:
                with use_threads(threads):
                    coded_scores, coded_rows = self._codec.search(asked, k, row_filter, self._store)
        scores = np.empty((len(asked), k), np.float32)
        ids = np.empty((len(asked), k), np.int64)
        for q in range(len(asked)):
            mine_ids, mine = rows.ids(coded_rows[q]), coded_scores[q]
            if tail is not None:
                mine_ids, mine = np.concatenate([mine_ids, tail[0][q]]), np.concatenate([mine, tail[1][q]])
            top_scores, top_ids = best(mine, mine_ids, k)
            found = len(top_ids)
            if found and top_scores[-1] == -np.inf:  # what a codec's rows are padded with comes last
                found = int(np.searchsorted(-top_scores, np.inf))
            scores[q, :found], ids[q, :found] = top_scores[:found], top_ids[:found]
            scores[q, found:], ids[q, found:] = -np.inf, -1
        return scores, ids

    def _search_tail(self, queries: Float32s, k: int, wanted: Int64s | None) -> tuple[list[Int64s], list[Float32s]]:
        """The tail's best ids and exact scores, a list entry a query."""
        descriptors, halves, ids = self._tail.descriptors, self._tail.halves, self._tail.ids
        if wanted is not None:
            chosen = np.isin(ids, wanted)
            descriptors, halves, ids = descriptors[chosen], halves[chosen], ids[chosen]
        positions = [candidates_for_best(rough, k) for rough in queries @ descriptors.T]
        scores = [inner_products(query, halves[mine]) for query, mine in zip(queries, positions, strict=True)]
        return [ids[mine] for mine in positions], scores

    def add(self, ids: npt.ArrayLike, descriptors: npt.ArrayLike) -> None:
        """Make descriptors N D findable at once; an id that is here already gets its new descriptor."""
        given = np.asarray(ids, dtype=np.int64).reshape(-1)
        array = self._check(descriptors, "descriptors").astype(np.float16)
        if len(given) != len(array):
            raise IndexingError(f"{len(given)} ids came with {len(array)} descriptors.")
        if len(np.unique(given)) != len(given):
            raise IndexingError("The same id came twice in one addition.")
        if len(given) and given.min() < 0:
            raise IndexingError(f"Ids must not be negative: {given.min()}.")
        with self._lock:
            self.remove(given)
            self._tail.add(given, array)

    def remove(self, ids: npt.ArrayLike) -> int:
        """Make ids unfindable at once, by a tombstone; how many of them were there."""
        given = np.unique(np.asarray(ids, dtype=np.int64).reshape(-1))
        with self._lock:
            removed = sum(self._tail.remove(int(i)) for i in given) if self._tail.size else 0
            rows = self._rows.find(given)
            rows = rows[rows >= 0]
            self._rows.mark_deleted(rows)
            return removed + len(rows)

    @property
    def needs_maintenance(self) -> bool:
        return self._tail.size > TAIL_ROWS or self._rows.deleted > DELETED_SHARE * max(self._rows.total, 1)

    def maintain(self, *, force: bool = False) -> bool:
        """Fold the tail in when it is long, drop dead rows when they pass a tenth; True if anything was done.

        No retraining: rows are coded by what was fitted. Called by `save`, so the cost falls on a write.
        """
        with self._lock_all():
            done = False
            if self._rows.deleted > (0 if force else DELETED_SHARE * max(self._rows.total, 1)):
                self._drop_deleted()
                done = True
            if self._tail.size > (0 if force else TAIL_ROWS):
                self._fold_tail()
                done = True
            return done

    @contextlib.contextmanager
    def _lock_all(self) -> Iterator[None]:
        # The coded rows first, as a search takes them: the other order would let the two wait for each other.
        with self._coded.alone(), self._lock:
            yield

    def _fold_tail(self) -> None:
        order = np.argsort(self._tail.ids)
        ids, descriptors = self._tail.ids[order], np.ascontiguousarray(self._tail.descriptors[order])
        self._store.append(descriptors.astype(np.float16))
        if self._rows.total < min(len(ids), _REFIT_ROWS):
            self._refit()
        else:
            self._codec.append(descriptors)
        self._rows = self._rows.extended(ids)
        self._recent = [*self._recent, descriptors[-_DRIFT_ROWS:]][-4:]
        self._tail = Tail(self.dim)
        self._forget_written()

    def _refit(self) -> None:
        # What was fitted on a handful, or on nothing, says little of what has come since.
        self._codec = type(self._codec).fit(
            self._store, seed=self._fitted.seed, target_recall=self._fitted.target_recall
        )
        error = measure_error(self._codec, self._store, self._fitted.seed)
        self._fitted = replace(self._fitted, error=error, total=len(self._store))
        self._recent = []

    def _drop_deleted(self) -> None:
        live = RowFilter(self._rows.total, bitmap=self._rows.bitmap).rows
        self._codec.select(live)
        self._store = DescriptorStore(self.dim, [self._store.take(live)])
        self._rows = Rows(self._rows.ids(live))
        self._written = {}  # the descriptors' own files too: rows have moved up in them

    def _forget_written(self) -> None:
        self._written = {key: entry for key, entry in self._written.items() if key.startswith("descriptors")}

    def drift(self) -> float:
        """How much worse than at the time of fitting the codec codes what was added since: 1 is no drift.

        Above `DRIFT_RATIO` a retraining (a rebuild) pays. Exact codecs do not drift.
        """
        with self._lock:
            recent = [*self._recent, self._tail.descriptors[-_DRIFT_ROWS:]]
        sample = np.concatenate(recent)
        if len(sample) == 0 or self._fitted.error <= 0:
            return 1.0
        return float(self._codec.error(np.ascontiguousarray(sample)) / self._fitted.error)

    def save(self, path: str | Path) -> None:
        """Write the index into the folder `path`, atomically; files that have not changed are not written again."""
        folder = Path(path)
        if self.needs_maintenance:
            self.maintain()
        with self._lock:
            if self._written_to != folder.resolve():
                self._written = {}
            values, arrays = self._codec.state()
            pieces: dict[str, npt.NDArray[Any]] = {f"codec.{key}": array for key, array in arrays.items()}
            pieces["ids"] = self._rows.ids()
            pieces |= {f"descriptors.{i}": segment for i, segment in enumerate(self._store.segments)}
            files = {key: self._written.get(key) or write_array(folder, key, array) for key, array in pieces.items()}
            self._written, self._written_to = dict(files), folder.resolve()
            files["live"] = write_array(folder, "live", self._rows.bitmap)
            files["tail.ids"] = write_array(folder, "tail.ids", self._tail.ids)
            files["tail.descriptors"] = write_array(folder, "tail", self._tail.descriptors.astype(np.float16))
            recent = np.concatenate([np.empty((0, self.dim), np.float32), *self._recent]).astype(np.float16)
            files["recent"] = write_array(folder, "recent", recent)
            manifest = {"codec": self.codec, "dim": self.dim, "fitted": to_mapping(self._fitted)}
            manifest |= {"values": values, "segments": len(self._store.segments), "files": files}
            write_manifest(folder, manifest)

    def resume(
        self, folder: Path, files: dict[str, Any], *, tail: tuple[Int64s, npt.NDArray[np.float16]], recent: Float32s
    ) -> None:
        """Take over what a saved index had beside its coded rows (for `load_index`)."""
        if len(tail[0]):
            self._tail.add(*tail)
        self._recent = [recent.astype(np.float32)] if len(recent) else []
        passing = ("live", "tail.ids", "tail.descriptors", "recent")
        self._written = {key: entry for key, entry in files.items() if key not in passing}
        self._written_to = folder.resolve()

    def _check(self, array: npt.ArrayLike, what: str) -> Float32s:
        checked = np.ascontiguousarray(array, dtype=np.float32)
        if checked.ndim == 1:
            checked = checked[None]
        if checked.ndim != 2 or checked.shape[1] != self.dim:
            raise IndexingError(f"The {what} have shape {checked.shape}; this index holds descriptors of {self.dim}.")
        if not np.isfinite(checked).all():
            raise IndexingError(f"The {what} hold values that are not finite.")
        return checked
