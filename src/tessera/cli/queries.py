"""What `tessera search` may be asked with: pictures, folders, standard input, addresses, frames of videos."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tessera.errors import ImageError, UsageError

_TIMEOUT_S = 20
Named = tuple[str, Any]  # what the user called it, and what the gallery is asked with


def read_queries(words: Sequence[str], *, allow_url: bool) -> Iterator[Named]:
    """Each query by its name, read only when it is its turn; folders give all pictures below them."""
    if list(words).count("-") > 1:
        raise UsageError("Standard input (-) can be read once only.")
    for word in words:
        if word == "-":
            yield "-", sys.stdin.buffer.read()
        elif word.startswith(("http://", "https://")):
            yield word, _fetch(word, allow_url)
        elif Path(word).is_dir():
            yield from _pictures(word)
        else:
            yield from _frames(word)


def is_one(words: Sequence[str]) -> bool:
    """Whether the words name one query, whose answer then stands alone."""
    return len(words) == 1 and not Path(words[0]).is_dir() and not words[0].endswith("@scene")


def _pictures(folder: str) -> Iterator[Named]:
    from tessera.cli.output import say
    from tessera.gallery.catalog.paths import from_blob
    from tessera.gallery.ingest.sources import find_files, resolve_source

    for found in find_files([resolve_source(folder)], lambda path, reason: say(f"{from_blob(path)}: {reason}")):
        yield from_blob(found.path), from_blob(found.path)


def _frames(word: str) -> Iterator[Named]:
    from tessera.data.photos.video import is_video, read_frame, scene_frames, split_moment

    named = split_moment(word)
    if named is None:
        if is_video(word) and Path(word).is_file():
            raise UsageError(f"{word} is a video: name a moment ({word}@12.5, in seconds) or {word}@scene.")
        yield word, word
        return
    path, seconds = named
    if seconds is not None:
        yield word, read_frame(path, seconds)
        return
    for at, frame in scene_frames(path):
        yield f"{path}@{at:g}", frame


def _fetch(address: str, allowed: bool) -> bytes:
    if not allowed:
        raise UsageError(f"{address} is an address on the network: give --allow-url to fetch it.")
    import urllib.error
    import urllib.request

    from tessera.data.images import DEFAULT_LIMITS

    try:
        request = urllib.request.Request(address, headers={"User-Agent": "tessera"})
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
            content: bytes = answer.read(DEFAULT_LIMITS.max_bytes + 1)
    except (OSError, ValueError, urllib.error.URLError) as error:
        raise ImageError(f"{address} could not be fetched: {getattr(error, 'reason', error)}.") from error
    return content
