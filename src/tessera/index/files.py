"""An index on disk: a folder of files named after their content, and a manifest that says which of them count.

The manifest is replaced last and at once, so a crash leaves the old index or the new one. Files that the new manifest
does not name are removed afterwards; a reader that had them mapped goes on reading them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tessera.errors import IndexingError
from tessera.index.descriptor_file import release_pages
from tessera.storage import atomic_path, hash_file, make_folder, parse_json, write_atomically

MANIFEST = "manifest.json"
FORMAT = 6
_SAMPLES = 64
_SAMPLE_BYTES = 4096
_CHUNK_BYTES = 1 << 20

Entry = dict[str, Any]


def write_array(folder: Path, key: str, array: npt.NDArray[Any]) -> Entry:
    """Write one array under its content's name, unless it is there; its entry for the manifest."""
    make_folder(folder)
    digest = hashlib.sha256(f"{array.dtype.str}{array.shape}".encode())
    content = hashlib.sha256()
    for chunk in _chunks(array):
        digest.update(chunk)
        content.update(chunk)
    name = f"{key}-{digest.hexdigest()[:16]}.bin"
    path = folder / name
    # A file of that name may be there and damaged: its name alone must not vouch for it.
    if not path.exists() or path.stat().st_size != array.nbytes or hash_file(path) != content.hexdigest():
        with atomic_path(path) as temporary, temporary.open("wb") as file:
            for chunk in _chunks(array):
                file.write(chunk)
    entry: Entry = {"name": name, "dtype": array.dtype.str, "shape": list(array.shape), "sha256": content.hexdigest()}
    entry["sample"] = sample_digest(path)
    return entry


def _chunks(array: npt.NDArray[Any]) -> Iterator[memoryview]:
    """The array's bytes, in pieces."""
    rows = max(1, _CHUNK_BYTES * len(array) // max(array.nbytes, 1))
    for i in range(0, len(array), rows):
        yield np.ascontiguousarray(array[i : i + rows]).data
        release_pages(array)


def sample_digest(path: Path) -> str:
    """A hash of the file's length and of pages spread over it: what can be checked at every opening of gigabytes."""
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        for i in range(_SAMPLES):
            file.seek(i * max(size - _SAMPLE_BYTES, 0) // (_SAMPLES - 1))
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def read_array(folder: Path, entry: Entry, *, mapped: bool) -> npt.NDArray[Any]:
    """Read an array back, its checksum compared: the whole of it, or pages of it where it is mapped."""
    path = folder / entry["name"]
    shape = tuple(int(n) for n in entry["shape"])
    dtype = np.dtype(entry["dtype"])
    expected = int(np.prod(shape)) * dtype.itemsize
    if not path.is_file() or path.stat().st_size != expected:
        raise IndexingError(f"The index file {path} is missing or cut short. Rebuild the index.")
    if mapped:
        if sample_digest(path) != entry["sample"]:
            raise IndexingError(f"The index file {path} is damaged. Rebuild the index.")
        return np.memmap(path, dtype=dtype, mode="r", shape=shape) if expected else np.empty(shape, dtype)
    content = np.fromfile(path, dtype=np.uint8)
    if hashlib.sha256(content.data).hexdigest() != entry["sha256"]:
        raise IndexingError(f"The index file {path} is damaged. Rebuild the index.")
    return content.view(dtype).reshape(shape)


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    """Make the manifest the one that counts, then remove the files that it does not name."""
    body = json.dumps(manifest, sort_keys=True)
    sealed = {"format": FORMAT, "sha256": hashlib.sha256(body.encode()).hexdigest(), "index": manifest}
    write_atomically(folder / MANIFEST, (json.dumps(sealed, sort_keys=True, indent=1) + "\n").encode())
    named = {entry["name"] for entry in manifest["files"].values()}
    for path in folder.glob("*.bin"):
        if path.name not in named:
            with contextlib.suppress(OSError):  # one that cannot be removed is tried again by the next
                path.unlink(missing_ok=True)


def read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    if not path.is_file():
        raise IndexingError(f"There is no index in {folder}: {MANIFEST} is missing. Build one.")
    try:
        sealed = parse_json(path.read_text())
        manifest = sealed["index"]
        body = json.dumps(manifest, sort_keys=True)
        whole = sealed["sha256"] == hashlib.sha256(body.encode()).hexdigest()
        version = sealed["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise IndexingError(f"The manifest {path} is damaged. Rebuild the index.") from error
    if version != FORMAT:
        raise IndexingError(f"The index in {folder} has format {version}, and this Tessera reads {FORMAT}. Rebuild it.")
    if not whole:
        raise IndexingError(f"The manifest {path} is damaged. Rebuild the index.")
    assert isinstance(manifest, dict)
    return manifest


def verify(folder: Path) -> list[str]:
    """Read every file whole and say what is wrong with it; an empty list is a sound index."""
    problems = []
    for entry in read_manifest(folder)["files"].values():
        path = folder / entry["name"]
        if not path.is_file():
            problems.append(f"{path} is missing")
        elif hash_file(path) != entry["sha256"]:
            problems.append(f"{path} is damaged")
    return problems
