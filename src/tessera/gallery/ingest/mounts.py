"""Which disks are mounted in a folder. One that was taken out leaves an empty folder, and nothing was deleted."""

from __future__ import annotations

import os
from pathlib import Path

_MOUNTS = Path("/proc/self/mountinfo")


def mounted_in(folder: str | bytes | os.PathLike[str]) -> frozenset[Path]:
    """The places at or below a folder where a disk is mounted; none where the system does not say."""
    try:
        lines = _MOUNTS.read_bytes().splitlines()
    except OSError:
        return frozenset()
    real = Path(os.path.realpath(os.fsdecode(folder)))
    # A blank, a tab, a line's end and a backslash are written as three octal digits.
    places = (Path(os.fsdecode(line.split()[4].decode("unicode_escape").encode("latin-1"))) for line in lines)
    return frozenset(place for place in places if place == real or real in place.parents)
