"""Explain one picture, or the similarity of two, from a bundle's `attention` and `parts`."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tessera.data.boxes import Box
from tessera.explain.attention_regions import BOX_SHARE, EVIDENCE_SHARE, merge_evidence, merge_maps, region_box
from tessera.explain.contributions import contribution_matrix, merge_scales, scale_weight, share_out, strongest_pairs
from tessera.models.bundle import POSITION_CONTRIBUTIONS

if TYPE_CHECKING:
    from tessera.explain.matches import MatchedPair
    from tessera.extract.extractor import Extractor

Method = Literal["tokens", "activation", "occlusion"]

METHOD_NOTES: dict[Method, str] = {
    "tokens": "maps of the visual tokens",
    "activation": "this network has no tokens: the map shows where its activations are strong",
    "occlusion": "this network has no tokens: the map shows where hiding a patch changes the descriptor",
}
UNIT_FRAME: Box = (0.0, 0.0, 1.0, 1.0)
OCCLUSION_CELLS = 6  # patches a side: 36 more runs of the network
OCCLUSION_SIDE = 192  # on a small copy, or they would take longer than a person waits


@dataclass(frozen=True)
class ImageExplanation:
    """Where each token looks in one picture, and what it adds to the descriptor."""

    image: NDArray[np.uint8]  # H W 3, as the network saw it
    maps: NDArray[np.float32]  # L h w, each with mean one; one map where the network has no tokens
    parts: NDArray[np.float32]  # L D, summing to the descriptor; a single row where there are no tokens
    method: Method
    position_contributions: tuple[NDArray[np.float32], ...] = ()  # a scale each, L D h w, the constant left out
    is_evidence: bool = False  # the maps show what was found for another picture, not where the tokens look

    @property
    def num_tokens(self) -> int:
        return len(self.parts) if self.method == "tokens" else 0

    @property
    def descriptor(self) -> NDArray[np.float32]:
        return np.asarray(self.parts.sum(axis=0), dtype=np.float32)

    @cached_property
    def boxes(self) -> list[tuple[float, float, float, float]]:
        """The region of every map, in fractions of the picture's width and height (x0, y0, x1, y1)."""
        share = EVIDENCE_SHARE if self.is_evidence else BOX_SHARE
        return [region_box(values, share) for values in self.maps]

    def towards(self, descriptor: NDArray[np.float32]) -> ImageExplanation:
        """The same picture, its maps now of what each position did for the similarity with another descriptor.

        Where the network cannot lay a token to positions, the tokens' own maps stay.
        """
        if not self.position_contributions:
            return self
        added = [np.einsum("ldhw,d->lhw", scale, descriptor) for scale in self.position_contributions]
        return replace(self, maps=merge_evidence(added, *self.image.shape[:2]), is_evidence=True)

    def to_json(self, frame: Box = UNIT_FRAME) -> dict[str, Any]:
        """Boxes and weights. frame: where the picture lies, so that boxes can be given in another one's pixels."""
        left, top, right, bottom = frame
        width, height = right - left, bottom - top
        return {
            "method": self.method,
            "note": METHOD_NOTES[self.method],
            "tokens": [
                {
                    "token": index,
                    "box": [left + x0 * width, top + y0 * height, left + x1 * width, top + y1 * height],
                    "weight": float(np.linalg.norm(part)),
                }
                for index, ((x0, y0, x1, y1), part) in enumerate(zip(self.boxes, self.parts, strict=False))
            ],
        }


@dataclass(frozen=True)
class PairExplanation:
    """What made two pictures similar, token by token."""

    query: ImageExplanation
    other: ImageExplanation
    matches: MatchedPair | None = None  # the places that agree, where they were looked for

    def __repr__(self) -> str:
        """Not the pixels and maps of both pictures."""
        agree = (
            "" if self.matches is None else f", {len(self.matches.points) if self.matches.agrees else 0} places agree"
        )
        return f"PairExplanation(score={self.score:.3f}, tokens={self.query.num_tokens}{agree})"

    @cached_property
    def matrix(self) -> NDArray[np.float32]:
        """L L: rows the query's tokens, columns the other's; sums to the score. One number where there are none."""
        return contribution_matrix(self.query.parts, self.other.parts)

    @property
    def score(self) -> float:
        return float(self.query.descriptor @ self.other.descriptor)

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Pairs of tokens (query's, other's), the strongest contribution first."""
        return strongest_pairs(self.matrix) if self.query.num_tokens else []

    @property
    def strongest_token(self) -> int:
        """The other picture's token that did most for the score; 0 where there are no tokens."""
        return int(np.argmax(self.matrix.sum(axis=0)))

    def to_json(self, query_frame: Box = UNIT_FRAME, other_frame: Box = UNIT_FRAME) -> dict[str, Any]:
        return {
            "score": self.score,
            "matrix": self.matrix.tolist(),
            "pairs": [
                {"query_token": i, "other_token": j, "contribution": float(self.matrix[i, j])} for i, j in self.pairs
            ],
            "strongest_token": self.strongest_token,
            "query": self.query.to_json(query_frame),
            "other": self.other.to_json(other_frame),
            **({} if self.matches is None else {"matches": self.matches.to_json(query_frame, other_frame)}),
        }


def explain_image(extractor: Extractor, image: NDArray[np.uint8]) -> ImageExplanation:
    """Run the network once a scale and gather its maps and shares.

    image: H W 3, from one of the loaders.
    """
    height, width = image.shape[:2]
    if extractor.bundle.card.num_tokens:
        offered = [name for name in ("attention", "parts", POSITION_CONTRIBUTIONS) if name in extractor.output_names]
        scales = extractor.outputs(image, offered)
        maps = merge_maps([scale["attention"][0] for scale in scales], height, width)
        parts = [scale["parts"][0] for scale in scales]
        contributions = tuple(
            scale[POSITION_CONTRIBUTIONS][0] / scale_weight(parts, n)
            for n, scale in enumerate(scales)
            if POSITION_CONTRIBUTIONS in scale
        )
        return ImageExplanation(image, maps, share_out(merge_scales(parts)), "tokens", contributions)
    descriptor = extractor.describe(image)[None]
    if "activation" in extractor.output_names:
        activations = [scale["activation"] for scale in extractor.outputs(image, ("activation",))]
        return ImageExplanation(image, merge_maps(activations, height, width), descriptor, "activation")
    drops = occlusion_map(extractor, image)[None]
    return ImageExplanation(image, merge_maps([drops], height, width), descriptor, "occlusion")


def explain_pair(extractor: Extractor, query: NDArray[np.uint8], other: NDArray[np.uint8]) -> PairExplanation:
    """Explain the similarity of two pictures, H W 3 each."""
    return pair_up(explain_image(extractor, query), explain_image(extractor, other))


def pair_up(query: ImageExplanation, other: ImageExplanation, matches: MatchedPair | None = None) -> PairExplanation:
    """The explanation of two pictures from those of each: maps turn from where a token looks to what it found."""
    return PairExplanation(query.towards(other.descriptor), other.towards(query.descriptor), matches)


def occlusion_map(extractor: Extractor, image: NDArray[np.uint8], cells: int = OCCLUSION_CELLS) -> NDArray[np.float32]:
    """How far the descriptor moves when a patch is greyed out: works for any network, at the price of cells^2 runs.

    Returns cells x cells, non-negative.
    """
    small = Image.fromarray(image)
    small.thumbnail((OCCLUSION_SIDE, OCCLUSION_SIDE), Image.Resampling.BOX)
    image = np.asarray(small)
    height, width = image.shape[:2]
    rows = np.linspace(0, height, min(cells, height) + 1).astype(int)
    columns = np.linspace(0, width, min(cells, width) + 1).astype(int)
    grey = image.reshape(-1, 3).mean(axis=0).astype(np.uint8)
    hidden = []
    for top, bottom in itertools.pairwise(rows):
        for left, right in itertools.pairwise(columns):
            patched = image.copy()
            patched[top:bottom, left:right] = grey
            hidden.append(patched)
    whole, *occluded = extractor.describe_batch([image, *hidden])
    drops = 1.0 - np.stack(occluded) @ whole
    return np.asarray(np.maximum(drops, 0.0).reshape(len(rows) - 1, len(columns) - 1) + 1e-9, dtype=np.float32)
