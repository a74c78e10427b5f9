"""A gallery's descriptors in a file for other programs: numpy, Parquet or FAISS. Nothing is described again."""

from __future__ import annotations

import csv
import json
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tessera.errors import GalleryError, MissingExtraError, UsageError, as_utf8
from tessera.gallery.catalog.filters import Where
from tessera.gallery.catalog.records import Record
from tessera.gallery.cells import guard_cell
from tessera.storage import atomic_path

if TYPE_CHECKING:
    from tessera.gallery.gallery import Gallery

Part = tuple[list[Record], npt.NDArray[np.float32]]
_PAGE = 1000


def export_descriptors(
    gallery: Gallery,
    output: Path,
    *,
    where: Where | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> int:
    """Write ids, paths, metadata and descriptors (unit norm, in the order of the ids); how many there were.

    output: `.npz` (arrays ids, paths, metadata as JSON, descriptors N D), `.parquet` (a row an image), or `.faiss`, an
    exact inner-product index by id with a `.csv` of ids and paths beside it. Memory does not grow with the gallery, but
    for FAISS, which holds its index.
    """
    writers = {".npz": _write_npz, ".parquet": _write_parquet, ".faiss": _write_faiss}
    write = writers.get(output.suffix.lower())
    if write is None:
        raise UsageError(f"{output} has no known ending: use one of {', '.join(writers)}.")
    if output.is_dir():
        raise UsageError(f"{output} is a folder. Give the name of a file.")
    total = gallery.count(where)
    if total == 0:
        raise GalleryError(f"There is nothing to export: no image of {gallery.path} was asked for, or it is empty.")
    dim = int(gallery.stats()["dim"])
    with atomic_path(output) as temporary:
        return write(temporary, _parts(gallery, where, total, progress), total, dim, output)


def _parts(gallery: Gallery, where: Where | None, total: int, progress: Callable[[int, int], None]) -> Iterator[Part]:
    """Records and their descriptors in pieces, at most `total` in all, however many are added meanwhile."""
    done, after_id = 0, 0
    while done < total and (records := gallery.images(after_id=after_id, limit=min(_PAGE, total - done), where=where)):
        descriptors = gallery.descriptors([record.id for record in records])
        descriptors /= np.linalg.norm(descriptors, axis=1, keepdims=True)  # half precision left them a little off
        yield records, descriptors
        done, after_id = done + len(records), records[-1].id
        progress(done, total)
    if done < total:
        raise GalleryError("Images were removed while they were exported. Nothing was written: run the command again.")


def _write_npz(path: Path, parts: Iterator[Part], total: int, dim: int, _: Path) -> int:
    ids = np.empty(total, np.int64)
    paths: list[str] = []
    metadata: list[str] = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        with archive.open("descriptors.npy", "w", force_zip64=True) as file:
            header = {"descr": "<f4", "fortran_order": False, "shape": (total, dim)}
            np.lib.format.write_array_header_1_0(file, header)
            for records, descriptors in parts:
                ids[len(paths) : len(paths) + len(records)] = [record.id for record in records]
                paths += [record.path for record in records]
                metadata += [json.dumps(record.metadata) for record in records]
                file.write(descriptors.astype("<f4").tobytes())
        for name, array in (("ids", ids), ("paths", np.array(paths)), ("metadata", np.array(metadata))):
            with archive.open(f"{name}.npy", "w") as file:
                np.lib.format.write_array(file, array, allow_pickle=False)
    return total


def _write_parquet(path: Path, parts: Iterator[Part], total: int, dim: int, _: Path) -> int:
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtraError("writing Parquet", "pyarrow", "pyarrow") from error
    schema = arrow.schema(
        [
            ("id", arrow.int64()),
            ("path", arrow.string()),
            ("metadata", arrow.string()),
            ("descriptor", arrow.list_(arrow.float32(), dim)),
        ]
    )
    with parquet.ParquetWriter(path, schema) as writer:
        for records, descriptors in parts:
            columns: list[Any] = [
                arrow.array([record.id for record in records], arrow.int64()),
                arrow.array([as_utf8(record.path) for record in records], arrow.string()),
                arrow.array([json.dumps(record.metadata) for record in records], arrow.string()),
                arrow.FixedSizeListArray.from_arrays(arrow.array(descriptors.ravel(), arrow.float32()), dim),
            ]
            writer.write_table(arrow.Table.from_arrays(columns, schema=schema))
    return total


def _write_faiss(path: Path, parts: Iterator[Part], total: int, dim: int, output: Path) -> int:
    import faiss

    index = faiss.IndexIDMap2(faiss.IndexFlatIP(dim))
    listed = output.with_suffix(".csv")
    with atomic_path(listed) as temporary:
        with temporary.open("w", newline="", encoding="utf-8") as file:
            table = csv.writer(file)
            table.writerow(("id", "path"))
            for records, descriptors in parts:
                index.add_with_ids(descriptors, np.array([record.id for record in records], np.int64))
                table.writerows((record.id, guard_cell(as_utf8(record.path))) for record in records)
        faiss.write_index(index, str(path))
    return total
