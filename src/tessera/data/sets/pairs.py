"""Pair lists in the style of SfM-120k: queries, one positive each, and clusters that negatives must not share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tessera.data.pickles import load_plain_pickle
from tessera.data.sets.labelled import ImageSet, IntArray, safe_relative
from tessera.errors import DataError

_KEYS = ("cids", "cluster", "qidxs", "pidxs")


@dataclass(frozen=True)
class PairsConfig:
    """A pair list and its images.

    file: a pickle `{'train': {'cids', 'cluster', 'qidxs', 'pidxs'}, 'val': ...}` under `root`.
    images: the folder of the images under `root`.
    layout: `cid`, an image lies at `xx/yy/zz/ID` by the last six characters of its id, last first, as SfM-120k's do;
        `flat`, the id is its path.
    """

    root: str
    file: str = "retrieval-SfM-120k.pkl"
    images: str = "ims"
    split: Literal["train", "val"] = "train"
    layout: Literal["cid", "flat"] = "cid"


@dataclass(frozen=True)
class PairSet:
    """Images with their clusters as labels, and P pairs of a query and a positive as indices into them."""

    images: ImageSet
    queries: IntArray
    positives: IntArray

    def __len__(self) -> int:
        return len(self.queries)

    def subset(self, pairs: IntArray) -> PairSet:
        """Some of the pairs, over the same images."""
        return PairSet(self.images, self.queries[pairs], self.positives[pairs])


def load_pairs(config: PairsConfig) -> PairSet:
    """The pairs of one split; every index and length is checked, for a wrong one would train on noise in silence."""
    path = Path(config.root) / config.file
    content = load_plain_pickle(path)
    if not isinstance(content, Mapping) or not isinstance(content.get(config.split), Mapping):
        raise DataError(f"{path} is not a pair list: it has no table '{config.split}'.")
    table: Mapping[str, Any] = content[config.split]
    if missing := [key for key in _KEYS if key not in table]:
        raise DataError(f"{path}, '{config.split}' has no {', '.join(missing)}.")
    names = [str(name) for name in table["cids"]]
    clusters, queries, positives = (_indices(table[key], f"{path}, '{config.split}.{key}'") for key in _KEYS[1:])
    if len(clusters) != len(names):
        raise DataError(f"{path}: {len(names)} images and {len(clusters)} clusters.")
    if len(queries) != len(positives):
        raise DataError(f"{path}: {len(queries)} queries and {len(positives)} positives.")
    for key, indices in (("qidxs", queries), ("pidxs", positives)):
        if len(indices) and not 0 <= indices.min() <= indices.max() < len(names):
            raise DataError(f"{path}: {key} points outside the {len(names)} images.")
    if len(queries) and (bad := np.flatnonzero(clusters[queries] != clusters[positives])).size:
        raise DataError(f"{path}: pair {bad[0]} joins images of two clusters.")
    ids, labels = np.unique(clusters, return_inverse=True)
    place = cid_file if config.layout == "cid" else (lambda name: name)
    files = tuple(safe_relative(f"{config.images}/{place(name)}", str(path)) for name in names)
    images = ImageSet(
        f"{path.stem}-{config.split}",
        Path(config.root),
        files,
        labels.astype(np.int64),
        tuple(str(cluster) for cluster in ids),
    )
    return PairSet(images, queries, positives)


def cid_file(name: str) -> str:
    """Where SfM-120k keeps an image: three folders of two characters, from the end of its id backwards."""
    if len(name) < 6:
        raise DataError(
            f"image id {name!r} is too short for the folders of SfM-120k; layout 'flat' takes ids as paths."
        )
    return f"{name[-2:]}/{name[-4:-2]}/{name[-6:-4]}/{name}"


def _indices(values: Any, where: str) -> IntArray:
    array = np.asarray(values)
    if array.size == 0:
        return np.empty(0, dtype=np.int64)
    array = array.reshape(-1) if array.ndim == 2 and 1 in array.shape else array
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        raise DataError(f"{where} must be a list of whole numbers.")
    return array.astype(np.int64)
