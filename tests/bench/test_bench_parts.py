from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from tessera.bench.parts_peers import measure_peers, to_markdown
from tessera.bench.parts_search import draw_gallery
from tessera.bench.pictures import make_pictures
from tessera.cli.main import app


def test_the_default_search_is_measured(tmp_path):
    words = ["bench", "parts", "-n", "300", "--num-photos", "3", "--queries", "2", "--folder", str(tmp_path), "--json"]
    answer = CliRunner().invoke(app, words, catch_exceptions=False)
    assert answer.exit_code == 0
    report = json.loads(answer.stdout)
    assert report["indexing"]["processor_ratio"] > 1
    search = report["search"]
    assert 0 < search["median_s"] <= search["slowest_s"]
    assert search["verified"] == 10  # of the twenty relatives that each query has
    assert 1_000 < search["bytes_an_image"] < 40_000
    again = json.loads(CliRunner().invoke(app, words, catch_exceptions=False).stdout)
    assert "build_s" in report and "build_s" not in again  # the drawn gallery is found again


def test_a_folder_without_photos_is_refused(tmp_path):
    answer = CliRunner().invoke(app, ["bench", "parts", "--photos", str(tmp_path), "--json"])
    assert "Name a folder of photos" in str(answer.exception)


def test_the_package_and_brute_force_are_asked_on_the_same_gallery(tmp_path):
    pytest.importorskip("asmk")
    pictures = make_pictures(tmp_path / "pictures", 3, (320, 240), seed=0)
    draw_gallery(tmp_path / "drawn", pictures, 100, 2, 0)
    report = measure_peers(tmp_path / "drawn", pictures, 2)
    assert report["images"] == 100 and report["verified"] == 100
    assert all(taken > 0 for taken in report["milliseconds"].values())
    sizes = report["bytes_an_image"]
    assert sizes["package"] > sizes["inverted_file"] and sizes["descriptors"] > 5 * sizes["compact_features"]
    assert "| ASMK*, ms |" in to_markdown(report)
