"""Spatial re-ranking by local features: of the best hits, those that agree geometrically with the query come first.

Candidates with enough inliers come first, most inliers first; equal counts, and all candidates without enough, keep the
order of their global scores. So a query without features leaves the ranking as it was.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tessera.errors import UsageError
from tessera.local.extractors import open_local_extractor
from tessera.local.features import LocalExtractor, LocalFeatures
from tessera.local.verification import Verification, VerificationConfig, fit_transformation, verify
from tessera.refiners import find_reranker

DEFAULT_EXTRACTOR = "sift"
SIZE = 1024  # longer side of the images that features are taken from; never enlarged

# For each kind of feature the cosine below which a mutual match is rejected, and the least inliers. Cosines of sift
# and xfeat were fitted on train landmarks, the inliers of sift and of networks on validation landmarks, those of xfeat
# and lightglue on painted scenes (results/local.md); the others were not measured. A
# network's features have a range of their own, so none is rejected; they lie at the centres of cells and cannot agree
# to a few pixels, so half a cell is allowed; those within a cell of the edge are left out, since padding makes them
# alike in every picture.
THRESHOLDS = {"sift": (0.9, 8), "hesaff-rsift": (0.9, 8), "xfeat": (0.82, 24), "disk": (0.8, 12)}
NETWORK_THRESHOLDS = (-1.0, 12)
_NETWORK_ERROR_CELLS = 0.5
EDGE_MARGIN = 1.0
_GRID_SHARE = 0.05  # of the longer side: inliers of lightglue that are nearer than that count once

Compare = Callable[[LocalFeatures, LocalFeatures], Verification]
Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Reranker:
    """One way to compare a query with a candidate. min_inliers: fewer are chance and count as none."""

    name: str
    extractor: LocalExtractor
    compare: Compare
    min_inliers: int
    size: int = SIZE

    def count_inliers(
        self, query: LocalFeatures, candidates: Sequence[LocalFeatures | None], threads: int = 1
    ) -> Counts:
        """The inliers with each candidate, 0 where there are too few or no features. K."""

        def count(candidate: LocalFeatures | None) -> int:
            if candidate is None or not len(candidate) or not len(query):
                return 0
            found = self.compare(query, candidate).num_inliers
            return found if found >= self.min_inliers else 0

        if threads <= 1:
            return np.array([count(candidate) for candidate in candidates], np.int64)
        with ThreadPoolExecutor(threads) as pool:
            return np.array(list(pool.map(count, candidates)), np.int64)


def order_candidates(inliers: npt.ArrayLike, scores: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Positions, best first: by inliers, then by global score, then as they were."""
    counts, values = np.asarray(inliers, np.int64), np.asarray(scores, np.float64)
    return np.lexsort((np.arange(len(counts)), -values, -counts)).astype(np.int64)


def open_reranker(
    name: str, *, extractor: str | Path | LocalExtractor | None = None, model: str | Path = "lite"
) -> Reranker:
    """A re-ranker by name. extractor: for `sp`, which features (SIFT unless said); model: for `dsm`, whose activations.

    `lightglue` has weights for DISK features only.
    """
    if name == "sp":
        opened = _open_extractor(DEFAULT_EXTRACTOR if extractor is None else extractor)
        similarity, least = THRESHOLDS.get(opened.name, NETWORK_THRESHOLDS)
        cell_px = getattr(opened, "cell_px", 0)
        config = VerificationConfig(
            min_similarity=similarity,
            min_inliers=least,
            threshold_px=max(VerificationConfig.threshold_px, _NETWORK_ERROR_CELLS * cell_px),
            margin=EDGE_MARGIN if cell_px else 0.0,
        )
        return Reranker("sp", opened, functools.partial(verify, config=config), config.min_inliers)
    if name == "dsm":
        from tessera.local.dsm import DsmConfig, DsmExtractor, verify_channels

        settings = DsmConfig()
        return Reranker(
            "dsm", DsmExtractor(model), functools.partial(verify_channels, config=settings), settings.min_inliers
        )
    if name == "lightglue":
        from tessera.local.lightglue import LightGlueMatcher

        matcher, wide = LightGlueMatcher(), VerificationConfig(threshold_px=8.0, min_inliers=24)

        def compare(query: LocalFeatures, candidate: LocalFeatures) -> Verification:
            matches = matcher.match(query, candidate)
            # It matches whole edges of one shape with another's: dozens of inliers in a corner cover few cells.
            settings = replace(wide, grid_px=_GRID_SHARE * max(*query.image_size, *candidate.image_size))
            points = query.positions[matches[:, 0]], candidate.positions[matches[:, 1]]
            return fit_transformation(*points, matches, settings)

        return Reranker("lightglue", _open_extractor("disk"), compare, wide.min_inliers)
    find_reranker(name)
    raise UsageError(f"the re-ranking '{name}' compares descriptors: it has no local features to open.")


def _open_extractor(extractor: str | Path | LocalExtractor) -> LocalExtractor:
    return open_local_extractor(extractor) if isinstance(extractor, str | Path) else extractor
