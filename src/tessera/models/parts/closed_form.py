"""A token head fitted without a gradient: the tokenizer by hard EM, W_g by whitening. Everything is numpy.

The paper's mixture (eq. 3 to 5) with equally likely components and its local features reduced to directions is fitted
by spherical k-means. Eq. 1 has no bias, so the rows are made orthogonal to the mean feature: none is missed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

SHARPNESS = 1.0  # standard deviation of a position's logits
SHRINKAGE = 2.0  # of the scatter within an instance, in units of its mean: `lite` has the same
_DIRECTIONS = 256
_STEPS = 30
_STARTS = 5


def fit_tokens(features: Array, num_tokens: int, seed: int = 0) -> Array:
    """The tokenizer's weight, L C, from local features N C of many images."""
    mean = features.mean(axis=0)
    centred = features - mean
    _, directions = np.linalg.eigh(np.cov(centred.T, dtype=np.float64))
    directions = directions[:, ::-1][:, :_DIRECTIONS].astype(np.float32)
    rows = _spherical_kmeans(centred @ directions, num_tokens, seed) @ directions.T
    rows -= np.outer(rows @ mean / max(float(mean @ mean), 1e-12), mean)
    weight: Array = rows * np.float32(SHARPNESS / max(float((features @ rows.T).std()), 1e-12))
    return weight


def _spherical_kmeans(points: Array, count: int, seed: int) -> Array:
    """Unit centroids, count C: the best of several starts, since a start may split one cluster and join two."""
    unit = points / np.linalg.norm(points, axis=1, keepdims=True).clip(1e-12)
    random = np.random.default_rng(seed)
    starts = [_settle(unit, unit[random.choice(len(unit), count, replace=False)]) for _ in range(_STARTS)]
    return max(starts, key=lambda centroids: float((unit @ centroids.T).max(axis=1).sum()))


def _settle(unit: Array, centroids: Array) -> Array:
    for _ in range(_STEPS):
        nearest = (unit @ centroids.T).argmax(axis=1)
        for number in range(len(centroids)):
            if (nearest == number).any():
                centroids[number] = unit[nearest == number].sum(axis=0)
        centroids /= np.linalg.norm(centroids, axis=1, keepdims=True).clip(1e-12)
    return centroids


def fit_projection(tokens: Array, instances: NDArray[np.int64], num_tokens: int, dim: int) -> tuple[Array, Array]:
    """W_g, D C, and its bias, D: what changes between views of one instance is divided out.

    tokens: N C, the mean of a view's tokens; instances: N, which views show the same. The head sums its tokens, so the
    mean's matrix is divided by their number. The descriptors' mean square length comes out as one.
    """
    mean = tokens.mean(axis=0, dtype=np.float64)
    centred = tokens - mean
    whitening = _whiten(_scatter_within(centred, instances))
    _, vectors = np.linalg.eigh(_second_moment(centred @ whitening))
    matrix = whitening @ vectors[:, ::-1][:, :dim]
    matrix /= np.sqrt(np.square(centred @ matrix).sum(axis=1).mean())
    return (matrix.T / num_tokens).astype(np.float32), (-mean @ matrix).astype(np.float32)


def _scatter_within(centred: NDArray[np.float64], instances: NDArray[np.int64]) -> NDArray[np.float64]:
    """Of what has more than one view."""
    _, number, counts = np.unique(instances, return_inverse=True, return_counts=True)
    means = np.zeros((len(counts), centred.shape[1]))
    np.add.at(means, number, centred)
    return _second_moment((centred - (means / counts[:, None])[number])[counts[number] > 1])


def _whiten(scatter: NDArray[np.float64]) -> NDArray[np.float64]:
    shrunk = scatter + SHRINKAGE * max(float(scatter.diagonal().mean()), 1e-12) * np.eye(len(scatter))
    values, vectors = np.linalg.eigh(shrunk)
    whitening: NDArray[np.float64] = vectors / np.sqrt(values)
    return whitening


def _second_moment(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    moment: NDArray[np.float64] = rows.T @ rows / len(rows)
    return moment
