"""What is fitted in closed form: the tokenizer and the projection W_g.

Tokenizer: spherical k-means of local features in their principal directions, the hard form of EM for the paper's
mixture when all its components are equally likely, since eq. 1 has no bias and reads a prior from the row's length; its
rows are made orthogonal to the mean feature, so that no bias is missed. W_g: whitening of the tokens by what changes
between views and verified photos of one instance, so that only what tells instances apart is left.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from tessera.models.parts.tokenizers import AttentionTokenizer
from tessera.models.token import TokenHead

Array = NDArray[np.float32]


def fit_tokenizer(head: TokenHead, local_features: Array, sharpness: float, seed: int, kept: int = 256) -> None:
    """local_features: N C, of the backbone; sharpness: standard deviation of the logits; kept: principal directions."""
    mean = local_features.mean(axis=0)
    values, vectors = np.linalg.eigh(np.cov((local_features - mean).T.astype(np.float64)))
    directions = vectors[:, np.argsort(-values)[:kept]]
    centred = ((local_features - mean) @ directions).astype(np.float32)
    rows = centre_tokens(centred, head.num_tokens, seed) @ directions.T
    rows -= np.outer(rows @ mean / (mean @ mean), mean)
    with torch.no_grad():
        assert isinstance(head.tokenizer, AttentionTokenizer)
        head.tokenizer.weight.copy_(torch.from_numpy(rows * sharpness / (local_features @ rows.T).std()))


def centre_tokens(features: Array, num_tokens: int, seed: int, iterations: int = 30) -> Array:
    """Spherical k-means of N C. Returns L C, unit rows."""
    rng = np.random.default_rng(seed)
    unit = features / np.linalg.norm(features, axis=1, keepdims=True).clip(1e-12)
    centres = unit[rng.choice(len(unit), num_tokens, replace=False)]
    for _ in range(iterations):
        nearest = (unit @ centres.T).argmax(axis=1)
        sums = [unit[nearest == k].sum(axis=0) if (nearest == k).any() else unit[k] for k in range(num_tokens)]
        centres = np.stack(sums) / np.linalg.norm(sums, axis=1, keepdims=True)
    found: Array = centres
    return found


def fit_projection(
    head: TokenHead, tokens: Array, instances: NDArray[np.int64], levels: Sequence[int], shrinkage: float
) -> None:
    """One matrix for all tokens (TokenConfig.shared).

    Four matrices of their own, fitted to these few photos, did worse on val (results/lite.md).

    tokens: N C, the mean of an image's tokens; instances: N; levels: channels of the backbone's levels, each brought to
    one length, or the shrinkage would weigh on the weak ones alone; shrinkage: in units of the scatter's mean.
    """
    scale = level_scale(tokens, levels)
    mean = (tokens * scale).mean(axis=0)
    centred = (tokens * scale - mean).astype(np.float64)
    matrix = whiten_within(centred, instances, head.dim, shrinkage)
    matrix /= np.sqrt(np.square(centred @ matrix).sum(axis=1).mean())
    with torch.no_grad():
        head.projection.weight.copy_(torch.from_numpy((matrix.T * scale / head.num_tokens).astype(np.float32)))
        head.projection.bias.copy_(torch.from_numpy((-mean @ matrix).astype(np.float32)))


def whiten_within(
    centred: NDArray[np.float64], instances: NDArray[np.int64], dim: int, shrinkage: float
) -> NDArray[np.float64]:
    """Divide by the scatter within an instance, shrunk to its mean; the strongest of what is left. Returns C D."""
    _, number, count = np.unique(instances, return_inverse=True, return_counts=True)
    centres = np.zeros((len(count), centred.shape[1]))
    np.add.at(centres, number, centred)
    within = (centred - (centres / count[:, None])[number])[count[number] > 1]
    scatter = within.T @ within / len(within)
    scatter += shrinkage * scatter.diagonal().mean() * np.eye(len(scatter))
    values, vectors = np.linalg.eigh(scatter)
    whitening = vectors / np.sqrt(values)
    whitened = centred @ whitening
    values, vectors = np.linalg.eigh(whitened.T @ whitened / len(whitened))
    matrix: NDArray[np.float64] = whitening @ vectors[:, np.argsort(-values)[:dim]]
    return matrix


def level_scale(tokens: Array, levels: Sequence[int]) -> Array:
    """C numbers that give every level a mean square length of one."""
    parts = np.split(tokens, np.cumsum(levels)[:-1], axis=1)
    return np.concatenate([np.full(part.shape[1], np.square(part).sum(axis=1).mean() ** -0.5) for part in parts])
