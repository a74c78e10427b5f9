"""Local features from a bundle of kind `local` (HOW, DELF, DELG's branch): several scales, the strongest of all.

HOW's own steps, each of which moves the result: images scaled with the step in/out, strengths divided by their largest
over all scales, one descending sort over everything, scales kept in half precision (1.414 becomes 1.4140625).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tessera.config import fingerprint
from tessera.data.images import Pixels
from tessera.errors import ModelError, UsageError
from tessera.extract.runtime import Runtime, open_runtime
from tessera.extract.scales import rescale
from tessera.local.features import LocalFeatures
from tessera.models.bundle import Bundle

HOW_SCALES = (2.0, 1.414, 1.0, 0.707, 0.5, 0.353, 0.25)
_OUTPUTS = ("features", "strengths", "positions")


@dataclass(frozen=True)
class SelectedCells:
    """The strongest cells of all scales, strongest first, as HOW gives them."""

    features: npt.NDArray[np.float32]  # N D
    strengths: npt.NDArray[np.float32]  # N, relative to the largest
    cells: npt.NDArray[np.int16]  # N 2: x, y on the map of the cell's own scale
    scales: npt.NDArray[np.float16]  # N

    def to_features(self, stride: int, image_size: tuple[int, int]) -> LocalFeatures:
        """The cells in pixels of an image of this width and height, from a network of this stride."""
        zoom = self.scales.astype(np.float32)
        positions = (self.cells.astype(np.float32) + 0.5) * stride / zoom[:, None]
        limits = np.array(image_size, np.float32) - 1  # a map's last cell may reach over the edge
        return LocalFeatures(
            self.features,
            np.minimum(positions, limits).astype(np.float32),
            (stride / 2 / zoom).astype(np.float32),
            self.strengths,
            None,
            image_size,
        )


def select_strongest(maps: Sequence[dict[str, npt.NDArray[Any]]], scales: Sequence[float], count: int) -> SelectedCells:
    """The `count` strongest of all scales together; fewer if there are fewer.

    maps: for each scale `features` 1 S D, `strengths` 1 S and `positions` 1 S 2, as a local network gives them.
    """
    strengths = np.concatenate([outputs["strengths"][0] for outputs in maps]).astype(np.float32)
    strengths /= max(float(strengths.max(initial=0.0)), 1e-30)
    sizes = [outputs["features"].shape[1] for outputs in maps]
    order = np.argsort(-strengths, kind="stable")[:count]
    return SelectedCells(
        np.concatenate([outputs["features"][0] for outputs in maps])[order],
        strengths[order],
        np.concatenate([outputs["positions"][0] for outputs in maps]).astype(np.int16)[order],
        np.repeat(np.asarray(scales, np.float16), sizes)[order],
    )


class BundleExtractor:
    """A local bundle made ready to extract. scales: HOW's seven unless given; count: how many features of an image."""

    def __init__(
        self,
        bundle: Bundle | str | Path,
        *,
        count: int = 1000,
        scales: Sequence[float] = HOW_SCALES,
        runtime: str = "onnx",
        device: str = "auto",
        threads: int | None = None,
    ) -> None:
        self.bundle = bundle if isinstance(bundle, Bundle) else Bundle.open(bundle)
        card = self.bundle.card
        if card.kind != "local":
            raise ModelError(f"{card.name} is a {card.kind} model: it gives a descriptor, no local features.")
        if count < 1 or not scales:
            raise UsageError(f"at least one feature and one scale are needed, not {count} and {list(scales)}.")
        self.name, self.dim = card.name, card.dim
        self.cell_px = card.stride  # at scale 1: no position is finer
        self.count, self.scales = count, tuple(float(scale) for scale in scales)
        self._runtime: Runtime | None = None
        self._how_to_run = {"runtime": runtime, "device": device, "threads": threads}

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.bundle.card.fingerprint, self.count, list(self.scales))

    def extract(self, image: Pixels) -> LocalFeatures:
        """Positions are centres of cells, in pixels of the image; a scale is the half side of a cell there."""
        height, width = image.shape[:2]
        return self.select(image).to_features(self.bundle.card.stride, (width, height))

    def select(self, image: Pixels) -> SelectedCells:
        """The strongest cells of an image, H W 3 uint8."""
        batch = self.bundle.card.preprocessing.normalise([image])
        maps = [self._open().run(self._at_scale(batch, scale), _OUTPUTS) for scale in self.scales]
        return select_strongest(maps, self.scales, self.count)

    def _at_scale(self, batch: npt.NDArray[np.float32], scale: float) -> npt.NDArray[np.float32]:
        """The scaled image; what becomes smaller than one cell has its edge repeated."""
        scaled = rescale(batch, scale, recompute=True)
        height, width = scaled.shape[-2:]
        stride = self.bundle.card.stride
        if max(height, width) < stride:
            scaled = np.pad(scaled, ((0, 0), (0, 0), (0, stride - height), (0, stride - width)), mode="edge")
        return scaled

    def _open(self) -> Runtime:
        if self._runtime is None:
            how: Any = self._how_to_run
            self._runtime = open_runtime(self.bundle, how["runtime"], device=how["device"], threads=how["threads"])
        return self._runtime
