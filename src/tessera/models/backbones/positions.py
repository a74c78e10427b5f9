"""Where a patch is: learnt grids brought to any size, and rotary angles; in operations that a graph keeps dynamic.

Bicubic interpolation is separable and linear, so a grid at another size is rows @ grid @ columns. The two small
matrices are computed from the number of positions, which ONNX's Resize would do in its own way, off by 1e-3.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

_SHARP = -0.75  # torch's bicubic; its antialiased form has Pillow's -0.5
_SOFT = -0.5


def resize_grid(grid: Tensor, features: Tensor, antialias: bool) -> Tensor:
    """grid: G G C, learnt positions; features: B C H W, whose size is wanted. Returns H W C."""
    rows = cubic_weights(grid.shape[0], features[0, 0, :, 0], antialias)
    columns = cubic_weights(grid.shape[1], features[0, 0, 0], antialias)
    return torch.einsum("hg,gkc,wk->hwc", rows, grid, columns)


def cubic_weights(length: int, along: Tensor, antialias: bool) -> Tensor:
    """The matrix of bicubic interpolation from `length` points to as many as `along` has: N length.

    As `interpolate(size=N, mode="bicubic", align_corners=False)`; without `antialias` the border repeats, with it the
    kernel is cut there, widened when there are fewer points than before, and its weights brought to a sum of one.
    """
    centres = count(along) + 0.5
    step = length / (centres[-1] + 0.5)
    if antialias:
        taps = torch.arange(length, device=along.device, dtype=centres.dtype) + 0.5
        weights = _cubic((taps - (centres * step)[:, None]) / step.clamp_min(1), _SOFT)
        return weights / weights.sum(dim=1, keepdim=True)
    taps = torch.arange(-2, length + 2, device=along.device)
    weights = _cubic((centres * step - 0.5)[:, None] - taps, _SHARP)
    return weights @ F.one_hot(taps.clamp(0, length - 1), length).to(weights)


def rotary_angles(features: Tensor, head_dim: int, theta: float) -> Tensor:
    """Angles of DINOv3's RoPE: patch centres from -1 to 1 along each axis, head_dim / 4 periods from 1 to theta.

    features: B C H W. Returns HW head_dim: the rows' angles, the columns', and both again.
    """
    periods = theta ** torch.arange(0, 1, 4 / head_dim, device=features.device, dtype=features.dtype)
    down, across = (
        _centres(along)[:, None] * (2 * math.pi) / periods for along in (features[0, 0, :, 0], features[0, 0, 0])
    )
    rows = down[:, None].expand(-1, across.shape[0], -1)
    columns = across[None].expand(down.shape[0], -1, -1)
    return torch.cat([rows, columns, rows, columns], dim=-1).flatten(0, 1)


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Turn pairs of channels (i, i + half) by their angles. x: ... S D; angles: S D. Returns ... S D."""
    first, second = x.chunk(2, dim=-1)
    return x * angles.cos() + torch.cat([-second, first], dim=-1) * angles.sin()


def count(along: Tensor) -> Tensor:
    """0, 1, ... N - 1 in the tensor's type, N its length, which stays free in a graph."""
    return torch.arange(along.shape[0], device=along.device, dtype=along.dtype)


def _centres(along: Tensor) -> Tensor:
    positions = count(along)
    return (positions + 0.5) / (positions[-1] + 1) * 2 - 1


def _cubic(distances: Tensor, a: float) -> Tensor:
    """Keys' cubic kernel."""
    x = distances.abs()
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return torch.where(x <= 1, near, torch.where(x < 2, far, torch.zeros_like(x)))
