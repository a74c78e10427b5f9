from __future__ import annotations

import numpy as np
import pytest

from tessera.explain.attention_regions import GRID, light_of, merge_evidence, merge_maps, overlap, region_box


def test_the_box_is_of_the_component_that_holds_the_peak():
    values = np.zeros((10, 20), dtype=np.float32)
    values[2:4, 5:9] = 1.0
    values[3, 6] = 1.5
    values[8, 18] = 1.4  # as strong, but apart
    assert region_box(values) == pytest.approx((5 / 20, 2 / 10, 9 / 20, 4 / 10))


def test_a_flat_map_gives_the_whole_picture():
    assert region_box(np.ones((4, 4), dtype=np.float32)) == (0.0, 0.0, 1.0, 1.0)


def test_scales_weigh_the_same_whatever_their_number_of_positions():
    left = np.zeros((1, 4, 4), dtype=np.float32)
    left[0, :, 0] = 1 / 4  # sums to one over 16 positions
    right = np.zeros((1, 16, 16), dtype=np.float32)
    right[0, :, -4:] = 1 / 64  # sums to one over 256 positions
    merged = merge_maps([left, right], 300, 300)
    assert merged.shape == (1, GRID, GRID)
    assert merged[0, :, : GRID // 2].sum() == pytest.approx(merged[0, :, GRID // 2 :].sum(), rel=0.02)
    assert merged.mean() == pytest.approx(1.0, abs=1e-5)


def test_the_merged_map_has_the_pictures_shape():
    merged = merge_maps([np.ones((2, 3, 1), dtype=np.float32)], 384, 27)
    assert merged.shape == (2, GRID, 7)


def test_overlap_is_one_for_equal_and_zero_for_disjoint_maps():
    a = np.array([[1.0, 0.0]], dtype=np.float32)
    assert overlap(a, 3 * a) == pytest.approx(1.0)
    assert overlap(a, a[:, ::-1]) == 0.0


def test_only_what_rises_above_the_mean_is_lit():
    nearly_flat = np.ones((8, 8), dtype=np.float32)
    nearly_flat[2, 2] = 1.2
    assert light_of(nearly_flat).max() < 0.25
    peaked = np.zeros((20, 20), dtype=np.float32)
    peaked[:2, :10] = 5
    light = light_of(peaked)
    assert light[0, 0] == 1.0
    assert light[10:, :].max() == 0.0


def test_a_map_on_a_high_floor_still_gives_its_own_region():
    values = np.full((10, 10), 10.0, dtype=np.float32)
    values[4:6, 4:8] = 12.0
    assert region_box(values) == pytest.approx((0.4, 0.4, 0.8, 0.6))


def test_evidence_against_counts_for_nothing():
    added = np.array([[[2.0, -5.0], [0.0, 0.0]], [[-1.0, -1.0], [-1.0, -1.0]]], dtype=np.float32)
    merged = merge_evidence([added], 2, 2)
    assert merged[0].min() == 0 and np.unravel_index(merged[0].argmax(), merged[0].shape)[1] < GRID // 2
    assert np.allclose(merged[1], 1)
