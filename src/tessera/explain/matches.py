"""What two pictures have in common, drawn: the pictures side by side and a line for each match that agrees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from tessera.data.boxes import Box
from tessera.data.images import Pixels
from tessera.local.features import LocalFeatures
from tessera.local.spatial_reranking import Reranker
from tessera.local.verification import Verification

HEIGHT = 480
_GAP = 8
_SHOWN = 150  # more lines hide the pictures
_BACKGROUND = (255, 255, 255)


@dataclass(frozen=True)
class MatchedPair:
    """Two pictures as their features saw them, H W 3, and the matches that agree on one transformation."""

    first: Pixels
    second: Pixels
    points: NDArray[np.float32]  # M 4: x, y in the first, x, y in the second; the strongest features first
    num_matches: int
    min_inliers: int
    kind: str

    @property
    def agrees(self) -> bool:
        """Whether there are more inliers than chance gives."""
        return len(self.points) >= self.min_inliers

    def to_json(self, first_frame: Box, second_frame: Box) -> dict[str, Any]:
        """frame: where each picture lies in the one it was cut or reduced from, so that points are in its pixels."""
        rows = self.points.astype(np.float64)
        for columns, frame, pixels in (
            (slice(0, 2), first_frame, self.first),
            (slice(2, 4), second_frame, self.second),
        ):
            height, width = pixels.shape[:2]
            zoom = np.array([(frame[2] - frame[0]) / width, (frame[3] - frame[1]) / height])
            rows[:, columns] = rows[:, columns] * zoom + np.array(frame[:2])
        return {
            "kind": self.kind,
            "matches": self.num_matches,
            "inliers": len(self.points),
            "agrees": self.agrees,
            "points": np.round(rows, 2).tolist(),
        }


def match_pair(reranker: Reranker, first: Pixels, second: Pixels) -> MatchedPair:
    """Compare two pictures as re-ranking would."""
    asked, candidate = reranker.extractor.extract(first), reranker.extractor.extract(second)
    if not len(asked) or not len(candidate):
        return MatchedPair(first, second, np.zeros((0, 4), np.float32), 0, reranker.min_inliers, reranker.name)
    found = reranker.compare(asked, candidate)
    points = inlier_points(asked, candidate, found)
    return MatchedPair(first, second, points, len(found.matches), reranker.min_inliers, reranker.name)


def inlier_points(first: LocalFeatures, second: LocalFeatures, found: Verification) -> NDArray[np.float32]:
    """The positions of the inliers in both pictures, M 4."""
    pairs = found.matches[found.inliers]
    return np.concatenate([first.positions[pairs[:, 0]], second.positions[pairs[:, 1]]], axis=1).astype(np.float32)


def draw_matches(pair: MatchedPair, height: int = HEIGHT) -> Image.Image:
    """The pictures side by side at one height, at most 150 matches as lines, coloured by their place in the first."""
    zooms = [height / picture.shape[0] for picture in (pair.first, pair.second)]
    pictures = [
        Image.fromarray(picture).resize((max(1, round(picture.shape[1] * zoom)), height), Image.Resampling.LANCZOS)
        for picture, zoom in zip((pair.first, pair.second), zooms, strict=True)
    ]
    offset = pictures[0].width + _GAP
    figure = Image.new("RGB", (offset + pictures[1].width, height), _BACKGROUND)
    figure.paste(pictures[0], (0, 0))
    figure.paste(pictures[1], (offset, 0))
    pen = ImageDraw.Draw(figure)
    for x, y, u, v in pair.points[:_SHOWN]:
        start = (float(x) * zooms[0], float(y) * zooms[0])
        end = (offset + float(u) * zooms[1], float(v) * zooms[1])
        colour = place_colour(float(x) / pair.first.shape[1], float(y) / pair.first.shape[0])
        pen.line((*start, *end), fill=colour, width=2)
        for centre in (start, end):
            pen.ellipse((centre[0] - 3, centre[1] - 3, centre[0] + 3, centre[1] + 3), outline=colour, width=2)
    return figure


def place_colour(across: float, down: float) -> tuple[int, int, int]:
    """Neighbours in the first picture get similar colours, so that a match in the wrong place stands out."""
    return (int(255 * min(max(across, 0.0), 1.0)), int(90 + 165 * min(max(1 - down, 0.0), 1.0)), 160)
