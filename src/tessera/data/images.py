"""Pictures to pixels: the two loaders.

`load_photo` is for what people own (index, search, serve): EXIF rotation first, limits before decoding, scaled JPEG
decoding, a damaged file is an error. `load_benchmark` is for evaluate: exactly what the field's own code does, with
its oddities, so that figures compare. They differ on purpose; never swap one for the other.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from PIL import Image

from tessera.data.boxes import Box, clip_box, unrotate_box
from tessera.data.photos.decoding import DEFAULT_LIMITS, Limits, OpenedImage, open_image, printable, to_rgb
from tessera.errors import ImageError

__all__ = [
    "DEFAULT_LIMITS",
    "Box",
    "Limits",
    "Photo",
    "Pixels",
    "Source",
    "load_benchmark",
    "load_photo",
    "printable",
    "read_photo",
]

Pixels: TypeAlias = npt.NDArray[np.uint8]  # H W 3
Source: TypeAlias = str | os.PathLike[str] | bytes | Image.Image

# The decoder's own scaling may go down to this many times the size that is asked for; the rest is left to Lanczos.
# At 1 the scaled decoding alone would decide sharpness; at 2 a 12-megapixel JPEG would not be scaled at all for 1024.
_DRAFT_MARGIN = 1.25

_TRANSPOSE = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


@dataclass(frozen=True)
class Photo:
    """Pixels as the network sees them, and the size of the whole picture they come from (rotated).

    suffix: what a file of its format ends in, whatever its name was; empty for pixels that come from no file.
    """

    pixels: Pixels
    width: int
    height: int
    suffix: str = ""


def load_photo(source: Source, *, size: int | None, box: Box | None = None, limits: Limits = DEFAULT_LIMITS) -> Pixels:
    """The pixels of a photograph, H W 3, its longer side at most `size` (never enlarged; None: as large as it is).

    box: x0, y0, x1, y1 in pixels of the EXIF-rotated picture. The part inside is cut out first, so `size` is that of
    the cut: a small box on a large photograph keeps all the detail that there is.
    """
    return read_photo(source, size=size, box=box, limits=limits).pixels


def read_photo(source: Source, *, size: int | None, box: Box | None = None, limits: Limits = DEFAULT_LIMITS) -> Photo:
    """As `load_photo`, with the size of the whole picture."""
    opened = open_image(source, limits)
    try:
        width, height = opened.rotated_size
        cut = clip_box(box, width, height) if box is not None else (0, 0, width, height)
        pixels = _cut_and_reduce(opened, unrotate_box(cut, opened.orientation, width, height), size)
    finally:
        opened.close()
    return Photo(pixels, width, height, opened.suffix)


def _cut_and_reduce(opened: OpenedImage, cut: tuple[int, int, int, int], size: int | None) -> Pixels:
    """Decode, cut and reduce in stored orientation, then rotate: what is rotated last is smallest."""
    image = opened.image
    cut_width, cut_height = cut[2] - cut[0], cut[3] - cut[1]
    target = _reduced_size(cut_width, cut_height, size)
    stored_width, stored_height = image.size
    reduction = max(cut_width, cut_height) / max(target)
    if reduction > _DRAFT_MARGIN and opened.owned is not None:  # a caller's own picture is not to be changed
        least = _DRAFT_MARGIN / reduction
        image.draft(None, (int(stored_width * least), int(stored_height * least)))
    rgb = to_rgb(opened)
    if target == (cut_width, cut_height):
        pixels = np.asarray(rgb)[cut[1] : cut[3], cut[0] : cut[2]]
        rgb = Image.fromarray(pixels) if opened.orientation != 1 else rgb
    else:
        sx, sy = rgb.width / stored_width, rgb.height / stored_height
        region = (
            min(cut[0] * sx, rgb.width - 1.0),
            min(cut[1] * sy, rgb.height - 1.0),
            min(cut[2] * sx, float(rgb.width)),
            min(cut[3] * sy, float(rgb.height)),
        )
        rgb = rgb.resize(target, Image.Resampling.LANCZOS, box=region, reducing_gap=2.0)
        pixels = np.asarray(rgb)
    if opened.orientation != 1:
        pixels = np.asarray(rgb.transpose(_TRANSPOSE[opened.orientation]))
    return np.ascontiguousarray(pixels)


def _reduced_size(width: int, height: int, size: int | None) -> tuple[int, int]:
    longer = max(width, height)
    if size is None or longer <= size:
        return width, height
    if size < 1:
        raise ImageError(f"an image cannot be reduced to a longer side of {size} pixels: give a size of at least 1.")
    return max(1, round(width * size / longer)), max(1, round(height * size / longer))


def load_benchmark(source: Source, *, size: float, box: Box | None = None, limits: Limits = DEFAULT_LIMITS) -> Pixels:
    """The pixels, H W 3, as the revisited benchmarks' own code makes them: figures depend on each of these steps.

    No EXIF rotation; a truncated file gives what could be read; the box is rounded half to even and may reach outside
    (black there); a cut query is reduced by the factor that the whole picture would have been, with Pillow's
    `thumbnail`, which floors a fractional limit and picks the shorter side by aspect ratio.
    """
    opened = open_image(source, limits, rotate=False)
    try:
        rgb = to_rgb(opened, tolerant=True, plain=True)
        limit = float(size)
        if box is not None:
            full = max(rgb.size)
            # Pillow's own rounding of the float box is part of the protocol.
            rgb = rgb.crop(box)
            if min(rgb.size) < 1:
                raise ImageError(f"the box {box} leaves nothing of {printable(source)}. Give x0 < x1 and y0 < y1.")
            limit = size * max(rgb.size) / full
        rgb.thumbnail((limit, limit), Image.Resampling.LANCZOS)
        return np.ascontiguousarray(np.asarray(rgb))
    finally:
        opened.close()
