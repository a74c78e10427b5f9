"""Whitening of descriptors: fit it to descriptors, apply it, or start a layer as it.

Everything is numpy in float64, rows are images (N D). `Whitening.apply` subtracts the mean, projects, and divides by
the norm; the components come strongest first, so any number of the leading ones may be kept. Loads no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tessera.errors import DataError, ModelError

if TYPE_CHECKING:
    from torch import nn

Array = NDArray[np.float64]

EPS = 1e-6  # added to the norm, as the field's code does
HOW_FLOOR = 1e-14


@dataclass(frozen=True, eq=False)
class Whitening:
    """mean: D. projection: D K, one component a column."""

    mean: Array
    projection: Array

    @property
    def dim_in(self) -> int:
        return int(self.projection.shape[0])

    @property
    def dim_out(self) -> int:
        return int(self.projection.shape[1])

    def apply(self, descriptors: ArrayLike, dim: int | None = None) -> Array:
        """N D to N dim, of unit norm."""
        rows = self.project(descriptors, dim)
        norms: Array = np.linalg.norm(rows, axis=-1, keepdims=True)
        return rows / (norms + EPS)

    def project(self, descriptors: ArrayLike, dim: int | None = None) -> Array:
        """N D to N dim, without the normalisation."""
        rows = _as_rows(descriptors)
        if rows.shape[-1] != self.dim_in:
            raise DataError(f"this whitening takes descriptors of {self.dim_in} numbers, not {rows.shape[-1]}.")
        return (rows - self.mean) @ self.projection[:, : self._kept(dim)]

    def as_linear(self, dim: int | None = None) -> tuple[Array, Array]:
        """The same as a linear layer: weight dim D, bias dim."""
        weight = self.projection[:, : self._kept(dim)].T
        return weight, -weight @ self.mean

    def _kept(self, dim: int | None) -> int:
        if dim is None:
            return self.dim_out
        if not 1 <= dim <= self.dim_out:
            raise DataError(f"this whitening has {self.dim_out} components: {dim} cannot be kept.")
        return dim


def fit_pca(
    descriptors: ArrayLike, dim: int | None = None, *, shrinkage: float = 1.0, floor: float | None = None
) -> Whitening:
    """PCA whitening: decorrelate, and scale each component to unit variance (over N, not N - 1).

    shrinkage: 1 whitens fully, 0 only rotates; component i is scaled by variance^(-shrinkage / 2).
    floor: the least variance a component is taken to have (HOW has 1e-14). Without one, components that the images do
    not span are refused: they would be noise, blown up.
    """
    rows = _as_rows(descriptors)
    mean = rows.mean(axis=0)
    centred = rows - mean
    variances, vectors = _components(centred.T @ centred / len(rows))
    dim = _check_dim(dim, len(variances))
    if floor is not None:
        variances = variances.clip(min=floor)
    elif variances[dim - 1] <= variances[0] * len(variances) * np.finfo(np.float64).eps:
        rank = int((variances > variances[0] * len(variances) * np.finfo(np.float64).eps).sum())
        raise DataError(
            f"the {len(rows)} descriptors span {rank} dimensions: {dim} cannot be whitened. "
            "Give more images, keep fewer dimensions, or set a floor."
        )
    return Whitening(mean, vectors[:, :dim] * variances[:dim] ** (-0.5 * shrinkage))


def load_into_layer(layer: nn.Linear | nn.Conv2d, whitening: Whitening) -> None:
    """Make a linear layer (or a 1x1 convolution) the whitening itself, in place: its start before training.

    Fit the whitening to the layer's input; as many components are kept as the layer has outputs.
    """
    outputs, inputs = layer.weight.shape[:2]
    if inputs != whitening.dim_in or outputs > whitening.dim_out:
        raise ModelError(
            f"a whitening from {whitening.dim_in} to {whitening.dim_out} "
            f"cannot start a layer from {inputs} to {outputs}."
        )
    _set_layer(layer, *whitening.as_linear(outputs))


def _set_layer(layer: nn.Linear | nn.Conv2d, weight: Array, bias: Array) -> None:
    import torch

    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(np.ascontiguousarray(weight)).view(layer.weight.shape))
        if layer.bias is None:
            layer.bias = torch.nn.Parameter(torch.from_numpy(bias).to(layer.weight))
        else:
            layer.bias.copy_(torch.from_numpy(bias))


def _as_rows(descriptors: ArrayLike) -> Array:
    rows = np.asarray(descriptors, dtype=np.float64)
    if rows.ndim != 2 or not rows.size:
        raise DataError(f"descriptors must be rows, N D, and some at least: their shape is {rows.shape}.")
    if not np.isfinite(rows).all():
        raise DataError("some descriptors are NaN or infinite: leave those images out.")
    return rows


def _check_dim(dim: int | None, available: int) -> int:
    if dim is None:
        return available
    if not 1 <= dim <= available:
        raise DataError(f"descriptors of {available} numbers cannot be whitened to {dim}.")
    return dim


def _components(scatter: Array) -> tuple[Array, Array]:
    """Eigenvalues, largest first, and their vectors as columns; signs are fixed so that a fit can be repeated."""
    values, vectors = np.linalg.eigh((scatter + scatter.T) / 2)
    values, vectors = values[::-1], vectors[:, ::-1]
    peaks = np.take_along_axis(vectors, np.abs(vectors).argmax(axis=0)[None], axis=0)
    return values, vectors * np.where(peaks < 0, -1.0, 1.0)
