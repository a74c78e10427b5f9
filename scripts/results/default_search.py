"""The default search beside the trained rows: `lite`, ASMK* over its parts, verification and expansion, as `tessera
search` has them. Nothing is trained here."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tessera.gallery.gallery import Gallery

IntArray = npt.NDArray[np.int64]


class DefaultSearch:
    """A gallery of pictures, and rankings of any of them as the galleries of an experiment ask for it.

    in_gallery: for each gallery of the experiment the places in `paths` that belong to it.
    """

    def __init__(self, gallery: Gallery, paths: Sequence[Path], in_gallery: Sequence[Sequence[int]]) -> None:
        self.gallery, self.paths, self.in_gallery = gallery, tuple(paths), [tuple(places) for places in in_gallery]
        self.place_of = {str(path.absolute()): place for place, path in enumerate(paths)}

    def rank(self, places: Sequence[int], queries: Sequence[Path], by: str = "auto") -> Iterator[IntArray]:
        """Places in the given gallery, best first; what the search does not name comes last."""
        number = self.in_gallery.index(tuple(places))
        row_of = {place: row for row, place in enumerate(places)}
        for query in queries:
            hits = self.gallery.search(query, k=len(places), by=by, where={f"gallery_{number}": "1"})
            found = np.array([row_of[self.place_of[str(hit.path)]] for hit in hits], dtype=np.int64)
            yield np.concatenate([found, np.setdiff1d(np.arange(len(places)), found)])


@contextmanager
def open_default_search(
    folder: Path, paths: Sequence[Path], in_gallery: Sequence[Sequence[int]]
) -> Iterator[DefaultSearch]:
    """Index what is not there yet; a stopped run goes on. folder: of the gallery and the list of its pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"gallery_{number}" for number in range(len(in_gallery))]
    members = [set(places) for places in in_gallery]
    listed = folder / "pictures.csv"
    with listed.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path", *names])
        for place, path in enumerate(paths):
            if any(place in some for some in members):
                writer.writerow([path.absolute(), *(int(place in some) for some in members)])
    with Gallery(folder / "gallery.tessera", threads=1) as gallery:
        gallery.index(listed)
        yield DefaultSearch(gallery, paths, in_gallery)
