"""Plain class folders: every folder directly under the root is a class, whatever lies below it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tessera.data.sets.labelled import IMAGE_SUFFIXES, ImageSet, image_set
from tessera.errors import DataError


@dataclass(frozen=True)
class FolderConfig:
    root: str


def load_folder(config: FolderConfig) -> ImageSet:
    """The images of a folder of class folders, in the order of their names.

    Hidden files are passed over. An image directly under the root has no class and is an error, because a flat folder
    given by mistake would otherwise be an empty data set or a set of one.
    """
    root = Path(config.root)
    if not root.is_dir():
        raise DataError(f"{root} is not a folder.")
    pairs, stray = [], []
    for file in list_images(root):
        label, _, rest = file.partition("/")
        if rest:
            pairs.append((file, label))
        else:
            stray.append(file)
    if stray:
        raise DataError(
            f"{root} has {len(stray)} images outside any class folder, {stray[0]} for one. "
            "Put each image into a folder that is named after its class, or give a CSV with path,label."
        )
    return image_set(root.name or "folder", root, pairs)


def list_images(root: Path) -> list[str]:
    """The image files below a folder, relative to it with forward slashes, sorted; hidden ones are passed over."""
    found = []
    for folder, folders, files in os.walk(root, followlinks=True):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        base = Path(folder).relative_to(root)
        for name in files:
            if not name.startswith(".") and Path(name).suffix.lower() in IMAGE_SUFFIXES:
                found.append((base / name).as_posix())
    return sorted(found)
