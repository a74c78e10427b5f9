"""The ranking benchmark on descriptors whose order is known, and on drawn pictures; no figure is judged here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tessera.bench.competitors import REFINEMENTS
from tessera.bench.peers import CODEC_NAMES
from tessera.bench.pictures import make_pictures
from tessera.bench.ranking import describe_photos, mean_average_precision, measure_ranking, to_markdown
from tessera.errors import DataError


def test_average_precision_is_of_the_positives_that_can_be_there() -> None:
    labels = np.array([7, 7, 3, 7])
    ranked = np.array([[0, 2, 1, 3], [2, 0, -1, -1]])
    whole = mean_average_precision(ranked[:1], np.array([7]), labels, 4)
    assert whole == pytest.approx(100 * (2 + (1 / 2 + 2 / 3) + (2 / 3 + 3 / 4)) / 6)
    assert mean_average_precision(ranked[1:], np.array([3]), labels, 4) == 100


def test_every_codec_and_option_is_ranked() -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(30), 12)
    places = rng.standard_normal((30, 64))
    rows = places[labels] + 0.5 * rng.standard_normal((360, 64))
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    report = measure_ranking(rows, labels, queries=40)
    refined = {f"flat, {name}" for name in (*REFINEMENTS, "the whole gallery augmented")}
    assert set(report["rows"]) == {*CODEC_NAMES, *refined}
    for name, row in report["rows"].items():
        assert row["map"] > 90, name
    for name in ("pq1", "fast", "ivf"):
        assert report["rows"][name]["map_100"] == pytest.approx(report["rows"]["flat"]["map_100"], abs=0.5)
    assert "| flat, diffusion |" in to_markdown(report)


def test_queries_without_positives_are_refused() -> None:
    rows = np.eye(20, dtype=np.float32)
    with pytest.raises(DataError, match="another photo"):
        measure_ranking(rows, np.arange(20), queries=5)


def test_photos_are_read_in_the_layout_of_gldv2(tmp_path: Path) -> None:
    names = [f"{i:016x}" for i in range(0xABC0000000000000, 0xABC0000000000004)]
    for path, name in zip(make_pictures(tmp_path / "made", 4, (96, 72)), names, strict=True):
        target = tmp_path / "train" / name[0] / name[1] / name[2] / f"{name}.jpg"
        target.parent.mkdir(parents=True, exist_ok=True)
        path.rename(target)
    (tmp_path / "train_clean.csv").write_text(f"landmark_id,images\n4,{' '.join(names[:2])}\n9,{' '.join(names[2:])}\n")
    descriptors, labels = describe_photos(tmp_path, model="lite", limit=10, size=64)
    assert len(descriptors) == 4
    assert labels.tolist() == [0, 0, 1, 1]
    assert np.allclose(np.linalg.norm(descriptors, axis=1), 1, atol=1e-4)
