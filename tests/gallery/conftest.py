"""A gallery of the smallest model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import tessera
from tessera.gallery.catalog.filters import parse_where
from tessera.gallery.engines.engine import Allowed
from tessera.gallery.ingest.importing import DescribedImage


@pytest.fixture
def gallery(tmp_path: Path, small_bundle: Path) -> Iterator[tessera.Gallery]:
    with tessera.Gallery(tmp_path / "gallery", small_bundle) as made:
        yield made


@pytest.fixture
def filled(tmp_path: Path, small_bundle: Path, photo_folder: Path) -> Path:
    """The folder of a gallery with eight pictures, closed."""
    folder = tmp_path / "gallery"
    with tessera.Gallery(folder, small_bundle) as gallery:
        gallery.index(photo_folder)
    return folder


_VALUES = [
    "tower",
    "Tower",
    "",
    "a%b",
    'say "x"\\',
    "1990",
    "01990.0",
    "1.99e3",
    "-5",
    "inf",
    "nan",
    "true",
    "ü",
    "2019",
]
_VALUES += ["2019-06-03", "2019-06", "2019-06-03 10:20", "2019-06-03T10:20:30", "2019-0x", 1990, 1990.5, 1e20, -0.0]
_VALUES += [True, False, [1, "a"], {"b": 2}, None]


@pytest.fixture
def compare_filters(tmp_path: Path, small_bundle: Path) -> Callable[[str], int]:
    """Ask an engine for every comparison with every value, and SQLite too; how many the engine could say itself."""

    def compare(engine: str) -> int:
        generator = np.random.default_rng(3)
        rows = [{"date": value, "rare": value} for value in _VALUES] + [{"other": 1}, {"width": "wide"}]
        images = [
            DescribedImage(f"/p/2019-06-{i}.jpg", generator.normal(size=16), i, 5, row) for i, row in enumerate(rows)
        ]
        asked = [str(value) for value in _VALUES if not isinstance(value, bool | list | dict | None)] + ["false", "5"]
        said = 0
        with tessera.Gallery(tmp_path / "compared", small_bundle) as gallery:
            gallery.add(images)
            gallery.migrate(engine)
            with gallery._store.pin() as view:
                query = generator.normal(size=(1, 16)).astype(np.float32)
                for key in ("date", "rare", "width", "name", "nowhere"):
                    for value in asked:
                        for operator in ("=", "!=", "<", "<=", ">", ">="):
                            conditions = parse_where(f"{key}{operator}{value}")
                            if not view.shown.can_filter(conditions):
                                continue
                            said += 1
                            expected = view.snapshot.matching_ids(conditions).tolist()
                            found = view.index.search(query, 100, allowed=Allowed(conditions, _refuse_ids))[1][0]
                            assert sorted(found[found >= 0].tolist()) == expected, conditions
        return said

    return compare


def _refuse_ids() -> np.ndarray:
    raise AssertionError("the engine asked for ids, though it can say the filter")
