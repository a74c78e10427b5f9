"""Build an index from descriptors, open one from its folder, and choose a codec by size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from tessera.config import from_mapping
from tessera.errors import IndexingError, unknown_name
from tessera.index.codecs import AUTO, CODECS, codec_class
from tessera.index.codecs.codec import Arrays, use_threads
from tessera.index.descriptor_file import BLOCK_ROWS, DescriptorStore
from tessera.index.files import read_array, read_manifest
from tessera.index.rows import Rows
from tessera.index.search_index import Fitted, SearchIndex, measure_error

FLAT_ROWS = 20_000  # 80 MB and some milliseconds: nothing to gain from codes
FAST_ROWS = 4_000_000  # beyond, scanning every code takes longer than people like to wait


def choose_codec(size: int) -> str:
    """What `auto` means at this size."""
    if size <= FLAT_ROWS:
        return "flat"
    return "fast" if size <= FAST_ROWS else "ivf"


def build_index(
    codec: str,
    ids: npt.ArrayLike,
    descriptors: npt.ArrayLike,
    *,
    seed: int = 0,
    threads: int | None = None,
    target_recall: float | None = None,
) -> SearchIndex:
    """Index N D descriptors (fp16 or fp32, unit norm) under N distinct ids.

    An fp16 array, mapped or not, is kept and read in place; one in fp32 is rounded to a copy. The same input gives the
    same index, byte for byte, on any number of threads. target_recall: recall@10 against exact search that coded
    searches are calibrated for; by default what the codec is meant for.
    """
    given = np.asarray(ids, dtype=np.int64).reshape(-1)
    store = DescriptorStore.of(descriptors)
    if len(given) != len(store):
        raise IndexingError(f"{len(given)} ids came with {len(store)} descriptors.")
    if len(np.unique(given)) != len(given) or (len(given) and given.min() < 0):
        raise IndexingError("Ids must be distinct and not negative.")
    if not isinstance(descriptors, np.memmap):  # a file's rows were checked when they came; reading all fills memory
        for start, block in store.halves(BLOCK_ROWS):
            if len(wrong := np.flatnonzero(~np.isfinite(block).all(axis=1))):
                raise IndexingError(f"The descriptor of id {given[start + wrong[0]]} holds values that are not finite.")
    name = choose_codec(len(given)) if codec == AUTO else codec
    if name not in CODECS:
        raise IndexingError(unknown_name("codec", name, [AUTO, *CODECS]))
    chosen = codec_class(name)
    target = chosen.target_recall if target_recall is None else target_recall
    if not 0 < target <= 1:
        raise IndexingError(f"The target recall must lie between 0 and 1, not at {target}.")
    with use_threads(threads):
        coded = chosen.fit(store, seed=seed, target_recall=target)
        error = measure_error(coded, store, seed)
    return SearchIndex(coded, store, Rows(given), fitted=Fitted(seed, target, error, len(store)))


def load_index(path: str | Path) -> SearchIndex:
    """Open the index that `save` wrote into the folder `path`; descriptors are mapped, not read."""
    folder = Path(path)
    manifest = read_manifest(folder)
    files, dim = manifest["files"], manifest["dim"]
    assert isinstance(files, dict)
    assert isinstance(dim, int)
    name = str(manifest["codec"])
    if name not in CODECS:
        raise IndexingError(f"The index in {folder} has the codec '{name}', which this Tessera lacks. Rebuild it.")
    segments = [
        read_array(folder, files[f"descriptors.{i}"], mapped=True) for i in range(int(str(manifest["segments"])))
    ]
    store = DescriptorStore(dim, segments)
    arrays: Arrays = {
        key.removeprefix("codec."): read_array(folder, entry, mapped=False)
        for key, entry in files.items()
        if key.startswith("codec.")
    }
    values = manifest["values"]
    assert isinstance(values, dict)
    try:
        codec = codec_class(name).restore(values, arrays, store)
    except KeyError as error:
        raise IndexingError(f"The index in {folder} has no {error}: an older Tessera wrote it. Rebuild it.") from error
    rows = Rows(read_array(folder, files["ids"], mapped=False), read_array(folder, files["live"], mapped=False))
    fitted = manifest["fitted"]
    assert isinstance(fitted, dict)
    index = SearchIndex(codec, store, rows, fitted=from_mapping(Fitted, fitted))
    index.resume(
        folder,
        files,
        tail=(
            read_array(folder, files["tail.ids"], mapped=False),
            read_array(folder, files["tail.descriptors"], mapped=False),
        ),
        recent=read_array(folder, files["recent"], mapped=False),
    )
    return index
