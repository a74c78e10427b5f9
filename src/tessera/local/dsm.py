"""Deep spatial matching: a global network's own activations as local features (Siméoni, Avrithis, Chum, CVPR 2019).

A channel of a map that fires at a place is a detector; two images match where the same channels fire in the same
arrangement. No descriptor is compared: the channel is the visual word. The paper fits MSER regions to each channel of
the last map, of pictures of 1024 px; here a feature is a local maximum of a channel of the map at stride 16 (at 384 px
the last one has 12 x 9 cells, which say little about geometry), placed between cells by the mass around it, and
hypotheses come from pairs of matches instead of from the regions' shapes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tessera.config import fingerprint
from tessera.data.images import Pixels
from tessera.errors import MissingExtraError, ModelError
from tessera.local.features import LocalFeatures, is_blank
from tessera.local.verification import Pairs, Verification, keep_one_each
from tessera.models.bundle import Bundle

Array = npt.NDArray[np.float32]
_LEAST_MATCHES = 3


@dataclass(frozen=True)
class DsmConfig:
    """per_channel: maxima kept of a channel. floor: least value of a maximum, in units of its channel's largest.

    tolerance: how far a mapped maximum may lie from its match, in cells of the map. hypotheses: pairs of matches that
    are tried, drawn by `seed`. max_zoom: between the two images, along either axis.

    significance: by how many standard deviations the inliers must exceed what falls within the tolerance by chance.
    Photos are laid out alike (sky above, walls below), so strangers agree on many maxima, and images of other sizes on
    other numbers: a count alone says nothing. The bound is above the best of 1,066 strangers among validation landmarks
    (docs/local.md).
    """

    per_channel: int = 2
    floor: float = 0.5
    tolerance: float = 1.0
    hypotheses: int = 300
    max_zoom: float = 3.0
    seed: int = 0
    min_inliers: int = 12
    significance: float = 21.0


def find_maxima(maps: Array, config: DsmConfig) -> tuple[npt.NDArray[np.int16], Array, Array]:
    """The local maxima of each channel (3 x 3), with sub-cell positions. maps: C H W, not negative.

    Returns channels N, positions N 2 in cells (x, y), strengths N; strongest first.
    """
    _, height, width = maps.shape
    padded = np.pad(maps, ((0, 0), (1, 1), (1, 1)))
    windows = np.stack([padded[:, y : y + height, x : x + width] for y in range(3) for x in range(3)])  # 9 C H W
    peaks = maps.max(axis=(1, 2))  # C
    is_peak = (maps >= windows.max(axis=0)) & (maps > 0) & (maps >= config.floor * peaks[:, None, None])
    c, y, x = np.nonzero(is_peak)
    values = maps[c, y, x]
    order = np.lexsort((-values, c))  # by channel, strongest first
    c, y, x, values = c[order], y[order], x[order], values[order]
    rank = np.arange(len(c)) - np.searchsorted(c, c)
    kept = rank < config.per_channel
    c, y, x, values = c[kept], y[kept], x[kept], values[kept]
    mass = windows[:, c, y, x]  # 9 N
    total = np.maximum(mass.sum(axis=0), 1e-12)
    offsets = np.array([(dx, dy) for dy in (-1, 0, 1) for dx in (-1, 0, 1)], np.float32)
    positions = np.stack([x, y], axis=1) + (offsets.T @ mass / total).T + 0.5
    # A channel's own scale says nothing: what counts is how far a maximum stands out from its channel's mean.
    contrast = values / np.maximum(maps.mean(axis=(1, 2))[c], 1e-12)
    strongest = np.argsort(-contrast, kind="stable")
    return (
        c[strongest].astype(np.int16),
        positions[strongest].astype(np.float32),
        contrast[strongest].astype(np.float32),
    )


class DsmExtractor:
    """Maxima of a global bundle's map at stride 16. Needs torch: a bundle's graph gives the descriptor only."""

    dim = 1

    def __init__(
        self, bundle: Bundle | str | Path = "lite", *, count: int = 1000, config: DsmConfig | None = None
    ) -> None:
        self.bundle = bundle if isinstance(bundle, Bundle) else Bundle.open(bundle)
        if self.bundle.card.kind != "global":
            raise ModelError(f"{self.bundle.card.name} is a local model; deep spatial matching is for global ones.")
        try:
            import torch  # noqa: F401
        except ImportError as error:
            raise MissingExtraError("Deep spatial matching", "local") from error
        self.name = "dsm"
        self.count, self.config = count, config or DsmConfig()
        self._backbone: Any = None

    @property
    def fingerprint(self) -> str:
        config = self.config
        return fingerprint("dsm-conv4", self.bundle.card.fingerprint, self.count, config.per_channel, config.floor)

    def extract(self, image: Pixels) -> LocalFeatures:
        """Descriptors are channel numbers, N 1; positions in pixels of the image; a scale is half a cell."""
        import torch

        card = self.bundle.card
        height, width = image.shape[:2]
        if is_blank(image):
            return LocalFeatures.empty(self.dim, (width, height))
        if self._backbone is None:
            from tessera.models.export import load_network

            self._backbone = load_network(self.bundle).backbone
        pixels = np.asarray(image, np.float32) / 255
        normalised = (pixels - np.asarray(card.preprocessing.mean, np.float32)) / np.asarray(
            card.preprocessing.std, np.float32
        )
        batch = np.ascontiguousarray(normalised.transpose(2, 0, 1)[None])
        if max(height, width) < card.stride:
            batch = np.pad(batch, ((0, 0), (0, 0), (0, card.stride - height), (0, card.stride - width)), mode="edge")
        with torch.inference_mode():
            maps = self._backbone.conv4(torch.from_numpy(batch))[0].numpy()
        # Some networks leave this map signed: what is far below zero is as good a detector as what is far above.
        signed = np.concatenate([np.maximum(maps, 0), np.maximum(-maps, 0)])
        channels, cells, strengths = find_maxima(signed, self.config)
        kept = slice(0, self.count)
        limits = np.array([width, height], np.float32)
        step = limits / np.array(maps.shape[:0:-1], np.float32)
        return LocalFeatures(
            channels[kept, None],
            np.minimum(cells[kept] * step, limits - 1).astype(np.float32),
            np.full(len(channels[kept]), step.mean() / 2, np.float32),
            strengths[kept],
            None,
            (width, height),
        )


def match_channels(first: LocalFeatures, second: LocalFeatures) -> Pairs:
    """Every pair of features of the same channel, M 2."""
    a, b = first.descriptors[:, 0], second.descriptors[:, 0]
    order = np.argsort(b, kind="stable")
    begin = np.searchsorted(b[order], a, side="left")
    counts = np.searchsorted(b[order], a, side="right") - begin
    rows = np.repeat(np.arange(len(a)), counts)
    within = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.stack([rows, order[np.repeat(begin, counts) + within]], axis=1).astype(np.int64)


def verify_channels(first: LocalFeatures, second: LocalFeatures, config: DsmConfig | None = None) -> Verification:
    """The affinity that most channel matches agree on; its inliers are one a feature on either side.

    An upright affinity (two zooms, a shift) from each drawn pair of matches, then one least-squares affinity on the
    best one's inliers. The draws come from `seed`, so the same features give the same answer.
    """
    config = config or DsmConfig()
    matches = match_channels(first, second)
    nothing = Verification(matches, np.zeros(len(matches), bool), None)
    if len(matches) < _LEAST_MATCHES:
        return nothing
    source = first.positions[matches[:, 0]].astype(np.float64)
    target = second.positions[matches[:, 1]].astype(np.float64)
    cell = 2 * float(second.scales[0]) * config.tolerance
    zooms, shifts = _hypotheses(source, target, config)
    if not len(zooms):
        return nothing
    errors = np.abs(source[None] * zooms[:, None] + shifts[:, None] - target[None]).max(axis=2)  # T M
    best = int(np.argmax((errors <= cell).sum(axis=1)))
    inliers = errors[best] <= cell
    transformation = np.array([[zooms[best, 0], 0, shifts[best, 0]], [0, zooms[best, 1], shifts[best, 1]], [0, 0, 1.0]])
    if inliers.sum() >= _LEAST_MATCHES:
        homogeneous = np.column_stack([source, np.ones(len(source))])
        solution, _, rank, _ = np.linalg.lstsq(homogeneous[inliers], target[inliers], rcond=None)
        refined = np.abs(homogeneous @ solution - target).max(axis=1) <= cell
        area = abs(np.linalg.det(solution[:2]))
        if rank == 3 and refined.sum() >= inliers.sum() and 1 / config.max_zoom**2 < area < config.max_zoom**2:
            inliers, transformation = refined, np.vstack([solution.T, [0, 0, 1]])
    kept = keep_one_each(matches[:, 0], matches[:, 1], inliers)
    if kept.sum() < beyond_chance(len(matches), cell, second.image_size, config.significance):
        return nothing
    return Verification(matches, kept, transformation)


def beyond_chance(matches: int, cell: float, size: tuple[int, int], significance: float) -> float:
    """How many of so many matches must agree, if each falls within `cell` of its place with its share of the area."""
    share = min(1.0, (2 * cell) ** 2 / max(size[0] * size[1], 1))
    return matches * share + significance * float(np.sqrt(matches * share * (1 - share)))


def _hypotheses(
    source: npt.NDArray[np.float64], target: npt.NDArray[np.float64], config: DsmConfig
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Zooms T 2 and shifts T 2 from pairs of matches whose zooms are believable."""
    draws = np.random.default_rng(config.seed).integers(0, len(source), (4 * config.hypotheses, 2))
    run = source[draws[:, 1]] - source[draws[:, 0]]
    rise = target[draws[:, 1]] - target[draws[:, 0]]
    with np.errstate(divide="ignore", invalid="ignore"):
        zooms = rise / run
    believable = ((zooms > 1 / config.max_zoom) & (zooms < config.max_zoom)).all(axis=1)
    zooms, first = zooms[believable][: config.hypotheses], draws[believable, 0][: config.hypotheses]
    return zooms, target[first] - source[first] * zooms
