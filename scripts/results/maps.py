"""The maps that a backbone which stands still gives for the pictures of an evaluation, computed once.

Every head then costs what the head costs. Maps are float16, some hundred pictures a file; a file appears whole, so a
run that was stopped goes on with the next.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from tessera.data.images import load_benchmark
from tessera.extract.scales import rescale
from tessera.models.backbones import Backbone
from tessera.models.bundle import DEFAULT_SCALES
from tessera.storage import atomic_path

_A_FILE = 256  # pictures
_AT_ONCE = 16  # pictures through the backbone
_POSITIONS = 4096  # of maps through a head at once

Say = Callable[[str], None]


class PictureMaps:
    """Maps of a list of pictures at the scales of the protocol.

    folder: of this list, at this size, with this backbone; other pictures need another folder.
    """

    def __init__(
        self, folder: Path, paths: Sequence[Path], size: int, scales: Sequence[float] = DEFAULT_SCALES
    ) -> None:
        self.folder, self.paths, self.size, self.scales = folder, tuple(paths), size, tuple(scales)
        order = sorted(range(len(paths)), key=lambda row: (_reduced_shape(paths[row], size), row))
        self._parts = [order[start : start + _A_FILE] for start in range(0, len(order), _A_FILE)]

    def prepare(self, backbone: Backbone, say: Say = print) -> None:
        """Compute what is not there yet."""
        backbone.eval()
        for number, rows in enumerate(self._parts):
            if not self._file(number).is_file():
                arrays = self._compute(rows, backbone)
                with atomic_path(self._file(number)) as temporary, temporary.open("wb") as opened:
                    np.savez(opened, **arrays)  # type: ignore[arg-type]
                say(f"maps: part {number + 1} of {len(self._parts)}")

    def groups(self) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.float16]]]:
        """Rows of the list and their maps, N C H W, of one shape at one scale at a time."""
        for number in range(len(self._parts)):
            with np.load(self._file(number)) as arrays:
                for key in arrays.files:
                    if key.startswith("maps-"):
                        yield arrays[key.replace("maps-", "rows-")], arrays[key]

    def _file(self, number: int) -> Path:
        return self.folder / f"part-{number:03d}.npz"

    @torch.no_grad()
    def _compute(self, rows: Sequence[int], backbone: Backbone) -> dict[str, npt.NDArray[Any]]:
        found: dict[str, tuple[list[int], list[npt.NDArray[np.float16]]]] = defaultdict(lambda: ([], []))
        for batch_rows, pixels in _equal_shapes(rows, self.paths, self.size):
            batch = _normalise(pixels, backbone)
            for k, scale in enumerate(self.scales):
                scaled = torch.from_numpy(_at_least(rescale(batch, scale), backbone.stride))
                maps = backbone(scaled.contiguous(memory_format=torch.channels_last)).to(torch.float16)
                of_rows, of_maps = found[f"{k}-{maps.shape[2]}x{maps.shape[3]}"]
                of_rows += batch_rows
                of_maps.append(maps.contiguous().numpy())
        arrays: dict[str, npt.NDArray[Any]] = {}
        for key, (of_rows, of_maps) in found.items():
            arrays[f"rows-{key}"] = np.array(of_rows, dtype=np.int64)
            arrays[f"maps-{key}"] = np.concatenate(of_maps)
        return arrays


@torch.no_grad()
def describe_maps(head: Any, maps: PictureMaps) -> npt.NDArray[np.float32]:
    """Descriptors N D: unit vectors of each scale, averaged, and made unit vectors again (the paper's way).

    head: gives B D of B C H W, not normalised.
    """
    descriptors = torch.zeros(len(maps.paths), head.dim)
    head.eval()
    for rows, group in maps.groups():
        step = max(1, _POSITIONS // (group.shape[2] * group.shape[3]))
        for start in range(0, len(rows), step):
            part = torch.from_numpy(group[start : start + step].astype(np.float32))
            unit: Tensor = F.normalize(head.describe(part), dim=-1)
            descriptors[torch.from_numpy(rows[start : start + step])] += unit
    described: npt.NDArray[np.float32] = F.normalize(descriptors, dim=-1).numpy()
    return described


def _equal_shapes(
    rows: Sequence[int], paths: Sequence[Path], size: int
) -> Iterator[tuple[list[int], npt.NDArray[np.uint8]]]:
    """Pictures of one shape, some at a time; the rows come sorted by shape."""
    waiting: list[int] = []
    pixels: list[npt.NDArray[np.uint8]] = []
    for row in rows:
        picture = load_benchmark(paths[row], size=size)
        if pixels and (picture.shape != pixels[0].shape or len(pixels) == _AT_ONCE):
            yield waiting, np.stack(pixels)
            waiting, pixels = [], []
        waiting.append(row)
        pixels.append(picture)
    if pixels:
        yield waiting, np.stack(pixels)


def _reduced_shape(path: Path, size: int) -> tuple[int, int]:
    """About the shape that the loader gives, from the header alone: what is alike shall lie together."""
    with Image.open(path) as image:
        width, height = image.size
    factor = min(1.0, size / max(width, height))
    return round(height * factor), round(width * factor)


def _normalise(pixels: npt.NDArray[np.uint8], backbone: Backbone) -> npt.NDArray[np.float32]:
    values = (np.arange(256)[:, None] / 255 - np.asarray(backbone.mean)) / np.asarray(backbone.std)  # 256 3
    table = values.astype(np.float32)
    return np.stack([table[pixels[..., c], c] for c in range(3)], axis=1)


def _at_least(batch: npt.NDArray[np.float32], stride: int) -> npt.NDArray[np.float32]:
    """What became smaller than one position has its edge repeated."""
    height, width = batch.shape[-2:]
    if max(height, width) >= stride:
        return batch
    return np.pad(batch, ((0, 0), (0, 0), (0, stride - height), (0, stride - width)), mode="edge")
