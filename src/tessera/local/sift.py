"""RootSIFT on OpenCV's own detector: quick, no weights, a fair baseline for geometric verification."""

from __future__ import annotations

import numpy as np

from tessera.config import fingerprint
from tessera.data.images import Pixels
from tessera.errors import MissingExtraError
from tessera.local.features import LocalFeatures, Vectors


def root_sift(descriptors: Vectors) -> Vectors:
    """L1-normalise, then take the root: inner products become the Hellinger kernel (Arandjelović and Zisserman)."""
    sums = np.maximum(np.abs(descriptors).sum(axis=1, keepdims=True), 1e-12)
    return np.asarray(np.sqrt(np.maximum(descriptors, 0) / sums), dtype=np.float32)


class SiftExtractor:
    """At most `count` strongest features, 128 numbers each."""

    name = "sift"
    dim = 128

    def __init__(self, count: int = 1000, contrast: float = 0.01) -> None:
        try:
            import cv2
        except ImportError as error:
            raise MissingExtraError("SIFT", "local") from error
        self.count = count
        self.contrast = contrast
        self._cv2 = cv2
        self._sift = cv2.SIFT.create(nfeatures=count, contrastThreshold=contrast)

    @property
    def fingerprint(self) -> str:
        return fingerprint("sift", self.count, self.contrast)

    def extract(self, image: Pixels) -> LocalFeatures:
        height, width = image.shape[:2]
        grey = self._cv2.cvtColor(np.ascontiguousarray(image), self._cv2.COLOR_RGB2GRAY)
        points, descriptors = self._sift.detectAndCompute(grey, None)
        if descriptors is None or not len(points):
            return LocalFeatures.empty(self.dim, (width, height))
        features = LocalFeatures(
            root_sift(np.asarray(descriptors, np.float32)),
            np.array([point.pt for point in points], np.float32),
            np.array([point.size / 2 for point in points], np.float32),
            np.array([point.response for point in points], np.float32),
            None,
            (width, height),
        )
        return features.strongest(self.count)
