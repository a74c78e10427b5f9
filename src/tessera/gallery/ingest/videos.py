"""Videos in a gallery: one frame a scene, kept as pictures below the gallery, each with its video and its time."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from PIL import Image

from tessera.data.photos.video import is_video, scene_frames
from tessera.errors import ImageError, printable
from tessera.gallery.catalog.paths import from_blob
from tessera.gallery.ingest.sources import Source
from tessera.storage import parse_json, write_atomically

FOLDER = "frames"
LIST_NAME = "frames.csv"
_STATE_NAME = "video.json"
_SIZE = 1280  # longer side of a kept frame
_QUALITY = 92


def list_frames(gallery_dir: Path, sources: Sequence[Source], report: Callable[[str, str], None]) -> list[Path]:
    """For each video of the sources a CSV of its frames, with the columns video and time (in seconds).

    A video that has not changed is not decoded again. report: called with a video that cannot be, and the reason.
    """
    lists = []
    for path in _videos(sources):
        name = hashlib.sha256(os.fsencode(path)).hexdigest()[:20]
        folder = gallery_dir.absolute() / FOLDER / name
        status = path.stat()
        state = {"video": str(path), "size": status.st_size, "mtime_ns": status.st_mtime_ns}
        if not _is_current(folder, state):
            try:
                _write_frames(path, folder)
            except ImageError as error:
                shutil.rmtree(folder, ignore_errors=True)
                report(str(path), str(error).removeprefix(f"{printable(str(path))} "))
                continue
            write_atomically(folder / _STATE_NAME, json.dumps(state).encode())
        lists.append(folder / LIST_NAME)
    return lists


def without_videos(sources: Sequence[Source]) -> list[Source]:
    """The sources that hold pictures: a video that was named itself is not one."""
    return [source for source in sources if not (source.kind == "file" and is_video(from_blob(source.path)))]


def _videos(sources: Sequence[Source]) -> Iterator[Path]:
    for source in sources:
        path = Path(from_blob(source.path))
        if source.kind == "file" and is_video(path):
            yield path
        elif source.kind == "folder":
            for folder, folders, files in os.walk(path):
                folders[:] = sorted(name for name in folders if not name.startswith("."))
                yield from (Path(folder) / name for name in sorted(files) if is_video(name) and name[0] != ".")


def _is_current(folder: Path, state: dict[str, object]) -> bool:
    try:
        return bool(parse_json((folder / _STATE_NAME).read_bytes()) == state)
    except (OSError, ValueError):
        return False


def _write_frames(video: Path, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with (folder / LIST_NAME).open("w", newline="", encoding="utf-8", errors="surrogateescape") as file:
        table = csv.writer(file)
        table.writerow(("path", "video", "time"))
        for seconds, pixels in scene_frames(video):
            name = f"{seconds:010.3f}.jpg"
            frame = Image.fromarray(pixels)
            frame.thumbnail((_SIZE, _SIZE), Image.Resampling.LANCZOS)
            frame.save(folder / name, quality=_QUALITY)
            table.writerow((name, str(video), f"{seconds:g}"))
