"""Local features on disk: what waits to be written is there for its reader, and locks nobody out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tessera import storage
from tessera.local.feature_cache import FeatureCache
from tessera.local.features import LocalFeatures


def features(seed: int) -> LocalFeatures:
    random = np.random.default_rng(seed)
    values = random.normal(size=(5, 8)).astype(np.float32)
    points = random.uniform(0, 90, (5, 2)).astype(np.float32)
    ones = np.ones(5, np.float32)
    return LocalFeatures(values, points, ones, ones, None, (100, 90))


def test_two_writers_of_one_file_do_not_lock_each_other_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "_BUSY_TIMEOUT_S", 0.1)
    first, second = (FeatureCache(tmp_path / "local.sqlite", exact=True) for _ in range(2))
    first.put("sift", "a", features(0))  # and goes on making the next, however long that takes
    second.put("sift", "b", features(1))
    second.flush()
    assert first.known("sift") == {"a", "b"}
    assert np.array_equal(first.get_many("sift", ["a"])["a"].descriptors, features(0).descriptors)
    assert second.known("sift") == {"b"}
    first.close()
    assert second.known("sift") == {"a", "b"}
    second.close()
