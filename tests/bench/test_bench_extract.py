"""The benchmark's own bookkeeping, on pictures and collections small enough for a test; no figure is judged here."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import tessera.bench.extract as bench
from tessera.bench.networks import measure_networks, networks_markdown
from tessera.bench.pictures import make_pictures
from tessera.bench.runtimes import TOLERANCE, runtimes_markdown
from tessera.cli.main import app


@pytest.fixture
def small_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "SMALL", (64, 48))
    monkeypatch.setattr(bench, "LARGE", (200, 150))
    monkeypatch.setattr(bench, "_COLLECTIONS", (6, 12))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def test_pictures_differ_and_are_of_the_size_asked_for(tmp_path: Path) -> None:
    paths = make_pictures(tmp_path, 3, (120, 80))
    assert len({path.read_bytes() for path in paths}) == 3
    with Image.open(paths[0]) as image:
        assert image.size == (120, 80)
        assert np.asarray(image).std() > 10
    again = make_pictures(tmp_path / "again", 1, (120, 80))
    assert again[0].read_bytes() == paths[0].read_bytes()


@pytest.mark.usefixtures("small_pictures")
def test_the_report_has_rates_and_memory_and_its_ratio_adds_up() -> None:
    answer = CliRunner().invoke(
        app, ["bench", "extract", "--photos", "8", "--large", "4", "--repeats", "1", "--memory", "--json"]
    )
    assert answer.exit_code == 0, answer.output
    report = json.loads(answer.stdout)
    assert set(report["rates"]) == {"small", "12-megapixel"}
    for rate in report["rates"].values():
        expected = (rate["network_ms"] + rate["decode_ms"]) / rate["index_ms"]
        assert rate["ratio"] == pytest.approx(expected, rel=0.01)
        assert rate["images_per_s"] == pytest.approx(1e3 / rate["index_ms"], rel=0.01)
        assert rate["work_ratio"] > 0
    memory = report["memory"]
    assert memory["images"] == [6, 12]
    assert memory["growth"] == pytest.approx(memory["peak_mb"][1] / memory["peak_mb"][0], abs=0.01)
    assert 10 < memory["peak_mb"][0] < 5000
    text = bench.to_markdown(report)
    assert "12-megapixel (4)" in text
    assert "12 unchanged files" in text


def test_every_kind_of_network_is_timed_beside_its_backbone() -> None:
    pytest.importorskip("torch")
    report = measure_networks(side=64, repeats=1, names=["token-lite", "how-r18"])
    first, second = report["rows"]
    assert (first["name"], first["scales"], first["backbone"]) == ("token-lite", 3, "efficientnet-lite0-levels")
    assert (second["name"], second["scales"], second["memory_gib_1m"]) == ("how-r18", 7, None)
    assert first["memory_gib_1m"] == pytest.approx(1024 * 4e6 / 2**30, abs=0.01)
    for row in report["rows"]:
        assert row["ratio"] == pytest.approx(row["latency_ms"] / row["backbone_ms"], rel=0.1)
    assert "| token-lite | 3 | 1024 |" in networks_markdown(report)


def test_every_runtime_is_held_against_the_plain_network() -> None:
    pytest.importorskip("torch")
    answer = CliRunner().invoke(
        app, ["bench", "extract", "--plain", "token-lite", "--side", "96", "--repeats", "1", "--json"]
    )
    assert answer.exit_code == 0, answer.output
    report = json.loads(answer.stdout)
    assert [row["name"] for row in report["rows"]][:3] == ["plain torch", "onnx", "torch"]
    assert all(row["difference"] < TOLERANCE for row in report["rows"])
    assert report["rows"][0]["ratio"] == 1.0
    assert "| onnx |" in runtimes_markdown(report)


def test_a_network_that_is_not_there_is_refused() -> None:
    pytest.importorskip("torch")
    answer = CliRunner().invoke(app, ["bench", "extract", "--plain", "token-relased"])
    assert answer.exit_code == 1
