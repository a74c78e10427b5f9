"""Explanations as the API gives them, remembering the last pictures: the next hit has the same query."""

from __future__ import annotations

import base64
import hashlib
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import numpy as np

from tessera.data.boxes import Box, clip_box
from tessera.data.images import Photo
from tessera.explain.attention_regions import light_of
from tessera.explain.explanation import ImageExplanation, explain_image, pair_up

if TYPE_CHECKING:
    from tessera.extract.extractor import Extractor
    from tessera.local.spatial_reranking import Reranker

KEPT = 8  # some 15 MB each at 1024 pixels
SHOWN = 150  # matches; more hide the pictures


class Explainer:
    """Explains pairs of pictures, from several threads at once."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, bytes], ImageExplanation] = OrderedDict()
        self._lock = threading.Lock()

    def explain(self, extractor: Extractor, query: Photo, box: Box | None, other: Photo) -> dict[str, Any]:
        """What `schemas.Explanation` describes, but for its matches. box: the one that the query was cut out by."""
        pair = pair_up(self._explained(extractor, query), self._explained(extractor, other))
        answer = pair.to_json()
        for name, side in (("query", pair.query), ("other", pair.other)):
            answer[name]["crop"] = _fractions(box, query) if name == "query" else None
            answer[name]["tokens"] = [
                {"token": index, "box": list(region), "weight": weight, "map": _packed(side.maps[index])}
                for index, (region, weight) in enumerate(zip(side.boxes, _weights(side), strict=True))
            ]
        return answer

    def _explained(self, extractor: Extractor, photo: Photo) -> ImageExplanation:
        # The network is part of what a picture is known by: the gallery may be indexed anew with another one.
        identity = (
            extractor.fingerprint,
            hashlib.sha256(repr(photo.pixels.shape).encode() + photo.pixels.tobytes()).digest(),
        )
        with self._lock:
            if identity in self._kept:
                self._kept.move_to_end(identity)
                return self._kept[identity]
        explained = explain_image(extractor, photo.pixels)
        with self._lock:
            self._kept[identity] = explained
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return explained


class Matcher:
    """Finds the points that two pictures share; opened when it is first asked."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reranker: Reranker | None = None

    def match(self, query: Photo, box: Box | None, other: Photo) -> dict[str, Any]:
        """What `schemas.Matches` describes, by the features that a search verifies its hits by."""
        from tessera.explain.matches import match_pair
        from tessera.local.matching import open_parts_reranker

        with self._lock:
            if self._reranker is None:
                self._reranker = open_parts_reranker()
        pair = match_pair(self._reranker, query.pixels, other.pixels)
        x0, y0, x1, y1 = _fractions(box, query) or (0.0, 0.0, 1.0, 1.0)
        sizes = np.array([*query.pixels.shape[1::-1], *other.pixels.shape[1::-1]], np.float64)
        points = pair.points[:SHOWN] / sizes * (x1 - x0, y1 - y0, 1, 1) + (x0, y0, 0, 0)
        return {
            "verified": pair.agrees,
            "inliers": len(pair.points),
            "points": np.round(points, 4).tolist() if pair.agrees else [],
        }


def _weights(side: ImageExplanation) -> list[float]:
    parts = side.parts[: max(1, side.num_tokens)]
    return [float(value) for value in np.linalg.norm(parts, axis=1)]


def _packed(values: np.ndarray[Any, Any]) -> dict[str, Any]:
    """A map as bytes in base64: a tenth of what numbers in JSON would take."""
    data = np.ascontiguousarray(light_of(values) * 255, dtype=np.uint8)
    return {"width": data.shape[1], "height": data.shape[0], "data": base64.b64encode(data.tobytes()).decode()}


def _fractions(box: Box | None, photo: Photo) -> list[float] | None:
    if box is None:
        return None
    x0, y0, x1, y1 = clip_box(box, photo.width, photo.height)
    return [x0 / photo.width, y0 / photo.height, x1 / photo.width, y1 / photo.height]
