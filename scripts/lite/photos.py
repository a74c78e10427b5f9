"""The photos of a GLDv2 folder with their landmark, role and kind, duplicates dropped; and of labelled folders."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Photo:
    """role: train, val or test; kind: object or area; both empty where the folder has no `roles.csv`.

    A thing of a labelled folder is a landmark below zero, its kind the set that it belongs to.
    """

    id: str
    landmark: int
    role: str
    kind: str
    path: Path


def read_photos(folder: Path) -> list[Photo]:
    """All photos, by landmark, then by id."""
    dropped = {row["drop"] for row in _rows(folder / "duplicates.csv")}
    roles = {int(row["landmark_id"]): row for row in _rows(folder / "roles.csv")}
    photos = []
    for row in _rows(folder / "train.csv"):
        name, landmark = row["id"], int(row["landmark_id"])
        if name not in dropped:
            about = roles.get(landmark, {"role": "", "kind": ""})
            path = folder / "train" / name[0] / name[1] / name[2] / f"{name}.jpg"
            photos.append(Photo(name, landmark, about["role"], about["kind"], path))
    return sorted(photos, key=lambda photo: (photo.landmark, photo.id))


def read_labelled(folder: Path, sets: Sequence[str] | None = None, role: str = "train") -> list[Photo]:
    """Photos of some sets or all, by label, from a folder whose `labels.csv` has path, label, set and role."""
    rows = _rows(folder / "labels.csv")
    numbers = {label: -1 - number for number, label in enumerate(sorted({row["label"] for row in rows}))}
    if unknown := set(sets or ()) - {row["set"] for row in rows}:
        raise SystemExit(f"{folder}: labels.csv has no sets {sorted(unknown)}.")
    return [
        Photo(row["path"], numbers[row["label"]], role, row["set"], folder / row["path"])
        for row in sorted(rows, key=lambda row: (row["label"], row["path"]))
        if row["role"] == role and (sets is None or row["set"] in sets)
    ]


def group_labelled(photos: Sequence[Photo]) -> list[list[str]]:
    """What `read_components` is for landmarks: lists of photo ids that show one thing."""
    groups: dict[int, list[str]] = {}
    for photo in photos:
        groups.setdefault(photo.landmark, []).append(photo.id)
    return [ids for ids in groups.values() if len(ids) > 1]


def read_components(path: Path) -> list[list[str]]:
    """The verified components: lists of photo ids."""
    return [row["images"].split() for row in _rows(path)]


def _rows(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
