"""The search benchmark: its descriptors are what they claim, and a small run measures every competitor."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from tessera.bench import search as bench_search
from tessera.bench.competitors import REFINEMENTS
from tessera.bench.fitting import fit_descriptors
from tessera.bench.peers import CODEC_NAMES, PEERS
from tessera.bench.search import check_enough_disk, copies_of, exact_rows, measure_search, to_markdown
from tessera.bench.synthesis import Fit, Synthesis, hadamard, load_fit, save_fit
from tessera.bench.worker import recall
from tessera.cli.main import app
from tessera.errors import DataError, TesseraError, UsageError


def small_fit(mean_energy: float = 0.2, cosine: float = 0.8) -> Fit:
    spectrum = tuple(float(value) for value in 1 / np.arange(1, 65))
    return Fit("a", "b", 100, mean_energy, spectrum, (cosine, cosine))


def test_hadamard_is_the_matrix_of_signs() -> None:
    matrix = np.array([[(-1) ** bin(i & j).count("1") for j in range(8)] for i in range(8)]) / np.sqrt(8)
    rows = np.random.default_rng(0).standard_normal((5, 8)).astype(np.float32)
    assert np.allclose(hadamard(rows), rows @ matrix, atol=1e-6)


def test_descriptors_are_unit_seeded_and_queries_are_others() -> None:
    world = Synthesis(9000, 64, seed=3, fit=small_fit())
    rows = np.concatenate(list(world.blocks()))
    assert rows.shape == (9000, 64)
    assert np.allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)
    again = np.concatenate(list(Synthesis(9000, 64, seed=3, fit=small_fit()).blocks()))
    assert np.array_equal(rows, again)
    other = np.concatenate(list(Synthesis(9000, 64, seed=4, fit=small_fit()).blocks()))
    assert not np.allclose(rows, other)
    assert (world.queries(50) @ rows.T).max() < 0.9999


@pytest.mark.parametrize("dim", [64, 96])
def test_descriptors_have_the_fitted_spectrum_mean_and_neighbours(dim: int) -> None:
    rows = np.concatenate(list(Synthesis(8000, dim, fit=small_fit()).blocks()))
    found = fit_descriptors(rows[::2], model="a", fingerprint="b")
    assert found.mean_energy == pytest.approx(0.2, abs=0.03)
    wanted = np.interp((np.arange(dim) + 0.5) / dim, (np.arange(64) + 0.5) / 64, 1 / np.arange(1, 65))
    wanted /= wanted.sum()
    assert np.abs(np.log(np.array(found.eigenvalues[:20]) / wanted[:20])).max() < 0.35
    assert np.median(found.neighbour_cosines) == pytest.approx(0.85, abs=0.06)


def test_a_fit_survives_its_file(tmp_path: Path) -> None:
    save_fit(small_fit(), tmp_path / "fit.json")
    assert load_fit(tmp_path / "fit.json") == small_fit()
    (tmp_path / "fit.json").write_text("{")
    with pytest.raises(DataError, match="fitting"):
        load_fit(tmp_path / "fit.json")


def test_the_packaged_fit_is_whole() -> None:
    fit = load_fit()
    assert fit.count >= 100
    assert sum(fit.eigenvalues) == pytest.approx(1, abs=0.01)
    assert np.all(np.diff(fit.eigenvalues) <= 1e-5)  # where the power law takes over there may be a step
    assert np.all(np.diff(fit.neighbour_cosines) >= 0)


def test_recall_is_the_share_found() -> None:
    truth = np.array([[1, 2, 3, 4]])
    assert recall(np.array([[1, 9, 2, 8]]), truth, 1) == 1.0
    assert recall(np.array([[1, 9, 2, 8]]), truth, 2) == 0.5
    assert recall(np.array([[1, 9, 2, 8]]), truth, 4) == 0.5


def test_exact_rows_are_the_nearest() -> None:
    rows = np.concatenate(list(Synthesis(1500, 64, fit=small_fit()).blocks())).astype(np.float16)
    queries = Synthesis(1500, 64, fit=small_fit()).queries(4)
    slow = np.argsort(-(queries @ rows.astype(np.float32).T), axis=1)[:, :100]
    assert np.array_equal(exact_rows(rows, queries)[:, :10], slow[:, :10])


@pytest.mark.slow
def test_a_small_run_measures_everything() -> None:
    chosen = ["flat", "pq8", "fast", "numpy", "faiss IndexPQ", "faiss HNSW", "hnswlib", "usearch"]
    told: list[str] = []
    report = measure_search(count=3000, dim=64, queries=12, graph_count=1000, only=chosen, say=told.append)
    assert list(report["competitors"]) == chosen
    assert set(chosen) < {*CODEC_NAMES, *PEERS}
    for name, row in report["competitors"].items():
        if "missing" in row:
            continue
        assert "failed" not in row, (name, row)
        assert row["median_ms"] > 0
        assert row["recall"]["10"] > 0.3, name
        assert row["disk_bytes"] > 0
    ours = report["competitors"]
    assert ours["flat"]["recall"] == {"1": 1.0, "10": 1.0, "100": 1.0}
    assert ours["fast"]["recall"]["10"] >= 0.95
    assert set(ours["fast"]["refined_ms"]) == set(REFINEMENTS)
    assert all(value > 0 for value in ours["fast"]["refined_ms"].values())
    assert ours["faiss HNSW"]["count"] == 1000
    table = to_markdown(report)
    assert "| flat |" in table
    assert all(line in told for line in table.splitlines() if line.startswith(("| flat", "| fast", "| faiss")))
    assert "faiss HNSW (on 1,000)" in table


def test_a_peer_that_is_not_installed_is_said_to_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_search, "is_missing", lambda competitor: competitor.needs == "hnswlib")
    report = measure_search(count=1000, dim=32, queries=4, only=["hnswlib"])
    assert "not installed" in report["competitors"]["hnswlib"]["missing"]
    assert "hnswlib: hnswlib is not installed" in to_markdown(report)


def test_the_command_answers_in_json() -> None:
    result = CliRunner().invoke(
        app, ["bench", "search", "-n", "1000", "--dim", "32", "--queries", "4", "--only", "flat", "--json"]
    )
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["competitors"]["flat"]["recall"]["1"] == 1.0
    assert report["count"] == 1000


def test_without_peers_only_our_codecs_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_search, "_run", lambda work, name, keep: {"missing": "not run"})
    report = measure_search(count=1000, dim=32, queries=4, peers=False)
    assert tuple(report["competitors"]) == CODEC_NAMES


def test_what_is_kept_is_not_built_again(tmp_path: Path) -> None:
    asked = {"count": 1000, "dim": 32, "queries": 4, "only": ["flat"], "folder": tmp_path / "kept", "keep": True}
    first = measure_search(**asked)["competitors"]["flat"]
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "kept").rglob("*") if path.is_file()}
    told: list[str] = []
    again = measure_search(**asked, say=told.append)["competitors"]["flat"]
    assert "making descriptors" not in told
    assert again["build_s"] == first["build_s"]
    assert again["recall"] == first["recall"]
    assert files == {path: path.stat().st_mtime_ns for path in files}
    with pytest.raises(UsageError, match="another --folder"):
        measure_search(**asked | {"queries": 5})


def test_keeping_needs_a_folder() -> None:
    with pytest.raises(UsageError, match="--folder"):
        measure_search(count=1000, dim=32, queries=4, only=["flat"], keep=True)


def test_an_unknown_competitor_is_refused() -> None:
    with pytest.raises(UsageError, match="Did you mean 'usearch'"):
        measure_search(count=1000, dim=32, queries=4, only=["usearh"])


def test_disk_is_asked_for_what_competitors_write(tmp_path: Path) -> None:
    assert [copies_of(name) for name in ("fast", "numpy")] == [1, 2]
    check_enough_disk(tmp_path, 1000, 64, 2)
    with pytest.raises(TesseraError, match="less than the 4096000 GB"):
        check_enough_disk(tmp_path, 10**12, 1024, 1)
