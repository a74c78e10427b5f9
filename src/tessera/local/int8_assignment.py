"""The nearest centroids of features, exactly, with most of the work in 8-bit integers.

For a feature q and a centroid c, both with the centroids' mean taken off, nearest means the largest q.c - |c|^2 / 2.
Let q1 and c1 be their parts in some leading principal directions, rotated so that their numbers are spread evenly, and
q', c' those rounded to eight bits. The distance is no smaller than its leading part, hence

    q.c - |c|^2 / 2  <=  q'.c' + |q1 - q'| |c1| + |q'| |c1 - c'| - |c1|^2 / 2 + (|q|^2 - |q1|^2) / 2,

and q'.c' is a product of integers, which processors with VNNI compute five times as fast as floats. Centroids of about
the same length form groups, and the best product of a group bounds all of it. The groups with the highest bounds are
scored exactly. That rules out nearly all others, and the few that are left are scored exactly, too.

A few directions are enough where a feature is much nearer to its centroids than to others. Where they leave too many
groups, the next stage of the cascade (STAGES) uses more directions, the last one all.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tessera.local.features import Vectors, Words

_TILE = 1024  # centroids whose products with so many features stay in the cache
_ROWS = 1024  # features searched at once
_ROUNDING = 1e-5  # relative, far above that of the float32 operations here
_MAX_NEAREST = 16

Codes = npt.NDArray[np.int8]
Floats = npt.NDArray[np.float32]
Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Stage:
    """One stage of the cascade. direction_share: of the principal directions. group_size: centroids in a group.

    max_groups: groups left over for a feature; with more the next stage is faster.
    """

    direction_share: float
    group_size: int
    max_groups: int


STAGES = (Stage(0.375, 32, 4), Stage(0.5, 16, 24), Stage(1.0, 16, 128))


def has_fast_int8() -> bool:
    """Whether this processor and this torch have fast products of 8-bit integers."""
    try:
        import torch
    except ImportError:
        return False
    has_vnni = getattr(torch.cpu, "_is_vnni_supported", None)
    return hasattr(torch, "_int_mm") and has_vnni is not None and bool(has_vnni())


class Int8Assignment:
    """Centroids, K D, prepared for it. May be used from several threads."""

    def __init__(self, centroids: Vectors) -> None:
        self._mean = centroids.mean(axis=0, dtype=np.float64).astype(np.float32)
        self._centred = centroids - self._mean
        self._directions = np.linalg.eigh(self._centred.T.astype(np.float64) @ self._centred)[1][:, ::-1]
        self._bounds: dict[Stage, _GroupBounds] = {}
        self._outcomes: dict[tuple[Stage, int], list[bool]] = {}
        self._local = threading.local()

    def assign(self, features: Vectors, nearest: int) -> Words | None:
        """The `nearest` centroids of each feature, N M, nearest first, ties by number; None where bounds fail."""
        if nearest > _MAX_NEAREST:
            return None
        found = np.empty((len(features), nearest), np.int32)
        scratch: ScratchBuffers = self._local.__dict__.setdefault("scratch", ScratchBuffers())
        for start in range(0, len(features), _ROWS):
            rows = slice(start, start + _ROWS)
            words = self._assign_rows(np.asarray(features[rows], np.float32) - self._mean, nearest, scratch)
            if words is None:
                return None
            found[rows] = words
        return found

    def _assign_rows(self, features: Vectors, nearest: int, scratch: ScratchBuffers) -> Words | None:
        """By the first stage that succeeds; one that failed for most blocks of features before is skipped."""
        for stage in STAGES:
            outcomes = self._outcomes.setdefault((stage, nearest), [])
            if stage is not STAGES[-1] and len(outcomes) == 4 and sum(outcomes) < 2:
                continue
            if stage not in self._bounds:
                dims = -(-round(stage.direction_share * self._centred.shape[1]) // 4) * 4  # integers come in fours
                self._bounds[stage] = _GroupBounds(self._centred, self._directions[:, :dims], stage)
            words = self._bounds[stage].assign(features, nearest, scratch)
            outcomes[:] = [*outcomes, words is not None][-4:]
            if words is not None:
                return words
        return None


class ScratchBuffers:
    """Arrays that a thread reuses: allocating arrays of this size takes nearly as long as filling them."""

    def __init__(self) -> None:
        self._arrays: dict[str, npt.NDArray[Any]] = {}

    def get(self, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        size = math.prod(shape)
        array = self._arrays.get(name)
        if array is None or array.size < size:
            array = self._arrays[name] = np.empty(size, dtype)
        return array[:size].reshape(shape)


class _GroupBounds:
    """Centroids in groups, rounded to eight bits along the directions, D P."""

    def __init__(self, centroids: Vectors, directions: npt.NDArray[np.float64], stage: Stage) -> None:
        size, dim, group = len(centroids), directions.shape[1], stage.group_size
        self._stage = stage
        rotation = np.linalg.qr(np.random.default_rng(0).standard_normal((dim, dim)))[0]
        self._basis = (directions @ rotation).astype(np.float32)
        rotated = np.vstack([centroids @ self._basis, np.zeros((1, dim), np.float32)])  # the last is padding
        leading = 0.5 * np.square(rotated, dtype=np.float64).sum(axis=1)
        order = np.full(-(-size // _TILE) * _TILE, -1)
        order[:size] = np.argsort(leading[:-1], kind="stable")
        self._members = order.reshape(-1, group)  # G GROUP; -1 is padding
        is_real = self._members >= 0
        halves = 0.5 * np.square(centroids, dtype=np.float64).sum(axis=1)
        self._length = float(np.sqrt(2 * halves.max()))
        self._halves = np.where(is_real, halves[self._members], np.inf).astype(np.float32)
        self._vectors = np.where(is_real[:, :, None], centroids[self._members], np.float32(0)).reshape(
            -1, centroids.shape[1]
        )
        highest = np.abs(rotated[order]).reshape(-1, _TILE * dim).max(axis=1)
        self._steps = np.maximum(highest, 1e-30) / np.float32(127)  # a tile
        steps = np.repeat(self._steps, _TILE // group)[:, None, None]
        grouped = rotated[self._members]  # G GROUP P
        codes = np.rint(grouped / steps).astype(np.int8)
        errors = np.linalg.norm(grouped - codes * steps, axis=2).max(axis=1)
        longest = np.sqrt(2 * leading[self._members].max(axis=1))
        least = np.where(is_real, leading[self._members], 1e30).min(axis=1)
        self._parts = np.stack([longest, errors, -least, np.ones_like(least)], axis=1).astype(np.float32)  # G 4
        # A group's centroids lie a stride apart, so that the largest of each group is a maximum of whole rows.
        apart = codes.reshape(-1, _TILE // group, group, dim).transpose(0, 2, 1, 3)
        self._tiles = np.ascontiguousarray(apart).reshape(-1, _TILE, dim)

    def assign(self, features: Vectors, nearest: int, scratch: ScratchBuffers) -> Words | None:
        """As `Int8Assignment.assign`, for a block of features with the mean taken off."""
        if nearest > len(self._tiles):
            return None
        count = len(features)
        bounds, tile_maxima, units = self._bound(features, scratch)  # G N, T N, N
        first = _best_groups(bounds, tile_maxima, nearest)  # N M
        owners = np.repeat(np.arange(count), nearest)
        scores = self._score(features, owners, first.ravel())
        reached = np.partition(scores.reshape(count, -1), -nearest, axis=1)[:, -nearest]
        # What a bound must reach to matter; the groups that are scored already need no second score.
        scale = np.linalg.norm(features, axis=1) + self._length
        bounds[first, np.arange(count)[:, None]] = -np.inf
        left = np.flatnonzero(bounds >= (reached - _ROUNDING * scale**2) / units)
        if len(left) > self._stage.max_groups * count:
            return None
        groups, others = np.divmod(left, count)
        values = np.concatenate([scores, self._score(features, others, groups)]).ravel()
        owners = np.repeat(np.concatenate([owners, others]), self._stage.group_size)
        kept = np.flatnonzero(values >= reached[owners])
        owners, values = owners[kept], values[kept]
        words = self._members[np.concatenate([first.ravel(), groups])].ravel()[kept]
        order = np.lexsort((words, -values, owners))
        begins = np.searchsorted(owners[order], np.arange(count))
        return np.asarray(words[order[begins[:, None] + np.arange(nearest)]], np.int32)

    def _bound(self, features: Vectors, scratch: ScratchBuffers) -> tuple[Floats, Floats, Floats]:
        """For each group and feature a number that none of its centroids exceeds, G N; the highest of each tile, T N;
        the features' units of them, N."""
        rotated = features @ self._basis
        units = np.maximum(np.abs(rotated).max(axis=1, keepdims=True), 1e-30) / np.float32(127)
        codes = np.rint(rotated / units).astype(np.int8)
        rounded = codes * units
        rest = 0.5 * (np.square(features).sum(axis=1) - np.square(rotated).sum(axis=1))
        error, length = (np.linalg.norm(part, axis=1) for part in (rotated - rounded, rounded))
        shares = np.stack([error, length, np.ones_like(error), np.maximum(rest, 0)]) / units.T  # 4 N
        bounds = scratch.get("bounds", (len(self._members), len(features)), np.float32)
        tile_maxima = scratch.get("tile_maxima", (len(self._tiles), len(features)), np.float32)
        fill_bounds(bounds, tile_maxima, (self._parts, shares), (self._tiles, codes), self._steps, scratch)
        return bounds, tile_maxima, units[:, 0]

    def _score(self, features: Vectors, rows: Indices, groups: Indices) -> Floats:
        """q.c - |c|^2 / 2 of each pair of a feature and a group, exactly, P GROUP."""
        import faiss

        size = self._stage.group_size
        indices = groups[:, None] * size + np.arange(size)
        scores, queries = np.empty(indices.shape, np.float32), features[rows]
        pointers = (faiss.swig_ptr(array) for array in (scores, queries, self._vectors, indices))
        faiss.fvec_inner_products_by_idx(*pointers, features.shape[1], *indices.shape)  # type: ignore[attr-defined]
        scores -= self._halves[groups]
        return scores


def fill_bounds(
    bounds: Floats,
    tile_maxima: Floats,
    factors: tuple[Floats, Floats],
    rounded: tuple[Codes, Codes],
    steps: Floats,
    scratch: ScratchBuffers,
) -> None:
    """The part that a group shares, plus the largest product of its centroids with each feature times the tile's step.

    bounds: G N, written; tile_maxima: T N, written, the highest of each tile. factors: G 4 and 4 N, whose product is
    the first term. rounded: tiles, T TILE P, where a group's centroids are a stride apart, and features, N P. Tile by
    tile, so that everything stays in the cache.
    """
    import torch

    (parts, shares), (tiles, codes) = ([torch.from_numpy(array) for array in pair] for pair in (factors, rounded))
    each, features = len(bounds) // len(tiles), codes.t()
    products = torch.from_numpy(scratch.get("products", (tiles.shape[1], len(codes)), np.int32))
    largest = torch.from_numpy(scratch.get("largest", (each, len(codes)), np.int32))
    groups = products.view(-1, each, len(codes))
    outputs = torch.split(torch.from_numpy(bounds), each), torch.from_numpy(tile_maxima)
    for tile, part, step, bound, highest in zip(tiles, torch.split(parts, each), steps.tolist(), *outputs, strict=True):
        torch._int_mm(tile, features, out=products)
        torch.amax(groups, 0, out=largest)
        torch.mm(part, shares, out=bound)
        bound.add_(largest, alpha=step)
        torch.amax(bound, 0, out=highest)


def _best_groups(bounds: Floats, tile_maxima: Floats, nearest: int) -> Indices:
    """Groups with high bounds, N M, each from another tile: sorting them all would take too long."""
    tiles = np.argpartition(-tile_maxima, nearest - 1, axis=0)[:nearest].T  # N M
    each = len(bounds) // len(tile_maxima)
    inside = bounds.reshape(len(tile_maxima), each, -1)[tiles, :, np.arange(len(tiles))[:, None]]  # N M EACH
    return np.asarray(tiles * each + inside.argmax(axis=2), np.int64)
