"""What every codec offers to a `SearchIndex`, and the threads that it may use."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, TypeVar

import faiss
import numpy as np
import numpy.typing as npt

from tessera.index.descriptor_file import DescriptorStore
from tessera.index.rows import RowFilter

Float32s = npt.NDArray[np.float32]
Int64s = npt.NDArray[np.int64]
Arrays = dict[str, npt.NDArray[Any]]
Result = TypeVar("Result")


class Codec(abc.ABC):
    """The coded part of an index: N rows, searched as a whole.

    A codec is fitted once on gallery descriptors; rows that are appended later are coded by what was fitted then.
    """

    name: ClassVar[str]
    exact: ClassVar[bool]  # the scores are inner products with the stored descriptors, not estimates
    target_recall: ClassVar[float] = 0.99  # recall@10 against exact search that the codec is calibrated for
    lossless: ClassVar[bool] = False  # there are no codes, so no error of theirs

    @classmethod
    @abc.abstractmethod
    def fit(cls, store: DescriptorStore, *, seed: int, target_recall: float) -> Codec:
        """Learn what there is to learn, and code every row of the store."""

    @abc.abstractmethod
    def search(
        self, queries: Float32s, k: int, row_filter: RowFilter | None, store: DescriptorStore
    ) -> tuple[Float32s, Int64s]:
        """Score the rows that the filter admits against Q D queries: scores Q K and rows Q K, padded with -inf and -1.

        The order inside a query need not be final: the index sorts, with ties by id.
        """

    @abc.abstractmethod
    def append(self, descriptors: Float32s) -> None:
        """Code more rows, after those that are there."""

    @abc.abstractmethod
    def select(self, rows: Int64s) -> None:
        """Keep only these rows (ascending), renumbered from zero."""

    @abc.abstractmethod
    def state(self) -> tuple[dict[str, Any], Arrays]:
        """What `restore` needs: plain values for the manifest, arrays for files."""

    @classmethod
    @abc.abstractmethod
    def restore(cls, values: dict[str, Any], arrays: Arrays, store: DescriptorStore) -> Codec: ...

    def settings(self) -> dict[str, Any]:
        """What was chosen when the codec was fitted, for people to read."""
        return {}

    def error(self, descriptors: Float32s) -> float:
        """How badly descriptors N D are coded: the squared error as a share of their energy; 0 for exact codecs."""
        return 0.0

    @property
    @abc.abstractmethod
    def memory_bytes(self) -> int:
        """What the codes and tables hold in memory; pages of the descriptor store aside."""


def use_threads(threads: int | None) -> contextlib.AbstractContextManager[None]:
    """Let FAISS use this many threads inside the block (None: as before); the setting is the calling thread's own."""
    return contextlib.nullcontext() if threads is None else _set_threads(threads)


@contextlib.contextmanager
def _set_threads(threads: int) -> Iterator[None]:
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(threads)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def for_each(work: Callable[[int], Result], count: int) -> list[Result]:
    """work(0) .. work(count - 1), on as many threads as FAISS may use here; numpy lets them run side by side."""
    threads = 1 if count <= 1 else min(faiss.omp_get_max_threads(), count)
    if threads <= 1:
        return [work(i) for i in range(count)]

    def alone(i: int) -> Result:
        with use_threads(1):  # the cores are shared out already
            return work(i)

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(alone, range(count)))


def parameters(row_filter: RowFilter | None) -> Any:
    """FAISS search parameters that admit only `row_filter`; None admits everything."""
    if row_filter is None:
        return None
    bitmap = np.ascontiguousarray(row_filter.bitmap)
    selector = faiss.IDSelectorBitmap(row_filter.total, faiss.swig_ptr(bitmap))
    chosen: Any = faiss.SearchParameters
    made = chosen(sel=selector)
    made.held = (selector, bitmap)  # FAISS keeps bare pointers to both
    return made
