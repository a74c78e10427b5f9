"""How a collection of Milvus is indexed and searched: by its size and codec, with the effort that recall asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tessera.errors import UsageError
from tessera.gallery.catalog.records import Ids
from tessera.gallery.catalog.snapshot import Snapshot
from tessera.gallery.engines.milvus_collection import PAGE_ROWS, MilvusCollection, one_in
from tessera.gallery.engines.milvus_connection import MilvusConnection

MOST_EXACT = 100_000  # images that are compared one by one: some ten milliseconds
MOST_IN_GRAPH = 10_000_000  # of 1,024 numbers: 43 GB of memory; beyond, the server holds codes
TARGET_RECALL = 0.99  # recall@10 against exact search
_QUERIES, _K = 64, 10
_ONE_IN = 10  # images that the filter of a measurement admits: of fewer, a server compares every one
_SEGMENT_BYTES = 512 << 20  # a server's own default; it indexes every segment by itself
_FIRST_RABITQ = (2, 6)
_BUILT_WITHOUT_DISKANN = "-lite"  # as the server of the PyPI package milvus says
CODES = ("IVF_PQ", "IVF_RABITQ")
# Efforts and candidates to try, the cheapest first: together, since a server probes until it has what it is asked for.
_PROBES = (4, 8, 16, 32, 64, 128, 256, 512)
_OF_LISTS = [(probes, 0) for probes in _PROBES]
_OF_CODES = [(probes, times * probes) for probes in _PROBES[1:] for times in (3, 6)]
_OF_GRAPHS = [(effort, 0) for effort in (32, 64, 128, 256, 512, 1024)]
_EFFORTS = {
    "HNSW": ("ef", _OF_GRAPHS),
    "DISKANN": ("search_list", _OF_GRAPHS),
    "IVF_FLAT": ("nprobe", _OF_LISTS),
    "IVF_PQ": ("nprobe", _OF_CODES),
    "IVF_RABITQ": ("nprobe", _OF_CODES),
}

Scores = npt.NDArray[np.float32]
Descriptors = Callable[[Sequence[int]], Mapping[int, npt.NDArray[Any]]]


@dataclass(frozen=True)
class MilvusIndex:
    """type: Milvus's own name. effort: of a search, under the name that this type gives it; recall: that it has.

    filtered_effort: of a graph under a filter, which leads past images that may not be found; 0: not measured.
    candidates: of codes, how many more than the results are asked for and re-scored here by their descriptors.
    """

    type: str = "FLAT"
    build: dict[str, Any] = field(default_factory=dict)
    effort: int = 0
    candidates: int = 0
    recall: float = 1.0
    filtered_effort: int = 0

    @property
    def is_graph(self) -> bool:
        return self.type in _EFFORTS and _EFFORTS[self.type][0] != "nprobe"

    def parameters_for(self, k: int, *, filtered: bool = False) -> dict[str, Any]:
        if self.type not in _EFFORTS:
            return {}
        effort = (self.filtered_effort or 2 * self.effort) if filtered and self.is_graph else self.effort
        return {_EFFORTS[self.type][0]: max(effort, k) if self.is_graph else effort}


def choose_index(count: int, dim: int, codec: str, connection: MilvusConnection, asked: str = "") -> MilvusIndex:
    """asked: the type that was named with the server's address, else the one for so many images and this codec."""
    if connection.is_file:
        return MilvusIndex()
    _refuse_unknown(asked, connection)
    index_type = asked or _type_for(count, codec, connection)
    lists = {"nlist": int(np.clip(4 * np.sqrt(min(count, _SEGMENT_BYTES // (4 * dim))), 16, 65536))}
    build: dict[str, dict[str, Any]] = {
        "HNSW": {"M": 24, "efConstruction": 200},
        "IVF_FLAT": lists,
        "IVF_PQ": {**lists, "m": max(m for m in range(1, max(1, dim // 8) + 1) if dim % m == 0), "nbits": 8},
        "IVF_RABITQ": lists,
    }
    return MilvusIndex(index_type, build.get(index_type, {}))


def _type_for(count: int, codec: str, connection: MilvusConnection) -> str:
    if codec == "flat" or (codec == "auto" and count <= MOST_EXACT):
        return "FLAT"
    if codec == "ivf":
        return "IVF_FLAT"
    if codec in ("auto", "fast") and count <= MOST_IN_GRAPH:
        return "HNSW"
    return "IVF_RABITQ" if connection.version().number >= _FIRST_RABITQ else "IVF_PQ"


def _refuse_unknown(asked: str, connection: MilvusConnection) -> None:
    """A server without DISKANN takes the name, and then tries to build it for ever."""
    if asked not in ("IVF_RABITQ", "DISKANN"):
        return
    version = connection.version()
    if asked == "IVF_RABITQ" and version.number < _FIRST_RABITQ:
        lacking = f"{asked} came with {'.'.join(map(str, _FIRST_RABITQ))}"
    elif asked == "DISKANN" and _BUILT_WITHOUT_DISKANN in version.text:
        lacking = f"it was built without {asked}"
    else:
        return
    raise UsageError(f"Milvus at {connection.uri} is {version.text}: {lacking}. Name IVF_PQ, or no index at all.")


def search_best(
    collection: MilvusCollection,
    index: MilvusIndex,
    queries: npt.NDArray[np.float32],
    k: int,
    expressions: Iterable[str],
    descriptors: Descriptors,
) -> tuple[Scores, Ids]:
    """Scores Q K and ids Q K of what the expressions admit, best first, equal scores by id, ended by -inf and -1."""
    scores = np.full((len(queries), k), -np.inf, np.float32)
    ids = np.full((len(queries), k), -1, np.int64)
    asked = min(k + index.candidates, PAGE_ROWS)
    for expression in expressions:
        parameters = index.parameters_for(asked, filtered=bool(expression))
        answers = collection.search(queries, asked, expression, parameters)
        if index.candidates:
            answers = _rescored(queries, answers, descriptors)
        for q, (found, likeness) in enumerate(answers):
            all_ids = np.concatenate([ids[q][ids[q] >= 0], np.array(found, np.int64)])
            all_scores = np.concatenate([scores[q][ids[q] >= 0], np.array(likeness, np.float32)])
            best = np.lexsort((all_ids, -all_scores))[:k]
            ids[q, : len(best)], scores[q, : len(best)] = all_ids[best], all_scores[best]
    return scores, ids


def _rescored(
    queries: npt.NDArray[np.float32], answers: list[tuple[list[int], list[float]]], descriptors: Descriptors
) -> list[tuple[list[int], list[float]]]:
    """The same images by their own descriptors; without those that were removed a moment ago."""
    rescored = []
    for query, (found, _) in zip(queries, answers, strict=True):
        stored = descriptors(found)
        rows = np.array([*stored.values()], np.float32).reshape(len(stored), len(query))
        rescored.append(([*stored], (rows @ query).tolist()))
    return rescored


def measure_index(collection: MilvusCollection, snapshot: Snapshot, index: MilvusIndex) -> MilvusIndex:
    """The index with the least effort that has the recall; images of the gallery stand for queries, as codecs do it."""
    ids = snapshot.spread_ids(_QUERIES)
    if index.type not in _EFFORTS or len(ids) == 0 or snapshot.searchable <= _K:
        return index
    efforts = _EFFORTS[index.type][1]
    queries, truth = _exact_neighbours(snapshot, ids)

    def recall_at(index: MilvusIndex, truth: Ids, expression: str = "") -> float:
        _, answers = search_best(collection, index, queries, _K + 1, [expression], snapshot.descriptors)
        found = [answer[answer != own][:_K] for answer, own in zip(answers, ids, strict=True)]
        hits = sum(len(np.intersect1d(*pair)) for pair in zip(found, truth, strict=True))
        return round(hits / truth.size, 4)

    for effort, candidates in efforts:
        index = replace(index, effort=effort, candidates=candidates)
        index = replace(index, recall=recall_at(index, truth))
        if index.recall >= TARGET_RECALL:
            break
    if index.is_graph and snapshot.searchable >= 2 * _K * _ONE_IN:
        _, truth = _exact_neighbours(snapshot, ids, _ONE_IN)
        for effort, _ in efforts[efforts.index((index.effort, index.candidates)) :]:
            index = replace(index, filtered_effort=effort)
            if recall_at(index, truth, one_in(_ONE_IN)) >= TARGET_RECALL:
                break
    return index


def _exact_neighbours(
    snapshot: Snapshot, ids: npt.NDArray[np.int64], multiple_of: int = 1
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Descriptors Q D of these images, and the ids Q K of the others that are nearest to each, by one scan of all."""
    stored = snapshot.descriptors(ids.tolist())
    queries = np.stack([stored[int(image_id)] for image_id in ids]).astype(np.float32)
    best_ids = np.full((len(ids), _K), -1, np.int64)
    best = np.full((len(ids), _K), -np.inf, np.float32)
    for block_ids, descriptors in snapshot.stream_descriptors():
        scores = queries @ descriptors.astype(np.float32).T
        scores[(ids[:, None] == block_ids[None]) | (block_ids[None] % multiple_of != 0)] = -np.inf
        all_ids = np.concatenate([best_ids, np.broadcast_to(block_ids, scores.shape)], axis=1)
        all_scores = np.concatenate([best, scores], axis=1)
        order = np.argsort(-all_scores, axis=1, kind="stable")[:, :_K]
        best_ids, best = np.take_along_axis(all_ids, order, 1), np.take_along_axis(all_scores, order, 1)
    return queries, best_ids
