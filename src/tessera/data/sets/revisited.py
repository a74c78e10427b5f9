"""Revisited Oxford 5k and Paris 6k in their published layout: `jpg/NAME.jpg` and `gnd_NAME.pkl`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tessera.data.ground_truth import read_ground_truth
from tessera.data.sets.benchmark import Benchmark, require_files
from tessera.errors import DataError

# Queries and gallery images as published.
PUBLISHED = {"roxford5k": (70, 4993), "rparis6k": (70, 6322)}


def load_revisited(name: str, root: Path | str) -> Benchmark:
    """One of the two sets, from its own folder or from the folder that holds it.

    Every picture that the ground truth names must be there; a different number than published is noted.
    """
    folder = _find(name, Path(root))
    truth = read_ground_truth(folder / f"gnd_{name}.pkl")
    if truth.gallery_names is None or truth.query_names is None:
        raise DataError(
            f"gnd_{name}.pkl in {folder} has no imlist and qimlist: it does not say which images there are."
        )
    if not truth.has_levels:
        raise DataError(f"gnd_{name}.pkl in {folder} has no easy and hard lists.")
    gallery = tuple(_picture(folder, picture) for picture in truth.gallery_names)
    queries = tuple(_picture(folder, picture) for picture in truth.query_names)
    require_files(gallery + queries, name)
    notes = []
    found = (len(queries), len(gallery))
    if name in PUBLISHED and found != PUBLISHED[name]:
        expected = PUBLISHED[name]
        notes.append(
            f"{name}: found {found[0]:,} queries and {found[1]:,} images; "
            f"published were {expected[0]:,} and {expected[1]:,}."
        )
    ids = {picture: number for number, picture in enumerate(truth.gallery_names)}
    return Benchmark(
        name=name,
        gallery=gallery,
        gallery_names=truth.gallery_names,
        queries=queries,
        query_names=truth.query_names,
        boxes=truth.boxes,
        lists=truth.lists,
        own_ids=np.array([ids.get(picture, -1) for picture in truth.query_names], dtype=np.int64),
        notes=tuple(notes),
    )


def _find(name: str, root: Path) -> Path:
    for folder in (root, root / name):
        if (folder / f"gnd_{name}.pkl").is_file():
            return folder
    raise DataError(
        f"{root} does not hold {name}: there is no gnd_{name}.pkl. "
        f"Give the folder with gnd_{name}.pkl and the pictures as jpg/NAME.jpg."
    )


def _picture(folder: Path, name: str) -> Path:
    return folder / "jpg" / f"{name}.jpg"
