"""Learning the projection of `lite` (scripts/lite/learn_head.py), against slow second writings."""

from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

pytest.importorskip("cv2", reason="the extra 'local' is not installed")


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "scripts" / "lite"))
    return import_module


@pytest.fixture
def train(script):
    """Six things of three photos, of two landmarks (0, 1) and four sets' things; two views of 1024 numbers."""
    views = torch.from_numpy(np.random.default_rng(0).standard_normal((18, 2, 1024)).astype(np.float32))
    instances = np.repeat(np.arange(6), 3)
    landmarks = np.repeat([0, 0, -1, -2, -3, -4], 3)
    return script("learn_head").Train(views, instances, landmarks, np.repeat([0, 0, 1, 2, 3, 4], 3))


def test_supervised_contrast_is_khoslas_and_leaves_other_views_of_a_landmark_out(script):
    rows = F.normalize(torch.from_numpy(np.random.default_rng(1).standard_normal((7, 5))), dim=1)
    instances, landmarks = torch.tensor([0, 0, 0, 1, 1, 2, 2]), torch.tensor([9, 9, 9, 9, 9, 3, 3])
    losses = []
    for a in range(7):
        positives = [p for p in range(7) if p != a and instances[p] == instances[a]]
        others = [o for o in range(7) if o in positives or (o != a and landmarks[o] != landmarks[a])]
        total = sum(np.exp(float(rows[a] @ rows[o]) / 0.1) for o in others)
        losses.append(np.mean([-np.log(np.exp(float(rows[a] @ rows[p]) / 0.1) / total) for p in positives]))
    found = script("learn_head").supervised_contrast(rows, instances, landmarks, 0.1)
    assert float(found) == pytest.approx(float(np.mean(losses)), abs=1e-9)


def test_spread_is_the_distance_to_the_nearest_stranger(script):
    angles = torch.deg2rad(torch.tensor([0.0, 10.0, 90.0], dtype=torch.float64))
    rows = torch.stack([angles.cos(), angles.sin()], dim=1)
    chord = [2 * np.sin(np.deg2rad(degrees) / 2) for degrees in (90, 80, 80)]  # the first two are one thing
    found = script("learn_head").spread(rows, torch.tensor([0, 0, 1]))
    assert float(found) == pytest.approx(-np.log(chord).mean(), abs=1e-6)


def test_sub_centres_take_the_nearest_and_punish_the_right_one(script, train):
    groups = [np.arange(first, first + 3) for first in range(0, 18, 3)]
    centres = script("learn_head").SubCentres(train, groups, 3, 0.2, 16.0, seed=0)
    rows = np.array([0, 7])
    descriptors = F.normalize(train.views[rows, 0], dim=1)
    losses = []
    for row, descriptor in zip(rows, descriptors, strict=True):
        own = row // 3
        unit = F.normalize(centres.centres.detach(), dim=1).reshape(6, 3, 1024)
        cosines = (unit @ descriptor).amax(dim=1).double().numpy()
        cosines[own] = np.cos(np.arccos(cosines[own]) + 0.2)
        same = [g for g in range(6) if g != own and train.landmarks[groups[g][0]] == train.landmarks[row]]
        logits = 16 * np.delete(cosines, same)
        losses.append(np.log(np.exp(logits).sum()) - 16 * cosines[own])
    found = centres.loss(descriptors, rows, torch.from_numpy(train.landmarks[rows])).detach()
    assert float(found) == pytest.approx(float(np.mean(losses)), abs=1e-4)


def test_hard_batches_hold_pairs_and_never_mine_the_own_landmark(script, train):
    source = script("learn_head").Batches(train, "hard", 8, seed=0)
    rows, views = source.draw()  # before anything is mined: strangers
    assert len(rows) == len(views) == 8
    train.views[3:6] = train.views[0:3]  # the other view of landmark 0 is its nearest, and no stranger
    source.mine(torch.eye(1024), count=3)
    assert source.near.shape == (6, 3)
    for group, others in enumerate(source.near):
        assert group not in others
        assert {0: 1, 1: 0}.get(group) not in others
    rows, _ = source.draw()
    _, counts = np.unique(train.instances[rows], return_counts=True)
    assert set(counts) == {2}


def test_first_photos_of_a_thing_come_first(script):
    photo = script("photos").Photo
    photos = [photo(name, 1, "train", "object", Path(name)) for name in "abc"]
    photos += [photo(name, -1, "train", "cans", Path(name)) for name in "xy"]
    photos += [photo("z", -2, "train", "cans", Path("z"))]
    ranks = script("cache_tokens").rank_in_instance(photos, [["c", "a"]])
    assert ranks.tolist() == [1, -1, 0, 0, 1, -1]
