"""What a search reads of a remote catalogue: the calls of a `Snapshot`, answered by the collection and the shards.

There is no moment to pin: others write meanwhile. What was removed between two calls is left out, as it is where a
local index runs ahead of its catalogue.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from tessera.errors import UsageError
from tessera.gallery.catalog.filters import AnyCondition, Condition
from tessera.gallery.catalog.records import Ids, Record
from tessera.gallery.engines.engine import Allowed
from tessera.gallery.engines.milvus_collection import PAGE_ROWS
from tessera.gallery.engines.milvus_filters import ALWAYS_TYPED, to_expression
from tessera.gallery.engines.milvus_index import Scores, search_best
from tessera.gallery.remote.remote_collection import RemoteCollection, Stored
from tessera.gallery.remote.shards import FAILED, Shards

_SAMPLED_KEYS = 500


class RemoteSnapshot:
    """What was asked for is kept for the length of a search: several of its steps ask for the same images."""

    def __init__(self, collection: RemoteCollection, shards: Shards, settings: dict[str, Any]) -> None:
        self._collection, self._shards, self._settings = collection, shards, settings
        self._stored: dict[int, Stored] = {}
        self._descriptors: dict[int, npt.NDArray[np.float32]] = {}
        self._features: dict[int, bytes] = {}
        self._keys: set[str] = set()

    @cached_property
    def searchable(self) -> int:
        return self._collection.count()

    @property
    def generation(self) -> int:
        """Grows as the catalogue does; what is sampled of it is sampled again when it has doubled."""
        return self.searchable.bit_length()

    def setting(self, key: str, default: Any = None) -> Any:
        return self._settings.get(key, default)

    def count_failed(self) -> int:
        return sum(bool(row["error"]) for _, row in self._shards.read_rows(FAILED).values())

    def records(self, ids: Sequence[int]) -> dict[int, Record]:
        return {image_id: stored.record for image_id, stored in self._get(ids).items()}

    def descriptors(self, ids: Sequence[int]) -> dict[int, npt.NDArray[np.float32]]:
        lacking = [image_id for image_id in ids if image_id not in self._descriptors]
        self._descriptors |= self._collection.descriptors(lacking)
        return {image_id: self._descriptors[image_id] for image_id in ids if image_id in self._descriptors}

    def local_features(self, ids: Sequence[int], fingerprint: str) -> dict[int, bytes]:
        if not self.has_features_of(fingerprint):
            return {}
        lacking = {i: stored.span for i, stored in self._get(ids).items() if i not in self._features}
        self._features.update(zip(lacking, self._shards.read_spans(list(lacking.values())), strict=True))
        return {image_id: self._features[image_id] for image_id in ids if image_id in self._features}

    def has_features_of(self, fingerprint: str) -> bool:
        return bool(self._settings["local_fingerprint"] == fingerprint)

    def has_earlier_features(self, fingerprint: str) -> bool:
        return False  # its writers refuse any system but the one that it was made with

    def spread_ids(self, count: int) -> Ids:
        return np.array(self._collection.sample(count, self.searchable), np.int64)

    def matching_ids(self, conditions: tuple[AnyCondition, ...]) -> Ids:
        """Of a filter that admits few; a search by descriptor never asks for them."""
        rows = self._collection.query(expression_of(conditions), ["id"])
        if len(rows) >= PAGE_ROWS:
            raise UsageError(
                f"--where admits more than {PAGE_ROWS} images of a remote catalogue: too many for --expand or --rerank."
            )
        if not rows:  # a key that some image has is not mistyped
            for condition in conditions:
                if isinstance(condition, Condition) and self._is_known(condition.key):
                    self._keys.add(condition.key)
        return np.array(sorted(int(row["id"]) for row in rows), np.int64)

    def _is_known(self, key: str) -> bool:
        return bool(self._collection.query(expression_of((Condition(key, ">=", ""),)), ["id"], 1))

    def metadata_keys(self) -> list[str]:
        """Of a sample, and those that were asked for and found."""
        sampled = self._get(self._collection.sample(_SAMPLED_KEYS, self.searchable))
        return sorted(self._keys.union(*(stored.record.metadata for stored in sampled.values())))

    def _get(self, ids: Sequence[int]) -> dict[int, Stored]:
        lacking = [image_id for image_id in ids if image_id not in self._stored]
        self._stored |= self._collection.get(lacking)
        return {image_id: self._stored[image_id] for image_id in ids if image_id in self._stored}


class RemoteCatalog:
    """Where a gallery looks for its records, as in a `Catalog`. There is no row of an image on this machine."""

    def __init__(self, collection: RemoteCollection, shards: Shards, settings: dict[str, Any]) -> None:
        self.collection, self.shards, self.settings = collection, shards, settings

    @contextlib.contextmanager
    def read(self) -> Iterator[RemoteSnapshot]:
        yield RemoteSnapshot(self.collection, self.shards, self.settings)

    def generation(self) -> int:
        return self.collection.count()

    def close(self) -> None:
        self.collection.connection.close()


class RemoteIndex:
    """The collection, searched; filters are sent as expressions, whatever they admit."""

    def __init__(self, collection: RemoteCollection, snapshot: RemoteSnapshot) -> None:
        self._collection, self._snapshot = collection, snapshot
        self.size = snapshot.searchable

    def search(self, queries: npt.ArrayLike, k: int, *, allowed: npt.ArrayLike | None = None) -> tuple[Scores, Ids]:
        asked = np.atleast_2d(np.asarray(queries, np.float32))
        expression = expression_of(allowed.conditions) if isinstance(allowed, Allowed) else ""
        collection, descriptors = self._collection, self._snapshot.descriptors
        return search_best(collection, collection.index, asked, k, [expression], descriptors)


def expression_of(conditions: tuple[AnyCondition, ...]) -> str:
    """Conditions as the server takes them; one that it cannot answer is an error, for nobody else could."""
    expression = to_expression(conditions, ALWAYS_TYPED)
    if expression is None:
        raise UsageError(
            "A remote catalogue is not filtered by near=, folder=, KEY~TEXT or !=true: the server has no such "
            "comparison. Use =, !=, <, <=, > or >=."
        )
    return expression
