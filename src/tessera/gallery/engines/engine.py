"""What searches a gallery: a cache of the catalogue that can be thrown away and made again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tessera.errors import UsageError, unknown_name
from tessera.gallery.catalog.catalog import Catalog
from tessera.gallery.catalog.filters import AnyCondition
from tessera.gallery.catalog.records import Ids
from tessera.gallery.catalog.snapshot import Snapshot

Scores = npt.NDArray[np.float32]

ENGINES = ("faiss", "milvus")
MILVUS_INDEXES = ("FLAT", "HNSW", "IVF_FLAT", "IVF_PQ", "IVF_RABITQ", "DISKANN")


class Allowed:
    """The images that may be found: by conditions, for an engine that filters by itself, and, when asked for, by id."""

    def __init__(self, conditions: tuple[AnyCondition, ...], find: Callable[[], Ids]) -> None:
        self.conditions = conditions
        self._find = find

    @cached_property
    def ids(self) -> Ids:
        """Ascending."""
        return self._find()

    def __len__(self) -> int:
        return len(self.ids)

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.array(self.ids, dtype, copy=bool(copy)) if copy else np.asarray(self.ids, dtype)


class Index(Protocol):
    """What answers nearest-neighbour queries."""

    @property
    def size(self) -> int:
        """How many images a search can find now."""

    def search(
        self, queries: npt.ArrayLike, k: int, *, allowed: npt.ArrayLike | None = None
    ) -> tuple[Scores, npt.NDArray[np.int64]]:
        """Scores Q K and ids Q K, best first, ended by -inf and -1; equal scores by id. allowed: ascending ids."""


@dataclass(frozen=True)
class Shown:
    """An index, and the moment of the catalogue that it shows. fingerprint: of the model of its descriptors.

    has_moved: whether the index has been brought up to a later moment since. can_filter: whether it can tell by itself
    which images meet these conditions, without being given their ids.
    """

    index: Index
    generation: int
    fingerprint: str
    has_moved: Callable[[], bool]
    can_filter: Callable[[tuple[AnyCondition, ...]], bool] = lambda _: False


class Engine(Protocol):
    """One way to search. All methods may be called from several threads."""

    @property
    def shown(self) -> Shown | None:
        """What there is to search now, however old; None where there is nothing yet, or nothing any more."""

    def pin(self, catalog: Catalog) -> contextlib.AbstractContextManager[tuple[Snapshot, Shown | None]]:
        """Catch up with the catalogue, and hold the moment that both show; None for a catalogue without images."""

    def is_behind(self, catalog: Catalog) -> bool:
        """Whether only a writer can bring it up to date, so that it should be saved before it is searched."""

    @property
    def worth_saving(self) -> bool:
        """Whether so much was made in memory that a reader should write it down, if nobody else is writing."""

    def refresh(self, catalog: Catalog, *, writing: bool = False) -> None:
        """Catch up with the catalogue. writing: the caller holds the writer's lock, so files may be replaced."""

    def rebuild(self, catalog: Catalog) -> None:
        """Make the cache anew from the catalogue; the caller holds the writer's lock."""

    def problems(self, catalog: Catalog) -> list[str]:
        """What is wrong with the cache, each a sentence; empty when it is sound."""

    def unfinished(self, catalog: Catalog) -> list[str]:
        """What an interrupted writer left undone and the next makes good: no damage, since no search uses it."""

    def advice(self) -> list[str]:
        """What would make searching better, though nothing is wrong."""

    def describe(self) -> dict[str, Any]:
        """For `stats`: what it is and how much it takes."""

    def close(self) -> None: ...


def parse_engine(name: str) -> tuple[str, str]:
    """`faiss`, or `milvus:URI` with the URI of a server, after it `#TYPE` of an index, or the path of a file."""
    kind, _, target = name.partition(":")
    if kind not in ENGINES:
        raise UsageError(unknown_name("engine", kind, ("faiss", "milvus:URI")))
    if kind == "faiss" and target:
        raise UsageError(f"the engine 'faiss' takes no address, but '{target}' was given.")
    if kind == "milvus" and not target:
        raise UsageError(
            "the engine 'milvus' needs an address: milvus:http://HOST:19530, or milvus:FILE.db for one machine."
        )
    if (index_type := split_index(target)[1]) and index_type not in MILVUS_INDEXES:
        raise UsageError(unknown_name("index of Milvus", index_type, MILVUS_INDEXES))
    return kind, target


def absolute_engine(name: str) -> str:
    """An engine's name with the path of a Milvus Lite file made absolute, since commands run from anywhere."""
    kind, target = parse_engine(name)
    if kind == "milvus" and "://" not in target:
        return f"milvus:{Path(target).absolute()}"
    return name


def split_index(target: str) -> tuple[str, str]:
    """The address of a server, and the type of index that was asked for with it; "" leaves it to the gallery."""
    uri, _, index_type = target.partition("#") if "://" in target else (target, "", "")
    return uri, index_type


def open_engine(name: str, gallery_dir: Path, *, codec: str, gallery_id: str, in_service: bool = False) -> Engine:
    """in_service: someone waits for each answer, so that a server that is down is not waited for long."""
    kind, target = parse_engine(name)
    if kind == "milvus":
        from tessera.gallery.engines.milvus_connection import SERVICE_WAIT_S, WAIT_S
        from tessera.gallery.engines.milvus_engine import MilvusEngine

        wait_s = SERVICE_WAIT_S if in_service else WAIT_S
        return MilvusEngine(target, gallery_dir, collection=f"tessera_{gallery_id}", codec=codec, wait_s=wait_s)
    from tessera.gallery.engines.faiss_engine import FaissEngine

    return FaissEngine(gallery_dir / "index", codec=codec)
