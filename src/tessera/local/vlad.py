"""VLAD: an image's residuals to a few words, summed word by word, as one descriptor (Jégou et al., CVPR 2010).

Normalisations, in this order: each word's sum to unit length (intra, Arandjelović and Zisserman 2013), a signed power
of every number, the whole to unit length. 16 words of 128 numbers give the 2048 of Table 1.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tessera.local.codebook import Codebook

_EPS = 1e-12


def describe_vlad(
    codebook: Codebook, features: npt.NDArray[np.floating], *, intra: bool = True, power: float = 0.5
) -> npt.NDArray[np.float32]:
    """The descriptor K*D of an image's features, N D; zeros for an image without any.

    power: 1 leaves the numbers as they are.
    """
    sums = np.zeros((codebook.size, codebook.dim))
    if len(features):
        words = codebook.assign(features)[:, 0]
        np.add.at(sums, words, np.asarray(features, np.float64) - codebook.centroids[words])
    if intra:
        sums /= np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), _EPS)
    flat = np.sign(sums.ravel()) * np.abs(sums.ravel()) ** power
    return np.asarray(flat / max(float(np.linalg.norm(flat)), _EPS), dtype=np.float32)
