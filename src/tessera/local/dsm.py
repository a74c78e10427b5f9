"""Deep spatial matching: a global network's own activations as local features (Siméoni, Avrithis, Chum, CVPR 2019).

A channel of a map that fires at a position is a detector; two images match where the same channels fire in the same
arrangement. No descriptor is compared: the channel is the visual word. The paper fits MSER regions to each channel of
the last map, of pictures of 1024 px; here a feature is a local maximum of a channel of a map at stride 16 (the last one
has 12 x 9 cells at 384 px, which say little about geometry), placed between cells by the mass around it, and hypotheses
come from pairs of matches instead of from the regions' shapes.

Many channels fire together, and strangers are laid out alike (sky above, walls below), so a number of matches says
little. What counts is in how many cells of the map they agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from tessera.config import fingerprint
from tessera.data.images import Pixels
from tessera.errors import MissingExtraError, ModelError
from tessera.local.features import LocalFeatures, is_blank
from tessera.local.verification import Pairs, Verification, keep_one_each, number_cells
from tessera.models.bundle import Bundle

Array = npt.NDArray[np.float32]
FEATURES = 3000
_MIN_MATCHES = 3
_REFINED = 8  # of the hypotheses
_ROUNDS = 4
_BLOCK = 256  # matches tested at once: what is between stays in the cache


@dataclass(frozen=True)
class DsmConfig:
    """side: the longer side that pictures are brought to, larger or smaller: the bound holds for maps of that size.

    per_channel: maxima kept of a channel. floor: least value of a maximum, in units of its channel's largest.

    tolerance: how far a mapped maximum may lie from its match, in cells of the map. hypotheses: pairs of matches that
    are tried, drawn by `seed`. max_zoom, max_turn (radians): between the two images.

    min_inliers: cells that must agree. The bound is above the best of the strangers among validation landmarks
    (results/local.md).
    """

    side: int = 384
    per_channel: int = 2
    floor: float = 0.5
    tolerance: float = 0.5
    hypotheses: int = 300
    max_zoom: float = 3.0
    max_turn: float = 0.7
    seed: int = 0
    min_inliers: int = 40


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
    """Maxima of a global bundle's detectors at stride 16. Needs torch: a bundle's graph gives the descriptor only."""

    dim = 1

    def __init__(
        self, bundle: Bundle | str | Path = "lite", *, count: int = FEATURES, config: DsmConfig | None = None
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
        given = (config.side, config.per_channel, config.floor)
        return fingerprint("dsm-detectors", self.bundle.card.fingerprint, self.count, *given)

    def extract(self, image: Pixels) -> LocalFeatures:
        """Descriptors are channel numbers, N 1; positions in pixels of the image; a scale is half a cell."""
        import torch

        height, width = image.shape[:2]
        if is_blank(image):
            return LocalFeatures.empty(self.dim, (width, height))
        if self._backbone is None:
            from tessera.models.onnx_export import load_network

            self._backbone = load_network(self.bundle).backbone
        batch = self.bundle.card.preprocessing.normalise([_bring_to(image, self.config.side)])
        with torch.inference_mode():
            maps = self._backbone.detectors(torch.from_numpy(batch))[0].numpy()
        channels, cells, strengths = find_maxima(maps, self.config)
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


def _bring_to(image: Pixels, side: int) -> Pixels:
    height, width = image.shape[:2]
    zoom = side / max(height, width)
    size = max(1, round(width * zoom)), max(1, round(height * zoom))
    return np.asarray(Image.fromarray(image).resize(size, Image.Resampling.BICUBIC))


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
    """The affinity that most channel matches agree on; its inliers are one a cell on either side.

    A similarity (a turn, a zoom, a shift) from each drawn pair of matches; the best few become affinities by least
    squares on what they gather, again and again while that grows. The draws come from `seed`, so the same features give
    the same answer.
    """
    config = config or DsmConfig()
    matches = match_channels(first, second)
    nothing = Verification(matches, np.zeros(len(matches), bool), None)
    if len(matches) < _MIN_MATCHES:
        return nothing
    source, target = first.positions[matches[:, 0]], second.positions[matches[:, 1]]
    tolerance_px = 2 * float(second.scales[0]) * config.tolerance
    homogeneous = np.column_stack([source, np.ones(len(source), np.float32)])  # M 3
    maps = _hypotheses(source, target, config)
    counts = np.zeros(len(maps), np.int64)
    for start in range(0, len(matches), _BLOCK):
        block = slice(start, start + _BLOCK)
        counts += np.count_nonzero(_gather(homogeneous[block], target[block], maps, tolerance_px), axis=0)
    best = np.argsort(-counts, kind="stable")[:_REFINED]
    agreeing = _gather(homogeneous, target, maps[best], tolerance_px)  # M T
    grown = [_grow(homogeneous, target, inliers, tolerance_px, config.max_zoom) for inliers in agreeing.T]
    cells = [number_cells(points, 2 * float(of.scales[0])) for points, of in ((source, first), (target, second))]
    kept = [(keep_one_each(cells[0], cells[1], inliers), affinity) for inliers, affinity in grown]
    inliers, affinity = max(kept, key=lambda one: int(one[0].sum()), default=(nothing.inliers, None))
    if affinity is None or inliers.sum() < config.min_inliers:
        return nothing
    return Verification(matches, inliers, np.vstack([affinity.T, [0, 0, 1]]))


def _hypotheses(source: Array, target: Array, config: DsmConfig) -> Array:
    """Similarities from pairs of matches that a camera could have made, T 3 2: (x, y, 1) times one is where it goes."""
    draws = np.random.default_rng(config.seed).integers(0, len(source), (4 * config.hypotheses, 2))
    before, after = source @ np.array([1, 1j]), target @ np.array([1, 1j])
    with np.errstate(divide="ignore", invalid="ignore"):
        turns = (after[draws[:, 1]] - after[draws[:, 0]]) / (before[draws[:, 1]] - before[draws[:, 0]])
        zooms, angles = np.abs(turns), np.abs(np.angle(turns))
        possible = (zooms > 1 / config.max_zoom) & (zooms < config.max_zoom) & (angles < config.max_turn)
    kept = np.flatnonzero(possible)[: config.hypotheses]
    turn, start = turns[kept], draws[kept, 0]
    shift = after[start] - before[start] * turn
    rows = [(turn.real, turn.imag), (-turn.imag, turn.real), (shift.real, shift.imag)]
    return np.asarray(np.moveaxis(np.array(rows), 2, 0), np.float32)


def _gather(homogeneous: Array, target: Array, maps: Array, tolerance_px: float) -> npt.NDArray[np.bool_]:
    """Which matches, M, each of the maps, T 3 2, brings within tolerance_px along both axes. M T."""
    across, down = (
        np.abs(homogeneous @ np.ascontiguousarray(maps[:, :, axis].T) - target[:, axis, None]) <= tolerance_px
        for axis in (0, 1)
    )
    return np.asarray(across & down)


def _grow(
    homogeneous: Array, target: Array, inliers: npt.NDArray[np.bool_], tolerance_px: float, max_zoom: float
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[Any] | None]:
    """The inliers of a hypothesis, and the affinity 3 2 that fits them, after rounds in which they became more."""
    fitted: npt.NDArray[Any] | None = None
    for _ in range(_ROUNDS):
        solution, _, rank, _ = np.linalg.lstsq(homogeneous[inliers].astype(np.float64), target[inliers], rcond=None)
        area = abs(np.linalg.det(solution[:2]))
        if rank < 3 or not 1 / max_zoom**2 < area < max_zoom**2:
            break
        found = _gather(homogeneous, target, solution[None].astype(np.float32), tolerance_px)[:, 0]
        grows = found.sum() > inliers.sum()
        if grows or fitted is None:
            inliers, fitted = found, solution
        if not grows:
            break
    return inliers, fitted
