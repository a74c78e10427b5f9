"""The nearest words of features, exactly, with most of the work in 8-bit integers.

For a feature q and a word c, both with the words' mean taken off, nearest means the largest q.c - |c|^2 / 2. Let q' and
c' be rounded to eight bits, in a basis that spreads their numbers evenly. Then

    q.c  <=  q'.c' + |q - q'| max|c| + |q'| max|c - c'|,

and q'.c' is a product of integers, which processors with VNNI compute five times as fast as floats. Words of about the
same length form groups, and the best product of a group bounds all its words. The groups with the highest bounds are
compared exactly; what they give rules out nearly all others, and the few that are left are compared exactly, too.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tessera.local.codebook import Vectors, Words

GROUP = 32  # words
_TILE = 4096  # words whose products with ROWS features stay in the cache
_ROWS = 256
_PARTS = 64  # of the groups; the best of each may be looked at first
_MOST_GROUPS = 64  # left over, a feature; with more the bound is of no use
_AT_ONCE = 32  # pairs of feature and group compared at once
_ROUNDING = 1e-5  # relative, far above that of the float32 operations here
_MOST_NEAREST = 16


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
        size, dim = centroids.shape
        self._mean = centroids.mean(axis=0, dtype=np.float64).astype(np.float32)
        words = centroids - self._mean
        self._basis = np.linalg.qr(np.random.default_rng(0).standard_normal((dim, dim)))[0].astype(np.float32)
        halves = 0.5 * np.square(words, dtype=np.float64).sum(axis=1)
        order = np.argsort(halves, kind="stable")
        tiles = np.full(-(-size // _TILE) * _TILE, -1)
        tiles[:size] = order
        tiles = tiles.reshape(-1, _TILE // GROUP, GROUP)
        self._members = tiles.reshape(-1, GROUP)  # G GROUP; -1 where there is no word
        there = self._members >= 0
        self._halves = np.where(there, halves[self._members], np.inf).astype(np.float32)
        self._least = self._halves.min(axis=1)  # G
        self._vectors = np.where(there[:, :, None], words[self._members], np.float32(0))  # G GROUP D
        turned = words @ self._basis
        self._step = max(float(np.abs(turned).max()), 1e-30) / 127
        codes = np.rint(turned / self._step).astype(np.int8)
        self._length = float(np.sqrt(2 * halves.max()))
        self._error = float(np.linalg.norm(turned - codes * np.float32(self._step), axis=1).max())
        columns = tiles.transpose(0, 2, 1).reshape(len(tiles), _TILE)  # a group's words lie a stride apart
        self._codes = np.where((columns >= 0)[:, :, None], codes[columns], np.int8(0))  # tiles TILE D

    def search(self, features: Vectors, nearest: int) -> Words | None:
        """The `nearest` words of each feature, N M, nearest first and of equals the first; None where bounds fail."""
        if nearest > _MOST_NEAREST:
            return None
        found = np.empty((len(features), nearest), np.int32)
        for start in range(0, len(features), _ROWS):
            rows = slice(start, start + _ROWS)
            words = self._search_rows(np.asarray(features[rows], np.float32) - self._mean, nearest)
            if words is None:
                return None
            found[rows] = words
        return found

    def _search_rows(self, features: Vectors, nearest: int) -> Words | None:
        count = len(features)
        bounds = self._bound(features)  # N G
        first = _best_groups(bounds, nearest)  # N M
        owners = np.repeat(np.arange(count), nearest)
        scores = self._score(features, owners, first.ravel())
        reached = np.partition(scores.reshape(count, -1), -nearest, axis=1)[:, -nearest]
        # What a bound must reach to matter; the groups that were looked at need no second look.
        scale = np.linalg.norm(features, axis=1) + self._length
        bounds[np.arange(count)[:, None], first] = -np.inf
        left = np.flatnonzero(bounds >= (reached - _ROUNDING * scale**2)[:, None])
        if len(left) > _MOST_GROUPS * count:
            return None
        others, groups = np.divmod(left, bounds.shape[1])
        owners = np.repeat(np.concatenate([owners, others]), GROUP)
        words = self._members[np.concatenate([first.ravel(), groups])].ravel()
        values = np.concatenate([scores, self._score(features, others, groups)]).ravel()
        kept = values >= reached[owners]
        owners, words, values = owners[kept], words[kept], values[kept]
        order = np.lexsort((words, -values, owners))
        begins = np.searchsorted(owners[order], np.arange(count))
        return np.asarray(words[order[begins[:, None] + np.arange(nearest)]], np.int32)

    def _bound(self, features: Vectors) -> npt.NDArray[np.float32]:
        """For each feature and group a number that no word of the group exceeds, N G."""
        turned = features @ self._basis
        steps = np.maximum(np.abs(turned).max(axis=1, keepdims=True), 1e-30) / 127
        codes = np.rint(turned / steps).astype(np.int8)
        rounded = codes * steps
        error = np.linalg.norm(turned - rounded, axis=1) * self._length
        error += np.linalg.norm(rounded, axis=1) * self._error
        bounds = largest_products(codes, self._codes).astype(np.float32)
        bounds *= steps * np.float32(self._step)
        bounds -= self._least
        bounds += error[:, None]
        return bounds

    def _score(
        self, features: Vectors, rows: npt.NDArray[np.int64], groups: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float32]:
        """q.c - |c|^2 / 2 of each pair of a feature and a group, P GROUP."""
        scores = np.empty((len(rows), GROUP), np.float32)
        for start in range(0, len(rows), _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            np.matmul(self._vectors[groups[part]], features[rows[part], :, None], out=scores[part, :, None])
        scores -= self._halves[groups]
        return scores


def largest_products(features: npt.NDArray[np.int8], tiles: npt.NDArray[np.int8]) -> npt.NDArray[np.int32]:
    """The largest product of each feature with the words of each group, N G. features: N D; tiles: T TILE D."""
    import torch

    count, each = len(features), _TILE // GROUP
    first = torch.from_numpy(features)
    products = torch.empty((count, _TILE), dtype=torch.int32)
    largest = torch.empty((count, len(tiles) * each), dtype=torch.int32)
    for number, tile in enumerate(tiles):
        torch._int_mm(first, torch.from_numpy(tile).t(), out=products)
        torch.amax(products.view(count, GROUP, each), 1, out=largest[:, number * each : (number + 1) * each])
    return np.asarray(largest.numpy())


def _best_groups(bounds: npt.NDArray[np.float32], nearest: int) -> npt.NDArray[np.int64]:
    """Groups with high bounds, N M, each from another part of the groups: sorting them all would take too long."""
    if nearest == 1:
        return np.asarray(bounds.argmax(axis=1)[:, None], np.int64)
    parts = bounds.reshape(len(bounds), _PARTS, -1)
    best = parts.argmax(axis=2)  # N PARTS
    heights = np.take_along_axis(parts, best[:, :, None], axis=2)[:, :, 0]
    chosen = np.argpartition(-heights, nearest, axis=1)[:, :nearest]
    return np.asarray(chosen * parts.shape[2] + np.take_along_axis(best, chosen, axis=1), np.int64)
