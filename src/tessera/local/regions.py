"""Regional aggregation, R-ASMK: an image's regions are aggregated apart, then joined word by word.

After Teichmann et al., "Detect-to-Retrieve" (CVPR 2019): a small object in a large picture gets its own, clean word
vectors, yet the image costs one entry a word. For word w with regions r (the whole image is always one of them),

    V_w = sum over r of  unit(sum of residuals of r's features in w) / sqrt(number of words in r)

whose direction (or signs) is stored. With the whole image as the only region this is ASMK. Queries are one region.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tessera.errors import ConfigError
from tessera.local.aggregation import Aggregate, normalise_sums
from tessera.local.codebook import Codebook
from tessera.storage import parse_json

Region = tuple[float, float, float, float]  # x0, y0, x1, y1 in fractions of width and height
_EPS = 1e-6


def aggregate_regions(
    codebook: Codebook,
    features: npt.NDArray[np.floating],
    positions: npt.NDArray[np.floating],
    regions: Sequence[Region],
    *,
    image_id: int = 0,
    nearest: int = 1,
    binary: bool = True,
    nprobe: int = 0,
) -> Aggregate:
    """One image's words over its regions. features: N D; positions: N 2, in fractions of width and height."""
    words = codebook.assign(features, nearest, nprobe=nprobe)  # N M
    used = np.unique(words)
    sums = np.zeros((len(used), codebook.dim))
    for region in (None, *regions):
        inside = np.ones(len(positions), bool) if region is None else _inside(positions, region)
        if not inside.any():
            continue
        chosen = words[inside]
        slots = np.searchsorted(used, chosen.ravel())
        rows = np.repeat(np.flatnonzero(inside), words.shape[1])
        residuals = np.asarray(features, np.float64)[rows] - codebook.centroids[chosen.ravel()]
        of_region = np.zeros_like(sums)
        np.add.at(of_region, slots, residuals)
        present = np.unique(slots)
        lengths = np.linalg.norm(of_region[present], axis=1, keepdims=True)
        sums[present] += of_region[present] / (lengths + _EPS) / np.sqrt(len(present))
    ids = np.full(len(used), image_id, np.int64)
    return Aggregate(ids, used.astype(np.int32), normalise_sums(sums, binary))


def _inside(positions: npt.NDArray[np.floating], region: Region) -> npt.NDArray[np.bool_]:
    x0, y0, x1, y1 = region
    x, y = positions[:, 0], positions[:, 1]
    return np.asarray((x >= x0) & (x <= x1) & (y >= y0) & (y <= y1))


def read_regions(file: Path) -> Callable[[Path], Sequence[Region]]:
    """The regions of a picture, from a JSON of names with lists of boxes.

    A name is the picture's file name or, where several pictures have the same, as much of the end of its path as tells
    them apart.
    """
    try:
        given = parse_json(file.read_text(encoding="utf-8"))
        known = {str(name): [_read_region(box) for box in boxes] for name, boxes in given.items()}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"the regions {file} cannot be read: {error}. Give a JSON of file names with lists of boxes, each x0, y0, "
            "x1, y1 in fractions of width and height."
        ) from error

    def find(path: Path) -> Sequence[Region]:
        ends = ("/".join(path.parts[start:]) for start in range(len(path.parts)))  # the longest first
        return next((known[end] for end in ends if end in known), [])

    return find


def _read_region(box: Sequence[Any]) -> Region:
    x0, y0, x1, y1 = map(float, box)
    if not (0 <= x0 < x1 <= 1 and 0 <= y0 < y1 <= 1):
        raise ValueError(f"{list(box)} is no box inside a picture")
    return x0, y0, x1, y1


def join_aggregates(parts: Sequence[Aggregate]) -> Aggregate:
    """Several images' words as one, for an inverted file."""
    return Aggregate(
        np.concatenate([part.image_ids for part in parts]),
        np.concatenate([part.words for part in parts]),
        np.concatenate([part.values for part in parts]),
    )
