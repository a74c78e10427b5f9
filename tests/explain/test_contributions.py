from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.explain.contributions import contribution_matrix, merge_scales, share_out, strongest_pairs


def unit(x):
    return x / np.linalg.norm(x)


@given(seed=st.integers(0, 2**32 - 1), num_scales=st.integers(1, 4), num_tokens=st.integers(1, 6))
def test_shares_sum_to_the_descriptor_and_contributions_to_the_score(seed, num_scales, num_tokens):
    random = np.random.default_rng(seed)
    scales = [
        [random.normal(size=(num_tokens + 1, 16)).astype(np.float32) * (s + 1) for s in range(num_scales)]
        for _ in range(2)
    ]
    # The slow second writing: the descriptor as the extractor makes it, knowing nothing of parts.
    descriptors = [unit(np.mean([unit(part.sum(axis=0)) for part in image], axis=0)) for image in scales]
    shares = [share_out(merge_scales(image)) for image in scales]
    for share, descriptor in zip(shares, descriptors, strict=True):
        np.testing.assert_allclose(share.sum(axis=0), descriptor, atol=1e-5)
    matrix = contribution_matrix(*shares)
    assert matrix.shape == (num_tokens, num_tokens)
    assert float(matrix.sum()) == pytest.approx(float(descriptors[0] @ descriptors[1]), abs=1e-5)


def test_pairs_come_strongest_first():
    matrix = np.array([[0.1, 0.3], [0.2, -0.1]], dtype=np.float32)
    assert strongest_pairs(matrix) == [(0, 1), (1, 0), (0, 0), (1, 1)]


def test_what_every_picture_has_counts_for_no_token():
    """Tokens that share a large mean, which the constant takes away: pairs that agree stand out, not token by token."""
    random = np.random.default_rng(0)
    mean = 5 * unit(random.normal(size=64))
    own, strange = (random.normal(size=(3, 64)) / 8 for _ in range(2))
    pictures = [np.vstack([tokens + mean, -3 * mean]) for tokens in (own, own, strange)]
    shares = [share_out(merge_scales([picture.astype(np.float32)])) for picture in pictures]
    same, other = contribution_matrix(shares[0], shares[1]), contribution_matrix(shares[0], shares[2])
    assert np.diag(same).min() > 0.15 > np.abs(other).max()
