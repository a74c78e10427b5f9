"""The inverted file of a gallery: for each visual word the images that have it, with 64 signs each, on FAISS.

ASMK*'s selective kernel over the lists of the query's words. FAISS scans the lists and keeps what is near enough;
files are mapped, so that opening a large one takes no time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from tessera.errors import IndexingError
from tessera.local.compact import CODE_BITS, Codes, CompactFeatures, aggregate_codes
from tessera.local.parts import ASMK_ASSIGNMENT, QueryFeatures
from tessera.storage import atomic_path, hash_file, parse_json, write_atomically

Ids = npt.NDArray[np.int64]
Scores = npt.NDArray[np.float32]

LISTS_NAME, IMAGES_NAME = "postings.faiss", "images.npz"
_STATE_NAME = "postings.json"
ALPHA = 3.0
MAX_DISTANCE = 24  # of 64 signs: a similarity of 0.25; strangers are 32 apart, and one in thirty is nearer than this


class Postings:
    """Images by their words. An image is known by its slot here; `ids` has the gallery's number of each slot.

    What was read from a file cannot grow: a gallery adds to a second one that lives in memory (see `PostingsIndex`).
    """

    def __init__(self, num_words: int) -> None:
        import faiss

        self.num_words = num_words
        self._words: Any = faiss.IndexBinaryFlat(CODE_BITS)  # never searched: words are always given
        self._lists: Any = faiss.IndexBinaryIVF(self._words, CODE_BITS, num_words)
        self._lists.is_trained = True
        self.ids: Ids = np.empty(0, np.int64)
        self._norms: Scores = np.empty(0, np.float32)  # the number of words of an image

    def __len__(self) -> int:
        return len(self.ids)

    def add(self, images: Iterable[tuple[int, CompactFeatures]]) -> None:
        """Add images by their ids, which must grow. One without features has a slot, and is found by nothing."""
        import faiss

        ids: list[int] = []
        norms, words, codes, slots = [], [], [], []
        for image_id, features in images:
            image_words, image_codes = aggregate_codes(features.words.astype(np.int64), features.codes)
            slots.append(np.full(len(image_words), len(self.ids) + len(ids), np.int64))
            ids.append(image_id)
            norms.append(len(image_words))
            words.append(image_words)
            codes.append(image_codes)
        if not ids:
            return
        all_words, all_codes, all_slots = (np.concatenate(parts) for parts in (words, codes, slots))
        if len(all_words) and int(all_words.max()) >= self.num_words:
            raise IndexingError("local features have words that the codebook has not: they are of another one.")
        order = np.argsort(all_words, kind="stable")  # lists that grow one after the other grow faster
        given = (
            np.ascontiguousarray(all_codes[order]).view(np.uint8).reshape(-1, CODE_BITS // 8),
            np.ascontiguousarray(all_slots[order]),
            np.ascontiguousarray(all_words[order]),
        )
        self._lists.add_core(len(order), *(faiss.swig_ptr(array) for array in given))
        self.ids = np.concatenate([self.ids, np.array(ids, np.int64)])
        self._norms = np.concatenate([self._norms, np.array(norms, np.float32)])

    def scores(self, words: npt.NDArray[np.int64], codes: Codes) -> Scores:
        """ASMK*'s similarity of a query, by its aggregated words and codes, with the image of every slot."""
        from faiss.contrib.ivf_tools import range_search_preassigned

        if not len(words) or not len(self):
            return np.zeros(len(self), np.float32)
        rows = np.ascontiguousarray(codes).view(np.uint8).reshape(-1, CODE_BITS // 8)
        _, distances, slots = range_search_preassigned(self._lists, rows, MAX_DISTANCE + 1, words[:, None])
        similarity = _KERNEL[np.asarray(distances, np.int64)]
        total = np.bincount(np.asarray(slots, np.int64), similarity, minlength=len(self))
        return np.asarray(total / np.sqrt(np.maximum(self._norms, 1.0) * len(words)), np.float32)

    @property
    def num_bytes(self) -> int:
        return (CODE_BITS // 8 + 8) * int(self._lists.ntotal) + self.ids.nbytes + self._norms.nbytes

    def save(self, folder: Path, state: dict[str, Any]) -> None:
        """Write the lists, the images and what they show. The state comes last, with the hashes of the others."""
        import faiss

        with atomic_path(folder / LISTS_NAME) as temporary:
            faiss.write_index_binary(self._lists, str(temporary))
        with atomic_path(folder / IMAGES_NAME) as temporary, temporary.open("wb") as file:
            np.savez(file, ids=self.ids, norms=self._norms)
        hashes = {name: hash_file(folder / name) for name in (LISTS_NAME, IMAGES_NAME)}
        content = {**state, "num_words": self.num_words, "files": hashes}
        write_atomically(folder / _STATE_NAME, json.dumps(content).encode())

    @classmethod
    def load(cls, folder: Path) -> tuple[Postings, dict[str, Any]]:
        """The saved lists, mapped, and their state; an `IndexingError` where a file is missing or does not fit."""
        import faiss

        state = read_state(folder)
        try:
            postings = cls(int(state["num_words"]))
            lists = faiss.read_index_binary(str(folder / LISTS_NAME), faiss.IO_FLAG_MMAP)
            with np.load(folder / IMAGES_NAME, allow_pickle=False) as arrays:
                ids, norms = arrays["ids"], arrays["norms"]
        except (OSError, EOFError, ValueError, KeyError, TypeError, RuntimeError, BadZipFile) as error:
            raise IndexingError(f"The inverted file in {folder} cannot be read: {error}.") from error
        if not isinstance(lists, faiss.IndexBinaryIVF) or lists.nlist != postings.num_words or len(ids) != len(norms):
            raise IndexingError(f"The inverted file in {folder} does not fit its own description.")
        postings._lists, postings.ids, postings._norms = lists, ids.astype(np.int64), norms.astype(np.float32)
        return postings, state


def read_state(folder: Path) -> dict[str, Any]:
    try:
        state = parse_json((folder / _STATE_NAME).read_bytes())
    except (OSError, ValueError) as error:
        raise IndexingError(f"The inverted file in {folder} is missing or was not finished.") from error
    if not isinstance(state, dict) or not isinstance(state.get("files"), dict):
        raise IndexingError(f"The inverted file in {folder} is damaged.")
    return state


def verify_files(folder: Path) -> list[str]:
    """What is wrong with the saved files, read to their last byte."""
    files = read_state(folder).get("files", {})
    return [
        f"{folder / name} is damaged or missing"
        for name, expected in files.items()
        if not (folder / name).is_file() or hash_file(folder / name) != expected
    ]


def aggregate_query(query: QueryFeatures) -> tuple[npt.NDArray[np.int64], Codes]:
    """The distinct words of a query with several words a feature, and one code each."""
    words = query.words[:, :ASMK_ASSIGNMENT].ravel()
    found = words >= 0  # FAISS gives -1 where the groups it looked into had fewer words
    return aggregate_codes(words[found], query.codes[:, :ASMK_ASSIGNMENT].ravel()[found])


_KERNEL = np.maximum(1.0 - 2.0 * np.arange(CODE_BITS + 1) / CODE_BITS, 0.0) ** ALPHA
