"""The nearest words of features, exactly, with most of the work in 8-bit integers.

For a feature q and a word c, both with the words' mean taken off, nearest means the largest q.c - |c|^2 / 2. Let q1 and
c1 be their parts in some leading directions, turned so that their numbers are spread evenly, and q', c' those rounded
to eight bits. The distance is no smaller than its leading part, hence

    q.c - |c|^2 / 2  <=  q'.c' + |q1 - q'| |c1| + |q'| |c1 - c'| - |c1|^2 / 2 + (|q|^2 - |q1|^2) / 2,

and q'.c' is a product of integers, which processors with VNNI compute five times as fast as floats. Words of about the
same length form groups, and the best product of a group bounds all its words. The groups with the highest bounds are
compared exactly; what they give rules out nearly all others, and the few that are left are compared exactly, too.

A few directions are enough where a feature is much nearer to its words than to others; where they leave too many
groups, more are used (LEVELS), and in the end all.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tessera.local.codebook import Vectors, Words

_TILE = 1024  # words whose products with so many features stay in the cache
_ROWS = 1024  # features searched at once
_ROUNDING = 1e-5  # relative, far above that of the float32 operations here
_MOST_NEAREST = 16

Codes = npt.NDArray[np.int8]
Floats = npt.NDArray[np.float32]
Places = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Level:
    """share: of the directions; group: words; most: groups left over, a feature: with more the next is quicker."""

    share: float
    group: int
    most: int


LEVELS = (Level(0.375, 32, 4), Level(0.5, 16, 24), Level(1.0, 16, 128))


def is_quick() -> bool:
    """Whether this processor and this torch have fast products of 8-bit integers."""
    try:
        import torch
    except ImportError:
        return False
    has_vnni = getattr(torch.cpu, "_is_vnni_supported", None)
    return hasattr(torch, "_int_mm") and has_vnni is not None and bool(has_vnni())


class BoundedSearch:
    """Words, K D, made ready for it."""

    def __init__(self, centroids: Vectors) -> None:
        self._mean = centroids.mean(axis=0, dtype=np.float64).astype(np.float32)
        self._words = centroids - self._mean
        self._directions = np.linalg.eigh(self._words.T.astype(np.float64) @ self._words)[1][:, ::-1]
        self._made: dict[Level, _Bounds] = {}
        self._outcomes: dict[tuple[Level, int], list[bool]] = {}
        self._rooms = threading.local()

    def search(self, features: Vectors, nearest: int) -> Words | None:
        """The `nearest` words of each feature, N M, nearest first and of equals the first; None where bounds fail."""
        if nearest > _MOST_NEAREST:
            return None
        found = np.empty((len(features), nearest), np.int32)
        room: Room = self._rooms.__dict__.setdefault("room", Room())
        for start in range(0, len(features), _ROWS):
            rows = slice(start, start + _ROWS)
            words = self._search_rows(np.asarray(features[rows], np.float32) - self._mean, nearest, room)
            if words is None:
                return None
            found[rows] = words
        return found

    def _search_rows(self, features: Vectors, nearest: int, room: Room) -> Words | None:
        """By the first level that serves; one that failed for most blocks of features before is passed over."""
        for level in LEVELS:
            outcomes = self._outcomes.setdefault((level, nearest), [])
            if level is not LEVELS[-1] and len(outcomes) == 4 and sum(outcomes) < 2:
                continue
            if level not in self._made:
                count = -(-round(level.share * self._words.shape[1]) // 4) * 4  # integers are multiplied by fours
                self._made[level] = _Bounds(self._words, self._directions[:, :count], level)
            words = self._made[level].search(features, nearest, room)
            outcomes[:] = [*outcomes, words is not None][-4:]
            if words is not None:
                return words
        return None


class Room:
    """Arrays that a thread uses again and again: fresh ones of this size take nearly as long as filling them."""

    def __init__(self) -> None:
        self._arrays: dict[str, npt.NDArray[Any]] = {}

    def get(self, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        size = math.prod(shape)
        array = self._arrays.get(name)
        if array is None or array.size < size:
            array = self._arrays[name] = np.empty(size, dtype)
        return array[:size].reshape(shape)


class _Bounds:
    """Words in groups, rounded in the directions that are given, D P."""

    def __init__(self, words: Vectors, directions: npt.NDArray[np.float64], level: Level) -> None:
        size, dim, group = len(words), directions.shape[1], level.group
        self._level = level
        turn = np.linalg.qr(np.random.default_rng(0).standard_normal((dim, dim)))[0]
        self._basis = (directions @ turn).astype(np.float32)
        turned = np.vstack([words @ self._basis, np.zeros((1, dim), np.float32)])  # the last is no word
        leading = 0.5 * np.square(turned, dtype=np.float64).sum(axis=1)
        order = np.full(-(-size // _TILE) * _TILE, -1)
        order[:size] = np.argsort(leading[:-1], kind="stable")
        self._members = order.reshape(-1, group)  # G GROUP; -1 where there is no word
        there = self._members >= 0
        halves = 0.5 * np.square(words, dtype=np.float64).sum(axis=1)
        self._length = float(np.sqrt(2 * halves.max()))
        self._halves = np.where(there, halves[self._members], np.inf).astype(np.float32)
        self._vectors = np.where(there[:, :, None], words[self._members], np.float32(0)).reshape(-1, words.shape[1])
        highest = np.abs(turned[order]).reshape(-1, _TILE * dim).max(axis=1)
        self._steps = np.maximum(highest, 1e-30) / np.float32(127)  # a tile
        steps = np.repeat(self._steps, _TILE // group)[:, None, None]
        grouped = turned[self._members]  # G GROUP P
        codes = np.rint(grouped / steps).astype(np.int8)
        errors = np.linalg.norm(grouped - codes * steps, axis=2).max(axis=1)
        longest = np.sqrt(2 * leading[self._members].max(axis=1))
        least = np.where(there, leading[self._members], 1e30).min(axis=1)
        self._parts = np.stack([longest, errors, -least, np.ones_like(least)], axis=1).astype(np.float32)  # G 4
        # A group's words lie a stride apart, so that the largest of each group is a maximum of whole rows.
        apart = codes.reshape(-1, _TILE // group, group, dim).transpose(0, 2, 1, 3)
        self._tiles = np.ascontiguousarray(apart).reshape(-1, _TILE, dim)

    def search(self, features: Vectors, nearest: int, room: Room) -> Words | None:
        """As `BoundedSearch.search`, for a block of features with the mean taken off."""
        if nearest > len(self._tiles):
            return None
        count = len(features)
        bounds, peaks, units = self._bound(features, room)  # G N, T N, N
        first = _best_groups(bounds, peaks, nearest)  # N M
        owners = np.repeat(np.arange(count), nearest)
        scores = self._score(features, owners, first.ravel())
        reached = np.partition(scores.reshape(count, -1), -nearest, axis=1)[:, -nearest]
        # What a bound must reach to matter; the groups that were looked at need no second look.
        scale = np.linalg.norm(features, axis=1) + self._length
        bounds[first, np.arange(count)[:, None]] = -np.inf
        left = np.flatnonzero(bounds >= (reached - _ROUNDING * scale**2) / units)
        if len(left) > self._level.most * count:
            return None
        groups, others = np.divmod(left, count)
        values = np.concatenate([scores, self._score(features, others, groups)]).ravel()
        owners = np.repeat(np.concatenate([owners, others]), self._level.group)
        kept = np.flatnonzero(values >= reached[owners])
        owners, values = owners[kept], values[kept]
        words = self._members[np.concatenate([first.ravel(), groups])].ravel()[kept]
        order = np.lexsort((words, -values, owners))
        begins = np.searchsorted(owners[order], np.arange(count))
        return np.asarray(words[order[begins[:, None] + np.arange(nearest)]], np.int32)

    def _bound(self, features: Vectors, room: Room) -> tuple[Floats, Floats, Floats]:
        """For each group and feature a number that no word of it exceeds, G N; the highest of each tile, T N; the
        features' units of them, N."""
        turned = features @ self._basis
        units = np.maximum(np.abs(turned).max(axis=1, keepdims=True), 1e-30) / np.float32(127)
        codes = np.rint(turned / units).astype(np.int8)
        rounded = codes * units
        rest = 0.5 * (np.square(features).sum(axis=1) - np.square(turned).sum(axis=1))
        error, length = (np.linalg.norm(part, axis=1) for part in (turned - rounded, rounded))
        shares = np.stack([error, length, np.ones_like(error), np.maximum(rest, 0)]) / units.T  # 4 N
        bounds = room.get("bounds", (len(self._members), len(features)), np.float32)
        peaks = room.get("peaks", (len(self._tiles), len(features)), np.float32)
        fill_bounds(bounds, peaks, (self._parts, shares), (self._tiles, codes), self._steps, room)
        return bounds, peaks, units[:, 0]

    def _score(self, features: Vectors, rows: Places, groups: Places) -> Floats:
        """q.c - |c|^2 / 2 of each pair of a feature and a group, exactly, P GROUP."""
        import faiss

        size = self._level.group
        places = groups[:, None] * size + np.arange(size)
        scores, asked = np.empty(places.shape, np.float32), features[rows]
        pointers = (faiss.swig_ptr(array) for array in (scores, asked, self._vectors, places))
        faiss.fvec_inner_products_by_idx(*pointers, features.shape[1], *places.shape)  # type: ignore[attr-defined]
        scores -= self._halves[groups]
        return scores


def fill_bounds(
    bounds: Floats,
    peaks: Floats,
    chance: tuple[Floats, Floats],
    rounded: tuple[Codes, Codes],
    steps: Floats,
    room: Room,
) -> None:
    """What is the same for a group, and the largest product of its words with each feature, times the tile's step.

    bounds: G N, written; peaks: T N, written, the highest of each tile. chance: G 4 and 4 N, whose product is the first
    term. rounded: tiles, T TILE P, where a group's words are a stride apart, and features, N P. Tile by tile, so that
    everything stays in the cache.
    """
    import torch

    (parts, shares), (tiles, codes) = ([torch.from_numpy(array) for array in pair] for pair in (chance, rounded))
    each, features = len(bounds) // len(tiles), codes.t()
    products = torch.from_numpy(room.get("products", (tiles.shape[1], len(codes)), np.int32))
    largest = torch.from_numpy(room.get("largest", (each, len(codes)), np.int32))
    groups = products.view(-1, each, len(codes))
    outputs = torch.split(torch.from_numpy(bounds), each), torch.from_numpy(peaks)
    for tile, part, step, bound, peak in zip(tiles, torch.split(parts, each), steps.tolist(), *outputs, strict=True):
        torch._int_mm(tile, features, out=products)
        torch.amax(groups, 0, out=largest)
        torch.mm(part, shares, out=bound)
        bound.add_(largest, alpha=step)
        torch.amax(bound, 0, out=peak)


def _best_groups(bounds: Floats, peaks: Floats, nearest: int) -> Places:
    """Groups with high bounds, N M, each from another tile: sorting them all would take too long."""
    tiles = np.argpartition(-peaks, nearest - 1, axis=0)[:nearest].T  # N M
    each = len(bounds) // len(peaks)
    inside = bounds.reshape(len(peaks), each, -1)[tiles, :, np.arange(len(tiles))[:, None]]  # N M EACH
    return np.asarray(tiles * each + inside.argmax(axis=2), np.int64)
