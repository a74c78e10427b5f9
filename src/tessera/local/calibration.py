"""From scores and inliers to one score that ranks, and to the probability that two images show the same thing.

Scores are standardised first, by how the strangers of the query score, so that they mean the same in any collection.
A few weights, chosen on validation photos, make one score of the evidence; a curve over it that only rises, fitted on
pairs of training photos, makes a probability of the score (isotonic regression; Zadrozny and Elkan, 2002).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tessera.config import from_mapping
from tessera.errors import ConfigError, ModelError
from tessera.storage import parse_json

Vector = npt.NDArray[np.float32]
Array = npt.NDArray[np.float64]

FILE_NAME = "calibration.json"
EVIDENCE = ("global", "local", "verified", "inliers", "agreement", "copy")
VERIFIED_INLIERS = 8  # so many places agree for two pictures of strangers hardly ever
VERIFIED_PROBABILITY = 0.5  # but of a few hundred candidates one may: it must be more likely than not, too
_CHANCE_INLIERS = 4  # and so many often; in between they count in part
_MOST_GLOBAL = 7.0  # deviations; beyond, a descriptor says little more
_BEYOND = 0.05
_COPY = 0.98  # of the way from strangers to equal: only copies are so much alike
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
        mean, deviation = self._estimate(kind, others)
        return np.asarray((scores - mean) / deviation, np.float32)

    def likeness(self, cosines: Vector, others: Vector) -> Vector:
        """How far cosines are on the way from strangers, 0, to equal descriptors, 1."""
        mean, _ = self._estimate("global", others)
        return np.asarray((cosines - mean) / max(1 - mean, _LEAST_DEVIATION), np.float32)

    def _estimate(self, kind: str, others: Vector) -> tuple[float, float]:
        """The mean and the deviation of strangers: those of most others, and of the prior."""
        prior_mean, prior_deviation = getattr(self, f"{kind}_mean"), getattr(self, f"{kind}_deviation")
        strangers = np.sort(others)[: int(np.ceil(_STRANGERS * len(others)))].astype(np.float64)
        count, weight = len(strangers), self.weight
        mean = (strangers.sum() + weight * prior_mean) / (count + weight)
        squares = np.square(strangers - mean).sum() + weight * (prior_deviation**2 + (prior_mean - mean) ** 2)
        return float(mean), max(float(np.sqrt(squares / (count + weight))), _LEAST_DEVIATION)


@dataclass(frozen=True)
class Calibration:
    """weights: of EVIDENCE in the score. local_weight: of the local score before anything is verified.

    diffused: deviations that a descriptor gains by being near to what is verified, which ranks but is no evidence.
    curve: pairs of a score and its probability, both rising, with straight lines in between. certain: the probability
    from which on an answer is called certain.
    """

    weights: tuple[float, ...] = (0.7, 0.4, 1.5, 3.0, 1.0, 25.0)
    local_weight: float = 0.5
    diffused: float = 7.0
    curve: tuple[tuple[float, float], ...] = ((2.0, 0.02), (5.5, 0.58), (10.0, 0.6), (22.0, 0.97))
    certain: float = 0.65
    background: Background = field(default_factory=Background)
    provenance: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.weights) != len(EVIDENCE):
            raise ConfigError(f"a calibration has {len(EVIDENCE)} weights: {self}")
        steps = np.diff(np.array(self.curve, np.float64), axis=0)
        if len(self.curve) < 2 or (steps[:, 0] <= 0).any() or (steps[:, 1] <= 0).any():
            raise ConfigError(f"a calibration's curve only rises: {self.curve}")

    def fuse(self, global_z: Vector, local_z: Vector) -> Vector:
        return np.asarray(global_z + self.local_weight * local_z, np.float32)

    def evidence(
        self,
        global_z: Vector,
        local_z: Vector,
        inliers: npt.NDArray[np.int64],
        matches: npt.NDArray[np.int64],
        likeness: Vector,
    ) -> Array:
        """K E. inliers: -1 where nothing was matched, as none. likeness: of the descriptors themselves."""
        counted = np.maximum(inliers, 0).astype(np.float64)
        is_verified = counted >= VERIFIED_INLIERS
        return np.stack(
            [
                _saturate(global_z),
                np.sign(local_z) * np.log1p(np.abs(local_z.astype(np.float64))),
                np.clip((counted - _CHANCE_INLIERS) / (VERIFIED_INLIERS - _CHANCE_INLIERS), 0.0, 1.0),
                np.where(is_verified, np.log2(np.maximum(counted, 1) / VERIFIED_INLIERS), 0.0),
                np.where(is_verified, counted / np.maximum(matches, 1), 0.0),
                np.clip((likeness - _COPY) / (1 - _COPY), 0.0, 1.0),
            ],
            axis=1,
        ).astype(np.float64)

    def scores(self, evidence: Array) -> Array:
        """What the probabilities are worked out from, K."""
        return np.asarray(evidence @ np.array(self.weights))

    def rank_scores(self, evidence: Array, neighbours: Vector) -> Array:
        """What images are ranked by, K. neighbours: how near each is to what is verified, 0 to 1."""
        ranking = evidence.copy()
        ranking[:, 0] = _saturate(_restore(evidence[:, 0]) + self.diffused * neighbours)
        return self.scores(ranking)

    def probabilities(self, scores: Array) -> Array:
        knots = np.array(self.curve, np.float64)
        return np.asarray(np.interp(scores, knots[:, 0], knots[:, 1]))


def _saturate(global_z: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.asarray(np.minimum(global_z, _MOST_GLOBAL) + _BEYOND * np.maximum(global_z - _MOST_GLOBAL, 0))


def _restore(saturated: Array) -> Array:
    return np.asarray(np.minimum(saturated, _MOST_GLOBAL) + np.maximum(saturated - _MOST_GLOBAL, 0) / _BEYOND)


def fall(probabilities: Array) -> Array:
    """Probabilities of hits in their order, K, made to fall: neighbours that rise get their mean (pooled violators)."""
    blocks: list[tuple[float, int]] = []
    for value in probabilities.tolist():
        blocks.append((value, 1))
        while len(blocks) > 1 and blocks[-2][0] < blocks[-1][0]:
            (mean, count), (before, count_before) = blocks.pop(), blocks.pop()
            blocks.append(((mean * count + before * count_before) / (count + count_before), count + count_before))
    return np.repeat([mean for mean, _ in blocks], [count for _, count in blocks])


@cache
def load_calibration(folder: Path) -> Calibration:
    """The calibration of a packaged system."""
    path = folder / FILE_NAME
    try:
        return from_mapping(Calibration, parse_json(path.read_text()))
    except (OSError, ValueError, TypeError, ConfigError) as error:
        raise ModelError(f"{path} cannot be read: {error}. Install the package again.") from error
