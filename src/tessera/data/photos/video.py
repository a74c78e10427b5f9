"""Frames of videos, by OpenCV: one at a moment, or one a scene."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tessera.errors import ImageError, printable

if TYPE_CHECKING:
    from tessera.data.images import Pixels

VIDEO_SUFFIXES = frozenset([".mp4", ".m4v", ".mov", ".avi", ".mkv", ".webm", ".mpg", ".mpeg", ".wmv", ".3gp"])
_AT = re.compile(r"(?P<path>.+)@(?P<moment>\d+(?:\.\d+)?|scene)")
_SAMPLE_S = 0.5
_BINS = 8
_NEW_SCENE = 0.45  # of the histograms' distance, 0 to 1


def split_moment(name: str) -> tuple[Path, float | None] | None:
    """The file and the seconds of `film.mp4@12.5`; None for `film.mp4@scene`. None for what names no frame."""
    match = _AT.fullmatch(name)
    if match is None or Path(name).exists() or Path(match["path"]).suffix.lower() not in VIDEO_SUFFIXES:
        return None
    return Path(match["path"]), None if match["moment"] == "scene" else float(match["moment"])


def is_video(path: str | os.PathLike[str]) -> bool:
    return Path(path).suffix.lower() in VIDEO_SUFFIXES


def read_frame(path: Path, seconds: float) -> Pixels:
    """The frame that is shown at a moment, H W 3."""
    import cv2

    video = _open(path)
    try:
        duration_s = _duration(video)
        if duration_s and seconds > duration_s:
            raise ImageError(f"{printable(path)} has {duration_s:.1f} seconds: there is no frame at {seconds:g}.")
        video.set(cv2.CAP_PROP_POS_MSEC, 1000 * seconds)
        is_there, frame = video.read()
        if not is_there:
            raise ImageError(f"{printable(path)} could not be decoded at {seconds:g} seconds. Try another moment.")
        return np.ascontiguousarray(frame[:, :, ::-1])
    finally:
        video.release()


def scene_frames(path: Path) -> Iterator[tuple[float, Pixels]]:
    """The first frame of each scene with its seconds: where the colours change at once, a new one begins."""
    import cv2

    video = _open(path)
    try:
        rate = video.get(cv2.CAP_PROP_FPS) or 25.0
        step = max(1, round(rate * _SAMPLE_S))
        before: Any = None
        number = found = 0
        while video.grab():
            if number % step == 0:
                is_there, frame = video.retrieve()
                if is_there:
                    colours = _histogram(frame)
                    if before is None or 0.5 * float(np.abs(colours - before).sum()) > _NEW_SCENE:
                        found += 1
                        yield number / rate, np.ascontiguousarray(frame[:, :, ::-1])
                    before = colours
            number += 1
    finally:
        video.release()
    if found == 0:
        raise ImageError(f"{printable(path)} could not be decoded as a video. Convert it, or leave it out.")


def _open(path: Path) -> Any:
    import cv2

    if not path.is_file():
        raise ImageError(f"{printable(path)} does not exist. Check the path.")
    os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")  # quiet: what goes wrong is said here, in a sentence
    video = cv2.VideoCapture(str(path))
    if not video.isOpened():
        raise ImageError(f"{printable(path)} could not be decoded as a video. Convert it, or leave it out.")
    return video


def _duration(video: Any) -> float:
    import cv2

    rate = video.get(cv2.CAP_PROP_FPS)
    return float(video.get(cv2.CAP_PROP_FRAME_COUNT) / rate) if rate > 0 else 0.0


def _histogram(frame: Any) -> Any:
    """The share of each of 512 colours."""
    import cv2

    small = cv2.resize(frame, (64, 36), interpolation=cv2.INTER_AREA)
    counts = cv2.calcHist([small], [0, 1, 2], None, [_BINS] * 3, [0, 256] * 3).ravel()
    return counts / counts.sum()
