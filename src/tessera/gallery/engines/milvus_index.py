"""How a collection of Milvus is indexed: by its size and codec, its search parameters by a recall that is measured."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tessera.gallery.catalog.snapshot import Snapshot
from tessera.gallery.engines.milvus_collection import MilvusCollection

MOST_EXACT = 100_000  # images that are compared one by one: some ten milliseconds
TARGET_RECALL = 0.99  # recall@10 against exact search
_QUERIES, _K = 64, 10


@dataclass(frozen=True)
class MilvusIndex:
    """type: Milvus's own name. effort: of a search, under the name that this type gives it; recall: that it has."""

    type: str = "FLAT"
    build: dict[str, Any] = field(default_factory=dict)
    effort: int = 0
    recall: float = 1.0

    def parameters_for(self, k: int) -> dict[str, Any]:
        if self.type == "HNSW":
            return {"ef": max(self.effort, k)}
        return {"nprobe": self.effort} if self.type == "IVF_FLAT" else {}


def choose_index(count: int, codec: str, *, is_file: bool) -> MilvusIndex:
    """A file is small enough for exact search, and so is a gallery of less than `MOST_EXACT` images."""
    if is_file or codec == "flat" or (codec == "auto" and count <= MOST_EXACT):
        return MilvusIndex()
    if codec == "ivf":
        return MilvusIndex("IVF_FLAT", {"nlist": int(np.clip(4 * np.sqrt(count), 16, 65536))})
    return MilvusIndex("HNSW", {"M": 24, "efConstruction": 200})


def measure_index(collection: MilvusCollection, snapshot: Snapshot, index: MilvusIndex) -> MilvusIndex:
    """The index with the least effort that has the recall; images of the gallery stand for queries, as codecs do it."""
    ladder = {"HNSW": (32, 64, 128, 256, 512, 1024), "IVF_FLAT": (4, 8, 16, 32, 64, 128, 256, 512)}.get(index.type, ())
    ids = snapshot.spread_ids(_QUERIES)
    if not ladder or len(ids) == 0 or snapshot.searchable <= _K:
        return index
    queries, truth = _exact_neighbours(snapshot, ids)
    for effort in ladder:
        index = replace(index, effort=effort)
        answers = collection.search(queries, _K + 1, "", index.parameters_for(_K + 1))
        found = [
            [other for other in answer if other != own][:_K] for (answer, _), own in zip(answers, ids, strict=True)
        ]
        hits = sum(len(set(found[q]) & set(truth[q].tolist())) for q in range(len(ids)))
        index = replace(index, recall=round(hits / truth.size, 4))
        if index.recall >= TARGET_RECALL:
            break
    return index


def _exact_neighbours(
    snapshot: Snapshot, ids: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Descriptors Q D of these images, and the ids Q K of the others that are nearest to each, by one scan of all."""
    stored = snapshot.descriptors(ids.tolist())
    queries = np.stack([stored[int(image_id)] for image_id in ids]).astype(np.float32)
    best_ids = np.full((len(ids), _K), -1, np.int64)
    best = np.full((len(ids), _K), -np.inf, np.float32)
    for block_ids, descriptors in snapshot.stream_descriptors():
        scores = queries @ descriptors.astype(np.float32).T
        scores[ids[:, None] == block_ids[None]] = -np.inf
        all_ids = np.concatenate([best_ids, np.broadcast_to(block_ids, scores.shape)], axis=1)
        all_scores = np.concatenate([best, scores], axis=1)
        order = np.argsort(-all_scores, axis=1, kind="stable")[:, :_K]
        best_ids, best = np.take_along_axis(all_ids, order, 1), np.take_along_axis(all_scores, order, 1)
    return queries, best_ids
