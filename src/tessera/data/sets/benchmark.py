"""A benchmark: a gallery, queries with boxes, and what each query should find."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tessera.data.ground_truth import Box
from tessera.data.sets.folder import list_images
from tessera.errors import DataError

IntArray = npt.NDArray[np.int64]
_SHOWN = 50


@dataclass(frozen=True)
class Benchmark:
    """What an evaluation runs on; ids are positions in `gallery`.

    lists: a query's `easy`, `hard` and `junk` ids. levels: whether easy and hard are scored apart; otherwise they count
    together, as the protocol `all`.
    num_distractors: how many images at the end of the gallery are in no list.
    strict: an image that cannot be read is an error, because the published figures are over all of them.
    own_ids: the id of each query's own picture in the gallery, -1 where it is not there; it is never a result.
    """

    name: str
    gallery: tuple[Path, ...]
    gallery_names: tuple[str, ...]
    queries: tuple[Path, ...]
    query_names: tuple[str, ...]
    boxes: tuple[Box | None, ...]
    lists: tuple[Mapping[str, IntArray], ...]
    own_ids: IntArray
    levels: bool = True
    num_distractors: int = 0
    strict: bool = True
    notes: tuple[str, ...] = ()

    def with_distractors(self, folder: Path) -> Benchmark:
        """The same with every image below a folder added to the gallery."""
        if not folder.is_dir():
            raise DataError(f"the distractors' folder {folder} is not there.")
        files = list_images(folder)
        if not files:
            raise DataError(f"the distractors' folder {folder} has no images.")
        note = f"{len(files):,} distractors were found; R1M has a million." if len(files) < 1_000_000 else ""
        return replace(
            self,
            gallery=self.gallery + tuple(folder / file for file in files),
            gallery_names=self.gallery_names + tuple(files),
            num_distractors=self.num_distractors + len(files),
            notes=self.notes + ((note,) if note and self.levels else ()),
        )

    def without(self, gallery: Iterable[int], queries: Iterable[int]) -> Benchmark:
        """The same without some images, for those that cannot be read; they leave the lists as well."""
        dropped, lost = set(gallery), set(queries)
        kept = [i for i in range(len(self.gallery)) if i not in dropped]
        asked = [q for q in range(len(self.queries)) if q not in lost]
        new_ids = np.full(len(self.gallery) + 1, -1, dtype=np.int64)  # the last stays -1, for own ids of -1
        new_ids[kept] = np.arange(len(kept))
        main = len(self.gallery) - self.num_distractors

        def remap(ids: IntArray) -> IntArray:
            return new_ids[ids][new_ids[ids] >= 0]

        return replace(
            self,
            gallery=tuple(self.gallery[i] for i in kept),
            gallery_names=tuple(self.gallery_names[i] for i in kept),
            queries=tuple(self.queries[q] for q in asked),
            query_names=tuple(self.query_names[q] for q in asked),
            boxes=tuple(self.boxes[q] for q in asked),
            lists=tuple({name: remap(ids) for name, ids in self.lists[q].items()} for q in asked),
            own_ids=new_ids[self.own_ids[asked]],
            num_distractors=sum(1 for i in kept if i >= main),
        )


def require_files(paths: Sequence[Path], what: str) -> None:
    """Raise a DataError that lists the pictures which are not there."""
    missing = [path for path in dict.fromkeys(paths) if not path.is_file()]
    if missing:
        shown = "\n  ".join(str(path) for path in missing[:_SHOWN])
        more = f"\n  and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        raise DataError(f"{what}: {len(missing)} images are missing:\n  {shown}{more}")


def images_fingerprint(names: Sequence[str], hashes: Sequence[str]) -> str:
    """A hash of which images were really there: the published files have changed over the years."""
    digest = hashlib.sha256()
    for name, content in sorted(zip(names, hashes, strict=True)):
        digest.update(f"{name}\0{content}\n".encode())
    return digest.hexdigest()[:16]
