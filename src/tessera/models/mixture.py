"""The tokenizer as a mixture of Gaussians, and its start from one (paper, eq. 3 to 5).

With sigma 1 and the prior phi(|w|^2) = exp(|w|^2 / 2) / sum, the posterior of eq. 4 is the attention of eq. 1, and
eq. 2 is the mean that one EM step gives. The prior is tied to the means: it is no free parameter. Plain k-means centres
as W would therefore weigh each cluster by exp(|w|^2 / 2), and the longest centre would claim nearly every position.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tessera.errors import ConfigError
from tessera.models.tokenizers import AttentionTokenizer, claim_positions

Array = npt.NDArray[np.float64]
_BISECTIONS = 64
_NEWTON_STEPS = 8


def tied_prior(means: Tensor) -> Tensor:
    """phi(|w_j|^2) of eq. 5. means: L C. Returns L, summing to one."""
    return (means.square().sum(dim=-1) / 2).softmax(dim=-1)


def posterior(features: Tensor, means: Tensor, prior: Tensor, sigma: float = 1.0) -> Tensor:
    """p(z = j | f) of eq. 4. features: S C; means: L C; prior: L. Returns L S, summing to one over L."""
    distances = (features[:, None] - means[None]).square().sum(dim=-1)  # S L
    return (prior.log() - distances / (2 * sigma**2)).softmax(dim=-1).T


def token_usage(features: Tensor, weight: Tensor) -> Tensor:
    """The share of all positions that each token claims. features: S C; weight: L C. Returns L, summing to one."""
    return claim_positions(features[None], weight)[0].mean(dim=-1)


@dataclass(frozen=True)
class MixtureFit:
    """weight: L C. log_likelihoods: mean over positions, before each step and after the last; they never fall.

    usage_before, usage_after: token usage with the k-means centres the fit began from, and with its result.
    """

    weight: Tensor
    log_likelihoods: tuple[float, ...]
    usage_before: tuple[float, ...]
    usage_after: tuple[float, ...]


def fit_mixture(
    features: Tensor, num_tokens: int, *, steps: int = 50, seed: int = 0, tolerance: float = 1e-12
) -> MixtureFit:
    """Fit W to local features by EM with the tied prior, in double precision, from k-means centres.

    features: S C, as the tokenizer sees them (after reduction and LFSA), of many images.

    The centres are brought to one length first: with the prior tied, unequal lengths would hand all to the longest.
    The E step is eq. 1. The M step cannot be the plain mean, because moving a mean moves the prior too: it maximises
    sum_j S_j . w_j - M log sum_l exp(|w_l|^2 / 2) with S_j the claimed sums, which is concave and has one solution.
    """
    points = features.detach().double()
    if len(points) < num_tokens:
        raise ConfigError(f"{num_tokens} tokens cannot be fitted to {len(points)} local features. Give more images.")
    centres = _kmeans(points, num_tokens, seed)
    lengths = centres.norm(dim=1, keepdim=True)
    weight = centres / lengths.clamp_min(1e-12) * lengths.mean()
    likelihoods = []
    for _ in range(steps):
        likelihoods.append(log_likelihood(points, weight))
        claims = claim_positions(points[None], weight)[0]  # L S
        weight = _maximise(claims @ points / len(points))
        if len(likelihoods) > 1 and likelihoods[-1] - likelihoods[-2] < tolerance:
            break
    likelihoods.append(log_likelihood(points, weight))
    before, after = token_usage(points, centres), token_usage(points, weight)
    return MixtureFit(weight.to(features.dtype), tuple(likelihoods), tuple(before.tolist()), tuple(after.tolist()))


@torch.no_grad()
def initialise_tokenizer(
    tokenizer: AttentionTokenizer, features: Tensor, *, steps: int = 50, seed: int = 0
) -> MixtureFit:
    """Set a tokenizer's W to a fitted mixture. features: S C. Returns the fit, with token usage before and after."""
    fit = fit_mixture(features, tokenizer.num_tokens, steps=steps, seed=seed)
    tokenizer.weight.copy_(fit.weight)
    return fit


def log_likelihood(features: Tensor, weight: Tensor) -> float:
    """Mean log p(f) of eq. 3 with sigma 1 and the tied prior. features: S C; weight: L C."""
    halves = weight.square().sum(dim=-1) / 2
    joint = (features @ weight.T).logsumexp(dim=-1) - torch.logsumexp(halves, dim=0)
    constant = features.shape[1] / 2 * float(np.log(2 * np.pi))
    return float((joint - features.square().sum(dim=-1) / 2).mean()) - constant


def _maximise(sums: Tensor) -> Tensor:
    """The M step: w_j along the claimed sum s_j, with the length m_j that solves m_j exp(m_j^2 / 2) = |s_j| exp(A).

    A is log sum_l exp(m_l^2 / 2), so the prior of j is |s_j| / m_j; that they sum to one fixes A, by bisection.
    sums: L C, the claimed sums over the number of positions. Returns L C.
    """
    lengths = sums.norm(dim=1)
    s = lengths.clamp_min(1e-300).numpy()
    low, high = -50.0, 50.0 + 2 * float(s.sum()) ** 2
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if float((s / _solve_lengths(np.log(s) + middle)).sum()) > 1:
            low = middle
        else:
            high = middle
    solved = torch.from_numpy(_solve_lengths(np.log(s) + high))
    return cast(Tensor, sums / lengths.clamp_min(1e-300)[:, None] * solved[:, None])


def _solve_lengths(b: Array) -> Array:
    """m > 0 with m^2 / 2 + log m = b: Newton's method on x = log m, begun right of the root, where it is monotone."""
    x = np.where(b > 1, 0.5 * np.log(2 * np.maximum(b, 1.0)) + 0.1, np.minimum(b, 1.0))
    for _ in range(_NEWTON_STEPS):
        squares = np.exp(2 * x)
        x = x - (squares / 2 + x - b) / (squares + 1)
    return np.asarray(np.exp(x), dtype=np.float64)


def _kmeans(points: Tensor, count: int, seed: int, steps: int = 20) -> Tensor:
    """Plain k-means with k-means++ seeds."""
    generator = torch.Generator().manual_seed(seed)
    centres = points[torch.randint(len(points), (1,), generator=generator)]
    while len(centres) < count:
        squares = torch.cdist(points, centres).square().amin(dim=1)
        weights = squares if float(squares.sum()) > 0 else torch.ones_like(squares)
        centres = torch.cat([centres, points[torch.multinomial(weights, 1, generator=generator)]])
    for _ in range(steps):
        nearest = torch.cdist(points, centres).argmin(dim=1)
        counts = torch.bincount(nearest, minlength=count).to(points.dtype)
        sums = torch.zeros_like(centres).index_add_(0, nearest, points)
        centres = torch.where(counts[:, None] > 0, sums / counts.clamp_min(1)[:, None], centres)
    return centres
