"""The contest in small: every peer that is installed, at all its settings; and what is made of the points."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from tessera.bench import contest, views
from tessera.bench.contest import COLUMNS, TARGETS, measure_contest, operating_points, time_at, to_markdown
from tessera.bench.fitting import fit_groups
from tessera.bench.peers import PEERS, is_missing, make_competitor
from tessera.bench.synthesis import Fit, Synthesis, load_fit
from tessera.bench.worker import PHASES
from tessera.cli.main import app
from tessera.errors import DataError, UsageError
from tessera.index.codecs.recall_calibration import RecallCalibration

GRAPHS = {"faiss HNSW", "faiss HNSW SQ8", "faiss HNSW fp16", "hnswlib", "usearch", "usearch i8", "svs"}


@pytest.fixture
def faiss_threads() -> Iterator[None]:
    before = faiss.omp_get_max_threads()
    yield
    faiss.omp_set_num_threads(before)


def in_this_process(work: Path, name: str, phase: str) -> dict[str, Any]:
    return PHASES[phase](work, name, json.loads((work / "setting.json").read_text()))


@pytest.mark.usefixtures("faiss_threads")
def test_every_peer_that_is_installed_takes_part(tmp_path: Path) -> None:
    report = measure_contest(count=1500, dim=64, queries=10, rounds=1, groups=True, run=in_this_process)
    there = {name for name in PEERS if not is_missing(make_competitor(name))} - set(contest._SLOW)
    assert {row["competitor"] for row in report["rows"]} == {*there, "fast", "ivf"}
    for name in {*there, "fast", "ivf"}:
        mine = [row for row in report["rows"] if row["competitor"] == name]
        assert len(mine) == 2 * len(make_competitor(name).points())
        assert max(row["recall"] for row in mine if row["k"] == 10) > (0.9 if name in GRAPHS else 0.95), name
        assert all(row["cpu_ms"] > 0 for row in mine)
        assert sum(row["pareto"] for row in mine) >= 2
    contest.write_csv(report, tmp_path / "curve.csv")
    with (tmp_path / "curve.csv").open() as file:
        written = list(csv.DictReader(file))
    assert tuple(written[0]) == COLUMNS
    assert len(written) == len(report["rows"])
    contest.main([tmp_path / "curve.csv"], tmp_path / "summary.csv", tmp_path)
    assert "<svg" in (tmp_path / "curve.svg").read_text()
    with (tmp_path / "summary.csv").open() as file:
        summary = list(csv.DictReader(file))
    assert {row["competitor"] for row in summary} == {*there, "fast", "ivf"}
    again = contest.summarise(report["rows"])
    assert [row["competitor"] for row in summary] == [one["competitor"] for one in again]
    assert all(one["most_at_10"] > 0.9 for one in again)
    assert all(f"| {name} |" in to_markdown(report) for name in there)


@pytest.mark.usefixtures("faiss_threads")
def test_more_candidates_give_more_recall() -> None:
    wanted = ("fast", "faiss PCA128 fast-scan refined")
    report = measure_contest(count=3000, dim=64, queries=10, rounds=2, only=wanted, run=in_this_process)
    for name in wanted:
        recalls = [row["recall"] for row in report["rows"] if row["competitor"] == name and row["k"] == 100]
        assert recalls == sorted(recalls)
        assert recalls[-1] > recalls[0]


def test_a_peer_that_fails_is_said_and_the_others_go_on() -> None:
    def run(work: Path, name: str, phase: str) -> dict[str, Any]:
        if phase == "build":
            return {"failed": "build: exit 1: no"} if name == "ivf" else {"build_cpu_s": 1, "code_bytes": 1, "count": 9}
        point = {"settings": {}, "recall": 1.0, "cpu_ms": 2.0, "wall_ms": 3.0}
        return {"points": [point | {"k": k} for k in TARGETS], "memory_bytes": 4}

    report = measure_contest(count=1000, dim=32, queries=4, only=("fast", "ivf"), run=run)
    assert report["missing"] == {"ivf": "build: exit 1: no"}
    assert "- ivf: build: exit 1: no" in to_markdown(report)
    assert "| fast | 2.00 | 2.00 | 4 | 1 | 1.0 |" in to_markdown(report)


def test_operating_points_are_those_that_nothing_beats() -> None:
    given = [(1.0, 0.5), (2.0, 0.4), (3.0, 0.9), (3.0, 0.8), (9.0, 0.99), (10.0, 0.99)]
    points = [{"k": 10, "cpu_ms": ms, "recall": recall} for ms, recall in given]
    best = [(point["cpu_ms"], point["recall"]) for point in operating_points(points, 10)]
    assert best == [(1.0, 0.5), (3.0, 0.9), (9.0, 0.99)]
    assert operating_points(points, 100) == []


def test_times_between_points_follow_the_logarithm() -> None:
    points = [{"k": 10, "cpu_ms": ms, "recall": recall} for ms, recall in ((1.0, 0.9), (4.0, 1.0))]
    assert time_at(points, 10, 0.95) == pytest.approx(2.0)
    assert time_at(points, 10, 0.5) == 1.0
    assert time_at(points, 10, 1.0) == pytest.approx(4.0)
    assert time_at(points[:1], 10, 0.95) is None


def test_a_scaled_calibration_has_other_candidates_only() -> None:
    half = RecallCalibration.cautious().scaled(0.5)
    assert (half.num_candidates_10, half.num_rescored_100) == (256, 1024)
    assert half.nprobe == 1
    assert RecallCalibration.cautious().scaled(1e-9).num_rescored_10 == 1


def test_the_command_draws_a_curve(tmp_path: Path) -> None:
    words = ["bench", "search", "-n", "1000", "--dim", "32", "--queries", "4", "--curve", "--rounds", "1"]
    found = CliRunner().invoke(app, [*words, "--only", "fast", "--csv", str(tmp_path / "curve.csv")])
    assert found.exit_code == 0, found.output
    assert "| fast |" in found.stdout
    assert (tmp_path / "curve.csv").read_text().startswith("competitor,settings,k,recall")
    refused = CliRunner().invoke(app, ["bench", "search", "--csv", "curve.csv"])
    assert isinstance(refused.exception, UsageError)


def test_views_of_a_photo_are_its_parts_and_copies() -> None:
    painted = np.random.default_rng(0).integers(0, 256, (90, 120, 3), dtype=np.uint8)
    photo = Image.fromarray(painted)
    drawn = list(views.draw_views(photo, np.random.default_rng(1)))
    assert 5 <= len(drawn) <= 18
    assert drawn[0] is photo
    assert np.array_equal(np.asarray(photo), painted)
    assert all(min(view.size) >= 32 and view.mode == "RGB" for view in drawn)
    again = list(views.draw_views(photo, np.random.default_rng(1)))
    assert all(np.array_equal(a, b) for a, b in zip(drawn, again, strict=True))


def test_views_are_described_once_and_searched(tmp_path: Path, photo_folder: Path, small_bundle: Path) -> None:
    paths = views.find_photos([photo_folder])
    made = {"model": str(small_bundle), "size": 64, "limit": 10_000, "threads": 1}
    count = views.describe_views(paths, tmp_path / "views", **made)
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "views").iterdir()}
    assert views.describe_views(paths, tmp_path / "views", **made) == count
    assert files == {path: path.stat().st_mtime_ns for path in (tmp_path / "views").iterdir()}
    rows, photos = views.read_views(tmp_path / "views")
    assert rows.shape == (count, 16)
    assert set(photos) == set(range(len(paths)))
    with pytest.raises(UsageError, match=f"has {count} descriptors"):
        measure_contest(count=1000, dim=16, queries=2, views=tmp_path / "views")
    with pytest.raises(DataError, match="holds no views"):
        views.read_views(photo_folder)


def test_groups_are_fitted_and_made() -> None:
    spectrum = (1 / 64,) * 64
    fit = Fit("a", "b", 100, 0.2, spectrum, (0.8, 0.8), (0.8, 0.8), (0.5, 0.5))
    world = Synthesis(4000, 64, fit=fit, groups=True)
    rows = np.concatenate(list(world.blocks()))
    nearest = np.median(np.sort(world.queries(50) @ rows.T, axis=1)[:, ::-1], axis=0)
    assert nearest[4] == pytest.approx(0.8, abs=0.06)  # of its own place
    assert nearest[40] == pytest.approx(0.5, abs=0.12)  # of its scene
    assert nearest[200] < 0.5
    photos = np.repeat(np.arange(400), 10)
    views_of = np.concatenate([rows[:1]] * 4000) * 0.5 + rows  # any rows will do: only which is whose matters
    views_of /= np.linalg.norm(views_of, axis=1)[:, None]
    views_of[1::10] = views_of[::10]
    fitted = fit_groups(fit, views_of.astype(np.float32), photos)
    assert fitted.group_cosines[-1] == pytest.approx(1.0, abs=1e-4)
    assert fitted.scene_cosines[-1] < 1.0
    with pytest.raises(DataError, match="no groups"):
        Synthesis(100, 64, fit=Fit("a", "b", 100, 0.2, spectrum, (0.8, 0.8)), groups=True)


def test_the_packaged_fit_knows_groups() -> None:
    fit = load_fit()
    assert np.all(np.diff(fit.group_cosines) >= 0)
    assert np.median(fit.group_cosines) > np.median(fit.scene_cosines) > fit.mean_energy
