from __future__ import annotations

import json

from typer.testing import CliRunner

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
    assert 0 < search["add_s"] < 1 and 1_000 < search["bytes_an_image"] < 40_000
    again = json.loads(CliRunner().invoke(app, words, catch_exceptions=False).stdout)
    assert "build_s" in report and "build_s" not in again  # the drawn gallery is found again


def test_a_folder_without_photos_is_refused(tmp_path):
    answer = CliRunner().invoke(app, ["bench", "parts", "--photos", str(tmp_path), "--json"])
    assert "Name a folder of photos" in str(answer.exception)
