"""The start of `lite` in closed form: an untrained token network that retrieves as whitened pooling does.

With a reduction:

Reduction: principal directions of the local features. Tokenizer: spherical k-means, the hard form of EM for the paper's
mixture when all its components are equally likely, since eq. 1 has no bias and reads a prior from the row's length.
Refinement: attention by likeness (scaled identities), the branches' gains at zero. W_g: whitening of the tokens laid
end to end by the scatter of views and verified photos of one instance, shrunk, because 1024 numbers whitened from a few
thousand photos fit noise.

Without one, on the backbone's own channels (what ships): the k-means runs in principal directions, its rows are made
orthogonal to the mean feature, so that no bias is missed, and W_g is a PCA of the tokens that whitens by half.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tessera.models.token import TokenHead

Array = NDArray[np.float32]


def fit_reduction(head: TokenHead, local_features: Array) -> None:
    """local_features: N C'. Principal directions, scaled so that a local feature has length one on average."""
    conv, norm = head.reduction[0], head.reduction[1]  # type: ignore[index]
    mean = local_features.mean(axis=0)
    values, vectors = np.linalg.eigh(np.cov((local_features - mean).T.astype(np.float64)))
    strongest = np.argsort(-values)[: conv.out_channels]
    rows = vectors[:, strongest].T / np.sqrt(values[strongest].sum())
    with torch.no_grad():
        conv.weight.copy_(torch.from_numpy(rows)[..., None, None])
        norm.running_mean.copy_(torch.from_numpy(rows @ mean))
        norm.running_var.fill_(1 - norm.eps)


def centre_tokens(reduced: Array, num_tokens: int, seed: int, iterations: int = 30) -> Array:
    """Spherical k-means of local features N C. Returns L C, unit rows."""
    rng = np.random.default_rng(seed)
    unit = reduced / np.linalg.norm(reduced, axis=1, keepdims=True).clip(1e-12)
    centres = unit[rng.choice(len(unit), num_tokens, replace=False)]
    for _ in range(iterations):
        nearest = (unit @ centres.T).argmax(axis=1)
        sums = [unit[nearest == k].sum(axis=0) if (nearest == k).any() else unit[k] for k in range(num_tokens)]
        centres = np.stack(sums) / np.linalg.norm(sums, axis=1, keepdims=True)
    return centres


def fit_tokenizer(head: TokenHead, reduced: Array, sharpness: float, seed: int) -> None:
    """reduced: N C. sharpness: standard deviation of the logits."""
    centres = centre_tokens(reduced, head.num_tokens, seed)
    with torch.no_grad():
        head.tokenizer.weight.copy_(torch.from_numpy(centres * sharpness / (reduced @ centres.T).std()))


def fit_bare_tokenizer(head: TokenHead, local_features: Array, sharpness: float, seed: int, kept: int = 256) -> None:
    """local_features: N C, of the backbone. Logits are those of centred features, though eq. 1 subtracts nothing."""
    mean = local_features.mean(axis=0)
    values, vectors = np.linalg.eigh(np.cov((local_features - mean).T.astype(np.float64)))
    directions = vectors[:, np.argsort(-values)[:kept]]
    rows = (
        centre_tokens(((local_features - mean) @ directions).astype(np.float32), head.num_tokens, seed) @ directions.T
    )
    rows -= np.outer(rows @ mean / (mean @ mean), mean)
    with torch.no_grad():
        head.tokenizer.weight.copy_(torch.from_numpy(rows * sharpness / (local_features @ rows.T).std()))


def fit_pca_projection(head: TokenHead, tokens: Array, power: float) -> None:
    """tokens: N LC. W_g divides principal components by their variance to `power`: 0.5 whitens, 0.25 by half."""
    mean = tokens.mean(axis=0)
    _, values, vectors = np.linalg.svd(tokens - mean, full_matrices=False)
    variances = np.square(values[: head.dim].astype(np.float64)) / len(tokens)
    matrix = vectors[: head.dim] / variances[:, None] ** power
    matrix /= np.sqrt(np.square((tokens - mean) @ matrix.T).sum(axis=1).mean())
    with torch.no_grad():
        head.projection.weight.copy_(torch.from_numpy(matrix))
        head.projection.bias.copy_(torch.from_numpy(-matrix @ mean))


@torch.no_grad()
def fit_refinement(head: TokenHead, features: Tensor, spread: float = 1.5) -> None:
    """features: B C' H W, a few maps. Every head looks where the map is like the token; spread: of its logits."""
    context = head.reduction(features).flatten(2).transpose(1, 2)  # B S C
    tokens, _ = head.tokenizer(context)
    for block in head.refinement:
        for attention, memory in ((block.self_attention, tokens), (block.cross_attention, context)):
            identity = torch.eye(attention.channels)
            for linear in (attention.q, attention.k, attention.v, attention.proj):
                linear.weight.copy_(identity)
            logits = attention._split(tokens) @ attention._split(memory).transpose(-1, -2) * attention.scale
            gains = spread / logits.std(dim=-1).mean(dim=(0, 2)).clamp_min(1e-6)  # N
            attention.q.weight.mul_(gains.repeat_interleave(attention.channels // attention.heads)[:, None])
        block.self_norm.weight.zero_()
        block.cross_norm.weight.zero_()


def fit_projection(head: TokenHead, tokens: Array, instances: NDArray[np.int64], shrinkage: float) -> None:
    """tokens: N LC; instances: N. W_g divides by the scatter within an instance; shrinkage: in units of its mean."""
    mean = tokens.mean(axis=0)
    centred = (tokens - mean).astype(np.float64)
    _, number, count = np.unique(instances, return_inverse=True, return_counts=True)
    centres = np.zeros((len(count), centred.shape[1]))
    np.add.at(centres, number, centred)
    within = (centred - (centres / count[:, None])[number])[count[number] > 1]
    scatter = within.T @ within / len(within)
    scatter += shrinkage * np.trace(scatter) / len(scatter) * np.eye(len(scatter))
    values, vectors = np.linalg.eigh(scatter)
    whitening = vectors / np.sqrt(values)
    whitened = centred @ whitening
    values, vectors = np.linalg.eigh(whitened.T @ whitened / len(whitened))
    matrix = whitening @ vectors[:, np.argsort(-values)[: head.dim]]
    matrix /= np.sqrt(np.square(centred @ matrix).sum(axis=1).mean())
    with torch.no_grad():
        head.projection.weight.copy_(torch.from_numpy(matrix.T))
        head.projection.bias.copy_(torch.from_numpy(-mean @ matrix))
