"""Ground truths of the revisited benchmarks, from a pickle or from JSON: easy, hard and junk lists, boxes, names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tessera.data.pickles import load_plain_pickle
from tessera.errors import DataError, TesseraError
from tessera.storage import parse_json

IntArray = npt.NDArray[np.int64]
Box = tuple[float, float, float, float]
LISTS = ("easy", "hard", "junk", "ok")


@dataclass(frozen=True)
class GroundTruth:
    """What each query should find.

    lists: one mapping a query, from `easy`, `hard`, `junk` (or `ok`, the one list of older sets) to ids of the gallery.
    boxes: the part of each query's picture that is meant, None for the whole.
    gallery_names, query_names: the pictures' names without `.jpg`; None where the file has the lists alone.
    """

    lists: tuple[Mapping[str, IntArray], ...]
    boxes: tuple[Box | None, ...]
    gallery_names: tuple[str, ...] | None = None
    query_names: tuple[str, ...] | None = None

    @property
    def has_levels(self) -> bool:
        """Whether easy and hard are told apart; otherwise there is one protocol."""
        return not any("ok" in lists for lists in self.lists)


def read_ground_truth(path: Path | str) -> GroundTruth:
    """Read a `.pkl` or `.json` with a list of queries, or a dictionary with `gnd`, `imlist` and `qimlist`."""
    path = Path(path)
    if path.suffix == ".json":
        content = read_json(path)
    elif path.suffix in (".pkl", ".pickle"):
        content = load_plain_pickle(path)
    else:
        raise DataError(f"{path}: a ground truth is a .pkl or a .json file.")
    gallery, queries, records = None, None, content
    if isinstance(content, Mapping):
        if "gnd" not in content:
            raise DataError(f"{path} has no 'gnd'. It has: {', '.join(map(str, content)) or 'nothing'}.")
        records = content["gnd"]
        gallery = _names(content["imlist"], f"{path}, imlist") if "imlist" in content else None
        queries = _names(content["qimlist"], f"{path}, qimlist") if "qimlist" in content else None
    if not isinstance(records, Sequence | np.ndarray) or isinstance(records, str | bytes):
        raise DataError(f"{path} is not a ground truth: it must hold a list with one entry a query.")
    if queries is not None and len(queries) != len(records):
        raise DataError(f"{path} names {len(queries)} queries and has the ground truth of {len(records)}.")
    lists, boxes = [], []
    for query, record in enumerate(records):
        where = f"{path}, query {query}"
        if not isinstance(record, Mapping):
            raise DataError(f"{where}: its entry must have lists easy, hard and junk, not {type(record).__name__}.")
        lists.append(_read_lists(record, None if gallery is None else len(gallery), where))
        boxes.append(read_box(record.get("bbx"), where))
    return GroundTruth(tuple(lists), tuple(boxes), gallery, queries)


def read_json(path: Path) -> Any:
    """The content of a JSON file, or a DataError that says where it is broken."""
    try:
        return parse_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error
    except ValueError as error:
        raise DataError(f"{path} is not JSON: {error}.") from error


def read_box(values: Any, where: str) -> Box | None:
    """Four numbers x0 y0 x1 y1, or None where there is no box."""
    if values is None:
        return None
    try:
        x0, y0, x1, y1 = (float(value) for value in np.asarray(values, dtype=np.float64).reshape(-1))
    except (TypeError, ValueError) as error:
        raise DataError(f"{where}: a box is four numbers x0 y0 x1 y1; this one is something else.") from error
    if not (np.isfinite([x0, y0, x1, y1]).all() and x0 < x1 and y0 < y1):
        raise DataError(f"{where}: the box {x0:g} {y0:g} {x1:g} {y1:g} is inside out.")
    return x0, y0, x1, y1


def _read_lists(record: Mapping[str, Any], size: int | None, where: str) -> Mapping[str, IntArray]:
    lists = {name: _gallery_ids(record[name], size, f"{where}, {name}") for name in LISTS if name in record}
    if not lists:
        raise DataError(f"{where} has none of the lists easy, hard, junk.")
    return lists


def as_ids(values: Any, where: str, raises: type[TesseraError] = DataError) -> IntArray:
    """One-dimensional integers, or an error that says where: a float rank or a name is a mistake, not an id."""
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise raises(f"{where} is not a flat list of ids.") from error
    if array.size == 0:
        return np.empty(0, dtype=np.int64)
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        raise raises(f"{where} must be a flat list of whole numbers, not {array.dtype} of {array.ndim} dimensions.")
    return array.astype(np.int64)


def _gallery_ids(values: Any, size: int | None, where: str) -> IntArray:
    array = as_ids(values, where)
    if not len(array):
        return array
    if array.min() < 0 or (size is not None and array.max() >= size):
        bad = int(array.min()) if array.min() < 0 else int(array.max())
        raise DataError(f"{where} has the id {bad}, which is not in the gallery" + (f" of {size}." if size else "."))
    return array


def _names(values: Any, where: str) -> tuple[str, ...]:
    if not isinstance(values, Sequence | np.ndarray) or isinstance(values, str | bytes):
        raise DataError(f"{where} must be a list of names.")
    return tuple(_name(value, where) for value in values)


def _name(value: Any, where: str) -> str:
    """The name of a picture without `.jpg`, which some files have and others leave out."""
    name = value.decode("latin1") if isinstance(value, bytes) else value
    if not isinstance(name, str) or not name or "\0" in name or name.startswith("/") or ".." in name.split("/"):
        raise DataError(f"{where} has an entry that is no name of a picture: {str(name)[:100]!r}.")
    return name.removesuffix(".jpg")
