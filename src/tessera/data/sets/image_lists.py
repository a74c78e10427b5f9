"""Lists of images and labels: GLDv1, NC-clean (also called Landmarks-clean), and CSVs of one's own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from tessera.data.sets.labelled import ImageSet, image_set, read_table, safe_relative
from tessera.errors import DataError

PUBLISHED_GLDV1 = (1_060_709, 12_894)


@dataclass(frozen=True)
class ListConfig:
    """A text file of `PATH LABEL` lines, as the field's lists for GLDv1 and NC-clean are.

    file: the list, relative to `root` unless absolute. images: the folder that the paths start from, under `root`.
    """

    root: str
    file: str
    images: str = ""


@dataclass(frozen=True)
class TableConfig:
    """A CSV with columns for the path and the label.

    root: the folder that `file` and the paths start from; without it the paths start from the CSV's own folder.
    """

    file: str
    root: str | None = None
    path_column: str = "path"
    label_column: str = "label"


@dataclass(frozen=True)
class Gldv1Config:
    """GLDv1 as downloaded: train.csv with `id,url,landmark_id` and the pictures as `images/ID.jpg`."""

    root: str
    file: str = "train.csv"
    images: str = "images"


def load_list(config: ListConfig, *, name: str = "list") -> ImageSet:
    """The images of a list; the label is the last word of a line, so that paths may hold spaces."""
    root, path = Path(config.root), Path(config.root) / config.file
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as a list of images: {error}.") from error
    pairs = []
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        parts = text.rsplit(None, 1)
        if len(parts) != 2:
            raise DataError(f"{path}, line {number}: {text!r} is not a path and a label.")
        pairs.append((_join(config.images, parts[0], f"{path}, line {number}"), parts[1]))
    return image_set(name, root, pairs)


def load_gldv1(config: Gldv1Config) -> ImageSet:
    """GLDv1; some of its rows have the label `None`, which are images of no landmark: left out and counted."""
    root, path = Path(config.root), Path(config.root) / config.file
    pairs, unlabelled = [], 0
    for line, row in read_table(path, ("id", "landmark_id")):
        if row["landmark_id"] in ("None", ""):
            unlabelled += 1
            continue
        if not row["landmark_id"].isdecimal():
            raise DataError(f"{path}, line {line}: the landmark id {row['landmark_id']!r} is not a whole number.")
        pairs.append((_join(config.images, f"{row['id']}.jpg", f"{path}, line {line}"), row["landmark_id"]))
    images = image_set("gldv1", root, pairs)
    note = (f"gldv1: {unlabelled:,} rows have no landmark and are left out.",) if unlabelled else ()
    return replace(images, notes=_published(images) + note + images.notes)


def load_nc_clean(config: ListConfig) -> ImageSet:
    """NC-clean from its annotation list (`annotation_clean_train.txt`)."""
    return load_list(config, name="nc-clean")


def load_table(config: TableConfig) -> ImageSet:
    """The images of a CSV."""
    path = Path(config.root or "") / config.file
    root = Path(config.root) if config.root else path.parent
    pairs = []
    for line, row in read_table(path, (config.path_column, config.label_column)):
        label = row[config.label_column].strip()
        if not label:
            raise DataError(f"{path}, line {line}: the label is empty.")
        pairs.append((safe_relative(row[config.path_column], f"{path}, line {line}"), label))
    return image_set(path.stem, root, pairs)


def _join(folder: str, file: str, where: str) -> str:
    return safe_relative(f"{folder}/{file}" if folder else file, where)


def _published(images: ImageSet) -> tuple[str, ...]:
    if (len(images), images.num_classes) == PUBLISHED_GLDV1:
        return ()
    return (
        f"gldv1: found {len(images):,} images of {images.num_classes:,} landmarks; "
        f"published were {PUBLISHED_GLDV1[0]:,} of {PUBLISHED_GLDV1[1]:,}.",
    )
