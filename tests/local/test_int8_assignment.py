"""The nearest words by bounds in 8-bit integers: the very words that comparing with all of them gives."""

from __future__ import annotations

import numpy as np
import pytest

from tessera.bench.local_search import measure_asmk
from tessera.local import codebook, int8_assignment
from tessera.local.codebook import Codebook
from tessera.local.int8_assignment import STAGES, Int8Assignment, ScratchBuffers, fill_bounds, has_fast_int8

DIM = 24


def fill_slowly(bounds, tile_maxima, factors, rounded, steps, scratch):
    """`fill_bounds` without torch, its products in int64."""
    del scratch
    tiles, features = rounded
    products = tiles.astype(np.int64) @ features.astype(np.int64).T  # T TILE N
    largest = products.reshape(len(tiles), -1, len(bounds) // len(tiles), len(features)).max(axis=1)
    bounds[:] = factors[0] @ factors[1] + (largest * steps[:, None, None]).reshape(bounds.shape)
    tile_maxima[:] = bounds.reshape(len(tiles), -1, len(features)).max(axis=1)


def need_quick_products():
    if not has_fast_int8():
        pytest.skip("this processor or this torch has no fast products of 8-bit integers")


@pytest.fixture(params=["torch", "slow"])
def products(request, monkeypatch):
    """The bounds must hold whoever multiplies."""
    if request.param == "slow":
        monkeypatch.setattr(int8_assignment, "fill_bounds", fill_slowly)
    else:
        need_quick_products()


def nearest_by_definition(words, features, nearest):
    """Squared distances in float64, and the order that they give; of equals the first."""
    distances = np.stack([np.square(words.astype(np.float64) - feature).sum(axis=1) for feature in features])
    return distances, np.argsort(distances, axis=1, kind="stable")[:, :nearest]


def draw(case, seed=0):
    random = np.random.default_rng(seed)
    words = random.normal(size=(9000, DIM)).astype(np.float32)
    features = random.normal(size=(40, DIM)).astype(np.float32)
    if case == "near words":
        features = words[:40] + 0.3 * features
    elif case == "of many lengths":
        words *= random.gamma(1.0, 1.0, (9000, 1)).astype(np.float32)
        features *= random.gamma(1.0, 5.0, (40, 1)).astype(np.float32)
    elif case == "far from the origin":
        words, features = words + 50, features + 50
    elif case == "one long direction":
        words[:, 0] *= 4
        features[:, 0] *= 4
    elif case == "each word twice":
        words[4500:] = words[:4500]
    elif case == "much nearer to one word":
        features = words[:40] + np.float32(0.05) * features
    elif case == "zeros":
        features = np.zeros((3, DIM), np.float32)
    return words, features


@pytest.mark.usefixtures("products")
@pytest.mark.parametrize("nearest", [1, 5])
@pytest.mark.parametrize(
    "case",
    [
        "anywhere",
        "near words",
        "of many lengths",
        "far from the origin",
        "one long direction",
        "each word twice",
        "much nearer to one word",
        "zeros",
    ],
)
def test_the_words_are_the_nearest(case, nearest):
    words, features = draw(case)
    found = Int8Assignment(words).assign(features, nearest)
    assert found is not None
    distances, expected = nearest_by_definition(words, features, nearest)
    # Distances may be so close that float32 cannot tell which is the smaller one: then either word is right.
    ours, theirs = (np.take_along_axis(distances, order.astype(np.int64), axis=1) for order in (found, expected))
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    assert (found == expected).mean() > 0.99
    assert all(len(set(row)) == nearest for row in found.tolist())


@pytest.mark.usefixtures("products")
def test_where_bounds_tell_nothing_apart_it_says_so():
    random = np.random.default_rng(0)
    assignment = Int8Assignment(np.ones((9000, DIM), np.float32))
    assert assignment.assign(random.normal(size=(4, DIM)).astype(np.float32), 3) is None
    words, features = draw("anywhere")
    assert Int8Assignment(words).assign(features, 17) is None
    assert Int8Assignment(words).assign(features, 12) is None  # more than there are tiles of words
    assert Int8Assignment(words).assign(features[:0], 5).shape == (0, 5)


@pytest.mark.usefixtures("products")
def test_a_codebook_gives_the_same_words_either_way(monkeypatch):
    words, features = draw("near words")
    flat = [Codebook(words).assign(features, nearest) for nearest in (1, 5, 20)]
    monkeypatch.setattr(codebook, "INT8_MIN_FEATURES", 1)
    monkeypatch.setattr(codebook, "has_fast_int8", lambda: True)
    quick = Codebook(words)
    for expected, nearest in zip(flat, (1, 5, 20), strict=True):
        assert np.array_equal(quick.assign(features, nearest), expected)
    assert quick._int8 is not None


@pytest.mark.usefixtures("products")
@pytest.mark.parametrize(("case", "served"), [("much nearer to one word", STAGES[0]), ("anywhere", STAGES[-1])])
def test_few_directions_are_used_where_they_tell_words_apart_and_passed_over_where_not(case, served):
    words, features = draw(case)
    assignment = Int8Assignment(words)
    expected = nearest_by_definition(words, features, 1)[1]
    for _ in range(6):
        assert np.array_equal(assignment.assign(features, 1), expected)
    tried = {stage: outcomes for (stage, _), outcomes in assignment._outcomes.items()}
    assert all(tried[served])
    assert not any(any(outcomes) for stage, outcomes in tried.items() if stage is not served)
    # A stage that failed four times is not tried a fifth time.
    assert all(len(outcomes) == 4 for outcomes in tried.values())


@pytest.mark.usefixtures("products")
def test_blocks_of_other_sizes_share_their_buffers(monkeypatch):
    words, features = draw("near words")
    monkeypatch.setattr(int8_assignment, "_ROWS", 32)  # 32 and 8 features
    found = Int8Assignment(words).assign(features, 5)
    assert np.array_equal(found, nearest_by_definition(words, features, 5)[1])


def test_bounds_are_those_of_products_that_do_not_overflow():
    need_quick_products()
    random = np.random.default_rng(0)
    features, tiles = np.full((3, 256), 127, np.int8), np.full((2, 1024, 256), -127, np.int8)
    tiles[0, 0], tiles[1] = 127, random.integers(-127, 128, (1024, 256), np.int8)
    factors = random.normal(size=(128, 4)).astype(np.float32), random.normal(size=(4, 3)).astype(np.float32)
    answers = []
    for fill in (fill_bounds, fill_slowly):
        bounds, tile_maxima = (np.full((rows, 3), np.nan, np.float32) for rows in (128, 2))
        fill(bounds, tile_maxima, factors, (tiles, features), np.array([1.0, 0.5], np.float32), ScratchBuffers())
        answers.append((bounds, tile_maxima))
    for ours, slow in zip(*answers, strict=True):
        np.testing.assert_allclose(ours, slow, rtol=1e-6)
    assert answers[0][0].max() > 127 * 127 * 256 - 10


def test_the_benchmark_finds_both_equal():
    pytest.importorskip("asmk")
    answer = measure_asmk(images=12, features=30, words=64, queries=2, say=lambda text: None)
    assert answer["assignment_of_a_feature"]["same_as_the_package"] == 1
    assert answer["search"]["same_words_as_the_package"] == 1
    assert answer["search"]["largest_difference_of_scores"] < 1e-6
