"""What is trained on and what is searched: gldv2-50 and instances, by the roles that they give.

The rules are in results/protocol.md. Nothing here looks at a picture.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tessera.data.sets.benchmark import Benchmark
from tessera.data.sets.gldv2 import gldv2_file
from tessera.storage import write_atomically

PHOTOS_A_LANDMARK = 60  # of training: a landmark has 125, most things two to sixteen
LEFT_OUT = "stitch"  # a neighbour of `pairs`, which is measured on
MERGED = {"wonders/Machu_Picchu": "41", "wonders/The_Great_Wall_Of_China": "46"}  # things that are landmarks, too

TEST_SETS = ("gldv2-test", "instances-val")
CHOICE_SET = "gldv2-val"


@dataclass(frozen=True)
class Photo:
    """file: below the data folder. source: `gldv2` or the set of instances. asked: whether it is a query."""

    file: str
    label: str
    source: str
    role: str
    asked: bool


def read_photos(data: Path) -> list[Photo]:
    """Every photo of both sets without duplicates, in the order of their files."""
    gldv2 = data / "gldv2-50"
    role_of = {row["landmark_id"]: row["role"] for row in _rows(gldv2 / "roles.csv")}
    split_of = {row["id"]: row["split"] for row in _rows(gldv2 / "split.csv")}
    dropped = {row["drop"] for row in _rows(gldv2 / "duplicates.csv")}
    photos = [
        Photo(
            f"gldv2-50/{gldv2_file(row['id'])}",
            row["landmark_id"],
            "gldv2",
            role_of[row["landmark_id"]],
            split_of[row["id"]] == "test",
        )
        for row in _rows(gldv2 / "train.csv")
        if row["id"] not in dropped
    ]
    for row in _rows(data / "instances" / "labels.csv"):
        label = MERGED.get(row["label"], row["label"])
        photos.append(Photo(f"instances/{row['path']}", label, row["set"], row["role"], asked=True))
    return photos


def training_photos(photos: Sequence[Photo]) -> list[Photo]:
    """The train roles, at most `PHOTOS_A_LANDMARK` of a landmark of gldv2-50."""
    taken: dict[str, int] = defaultdict(int)
    chosen = []
    for photo in photos:
        if photo.role != "train" or photo.source == LEFT_OUT:
            continue
        if photo.source == "gldv2":
            taken[photo.label] += 1
            if taken[photo.label] > PHOTOS_A_LANDMARK:
                continue
        chosen.append(photo)
    return chosen


def unseen_photos(photos: Sequence[Photo]) -> list[Photo]:
    """The photos of landmarks and things that no training has seen."""
    return [photo for photo in photos if photo.role in ("val", "test")]


def thin_out(photos: Sequence[Photo], *, labels: int = 4, photos_each: int = 2) -> list[Photo]:
    """A few labels of each set and role with a few photos each, queries among them: to see that everything runs."""
    known: dict[tuple[str, str], list[str]] = defaultdict(list)
    taken: dict[tuple[str, str, bool], int] = defaultdict(int)
    kept = []
    for photo in photos:
        of_set = known[photo.source, photo.role]
        if photo.label not in of_set:
            of_set.append(photo.label)
        key = (photo.source, photo.label, photo.asked)
        if of_set.index(photo.label) < labels and taken[key] < photos_each:
            taken[key] += 1
            kept.append(photo)
    return kept


def write_training_list(photos: Sequence[Photo], path: Path) -> None:
    """A CSV of path,label for `data.name = "csv"`; left alone when it is the same."""
    text = "path,label\n" + "".join(f"{photo.file},{photo.label}\n" for photo in training_photos(photos))
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        write_atomically(path, text.encode())


def benchmark_of(name: str, photos: Sequence[Photo], data: Path, *, distractors: bool = False) -> Benchmark:
    """A set as a benchmark. gldv2: the split `test` asks, all photos of its landmarks are there; instances: all ask.

    distractors: every other photo that training did not see is in the gallery, too.
    """
    unseen = unseen_photos(photos)
    inside = [photo for photo in unseen if _set_of(photo) == name]
    gallery = inside + [photo for photo in unseen if _set_of(photo) != name and distractors]
    labels = np.array([f"{photo.source}/{photo.label}" for photo in gallery])
    asked = [row for row, photo in enumerate(inside) if photo.asked]
    lists = []
    for row in asked:
        same = np.flatnonzero(labels == labels[row])
        lists.append({"easy": same[same != row], "junk": np.array([row], dtype=np.int64)})
    files = tuple(photo.file for photo in gallery)
    return Benchmark(
        name=f"{name}+distractors" if distractors else name,
        gallery=tuple(data / file for file in files),
        gallery_names=files,
        queries=tuple(data / files[row] for row in asked),
        query_names=tuple(files[row] for row in asked),
        boxes=(None,) * len(asked),
        lists=tuple(lists),
        own_ids=np.array(asked, dtype=np.int64),
        levels=False,
        num_distractors=len(gallery) - len(inside),
        strict=False,
    )


def _set_of(photo: Photo) -> str:
    return f"gldv2-{photo.role}" if photo.source == "gldv2" else f"instances-{photo.role}"


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
