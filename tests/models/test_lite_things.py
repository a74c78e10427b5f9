"""Labelled photos of things (scripts/lite/photos.py) and their figures (measure_lite.py), on numbers worked by hand."""

from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cv2", reason="the extra 'local' is not installed")


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "scripts" / "lite"))
    return import_module


@pytest.fixture
def folder(tmp_path):
    rows = [
        "path,label,set,role",
        "b.jpg,cans/red,cans,train",
        "a.jpg,cans/red,cans,train",
        "c.jpg,cans/blue,cans,train",
    ]
    rows += ["d.jpg,doors/1,doors,train", "e.jpg,cans/green,cans,val"]
    (tmp_path / "labels.csv").write_text("\n".join(rows) + "\n")
    return tmp_path


def test_labelled_photos_of_a_role_and_sets(script, folder):
    photos = script("photos")
    assert [photo.id for photo in photos.read_labelled(folder)] == ["c.jpg", "a.jpg", "b.jpg", "d.jpg"]
    assert [photo.id for photo in photos.read_labelled(folder, role="val")] == ["e.jpg"]
    cans = photos.read_labelled(folder, ["cans"])
    assert {photo.kind for photo in cans} == {"cans"}
    assert all(photo.landmark < 0 for photo in cans), "no landmark of GLDv2 may share a number with a thing"
    assert photos.group_labelled(cans) == [["a.jpg", "b.jpg"]]
    with pytest.raises(SystemExit, match="windows"):
        photos.read_labelled(folder, ["windows"])


def test_figure_of_a_set_counts_landmarks_as_strangers(script):
    photo = script("photos").Photo
    shown = [photo("l", 3, "val", "object", Path("l"))]
    shown += [photo(name, -1, "val", "cans", Path(name)) for name in "ab"] + [photo("d", -2, "val", "doors", Path("d"))]
    angles = np.deg2rad([10, 0, 15, 90])  # a finds the landmark first, then b; b finds the landmark first, then a
    descriptors = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    # The field's average precision, by trapezoids: one positive at rank 1 gives (0 + 1/2) / 2. The door has no other.
    assert script("measure_lite").score_sets(descriptors, shown) == {"cans": 25.0, "sets": 25.0}
    assert script("measure_lite").score_sets(descriptors[:1], shown[:1]) == {}
