"""From what a user names to the files it means: folders, globs, lists and single pictures.

Everything is bytes here: names that are no UTF-8 exist. A real folder is walked before the symbolic links to others,
and each folder once, however many links lead to it: a loop ends, and a file keeps its plainest name.
"""

# ruff: noqa: PTH112, PTH114, PTH116, PTH122, PTH207 - pathlib takes no bytes
from __future__ import annotations

import contextlib
import errno
import fnmatch
import glob
import os
import stat
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tessera.data.photos.video import VIDEO_SUFFIXES
from tessera.errors import UsageError
from tessera.gallery.catalog.paths import from_blob, printable, to_blob
from tessera.gallery.ingest.source_lists import LIST_SUFFIXES, read_list

PICTURE_SUFFIXES = frozenset(b".jpg .jpeg .jpe .jfif .png .webp .tif .tiff .gif .bmp .dib .avif .heic .heif".split())
UNREAD_SUFFIXES = frozenset(
    [".arw", ".cr2", ".cr3", ".dng", ".jxl", ".nef", ".orf", ".pef", ".raf", ".raw", ".rw2", ".srw", ".psd"]
)
Report = Callable[[bytes, str], None]
_LEADS_OUT = "skipped: this symbolic link leads out of the folders that are followed"


@dataclass(frozen=True)
class FoundFile:
    """One picture to look at. error: why its size and time could not be read; metadata None: nothing is said of it.

    sidecar_ns: the time of the XMP file beside it, 0 where there is none.
    """

    path: bytes
    size: int = -1
    mtime_ns: int = -1
    error: str | None = None
    metadata: str | None = None
    sidecar_ns: int = 0
    gone: bool = False


@dataclass(frozen=True)
class Source:
    """What one argument means. `root` is the part of the tree where files of it that have vanished would have been.

    links_within: real folders, of one that others may write into: symbolic links that lead out of them are passed over.
    """

    kind: Literal["folder", "list", "file", "glob", "missing"]
    path: bytes
    root: bytes
    links_within: tuple[bytes, ...] = ()


def resolve_source(given: str | os.PathLike[str], links_within: Sequence[str | os.PathLike[str]] = ()) -> Source:
    path = to_blob(given)
    if os.path.isdir(path):
        return Source("folder", path, path, tuple(os.path.realpath(to_blob(folder)) for folder in links_within))
    if os.path.lexists(path):
        kind: Literal["list", "file"] = "list" if os.path.splitext(path)[1].lower() in LIST_SUFFIXES else "file"
        return Source(kind, path, path)
    if glob.has_magic(path):
        return Source("glob", path, _fixed_part(path))
    return Source("missing", path, path)


def refuse_missing(source: Source, hint: str = "") -> None:
    if source.kind == "missing":
        raise UsageError(f"There is nothing at {printable(from_blob(source.path))}. Check the path.{hint}")


def find_files(sources: Sequence[Source], report: Report, others: Counter[str] | None = None) -> Iterator[FoundFile]:
    """Every picture of the sources, in a fixed order; a path may come twice.

    report: called with a path and a reason for whatever could not be gone into. others: counts the files of folders, by
    their endings, that a person may take for pictures of the gallery, too: videos and what is not read.
    """
    for source in sources:
        if source.kind == "folder":
            yield from _walk(source.path, report, source.links_within, others)
        elif source.kind == "list":
            for path, metadata in read_list(source.path, report):
                yield with_sidecar(look_at(path, metadata))
        elif source.kind == "file":
            yield with_sidecar(look_at(source.path))
        elif source.kind == "glob":
            yield from _expand(source, report)


def look_at(path: bytes, metadata: str | None = None) -> FoundFile:
    """Size and time of a file, without opening it."""
    try:
        status = os.stat(path)
    except OSError as error:
        if is_gone(error) and os.path.islink(path):
            return FoundFile(path, error="it is a symbolic link to a file that is not there", metadata=metadata)
        return FoundFile(path, error=explain(error), metadata=metadata, gone=is_gone(error))
    if not stat.S_ISREG(status.st_mode):
        return FoundFile(path, error="it is not a file", metadata=metadata)
    return FoundFile(path, status.st_size, status.st_mtime_ns, metadata=metadata)


def sidecar_paths(path: bytes) -> tuple[bytes, bytes]:
    """Where the XMP of a picture may lie: `a.jpg.xmp`, which is of this file alone, or `a.xmp`."""
    return path + b".xmp", os.path.splitext(path)[0] + b".xmp"


def with_sidecar(found: FoundFile) -> FoundFile:
    """The file with the time of the XMP beside it."""
    for path in sidecar_paths(found.path) if found.error is None else ():
        with contextlib.suppress(OSError):
            return replace(found, sidecar_ns=os.stat(path).st_mtime_ns)
    return found


def is_gone(error: OSError) -> bool:
    """Whether the file is not there any more, rather than out of reach."""
    return error.errno in (errno.ENOENT, errno.ENOTDIR)


def explain(error: OSError) -> str:
    """Why a file cannot be looked at, in words."""
    reasons = {
        errno.ENOENT: "there is no such file",
        errno.EACCES: "it may not be read: check its permissions",
        errno.ELOOP: "it is a symbolic link that leads back to itself",
        errno.ENAMETOOLONG: "its name is too long",
        errno.ESTALE: "its disk is gone",
    }
    return reasons.get(error.errno or 0, error.strerror or str(error))


def _walk(
    root: bytes, report: Report, links_within: Sequence[bytes] = (), others: Counter[str] | None = None
) -> Iterator[FoundFile]:
    visited: set[tuple[int, int]] = set()
    waiting, links = [root], deque[bytes]()
    while waiting or links:
        through_link = not waiting
        folder = links.popleft() if through_link else waiting.pop()
        if _leads_out(folder, links_within):
            report(folder, _LEADS_OUT)
            continue
        try:
            status = os.stat(folder)
            if (status.st_dev, status.st_ino) in visited:
                if through_link:
                    report(folder, "skipped: this symbolic link leads to a folder that was already looked through")
                continue
            visited.add((status.st_dev, status.st_ino))
            files, sidecars, folders, linked = _list_folder(folder, report, others)
        except OSError as error:
            report(folder, f"this folder could not be looked through: {explain(error)}")
            continue
        links.extend(linked)
        waiting.extend(reversed(folders))
        for path in files:
            if links_within and os.path.islink(path) and _leads_out(path, links_within):
                report(path, _LEADS_OUT)
                continue
            found = look_at(path)
            yield with_sidecar(found) if sidecars.intersection(sidecar_paths(path)) else found


def _leads_out(path: bytes, folders: Sequence[bytes]) -> bool:
    """Whether what is at a path lies in none of these folders in truth; never where there are none."""
    if not folders:
        return False
    real = os.path.realpath(path)
    return not any(real == folder or real.startswith(folder.rstrip(b"/") + b"/") for folder in folders)


def _list_folder(
    folder: bytes, report: Report, others: Counter[str] | None
) -> tuple[list[bytes], set[bytes], list[bytes], list[bytes]]:
    """Pictures, XMP files, folders and links to folders in one folder, sorted; hidden ones and galleries left out."""
    files, sidecars, folders, links = [], set(), [], []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(b"."):
                continue
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.path)
            elif entry.is_symlink() and _is_folder(entry):
                links.append(entry.path)
            elif is_picture_name(entry.name):
                files.append(entry.path)
            elif entry.name.endswith(b".xmp"):
                sidecars.add(entry.path)
            elif entry.name == b"catalog.sqlite":
                report(folder, "skipped: this folder is a gallery")
                return [], set(), [], []
            elif others is not None:
                suffix = os.path.splitext(entry.name)[1].lower().decode("ascii", "replace")
                if suffix in UNREAD_SUFFIXES or suffix in VIDEO_SUFFIXES:
                    others[suffix] += 1
    return sorted(files), sidecars, sorted(folders), sorted(links)


def _is_folder(entry: os.DirEntry[bytes]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def is_picture_name(name: bytes) -> bool:
    return os.path.splitext(name)[1].lower() in PICTURE_SUFFIXES


def _expand(source: Source, report: Report) -> Iterator[FoundFile]:
    if b"**" in source.path:
        # Python's own `**` follows symbolic links in circles until the system refuses; the walk does not.
        pattern = source.path.split(b"/")
        yield from (found for found in _walk(source.root, report) if _matches(found.path.split(b"/"), pattern))
        return
    for path in sorted(glob.iglob(source.path)):
        if os.path.isdir(path):
            yield from _walk(path, report)
        elif is_picture_name(path):
            yield with_sidecar(look_at(path))


def _fixed_part(pattern: bytes) -> bytes:
    """The folder above the first component with a wildcard."""
    parts = pattern.split(b"/")
    fixed = next(i for i, part in enumerate(parts) if glob.has_magic(part))
    return b"/".join(parts[:fixed]) or b"/"


def _matches(parts: Sequence[bytes], pattern: Sequence[bytes]) -> bool:
    """Whether a path fits a pattern, component by component; `**` stands for any number of them."""
    if not pattern:
        return not parts
    if pattern[0] == b"**":
        return any(_matches(parts[i:], pattern[1:]) for i in range(len(parts) + 1))
    return bool(parts) and fnmatch.fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])
