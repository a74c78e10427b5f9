from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.explain.contributions import contribution_matrix, merge_scales, strongest_pairs


def unit(x):
    return x / np.linalg.norm(x)


@settings(deadline=None)  # a busy machine takes its time
@given(seed=st.integers(0, 2**32 - 1), num_scales=st.integers(1, 4), num_tokens=st.integers(0, 6))
def test_shares_sum_to_the_descriptor_and_contributions_to_the_score(seed, num_scales, num_tokens):
    random = np.random.default_rng(seed)
    scales = [
        [random.normal(size=(num_tokens + 1, 16)).astype(np.float32) * (s + 1) for s in range(num_scales)]
        for _ in range(2)
    ]
    # The slow second writing: the descriptor as the extractor makes it, knowing nothing of parts.
    descriptors = [unit(np.mean([unit(part.sum(axis=0)) for part in image], axis=0)) for image in scales]
    shares = [merge_scales(image) for image in scales]
    for share, descriptor in zip(shares, descriptors, strict=True):
        np.testing.assert_allclose(share.sum(axis=0), descriptor, atol=1e-5)
    matrix = contribution_matrix(*shares)
    assert matrix.shape == (num_tokens + 1, num_tokens + 1)
    assert float(matrix.sum()) == pytest.approx(float(descriptors[0] @ descriptors[1]), abs=1e-5)


def test_the_constant_part_is_no_region():
    matrix = np.array([[0.1, 0.3, 0.9], [0.2, -0.1, 0.8], [0.7, 0.6, 5.0]], dtype=np.float32)
    assert strongest_pairs(matrix) == [(0, 1), (1, 0), (0, 0), (1, 1)]
