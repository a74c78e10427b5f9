"""A picture as 16 x 16 greys: enough to tell that one may be a copy of another, turned or mirrored ones included."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from PIL import Image

from tessera.data.images import Pixels

SIDE = 16
_PLAIN = 3  # greys by which compression changes a plain one


def make_signature(pixels: Pixels) -> bytes:
    """The greys of a picture, H W 3, squeezed to a square: a picture on its side is then the same square turned."""
    grey = Image.fromarray(pixels).convert("L").resize((SIDE, SIDE), Image.Resampling.BOX)
    return grey.tobytes()


def is_framed(signature: bytes) -> bool:
    """Whether all four sides are of one plain grey: a frame, which makes a copy larger than what it was made from."""
    square = np.frombuffer(signature, np.uint8).reshape(SIDE, SIDE)
    sides = np.concatenate([square[0], square[-1], square[:, 0], square[:, -1]])
    return bool(np.ptp(sides) <= _PLAIN)


def symmetry(square: npt.NDArray[np.generic], number: int) -> npt.NDArray[np.generic]:
    """One of the eight ways to lay down a square (the last two axes): turned `number % 4` times, mirrored from 4 on."""
    mirrored = square[..., ::-1] if number >= 4 else square
    return np.rot90(mirrored, number % 4, axes=(-2, -1))
