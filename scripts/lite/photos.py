"""The photos of a GLDv2 folder with their landmark, role and kind; listed duplicates dropped."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Photo:
    """role: train, val or test; kind: object or area; both empty where the folder has no `roles.csv`."""

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


def read_components(path: Path) -> list[list[str]]:
    """The verified components: lists of photo ids."""
    return [row["images"].split() for row in _rows(path)]


def _rows(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
