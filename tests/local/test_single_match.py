"""Verification from single matches: few true ones among many false, and what must not be taken for agreement."""

from __future__ import annotations

from itertools import product

import numpy as np
import numpy.typing as npt
import pytest

from tessera.local.single_match import Matched, SingleMatchConfig, _fit_affinities, _propose, verify_single_matches
from tessera.local.verification import Verification

AFFINITY = np.array([[0.8, 0.1, 40.0], [-0.05, 0.7, 90.0]])
Array = npt.NDArray[np.float64]


def draw_matches(seed: int, true: int, false: int) -> tuple[Array, Array, Array, Array]:
    """Positions and scales of matches, shuffled; the first `true` of the order below follow AFFINITY to the pixel."""
    random = np.random.default_rng(seed)
    first = random.uniform(0, 900, (true + false, 2))
    second = random.uniform(0, 900, (true + false, 2))
    first_scales, second_scales = random.uniform(2, 12, true + false), random.uniform(2, 12, true + false)
    second[:true] = first[:true] @ AFFINITY[:, :2].T + AFFINITY[:, 2] + random.normal(0, 1, (true, 2))
    second_scales[:true] = first_scales[:true] * 0.75 * 2 ** random.normal(0, 0.15, true)
    return first, first_scales, second, second_scales


def as_matched(first: Array, first_scales: Array, second: Array, second_scales: Array) -> Matched:
    return Matched(first, first_scales, second, second_scales, np.stack([np.arange(len(first))] * 2, axis=1))


def verify(*matches: Array) -> Verification:
    (found,) = verify_single_matches([as_matched(*matches)])
    return found


@pytest.mark.parametrize("seed", range(5))
def test_a_tenth_of_true_matches_is_found(seed: int) -> None:
    true = 11
    found = verify(*draw_matches(seed, true, 100))
    assert found.inliers[:true].sum() >= true - 1
    assert found.inliers[true:].sum() <= 2
    assert found.transformation is not None
    corners = np.array([[0.0, 0, 1], [900, 0, 1], [900, 900, 1], [0, 900, 1]])
    mapped = corners @ found.transformation.T
    assert np.abs(mapped[:, :2] / mapped[:, 2:] - corners @ AFFINITY.T).max() < 40


def test_strangers_hardly_agree() -> None:
    counts = [verify(*draw_matches(seed, 0, 100)).num_inliers for seed in range(40)]
    assert max(counts) < 8 and np.mean(counts) < 5


def test_proposals_are_those_that_a_loop_finds() -> None:
    config = SingleMatchConfig()
    first, first_scales, second, second_scales = draw_matches(3, 8, 30)
    votes = []
    for i in range(38):
        zoom = second_scales[i] / first_scales[i]
        supporters = []
        for j in range(38):
            moved = zoom * (first[j] - first[i])
            error = np.linalg.norm(second[i] + moved - second[j])
            allowed = min(config.near_px + config.slope * np.linalg.norm(moved), config.far_px)
            alike = abs(np.log2(second_scales[j] / first_scales[j]) - np.log2(zoom)) < config.octaves
            supporters.append(bool(error < allowed and alike))
        votes.append(supporters)
    best = max(range(38), key=lambda i: sum(votes[i]))
    ((number, chosen),) = _propose([as_matched(first, first_scales, second, second_scales)], config)
    assert number == 0
    assert chosen[0].tolist() == votes[best]
    assert 1 <= len(chosen) <= config.num_fitted


def test_what_is_found_for_an_image_does_not_depend_on_the_others() -> None:
    drawn = [draw_matches(seed, true, false) for seed, (true, false) in enumerate(product((0, 2, 9, 60), (1, 14, 300)))]
    together = verify_single_matches([as_matched(*one) for one in drawn])
    for one, found in zip(drawn, together, strict=True):
        alone = verify(*one)
        assert alone.inliers.tolist() == found.inliers.tolist()
        if alone.transformation is None:
            assert found.transformation is None
        else:
            np.testing.assert_allclose(found.transformation, alone.transformation, rtol=1e-12, atol=1e-12)


def test_an_affinity_is_that_of_least_squares() -> None:
    random = np.random.default_rng(0)
    first, second = random.uniform(0, 900, (6, 50, 2)), random.uniform(0, 40, (6, 50, 2))
    second += first @ AFFINITY[:, :2].T
    chosen = random.random((6, 50)) < 0.4
    fitted, is_plausible = _fit_affinities(first, second, chosen, SingleMatchConfig())
    assert is_plausible.all()
    for row in range(6):
        design = np.column_stack([first[row, chosen[row]], np.ones(chosen[row].sum())])
        slow = np.linalg.lstsq(design, second[row, chosen[row]], rcond=None)[0].T
        np.testing.assert_allclose(fitted[row], slow, rtol=1e-9, atol=1e-7)


@pytest.mark.parametrize("spread", [(0.0, 0.0), (1.0, 0.0)], ids=["one spot", "one line"])
def test_matches_in_a_spot_or_on_a_line_fit_nothing(spread: tuple[float, float]) -> None:
    positions = np.linspace(0, 800, 40)[:, None] * np.array([spread])
    scales = np.full(40, 4.0)
    assert verify(positions, scales, positions, scales).transformation is None


def test_a_mirror_is_no_view() -> None:
    first, scales, _, _ = draw_matches(0, 0, 60)
    mirrored = first * [-1.0, 1.0] + [900.0, 0.0]
    assert verify(first, scales, mirrored, scales).num_inliers < 8


def test_too_few_matches_have_no_inliers() -> None:
    for count in range(4):
        found = verify(*draw_matches(0, count, 0))
        assert found.num_inliers == 0 and found.transformation is None
