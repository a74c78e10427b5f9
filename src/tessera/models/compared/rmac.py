"""R-MAC: regional maxima over a pyramid of overlapping square windows (Tolias 2016).

The windows depend on the map's size, so there are two writings of the same regions: slices, which are fast, and masks
over coordinates, whose graph is the same for every size, for export.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from tessera.models.network import exporting
from tessera.models.parts.pooling import EPS, MAC, GeM, SPoC, normalise, pool_mac, pool_spoc

Window = tuple[int, int, int, int]  # y, x, height, width

OVERLAP = 0.4
MAX_EXTRA = 6  # windows that the longer side may have beyond the shorter one


def region_windows(height: int, width: int, levels: int = 3) -> list[Window]:
    """The windows of a map, the whole map first, then level by level in row-major order.

    Level l has squares of side floor(2 min(H, W) / (l + 1)), l of them along the shorter side, and along the longer one
    as many more as bring the overlap of neighbours at level 1 nearest to 40 %. Positions are computed in float32 with
    the half side added and taken off again, as the field's code has it: in exact arithmetic some sit elsewhere.
    """
    short = min(height, width)
    extra = _extra_windows(height, width)
    extra_rows, extra_columns = (extra, 0) if height > width else (0, extra)
    windows = [(0, 0, height, width)]
    for level in range(1, levels + 1):
        side = 2 * short // (level + 1)
        if side == 0:
            continue
        rows = _starts(height, side, level + extra_rows)
        columns = _starts(width, side, level + extra_columns)
        windows += [(y, x, side, side) for y in rows for x in columns]
    return windows


def _extra_windows(height: int, width: int) -> int:
    short, long = min(height, width), max(height, width)
    if short == long:
        return 0
    counts = np.arange(1, MAX_EXTRA + 1, dtype=np.float32)
    step = (1 / counts) * np.float32(long - short)  # torch divides a number by a tensor so; it decides ties at 11 x 47
    overlap = (np.float32(short**2) - np.float32(short) * step) / np.float32(short**2)
    return int(np.argmin(np.abs(overlap - np.float32(OVERLAP)))) + 1


def _starts(size: int, side: int, count: int) -> list[int]:
    half = np.float32(side // 2 - 1)
    step = np.float32((size - side) / (count - 1) if count > 1 else 0.0)
    return [int(np.floor(half + np.float32(i) * step) - half) for i in range(count)]


def pool_regions(maps: Tensor, pool: Callable[[Tensor], Tensor], levels: int = 3) -> Tensor:
    """Pool every window of a map: B C H W to B R C, the whole map first."""
    height, width = maps.shape[-2:]
    windows = region_windows(height, width, levels)
    return torch.stack([pool(maps[..., y : y + h, x : x + w]) for y, x, h, w in windows], dim=1)


def pool_regions_masked(maps: Tensor, levels: int = 3, *, mean: bool = False) -> tuple[Tensor, Tensor]:
    """The regional maxima (or means) with every decision made by tensors, so that one graph serves all sizes.

    maps: B C H W. Returns B R C, R the most windows there can be, and which of them are used, R; the others are zero.
    """
    reduce, pool = (_mean_inside, pool_spoc) if mean else (_max_inside, pool_mac)
    ys = torch.arange(maps.shape[-2], device=maps.device)
    xs = torch.arange(maps.shape[-1], device=maps.device)
    height, width = ys[-1] + 1, xs[-1] + 1  # tensors: a Python number would be frozen into the graph
    short = torch.minimum(height, width)
    extra = _extra_windows_tensor(short, torch.maximum(height, width))
    none = torch.zeros_like(extra)
    extra_rows, extra_columns = torch.where(height > width, extra, none), torch.where(width > height, extra, none)
    regions, used = [pool(maps)[:, None]], [torch.ones(1, dtype=torch.bool, device=maps.device)]
    for level in range(1, levels + 1):
        side = torch.div(2 * short, level + 1, rounding_mode="floor")
        rows, rows_used = _starts_tensor(height, side, level, extra_rows)
        columns, columns_used = _starts_tensor(width, side, level, extra_columns)
        strips = reduce(maps.transpose(-1, -2), _inside(ys, rows, side))  # B C W N
        cells = reduce(strips.transpose(-1, -2), _inside(xs, columns, side))  # B C N M
        there = rows_used[:, None] & columns_used & (side > 0)  # N M
        regions.append(torch.where(there, cells, torch.zeros_like(cells)).flatten(2).transpose(1, 2))
        used.append(there.flatten())
    return torch.cat(regions, dim=1), torch.cat(used)


def _inside(positions: Tensor, starts: Tensor, side: Tensor) -> Tensor:
    """Which positions S lie within `side` of each start N: N S."""
    return (positions >= starts[:, None]) & (positions < starts[:, None] + side)


def _max_inside(values: Tensor, inside: Tensor) -> Tensor:
    """... S and N S to ... N, -inf where nothing is inside."""
    return values[..., None, :].masked_fill(~inside, -torch.inf).amax(dim=-1)


def _mean_inside(values: Tensor, inside: Tensor) -> Tensor:
    """... S and N S to ... N, zero where nothing is inside."""
    weights = inside.to(values.dtype)
    return values @ (weights / weights.sum(dim=-1, keepdim=True).clamp_min(1)).T


def _extra_windows_tensor(short: Tensor, long: Tensor) -> Tensor:
    counts = torch.arange(1, MAX_EXTRA + 1, device=short.device, dtype=torch.float32)
    side = short.to(torch.float32)
    step = (1 / counts) * (long - short).to(torch.float32)
    area = side * side
    return torch.argmin(((area - side * step) / area - OVERLAP).abs()) + 1


def _starts_tensor(size: Tensor, side: Tensor, level: int, extra: Tensor) -> tuple[Tensor, Tensor]:
    """The starts along one axis, padded to the most there can be, and which of them are used."""
    index = torch.arange(level + MAX_EXTRA, device=size.device)
    count = level + extra
    half = (torch.div(side, 2, rounding_mode="floor") - 1).to(torch.float32)
    # Double, then rounded: the step is a Python number in the field's code.
    step = ((size - side).to(torch.float64) / (count - 1).clamp_min(1).to(torch.float64)).to(torch.float32)
    starts = torch.floor(half + index.to(torch.float32) * step) - half
    return starts.to(torch.int64), index < count


class RMAC(nn.Module):
    """The sum of the regional maxima, each of unit length; the sum itself is not normalised. B C H W to B C."""

    def __init__(self, levels: int = 3, eps: float = EPS) -> None:
        super().__init__()
        self.levels = levels
        self.eps = eps

    def forward(self, maps: Tensor) -> Tensor:
        if not exporting():
            return normalise(pool_regions(maps, pool_mac, self.levels), self.eps, dim=-1).sum(dim=1)
        regions, _ = pool_regions_masked(maps, self.levels)
        return normalise(regions, self.eps, dim=-1).sum(dim=1)

    def extra_repr(self) -> str:
        return f"levels={self.levels}, eps={self.eps:g}"


class Rpool(nn.Module):
    """Any pooling over R-MAC's windows: each region normalised, whitened where a layer is given, summed, normalised.

    With maxima and a layer it is the R-MAC of Tolias 2016 and Gordo 2017. B C H W to B D (D = C without a layer).
    """

    def __init__(
        self, pool: MAC | SPoC | GeM, whiten: nn.Module | None = None, levels: int = 3, eps: float = EPS
    ) -> None:
        super().__init__()
        self.pool = pool
        self.whiten = whiten
        self.levels = levels
        self.eps = eps

    def forward(self, maps: Tensor) -> Tensor:
        if not exporting():
            return normalise(self._unit(pool_regions(maps, self.pool, self.levels)).sum(dim=1), self.eps)
        regions, used = self._pool_masked(maps)
        return normalise((self._unit(regions) * used[:, None]).sum(dim=1), self.eps)

    def _pool_masked(self, maps: Tensor) -> tuple[Tensor, Tensor]:
        if isinstance(self.pool, GeM):
            means, used = pool_regions_masked(self.pool.powers(maps), self.levels, mean=True)
            return self.pool.root(means), used
        return pool_regions_masked(maps, self.levels, mean=isinstance(self.pool, SPoC))

    def _unit(self, regions: Tensor) -> Tensor:
        """B R C to B R D, each vector of unit length."""
        vectors = normalise(regions, self.eps, dim=-1)
        return vectors if self.whiten is None else normalise(self.whiten(vectors), self.eps, dim=-1)
