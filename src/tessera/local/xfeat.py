"""XFeat: a small network that finds and describes corners, 64 numbers each (Potje et al., CVPR 2024), without torch.

The graph, with the authors' weights (Apache-2.0), is in the package; `scripts/local/export_xfeat.py` makes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tessera.config import fingerprint
from tessera.data.images import Pixels
from tessera.errors import ModelError
from tessera.local.features import LocalFeatures, Vectors, is_blank
from tessera.local.packaged_graph import SYSTEMS_DIR, open_graph
from tessera.storage import hash_file

GRAPH_PATH = SYSTEMS_DIR / "xfeat.onnx"
CELL_PX = 8  # the network describes one place in a cell of so many pixels
_STRIDE = 32  # its deepest map's
_SUPPRESSED = 5  # a corner is the strongest in a window of so many pixels
_CHANNELS = 4  # that OpenCV samples at once
_EPS = 1e-5  # of the network's instance norm
_MEAN_OF_COLOURS = np.full((1, 3), 1 / 3, np.float32)


class XFeatExtractor:
    """At most `count` strongest features over all `scales` of the picture.

    XFeat gives no scale of its own: a feature's is the cell's side in pixels of the picture that was given, so twice as
    large where the picture was halved.
    """

    name = "xfeat"
    dim = 64

    def __init__(self, count: int = 1000, threshold: float = 0.05, scales: Sequence[float] = (1.0,)) -> None:
        if not GRAPH_PATH.is_file():
            raise ModelError(f"{GRAPH_PATH} is missing. Install the package again.")
        self.count, self.threshold, self.scales = count, threshold, tuple(scales)
        self._graph_hash = hash_file(GRAPH_PATH)

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.name, 2, self.count, self.threshold, self.scales, self._graph_hash)

    def extract(self, image: Pixels) -> LocalFeatures:
        height, width = image.shape[:2]
        size = width, height
        if min(size) < CELL_PX or is_blank(image):
            return LocalFeatures.empty(self.dim, size)
        found = [self._extract_at(image, scale) for scale in self.scales]
        joined = LocalFeatures(
            np.concatenate([features.descriptors for features in found]),
            np.concatenate([features.positions for features in found]),
            np.concatenate([features.scales for features in found]),
            np.concatenate([features.strengths for features in found]),
            None,
            size,
        )
        return joined.strongest(self.count)

    def _extract_at(self, image: Pixels, scale: float) -> LocalFeatures:
        """The features of one scale; positions are in pixels of the picture that was given."""
        import cv2

        height, width = image.shape[:2]
        size = tuple(max(_STRIDE, round(side * scale / _STRIDE) * _STRIDE) for side in (width, height))
        grey: Any = cv2.transform(image.astype(np.float32), _MEAN_OF_COLOURS)
        resized = cv2.resize(grey, size, interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR)
        mean, deviation = (float(value[0, 0]) for value in cv2.meanStdDev(resized))
        normalised = (resized - np.float32(mean)) / np.float32((deviation**2 + _EPS * 255**2) ** 0.5)
        session = open_graph(GRAPH_PATH)
        features, corners, reliability = (
            maps[0] for maps in session.run(None, {"image": normalised[None, None].astype(np.float32)})
        )
        corners = corners[0]
        places = find_corners(corners, self.threshold)
        cells = (places + np.float32(0.5)) / CELL_PX - np.float32(0.5)  # N 2: where the maps are read
        reliable = _sample(reliability.transpose(1, 2, 0), cells, cv2.INTER_LINEAR)[:, 0]
        strengths = corners[places[:, 1], places[:, 0]] * reliable
        best = np.argsort(-strengths, kind="stable")[: self.count]
        descriptors = _sample(features.transpose(1, 2, 0), cells[best], cv2.INTER_CUBIC)
        descriptors /= np.maximum(np.linalg.norm(descriptors, axis=1, keepdims=True), 1e-9)
        zoom = np.array([width / size[0], height / size[1]])
        return LocalFeatures(
            descriptors,
            ((places[best] + 0.5) * zoom - 0.5).astype(np.float32),
            np.full(len(best), CELL_PX / scale, np.float32),
            strengths[best].astype(np.float32),
            None,
            (width, height),
        )


def find_corners(corners: Vectors, threshold: float) -> npt.NDArray[np.int64]:
    """Pixels, N 2, that no other within the window exceeds; none at the border, where the window is cut off."""
    import cv2

    window = np.ones((_SUPPRESSED, _SUPPRESSED), np.uint8)
    is_peak = (corners >= cv2.dilate(corners, window)) & (corners > threshold)
    border = _SUPPRESSED // 2
    is_peak[:border] = is_peak[-border:] = is_peak[:, :border] = is_peak[:, -border:] = False
    places: Any = cv2.findNonZero(is_peak.view(np.uint8))
    return np.empty((0, 2), np.int64) if places is None else places.reshape(-1, 2).astype(np.int64)


def _sample(maps: npt.NDArray[np.float32], places: npt.NDArray[np.floating], interpolation: int) -> Vectors:
    """Maps H W C at places N 2, x and y: N C."""
    import cv2

    if not len(places):
        return np.zeros((0, maps.shape[2]), np.float32)
    x, y = (np.ascontiguousarray(places[None, :, axis], np.float32) for axis in (0, 1))
    sampled = [
        cv2.remap(
            np.ascontiguousarray(maps[..., start : start + _CHANNELS]),
            x,
            y,
            interpolation,
            borderMode=cv2.BORDER_REPLICATE,
        ).reshape(len(places), -1)
        for start in range(0, maps.shape[2], _CHANNELS)
    ]
    return np.concatenate(sampled, axis=1)
