"""The tokenizer as a mixture: the equations agree, and the EM start raises the likelihood and shares positions out."""

from __future__ import annotations

import pytest
import torch

from tessera.errors import ConfigError
from tessera.models.mixture import (
    fit_mixture,
    initialise_tokenizer,
    log_likelihood,
    posterior,
    tied_prior,
    token_usage,
)
from tessera.models.tokenizers import AttentionTokenizer, claim_positions, pool_tokens


def clustered(seed: int = 0, per_cluster: int = 100, scale: float = 1.0) -> torch.Tensor:
    """Four clusters of 16-dimensional features: unequal distances from the origin, directions that have much in common,
    as the features of a real map have."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(4, 16, generator=generator, dtype=torch.float64)
    centres = centres / centres.norm(dim=1, keepdim=True)
    centres[:, 0] += 2.0
    centres = centres / centres.norm(dim=1, keepdim=True) * torch.tensor([[5.0], [7.0], [9.0], [12.0]])
    noise = torch.randn(4, per_cluster, 16, generator=generator, dtype=torch.float64)
    return (centres[:, None] + 0.5 * noise).flatten(0, 1) * scale


@pytest.mark.parametrize("num_tokens", [1, 2, 4, 8])
def test_attention_is_the_posterior_with_the_tied_prior(num_tokens: int) -> None:
    generator = torch.Generator().manual_seed(num_tokens)
    features = torch.randn(50, 8, generator=generator, dtype=torch.float64)
    weight = torch.randn(num_tokens, 8, generator=generator, dtype=torch.float64)
    claims = claim_positions(features[None], weight)[0]  # eq. 1
    # eq. 5, written out
    phi = (weight.square().sum(1) / 2).exp() / (weight.square().sum(1) / 2).exp().sum()
    joint = phi[:, None] * torch.exp(-(features[None] - weight[:, None]).square().sum(-1) / 2)
    torch.testing.assert_close(claims, joint / joint.sum(0), rtol=0, atol=1e-12)
    torch.testing.assert_close(claims, posterior(features, weight, tied_prior(weight)), rtol=0, atol=1e-12)


def test_another_prior_or_sigma_is_something_else() -> None:
    features, weight = clustered()[:40], clustered(1)[::100]
    claims = claim_positions(features[None], weight)[0]
    flat = torch.full((4,), 0.25, dtype=torch.float64)
    assert (claims - posterior(features, weight, flat)).abs().max() > 1e-3
    small = features / 10
    claims = claim_positions(small[None], weight / 10)[0]
    assert (claims - posterior(small, weight / 10, tied_prior(weight / 10), sigma=2.0)).abs().max() > 1e-3


def test_tokens_are_the_means_of_one_em_step() -> None:
    features, weight = clustered(), clustered(2)[::100] / 4
    responsibilities = posterior(features, weight, tied_prior(weight))
    means = torch.stack([(row[:, None] * features).sum(0) / row.sum() for row in responsibilities])  # eq. 4
    tokens = pool_tokens(claim_positions(features[None], weight), features[None])[0]
    torch.testing.assert_close(tokens, means, rtol=1e-12, atol=1e-12)


def test_likelihood_is_the_density_of_the_mixture() -> None:
    features, weight = clustered()[:30] / 5, clustered(3)[::100] / 5
    density = sum(
        prior * torch.exp(-(features - mean).square().sum(1) / 2) / (2 * torch.pi) ** 8
        for prior, mean in zip(tied_prior(weight), weight, strict=True)
    )
    assert isinstance(density, torch.Tensor)
    assert log_likelihood(features, weight) == pytest.approx(float(density.log().mean()), abs=1e-10)


@pytest.mark.parametrize("scale", [0.05, 0.3, 1.0, 3.0])
def test_every_em_step_raises_the_likelihood(scale: float) -> None:
    fit = fit_mixture(clustered(scale=scale), 4, steps=20)
    steps = torch.tensor(fit.log_likelihoods).diff()
    assert (steps >= -1e-9).all()
    assert fit.log_likelihoods[-1] > fit.log_likelihoods[0] - 1e-12


def test_the_m_step_is_stationary() -> None:
    """At the fixed point the gradient of the likelihood vanishes, which does not use the M step's own formula."""
    features = clustered(scale=0.3)
    weight = fit_mixture(features, 4, steps=400).weight.clone().requires_grad_()
    halves = weight.square().sum(1) / 2
    value = ((features @ weight.T).logsumexp(1) - torch.logsumexp(halves, 0)).mean()
    (gradient,) = torch.autograd.grad(value, weight)
    assert gradient.abs().max() < 1e-6


def test_kmeans_centres_starve_tokens_and_the_fit_does_not() -> None:
    features = clustered()
    tokenizer = AttentionTokenizer(16, 4).double()
    fit = initialise_tokenizer(tokenizer, features)
    assert torch.equal(tokenizer.weight, fit.weight)
    assert min(fit.usage_before) < 0.01
    assert min(fit.usage_after) > 0.15
    assert sum(fit.usage_after) == pytest.approx(1)
    torch.testing.assert_close(token_usage(features, fit.weight), torch.tensor(fit.usage_after, dtype=torch.float64))


def test_fewer_features_than_tokens_are_refused() -> None:
    with pytest.raises(ConfigError, match="8 tokens cannot be fitted to 3"):
        fit_mixture(torch.zeros(3, 4), 8)
