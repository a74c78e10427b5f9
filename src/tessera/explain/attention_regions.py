"""From the network's attention maps to regions of the picture."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Array = NDArray[np.float32]

GRID = 96  # cells on the longer side of a merged map: finer than any network's own map at the usual sizes
BOX_SHARE = 0.5  # a region is where the map exceeds this share of the way from its mean to its peak

EVIDENCE_SHARE = 0.05  # the same for maps of what was found (chosen by scripts/measure_boxes.py)


def resize_map(values: Array, height: int, width: int) -> Array:
    """Bilinear, H W to height x width."""
    picture = Image.fromarray(np.ascontiguousarray(values, dtype=np.float32))
    return np.asarray(picture.resize((width, height), Image.Resampling.BILINEAR), dtype=np.float32)


def merge_maps(maps: Sequence[Array], image_height: int, image_width: int) -> Array:
    """Lay the maps of several scales over the picture and average them.

    Each map is first brought to a mean of one, so that a scale with more positions weighs no less: attention over
    positions sums to one, hence its values shrink as the map grows.

    maps: a scale each, L H W.
    Returns L h w with the picture's aspect ratio, the longer side `GRID` cells; every map has mean one.
    """
    return _mean_one(_lay_over([_mean_one(scale) for scale in maps], image_height, image_width))


def merge_evidence(maps: Sequence[Array], image_height: int, image_width: int) -> Array:
    """The same for what positions added to a similarity: scales add up as they are, and what spoke against it is zero.

    maps: a scale each, L H W. Returns L h w as `merge_maps`; a token that found nothing has a flat map.
    """
    merged = np.maximum(_lay_over(maps, image_height, image_width), 0)
    merged[merged.max(axis=(1, 2)) <= 0] = 1
    return _mean_one(merged)


def _lay_over(maps: Sequence[Array], image_height: int, image_width: int) -> Array:
    longer = max(image_height, image_width)
    height = max(1, round(GRID * image_height / longer))
    width = max(1, round(GRID * image_width / longer))
    laid = [[resize_map(values, height, width) for values in scale] for scale in maps]
    return np.asarray(np.sum(laid, axis=0), dtype=np.float32)


def _means(maps: Array) -> Array:
    return np.asarray(maps.mean(axis=(1, 2), keepdims=True), dtype=np.float32)


def _mean_one(maps: Array) -> Array:
    return np.asarray(maps / np.maximum(_means(maps), 1e-12), dtype=np.float32)


def region_box(values: Array, share: float = BOX_SHARE) -> tuple[float, float, float, float]:
    """The box of the region around a map's peak, in fractions of the width and height (x0, y0, x1, y1).

    The region is the connected part, holding the peak, of what exceeds `share` of the way from the map's mean to it:
    measured from zero, a map that is nearly flat would always give the whole picture.
    """
    peak = np.unravel_index(int(np.argmax(values)), values.shape)
    mean = float(values.mean())
    inside = values >= mean + share * (float(values[peak]) - mean)
    rows, columns = np.nonzero(_component(inside, (int(peak[0]), int(peak[1]))))
    height, width = values.shape
    return (
        float(columns.min() / width),
        float(rows.min() / height),
        float((columns.max() + 1) / width),
        float((rows.max() + 1) / height),
    )


def _component(inside: NDArray[np.bool_], start: tuple[int, int]) -> NDArray[np.bool_]:
    """The 4-connected component of `inside` that holds `start`."""
    height, width = inside.shape
    seen = np.zeros_like(inside)
    seen[start] = True
    stack = [start]
    while stack:
        row, column = stack.pop()
        for y, x in ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)):
            if 0 <= y < height and 0 <= x < width and inside[y, x] and not seen[y, x]:
                seen[y, x] = True
                stack.append((y, x))
    return seen


def light_of(values: Array) -> Array:
    """How brightly to show each place of a map, 0..1: nothing up to its mean, full at its peak.

    A map that hardly rises above its mean stays dim, so that indifference does not look like attention.
    """
    mean = max(float(values.mean()), 1e-12)
    peak = max(float(np.quantile(values, 0.995)), 2 * mean)
    return np.asarray(np.clip((values - mean) / (peak - mean), 0, 1), dtype=np.float32)


def overlap(first: Array, second: Array) -> float:
    """How much two maps share: the sum of the smaller value at each place, each map summing to one. In 0..1."""
    return float(np.minimum(first / first.sum(), second / second.sum()).sum())
