"""Hessian-affine regions with RootSIFT: the hand-made local features of Table 1, on kornia's detector.

Blobs by the determinant of the Hessian over scales, made affine by the second moments of the gradient (Mikolajczyk and
Schmid, 2004), described upright: photos of landmarks stand upright, and an orientation only adds confusion there.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tessera.config import fingerprint
from tessera.data.images import Pixels
from tessera.errors import MissingExtraError
from tessera.local.features import LocalFeatures, is_blank
from tessera.local.sift import root_sift
from tessera.local.weights import import_kornia

_PATCH = 32


class HessianAffineExtractor:
    """At most `count` strongest regions, 128 numbers each; `shapes` are the regions' affine frames."""

    name = "hesaff-rsift"
    dim = 128

    def __init__(self, count: int = 1000, upright: bool = True) -> None:
        features = import_kornia("Hessian-affine features")
        self.count, self.upright = count, upright
        self._features = features
        self._detector: Any = features.ScaleSpaceDetector(
            num_features=count,
            resp_module=features.BlobHessian(),
            scale_pyr_module=_pyramid(),
            ori_module=features.PassLAF() if upright else features.LAFOrienter(19),
            aff_module=features.LAFAffineShapeEstimator(19),
            mr_size=6.0,
        ).eval()
        self._sift: Any = features.SIFTDescriptor(_PATCH, rootsift=False).eval()

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.name, self.count, self.upright)

    def extract(self, image: Pixels) -> LocalFeatures:
        import torch

        height, width = image.shape[:2]
        grey = np.asarray(image, np.float32) @ np.array([0.299, 0.587, 0.114], np.float32) / 255
        batch = torch.from_numpy(grey)[None, None]
        if min(height, width) < _PATCH or is_blank(image):
            return LocalFeatures.empty(self.dim, (width, height))
        with torch.inference_mode():
            frames, responses = self._detector(batch)
            patches = self._features.extract_patches_from_pyramid(batch, frames, _PATCH)[0]  # N 1 32 32
            descriptors = self._sift(patches) if len(patches) else torch.zeros(0, self.dim)
        shapes = frames[0, :, :, :2].numpy().astype(np.float32)
        strengths = responses[0].numpy().astype(np.float32)
        kept = (strengths > 0) & np.isfinite(shapes).all(axis=(1, 2))
        if not kept.any():
            return LocalFeatures.empty(self.dim, (width, height))
        return LocalFeatures(
            root_sift(descriptors.numpy().astype(np.float32))[kept],
            frames[0, :, :, 2].numpy().astype(np.float32)[kept],
            np.sqrt(np.abs(np.linalg.det(shapes[kept].astype(np.float64)))).astype(np.float32),
            strengths[kept],
            shapes[kept],
            (width, height),
        ).strongest(self.count)


def _pyramid() -> Any:
    try:
        from kornia.geometry.transform import ScalePyramid
    except ImportError as error:
        raise MissingExtraError("Hessian-affine features", "local") from error
    return ScalePyramid(3, 1.6, 32, double_image=False)
