"""Images with a class each: what training, whitening and folder evaluation read, whatever layout they lie in."""

from __future__ import annotations

import csv
import hashlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tessera.errors import DataError

IntArray = npt.NDArray[np.int64]
IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff"})


@dataclass(frozen=True)
class ImageSet:
    """Images under one folder with integer labels.

    files: N paths relative to `root`, with forward slashes; they also name the images in reports.
    labels: N, each an index into `class_names`, so that 0 <= label < num_classes.
    notes: what the reader should be told (a count that differs from the published one, classes of one image).
    """

    name: str
    root: Path
    files: tuple[str, ...]
    labels: IntArray
    class_names: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.files) != len(self.labels):
            raise DataError(f"{self.name} has {len(self.files)} images and {len(self.labels)} labels.")
        if len(self.labels) and not 0 <= self.labels.min() <= self.labels.max() < len(self.class_names):
            raise DataError(f"{self.name} has a label outside 0..{len(self.class_names) - 1}.")

    def __len__(self) -> int:
        return len(self.files)

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def paths(self) -> list[Path]:
        return [self.root / file for file in self.files]

    def path(self, index: int) -> Path:
        return self.root / self.files[index]

    def class_sizes(self) -> IntArray:
        """How many images each class has, C."""
        return np.bincount(self.labels, minlength=self.num_classes).astype(np.int64)

    def subset(self, indices: Iterable[int], *, name: str | None = None) -> ImageSet:
        """Some of the images, with the same labels and class names."""
        chosen = np.fromiter(indices, dtype=np.int64)
        files = tuple(self.files[index] for index in chosen)
        return replace(self, name=name or self.name, files=files, labels=self.labels[chosen])

    def fingerprint(self) -> str:
        """A hash of the names and the labels; not of the content, which `benchmark.images_fingerprint` covers."""
        digest = hashlib.sha256()
        for file, label in zip(self.files, self.labels, strict=True):
            digest.update(f"{file}\0{self.class_names[label]}\n".encode())
        return digest.hexdigest()[:16]


def image_set(name: str, root: Path, pairs: Sequence[tuple[str, str]]) -> ImageSet:
    """Make an ImageSet of (file, class name) pairs; classes are numbered in the order of their sorted names.

    The names are sorted as strings, so '10' stands before '2': this is the numbering of the field's classifiers.
    """
    if not pairs:
        raise DataError(f"{name}: no images were found under {root}.")
    names = tuple(sorted({label for _, label in pairs}))
    index = {label: position for position, label in enumerate(names)}
    labels = np.fromiter((index[label] for _, label in pairs), dtype=np.int64, count=len(pairs))
    single = int(np.count_nonzero(np.bincount(labels, minlength=len(names)) == 1))
    notes = (f"{name}: {single} of {len(names)} classes have one image only.",) if single else ()
    return ImageSet(name, root, tuple(file for file, _ in pairs), labels, names, notes)


def split_by_class(images: ImageSet, *, validation: float = 0.2, seed: int = 0) -> tuple[ImageSet, ImageSet]:
    """Split each class by itself into training and validation: at least one image each where a class has two.

    A class of one image stays in training: a class that is never trained cannot be validated. The order within a class
    is a hash of the seed and the file, so leaving images out elsewhere moves nothing here.
    """
    if not 0 < validation < 1:
        raise DataError(f"the share of validation images must lie between 0 and 1, not {validation}.")
    keys = [hashlib.blake2b(f"{seed}:{file}".encode(), digest_size=8).digest() for file in images.files]
    order = sorted(range(len(images)), key=lambda index: (images.labels[index], keys[index]))
    held_out = np.zeros(len(images), dtype=bool)
    starts = np.concatenate([[0], np.cumsum(images.class_sizes())])
    for start, stop in itertools.pairwise(starts):
        size = int(stop - start)
        count = 0 if size < 2 else min(size - 1, max(1, round(validation * size)))
        held_out[order[start : start + count]] = True
    return (
        images.subset(np.flatnonzero(~held_out), name=f"{images.name}-train"),
        images.subset(np.flatnonzero(held_out), name=f"{images.name}-val"),
    )


def read_table(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, Mapping[str, str]]]:
    """The rows of a CSV with a header, each with its line number; a column or a value that is missing is an error."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            missing = [column for column in columns if column not in (reader.fieldnames or ())]
            if missing:
                found = ", ".join(reader.fieldnames or ()) or "nothing"
                raise DataError(f"{path} has no column {', '.join(missing)}. Its first line has: {found}.")
            for row in reader:
                if any(row[column] is None for column in columns):
                    raise DataError(f"{path}, line {reader.line_num}: the row is shorter than the header.")
                yield reader.line_num, row
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} is not a CSV in UTF-8: {error}.") from error


def safe_relative(file: str, where: str) -> str:
    """A file name of a list, kept inside its folder: absolute paths and `..` are refused."""
    parts = file.replace("\\", "/").split("/")
    if not file.strip() or file.startswith(("/", "\\")) or ".." in parts or (len(file) > 1 and file[1] == ":"):
        raise DataError(f"{where}: {file!r} is not a path inside the data folder.")
    return "/".join(part for part in parts if part not in ("", "."))
