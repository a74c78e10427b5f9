"""Views of the training photos as maps of the frozen part of the backbone, computed once and kept as files.

The first blocks do not learn, so a view costs them one pass however often training sees it. One file a view size, fp16.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from photos import Photo
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F
from views import NUM_VIEWS, SIZES, Picture, make_views

from tessera.models.backbones import build_backbone
from tessera.models.backbones.mobile import EfficientNetLite

BACKBONE = "efficientnet-lite0"
BATCH = 8
PARTS = 8


class Frozen(nn.Module):
    """The backbone up to block `cut`, which training leaves as ImageNet made it."""

    def __init__(self, backbone: EfficientNetLite, cut: int) -> None:
        super().__init__()
        self.backbone, self.cut = backbone, cut

    def forward(self, images: Tensor) -> Tensor:
        x = F.relu6(self.backbone._bn0(self.backbone._conv_stem(images)))
        for block in self.backbone._blocks[: self.cut]:
            x = block(x)
        return x


class Trained(nn.Module):
    """The rest of it, which learns. Batch norms keep their ImageNet statistics: batches here are small and odd."""

    def __init__(self, backbone: EfficientNetLite, cut: int) -> None:
        super().__init__()
        self.blocks = backbone._blocks[cut:]
        self.conv, self.norm = backbone._conv_head, backbone._bn1

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return F.relu6(self.norm(self.conv(x)))


@dataclass(frozen=True)
class Cache:
    """Every view of every photo.

    maps: by size, N C H W. Of row r: sizes[r] and places[r] say where its map is, photos[r] and kinds[r] which view of
    which photo it is, clutter[r] what it was pasted into (-1: nothing). Photos are numbers in the list they came from.
    """

    maps: dict[str, NDArray[np.float16]]
    sizes: NDArray[np.int64]
    places: NDArray[np.int64]
    photos: NDArray[np.int64]
    kinds: NDArray[np.int64]
    clutter: NDArray[np.int64]

    def load(self, rows: NDArray[np.int64]) -> list[tuple[Tensor, Tensor]]:
        """Batches of one size each: maps B C H W and their positions in `rows`."""
        batches = []
        for number, size in enumerate(SIZES):
            where = np.flatnonzero(self.sizes[rows] == number)
            if len(where):
                maps = np.stack([self.maps[size][place] for place in self.places[rows[where]]])
                batches.append((torch.from_numpy(maps.astype(np.float32)), torch.from_numpy(where)))
        return batches


def build_cache(folder: Path, photos: Sequence[Photo], cut: int, seed: int, workers: int) -> Cache:
    """Compute what is not there yet, in parts, so that an interrupted run goes on; a folder once complete is loaded."""
    folder.mkdir(parents=True, exist_ok=True)
    mark_path = folder / "complete"
    if not mark_path.is_file():
        missing = [part for part in range(PARTS) if not (folder / f"part{part}.npz").is_file()]
        with ProcessPoolExecutor(workers) as pool:
            list(pool.map(partial(_compute_part, folder, photos, cut, seed), missing))
        mark_path.touch()
    loaded = [np.load(path) for path in sorted(folder.glob("part*.npz"))]
    maps = {size: np.concatenate([part[size] for part in loaded]) for size in SIZES}
    tables = [np.concatenate([part[f"{size}_rows"] for part in loaded]) for size in SIZES]  # N 3: photo, view, clutter
    rows = np.concatenate(tables)
    sizes = np.concatenate([np.full(len(table), number) for number, table in enumerate(tables)])
    places = np.concatenate([np.arange(len(table)) for table in tables])
    return Cache(maps, sizes, places, rows[:, 0], rows[:, 1], rows[:, 2])


def frozen_session(cut: int) -> tuple[object, EfficientNetLite]:
    """ONNX Runtime does the frozen part a good deal faster than torch."""
    import onnxruntime

    backbone = build_backbone(BACKBONE, weights="imagenet").eval()
    assert isinstance(backbone, EfficientNetLite)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "frozen.onnx"
        axes = {0: "batch", 2: "height", 3: "width"}
        torch.onnx.export(
            Frozen(backbone, cut).eval(),
            (torch.zeros(1, 3, 96, 128),),
            str(path),
            input_names=["images"],
            output_names=["maps"],
            dynamic_axes={"images": axes, "maps": axes},
            dynamo=False,
        )
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        return onnxruntime.InferenceSession(path.read_bytes(), options), backbone


def normalise(pictures: Picture, backbone: EfficientNetLite) -> NDArray[np.float32]:
    """B H W 3 in 0..255 to B 3 H W as the backbone wants it."""
    mean, std = np.array(backbone.mean, np.float32), np.array(backbone.std, np.float32)
    return np.ascontiguousarray(((pictures.astype(np.float32) / 255 - mean) / std).transpose(0, 3, 1, 2))


def _compute_part(folder: Path, photos: Sequence[Photo], cut: int, seed: int, part: int) -> None:
    @lru_cache(maxsize=512)
    def load(number: int) -> Picture:
        return np.asarray(Image.open(photos[number].path).convert("RGB"))

    session, backbone = frozen_session(cut)
    landmarks = np.array([photo.landmark for photo in photos])
    pictures: dict[str, list[Picture]] = {size: [] for size in SIZES}
    rows: dict[str, list[tuple[int, int, int]]] = {size: [] for size in SIZES}
    maps: dict[str, list[NDArray[np.float16]]] = {size: [] for size in SIZES}

    def flush(size: str) -> None:
        if pictures[size]:
            images = normalise(np.stack(pictures[size]), backbone)
            maps[size].append(session.run(None, {"images": images})[0].astype(np.float16))  # type: ignore[attr-defined]
            pictures[size].clear()

    for number in range(part, len(photos), PARTS):
        others = np.flatnonzero(landmarks != landmarks[number])
        rng = np.random.default_rng([seed, number])
        views = make_views(load(number), rng, others, load)
        assert len(views) == NUM_VIEWS
        for kind, view in enumerate(views):
            pictures[view.size].append(view.picture)
            rows[view.size].append((number, kind, view.clutter))
            if len(pictures[view.size]) == BATCH:
                flush(view.size)
    arrays = {}
    for size in SIZES:
        flush(size)
        arrays[size] = np.concatenate(maps[size])
        arrays[f"{size}_rows"] = np.array(rows[size], np.int64)
    temporary = folder / f"unfinished{part}.npz"
    np.savez(temporary, **arrays)
    temporary.rename(folder / f"part{part}.npz")
