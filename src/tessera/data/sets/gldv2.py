"""Google Landmarks Dataset v2 in its own layout: `train/a/b/c/ID.jpg`, `train.csv`, `train_clean.csv`.

`gldv2-50` is the same in small, with `roles.csv`, `split.csv` and `duplicates.csv` beside.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from tessera.data.sets.labelled import ImageSet, image_set, read_table
from tessera.errors import DataError

PUBLISHED_CLEAN = (1_580_470, 81_313)
_ID = re.compile(r"[0-9A-Za-z_-]{3,64}")


@dataclass(frozen=True)
class Gldv2Config:
    """Which images of a GLDv2 folder to take.

    clean: the images of train_clean.csv; otherwise all of train.csv.
    exclude: a file of image ids, one a line, to leave out. GLDv2-clean overlaps the Oxford and Paris test sets; what
        the published list of ids leaves is RGLDv2-clean.
    exclude_landmarks: a file of landmark ids to leave out.
    roles, kinds: keep landmarks that roles.csv gives one of these roles or kinds; empty keeps all.
    split: keep images that split.csv gives this split.
    """

    root: str
    clean: bool = True
    exclude: str | None = None
    exclude_landmarks: str | None = None
    roles: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    split: str | None = None


def load_gldv2(config: Gldv2Config) -> ImageSet:
    """The images that a configuration asks for; classes are numbered in the order of their ids as strings.

    That is the order of the released code, so the rows of a released classifier fit. A count that differs from the
    published one is noted, not refused: subsets are legitimate.
    """
    root = Path(config.root)
    rows = (_read_clean if config.clean else _read_all)(
        _table(root, "train_clean.csv" if config.clean else "train.csv")
    )
    notes = [_compare(rows)] if config.clean else []
    dropped = _read_column(root / "duplicates.csv", "drop") if (root / "duplicates.csv").is_file() else set()
    if config.exclude:
        listed = _read_ids(Path(config.exclude))
        known = listed & {image for image, _ in rows}
        notes.append(f"{len(known)} images are excluded; {len(listed - known)} ids of {config.exclude} are not here.")
        dropped |= listed
    landmarks = _kept_landmarks(config, root)
    if config.exclude_landmarks:
        unwanted = _read_ids(Path(config.exclude_landmarks))
        landmarks = (landmarks if landmarks is not None else {label for _, label in rows}) - unwanted
    chosen = _read_split(root / "split.csv", config.split) if config.split else None
    pairs = [
        (gldv2_file(image), label)
        for image, label in rows
        if image not in dropped and (landmarks is None or label in landmarks) and (chosen is None or image in chosen)
    ]
    images = image_set("gldv2-clean" if config.clean else "gldv2", root, pairs)
    return replace(images, notes=tuple(note for note in notes if note) + images.notes)


def gldv2_file(image_id: str) -> str:
    """Where an image lies under the folder of the data set."""
    return f"train/{image_id[0]}/{image_id[1]}/{image_id[2]}/{image_id}.jpg"


def _table(root: Path, name: str) -> Path:
    if not (root / name).is_file():
        found = sorted(path.name for path in root.glob("*.csv")) if root.is_dir() else []
        raise DataError(
            f"{root / name} cannot be read: it is not there. Found: {', '.join(found) or 'no CSV'}. Give GLDv2's own "
            "folder, with train/a/b/c/ID.jpg and train_clean.csv (data set gldv2-clean) or train.csv (gldv2)."
        )
    return root / name


def _read_clean(path: Path) -> list[tuple[str, str]]:
    rows = []
    for line, row in read_table(path, ("landmark_id", "images")):
        label = _landmark(row["landmark_id"], path, line)
        rows += [(_image(image, path, line), label) for image in row["images"].split()]
    return _without_repeats(rows, path)


def _read_all(path: Path) -> list[tuple[str, str]]:
    rows = [
        (_image(row["id"], path, line), _landmark(row["landmark_id"], path, line))
        for line, row in read_table(path, ("id", "landmark_id"))
    ]
    return _without_repeats(rows, path)


def _without_repeats(rows: list[tuple[str, str]], path: Path) -> list[tuple[str, str]]:
    seen: dict[str, str] = {}
    for image, label in rows:
        if image in seen:
            raise DataError(f"{path}: image {image} stands twice, with landmarks {seen[image]} and {label}.")
        seen[image] = label
    return rows


def _landmark(text: str, path: Path, line: int) -> str:
    if not re.fullmatch(r"[0-9]+", text.strip()):
        raise DataError(f"{path}, line {line}: the landmark id {text!r} is not a whole number.")
    return str(int(text))


def _image(text: str, path: Path, line: int) -> str:
    if not _ID.fullmatch(text):
        raise DataError(f"{path}, line {line}: {text!r} is not an image id.")
    return text


def _compare(rows: list[tuple[str, str]]) -> str:
    images, landmarks = len(rows), len({label for _, label in rows})
    if (images, landmarks) == PUBLISHED_CLEAN:
        return ""
    return (
        f"gldv2-clean: found {images:,} images of {landmarks:,} landmarks; "
        f"published were {PUBLISHED_CLEAN[0]:,} of {PUBLISHED_CLEAN[1]:,}."
    )


def _kept_landmarks(config: Gldv2Config, root: Path) -> set[str] | None:
    if not config.roles and not config.kinds:
        return None
    path = root / "roles.csv"
    rows = [row for _, row in read_table(path, ("landmark_id", "role", "kind"))]
    for wanted, column in ((config.roles, "role"), (config.kinds, "kind")):
        known = {row[column] for row in rows}
        if unknown := [value for value in wanted if value not in known]:
            raise DataError(f"{path} has no {column} '{unknown[0]}'. It has: {', '.join(sorted(known))}.")
    return {
        row["landmark_id"]
        for row in rows
        if (not config.roles or row["role"] in config.roles) and (not config.kinds or row["kind"] in config.kinds)
    }


def _read_split(path: Path, split: str) -> set[str]:
    rows = [(row["id"], row["split"]) for _, row in read_table(path, ("id", "split"))]
    known = sorted({name for _, name in rows})
    if split not in known:
        raise DataError(f"{path} has no split '{split}'. It has: {', '.join(known)}.")
    return {image for image, name in rows if name == split}


def _read_column(path: Path, column: str) -> set[str]:
    return {row[column] for _, row in read_table(path, (column,))}


def _read_ids(path: Path) -> set[str]:
    """Ids one a line; blank lines, comments after '#' and a header `id` are passed over."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as a list of ids: {error}.") from error
    ids = {line.split("#")[0].split(",")[0].strip() for line in lines}
    return ids - {"", "id", "landmark_id"}
