"""Where a catalogue is remote, local features score a shortlist: the answer is that of a local gallery with one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import tessera
from tessera.gallery.results import SearchResult

pytest.importorskip("milvus_lite")
pytestmark = [pytest.mark.filterwarnings("ignore::DeprecationWarning")]
Painter = Callable[..., Path]
IMAGES, SHORTLISTED = 24, 9


def test_a_shortlist_read_from_shards_is_judged_as_one_read_from_a_catalogue(
    tmp_path: Path, small_bundle: Path, painter: Painter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tessera.gallery.search.by_parts.NUM_SHORTLISTED", SHORTLISTED)
    monkeypatch.setattr("tessera.gallery.search.parts_searcher.MOST_SCANNED", 0)  # the local one is as large, too
    photos = [painter(tmp_path / "photos" / f"{i}.png", i // 2, size=(96 + 8 * (i % 2), 96)) for i in range(IMAGES)]
    remote = {"engine": f"milvus:{tmp_path / 'lite.db'}", "catalog": "remote", "storage": str(tmp_path / "storage")}
    with (
        tessera.Gallery(tmp_path / "local", small_bundle) as here,
        tessera.Gallery(tmp_path / "remote", small_bundle, **remote) as there,
    ):
        for gallery in (here, there):
            gallery.index(tmp_path / "photos")
        for options in ({"by": "auto"}, {"by": "local"}, {"by": "auto", "box": (8, 8, 80, 80)}, {"where": "width=96"}):
            for query in photos[:6]:
                local, shard = (judged(gallery.search(query, IMAGES, **options)) for gallery in (here, there))
                assert [said[0] for said in local] == [said[0] for said in shard], options
                for ours, theirs in zip(local, shard, strict=True):
                    assert ours[1:] == pytest.approx(theirs[1:], abs=1e-4), (options, ours[0])
        by_features = here.search(photos[0], IMAGES, by="local")
        assert 0 < len(by_features) <= SHORTLISTED  # or both would have scanned all
        assert by_features[0].inliers > 0


def judged(result: SearchResult) -> list[tuple[str, float, float, int]]:
    return [(hit.path, hit.score, hit.probability or 0.0, hit.inliers or 0) for hit in result]
