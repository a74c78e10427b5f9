"""Images near to what geometry has verified rank higher: a chain of views, of which the query sees the first."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tessera.gallery.search.by_parts import EXPAND_INLIERS, PartsSearch, Sample, _Scored
from tessera.local.calibration import Calibration
from tessera.local.matching import Verified

CHAIN = 12


@pytest.fixture
def scored() -> _Scored:
    """Ids 10 to 21 turn away from the query step by step; 30 to 41 turn as far, each its own way."""
    angles = np.linspace(0.05, 1.5, CHAIN)
    rows = np.zeros((2 * CHAIN, CHAIN + 2), np.float32)
    rows[:, 0] = np.tile(np.cos(angles), 2)
    rows[:CHAIN, 1] = np.sin(angles)
    rows[np.arange(CHAIN, 2 * CHAIN), np.arange(CHAIN) + 2] = np.sin(angles)
    ids = np.concatenate([np.arange(10, 10 + CHAIN), np.arange(30, 30 + CHAIN)])
    cosines = rows[:, 0].copy()
    zeros = np.zeros(len(ids), np.float32)
    return _Scored(ids, cosines, zeros, zeros, 6 * cosines, zeros, rows)


def search_with(verified: dict[int, int]) -> PartsSearch:
    nothing: Any = None
    search = PartsSearch(
        nothing,
        nothing,
        nothing,
        Calibration(),
        sample=Sample(np.zeros(0, np.int64), np.zeros((0, CHAIN + 2), np.float32)),
        num_candidates=10,
    )
    search._verified = {
        image_id: Verified(inliers, 40, np.zeros((0, 2), np.int64), None) for image_id, inliers in verified.items()
    }
    return search


def test_the_chain_comes_before_strangers_that_are_as_far(scored: _Scored) -> None:
    search = search_with({10: EXPAND_INLIERS, 11: 30, 30: EXPAND_INLIERS - 1})
    neighbours = search._diffuse(scored)
    chain, strangers = neighbours[:CHAIN], neighbours[CHAIN:]
    assert chain[0] == chain[1] == 1  # what is verified
    assert neighbours[2:].max() == pytest.approx(1)  # the nearest that is not
    assert (np.diff(chain[3:]) <= 1e-6).all()
    assert (chain[4:] > strangers[4:]).all() and strangers[-1] == 0
    judged = search._judge(scored, neighbours, 0, 100)
    ranks = {int(image_id): rank for rank, image_id in enumerate(judged.ids)}
    for step in range(2, CHAIN):
        assert ranks[10 + step] < ranks[30 + step]
    assert (np.diff(judged.probabilities) <= 1e-12).all()


def test_without_anything_verified_nothing_is_near(scored: _Scored) -> None:
    assert not search_with({10: EXPAND_INLIERS - 1})._diffuse(scored).any()
