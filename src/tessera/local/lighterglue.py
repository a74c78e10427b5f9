"""LighterGlue: corners of two pictures matched by attention between them, without torch.

A LightGlue of three layers for XFeat (Lindenberger et al., ICCV 2023; Potje et al., CVPR 2024). The graph, with the
authors' weights (Apache-2.0), is in the package; `scripts/local/export_lighterglue.py` makes it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tessera.local.features import Vectors
from tessera.local.packaged_graph import SYSTEMS_DIR, open_graph

GRAPH_PATH = SYSTEMS_DIR / "lighterglue.onnx"
MOST_CORNERS = 200  # the strongest; 300 take 1.7 times as long and find no more
LEAST_CONFIDENCE = 0.1  # of a match, as its authors have it


@dataclass(frozen=True)
class Corners:
    """The corners among a picture's features. rows: N, which of the features they are. descriptors: N 64, unit norm.

    places: N 2, from the middle of the picture, its longer side from -1 to 1.
    """

    rows: npt.NDArray[np.int64]
    descriptors: Vectors
    places: Vectors

    def __len__(self) -> int:
        return len(self.rows)

    @classmethod
    def none(cls) -> Corners:
        return cls(np.zeros(0, np.int64), np.zeros((0, 64), np.float32), np.zeros((0, 2), np.float32))

    @classmethod
    def of(
        cls, rows: npt.NDArray[np.int64], descriptors: Vectors, positions: Vectors, image_size: tuple[int, int]
    ) -> Corners:
        """Given strongest first."""
        kept = slice(MOST_CORNERS)
        half = np.array(image_size, np.float32) / 2
        places = (positions[kept] - half) / max(float(half.max()), 1.0)
        return cls(rows[kept], np.asarray(descriptors[kept], np.float32), np.asarray(places, np.float32))


def match_corners(first: Corners, second: Corners) -> tuple[npt.NDArray[np.int64], Vectors]:
    """Pairs of features, M 2, that are each other's best, surest first, and how sure the network is of each, M."""
    if not len(first) or not len(second):
        return np.zeros((0, 2), np.int64), np.zeros(0, np.float32)
    inputs = {
        "first": first.descriptors,
        "first_places": first.places,
        "second": second.descriptors,
        "second_places": second.places,
    }
    matches, confidences = open_graph(GRAPH_PATH).run(None, inputs)
    kept = np.argsort(-confidences, kind="stable")[: int((confidences > LEAST_CONFIDENCE).sum())]
    return np.stack([first.rows[kept], second.rows[matches[kept]]], axis=1), confidences[kept]
