"""GeM+DSM of Table 1, section B: GeM trained by pairs, then deep spatial matching over the best hundred.

The matching looks at the backbone's own channels, and the backbone stands still: features and inliers are the same with
every seed, are computed once and kept, query by query, so a stopped run goes on where it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
from local_rows import rank_by_descriptors, scoring_of
from rows import BACKBONE, ROWS
from run import FIGURES, Bench, append_csv, choose_rate, describe, measure, read_csv, train
from sets import unseen_photos

from tessera.data.images import load_benchmark
from tessera.local.dsm import DsmConfig
from tessera.local.features import LocalFeatures
from tessera.local.spatial_reranking import Reranker, open_reranker
from tessera.models.model_registry import build_model
from tessera.models.onnx_export import export_bundle, make_card
from tessera.storage import atomic_path

DSM_ROW = "gem-dsm"
_GLOBAL = "gem-contrastive"


def make_dsm_row(bench: Bench, seed: int) -> None:
    """Measure the row with one seed, unless its figures are there."""
    if any(found["row"] == DSM_ROW and found["seed"] == str(seed) for found in read_csv(bench.results / "figures.csv")):
        return
    row = ROWS[_GLOBAL]
    rate = choose_rate(bench, row)
    train(bench, row, seed, rate)
    descriptors = describe(bench, row, seed, rate)
    matching = Matching(bench)
    pictures = matching.features()
    rank = rank_by_descriptors(bench, descriptors, matching, signs=False)
    what = {"row": DSM_ROW, "seed": seed, "codec": "dsm", "dim": descriptors.shape[1]}
    append_csv(bench.results / "figures.csv", FIGURES, *measure(bench, what, scoring_of(bench, pictures, rank)))


@dataclass
class Matching:
    """Deep spatial matching over the ImageNet backbone; what it counted is kept by query."""

    bench: Bench
    _place_of: dict[int, int] = field(default_factory=dict)  # of a picture's features, by the object

    @cached_property
    def folder(self) -> Path:
        return self.bench.work / "dsm" / BACKBONE

    @cached_property
    def reranker(self) -> Reranker:
        path = self.folder / "bundle"
        if not (path / "model.json").is_file():
            network = build_model("spoc-r50", weights="imagenet", backbone=BACKBONE, dim=None)
            export_bundle(network, path, make_card(network, "imagenet-spoc", training_data="ImageNet", licence=""))
        return open_reranker("dsm", model=path)

    def features(self) -> list[LocalFeatures]:
        """Of every photo that training did not see."""
        found = [self._features_of(photo.file) for photo in unseen_photos(self.bench.photos)]
        self.know(found)
        return found

    def know(self, pictures: Sequence[LocalFeatures]) -> None:
        """Whose inliers are counted: each by its place."""
        self._place_of = {id(features): place for place, features in enumerate(pictures)}

    def _features_of(self, file: str) -> LocalFeatures:
        kept = self.folder / "features" / f"{file.replace('/', '_')}.npz"
        if not kept.is_file():
            kept.parent.mkdir(parents=True, exist_ok=True)
            picture = load_benchmark(self.bench.data / file, size=DsmConfig.side)
            one = self.reranker.extractor.extract(picture)
            arrays = {key: getattr(one, key) for key in ("descriptors", "positions", "scales", "strengths")}
            with atomic_path(kept) as temporary, temporary.open("wb") as opened:
                np.savez(opened, size=np.array(one.image_size), **arrays)
        with np.load(kept) as stored:
            width, height = stored["size"]
            values = {key: stored[key] for key in ("descriptors", "positions", "scales", "strengths")}
        return LocalFeatures(**values, shapes=None, image_size=(int(width), int(height)))

    def count_inliers(self, query: LocalFeatures, candidates: Sequence[LocalFeatures]) -> npt.NDArray[np.int64]:
        """As `Reranker.count_inliers`; a pair is matched once."""
        path = self.folder / "inliers" / f"{self._place_of[id(query)]}.npz"
        places = np.array([self._place_of[id(candidate)] for candidate in candidates])
        known = np.full(len(self._place_of), -1)
        if path.is_file():
            with np.load(path) as stored:
                known[stored["places"]] = stored["inliers"]
        missing = np.flatnonzero(known[places] < 0)
        if len(missing):
            known[places[missing]] = self.reranker.count_inliers(query, [candidates[int(place)] for place in missing])
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_path(path) as temporary, temporary.open("wb") as opened:
                kept = np.flatnonzero(known >= 0)
                np.savez(opened, places=kept, inliers=known[kept])
        counts: npt.NDArray[np.int64] = known[places]
        return counts
