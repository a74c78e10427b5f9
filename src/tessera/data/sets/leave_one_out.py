"""A benchmark from one's own images: every labelled image a query for the others, or lists of one's own in JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from tessera.data.ground_truth import Box, read_box, read_json
from tessera.data.sets.benchmark import Benchmark, IntArray, require_files
from tessera.data.sets.folder import FolderConfig, list_images, load_folder
from tessera.data.sets.gldv2 import Gldv2Config, load_gldv2
from tessera.data.sets.image_lists import TableConfig, load_table
from tessera.data.sets.labelled import ImageSet, safe_relative
from tessera.errors import DataError, unknown_name

_QUERY_KEYS = ("query", "box", "easy", "hard", "junk")


def load_labelled_source(
    source: Path, *, roles: Sequence[str] = (), kinds: Sequence[str] = (), split: str | None = None
) -> ImageSet:
    """Labelled images from a CSV (path,label), a folder in GLDv2's layout, or class folders.

    roles, kinds, split: which landmarks and images of a GLDv2 folder.
    """
    if source.is_file():
        return load_table(TableConfig(str(source)))
    if (source / "train_clean.csv").is_file() or (source / "train.csv").is_file():
        clean = (source / "train_clean.csv").is_file()
        return load_gldv2(Gldv2Config(str(source), clean=clean, roles=tuple(roles), kinds=tuple(kinds), split=split))
    if roles or kinds or split:
        raise DataError(f"{source} has no roles, kinds or splits: it is not in the layout of GLDv2.")
    return load_folder(FolderConfig(str(source)))


def leave_one_out(images: ImageSet) -> Benchmark:
    """Every image a query, the others of its class its positives; it never finds itself.

    A class of one image gives a query without positives, whose figure is null.
    """
    paths = tuple(images.paths)
    require_files(paths, images.name)
    order = np.argsort(images.labels, kind="stable").astype(np.int64)
    members = np.split(order, np.cumsum(images.class_sizes())[:-1])
    lists = []
    for own, label in enumerate(images.labels):
        same = members[label]
        lists.append({"easy": same[same != own], "junk": np.array([own], dtype=np.int64)})
    return Benchmark(
        name=images.name,
        gallery=paths,
        gallery_names=images.files,
        queries=paths,
        query_names=images.files,
        boxes=(None,) * len(paths),
        lists=tuple(lists),
        own_ids=np.arange(len(paths), dtype=np.int64),
        levels=False,
        strict=False,
        notes=images.notes,
    )


def load_listed(root: Path, lists_path: Path, images: ImageSet | None = None) -> Benchmark:
    """A benchmark whose lists are one's own (docs/evaluate.md has the format).

    images: the gallery, where the file does not give one; otherwise every image below `root`.
    """
    content = read_json(lists_path)
    if not isinstance(content, Mapping) or not isinstance(content.get("queries"), list):
        raise DataError(f"{lists_path} must be an object with a list 'queries'.")
    if unknown := [key for key in content if key not in ("queries", "gallery", "name")]:
        raise DataError(f"{lists_path}: {unknown_name('key', unknown[0], ('queries', 'gallery', 'name'))}")
    if "gallery" in content:
        files = tuple(safe_relative(str(file), f"{lists_path}, gallery") for file in content["gallery"])
    else:
        files = images.files if images is not None else tuple(list_images(root))
    ids = _Names(files, lists_path)
    names, boxes, lists = [], [], []
    for number, record in enumerate(content["queries"]):
        name, box, found = _read_query(record, ids, f"{lists_path}, query {number}")
        names.append(name)
        boxes.append(box)
        lists.append(found)
    paths = tuple(root / file for file in files)
    queries = tuple(root / name for name in names)
    require_files(paths + queries, str(lists_path))
    return Benchmark(
        name=str(content.get("name", lists_path.stem)),
        gallery=paths,
        gallery_names=files,
        queries=queries,
        query_names=tuple(names),
        boxes=tuple(boxes),
        lists=tuple(lists),
        own_ids=np.array([ids.get(name) for name in names], dtype=np.int64),
        levels=False,
        strict=False,
    )


class _Names:
    """Ids by file name, or by the name without folder and suffix where only one image has it."""

    def __init__(self, files: Sequence[str], path: Path) -> None:
        self._ids = {file: number for number, file in enumerate(files)}
        if len(self._ids) != len(files):
            raise DataError(f"{path}: the gallery has an image twice.")
        stems = Counter(PurePosixPath(file).stem for file in files)
        self._stems = {PurePosixPath(file).stem: file for file in files if stems[PurePosixPath(file).stem] == 1}

    def file(self, name: str) -> str:
        return name if name in self._ids else self._stems.get(name, name)

    def get(self, name: str) -> int:
        return self._ids.get(self.file(name), -1)

    def find(self, names: Any, where: str) -> IntArray:
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise DataError(f"{where} must be a list of file names.")
        if unknown := [name for name in names if self.get(name) < 0]:
            raise DataError(f"{where}: {len(unknown)} images are not in the gallery, {unknown[0]} for one.")
        return np.array([self.get(name) for name in names], dtype=np.int64)


def _read_query(record: Any, ids: _Names, where: str) -> tuple[str, Box | None, Mapping[str, IntArray]]:
    if not isinstance(record, Mapping) or not isinstance(record.get("query"), str):
        raise DataError(f"{where} must be an object with the file name 'query'.")
    if unknown := [key for key in record if key not in _QUERY_KEYS]:
        raise DataError(f"{where}: {unknown_name('key', unknown[0], _QUERY_KEYS)}")
    name = safe_relative(ids.file(record["query"]), where)
    lists = {key: ids.find(record.get(key, []), f"{where}, {key}") for key in ("easy", "hard", "junk")}
    own = ids.get(name)
    if own >= 0:
        for key in ("easy", "hard"):
            lists[key] = lists[key][lists[key] != own]
        lists["junk"] = np.union1d(lists["junk"], [own]).astype(np.int64)
    return name, read_box(record.get("box"), where), lists
