"""From scores and inliers to the probability that two images show the same thing.

A logistic model over a few pieces of evidence, fitted on pairs of the training photos. Scores are standardised first,
by how the strangers of the query score, so that the model holds for any collection.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tessera.config import from_mapping
from tessera.errors import ConfigError, ModelError

Vector = npt.NDArray[np.float32]
Array = npt.NDArray[np.float64]

FILE_NAME = "calibration.json"
EVIDENCE = ("constant", "global", "local", "verified", "inliers", "agreement")
VERIFIED_INLIERS = 8  # so many places agree for two pictures of strangers hardly ever
_STRANGERS = 0.98  # the share of a gallery that is taken for strangers
_LEAST_DEVIATION = 1e-6


@dataclass(frozen=True)
class Background:
    """How strangers score where a gallery is too small to tell: mean and deviation, worth `weight` images."""

    global_mean: float = 0.05
    global_deviation: float = 0.07
    local_mean: float = 0.001
    local_deviation: float = 0.001
    weight: float = 50.0

    def standardise(self, kind: str, scores: Vector, others: Vector) -> Vector:
        """Scores in deviations above the mean of strangers. others: scores of the gallery, or of a sample of it."""
        prior_mean, prior_deviation = getattr(self, f"{kind}_mean"), getattr(self, f"{kind}_deviation")
        strangers = np.sort(others)[: int(np.ceil(_STRANGERS * len(others)))].astype(np.float64)
        count, weight = len(strangers), self.weight
        mean = (strangers.sum() + weight * prior_mean) / (count + weight)
        squares = np.square(strangers - mean).sum() + weight * (prior_deviation**2 + (prior_mean - mean) ** 2)
        deviation = max(float(np.sqrt(squares / (count + weight))), _LEAST_DEVIATION)
        return np.asarray((scores - mean) / deviation, np.float32)


@dataclass(frozen=True)
class Calibration:
    """coefficients: one for each of EVIDENCE. local_weight: of the local score in the fused one, before verification.

    certain: the probability from which on an answer is called certain.
    """

    coefficients: tuple[float, ...] = (-6.0, 0.6, 0.3, 1.0, 1.5, 1.0)
    local_weight: float = 0.5
    certain: float = 0.5
    background: Background = field(default_factory=Background)
    provenance: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.coefficients) != len(EVIDENCE):
            raise ConfigError(f"a calibration has {len(EVIDENCE)} coefficients, not {len(self.coefficients)}.")

    def fuse(self, global_z: Vector, local_z: Vector) -> Vector:
        return np.asarray(global_z + self.local_weight * local_z, np.float32)

    def evidence(
        self,
        global_z: Vector,
        local_z: Vector,
        inliers: npt.NDArray[np.int64],
        matches: npt.NDArray[np.int64],
    ) -> Array:
        """K E. inliers: -1 where nothing was matched, which counts as none."""
        counted = np.maximum(inliers, 0).astype(np.float64)
        is_verified = counted >= VERIFIED_INLIERS
        return np.stack(
            [
                np.ones(len(counted)),
                global_z.astype(np.float64),
                np.sign(local_z) * np.log1p(np.abs(local_z.astype(np.float64))),
                is_verified.astype(np.float64),
                np.where(is_verified, np.log2(np.maximum(counted, 1) / VERIFIED_INLIERS), 0.0),
                np.where(is_verified, counted / np.maximum(matches, 1), 0.0),
            ],
            axis=1,
        )

    def logits(self, evidence: Array) -> Array:
        return np.asarray(evidence @ np.array(self.coefficients))


@cache
def load_calibration(folder: Path) -> Calibration:
    """The calibration of a packaged system."""
    path = folder / FILE_NAME
    try:
        return from_mapping(Calibration, json.loads(path.read_text()))
    except (OSError, ValueError, TypeError, ConfigError) as error:
        raise ModelError(f"{path} cannot be read: {error}. Install the package again.") from error
