"""The gallery's commands through their real entry point: exit code, stdout and stderr apart."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tessera

Run = Callable[..., Any]
Painter = Callable[..., Path]

KEYS = {"rank", "id", "path", "score", "metadata", "probability", "verified", "inliers", "parts"}


def test_index_search_and_stats_speak_json(run: Run, indexed: Path, photo_folder: Path) -> None:
    again = json.loads(run("index", photo_folder, "--json").stdout)
    assert {key: again[key] for key in ("images", "added", "unchanged", "failed")} == {
        "images": 8,
        "added": 0,
        "unchanged": 8,
        "failed": 0,
    }
    answer = run("search", photo_folder / "photo2.png", "-k", "3", "--json")
    assert (answer.returncode, answer.stderr) == (0, "")
    found = json.loads(answer.stdout)
    assert set(found) == {"results", "timing_ms", "certain"}
    assert set(found["timing_ms"]) == {"embed", "search", "total"}
    assert [set(result) for result in found["results"]] == [KEYS] * 3
    assert found["results"][0]["path"] == str(photo_folder / "photo2.png")
    assert [result["rank"] for result in found["results"]] == [0, 1, 2]
    stats = json.loads(run("stats", "--json").stdout)
    assert (stats["images"], stats["dim"], stats["engine"], stats["index"]["codec"]) == (8, 16, "faiss", "flat")


def test_the_command_line_and_python_answer_the_same(run: Run, indexed: Path, photo_folder: Path) -> None:
    answer = json.loads(run("search", photo_folder / "photo4.png", "--box", "0,0,30,30", "--json").stdout)
    with tessera.Gallery(indexed) as gallery:
        result = gallery.search(photo_folder / "photo4.png", box=(0, 0, 30, 30))
    assert answer["results"] == result.to_json()["results"]


def test_tables_go_to_stdout_and_the_rest_to_stderr(run: Run, indexed: Path, photo_folder: Path) -> None:
    answer = run("search", photo_folder / "photo2.png", "-k", "2")
    lines = [line.split("\t") for line in answer.stdout.splitlines()]
    assert [len(line) for line in lines] == [5, 5]
    assert lines[0][4] == os.path.relpath(photo_folder / "photo2.png")
    assert answer.stderr == ""


def test_stats_say_all_that_lies_on_disk(run: Run, indexed: Path) -> None:
    answer = json.loads(run("stats", "--json").stdout)
    files = sum(path.stat().st_size for path in indexed.rglob("*") if path.is_file())
    assert abs(answer["disk_bytes"] - files) < 100_000  # the catalogue's journal comes and goes
    features = answer["local_features"]
    assert 0 < features["bytes"] < answer["catalog_bytes"]
    parts = answer["catalog_bytes"] + answer["index"]["bytes"] + features["index"]["bytes"]
    assert abs(answer["disk_bytes"] - parts) < 100_000
    shown = dict(line.strip().split("\t") for line in run("stats").stdout.splitlines())
    assert shown["images"] == "8"
    assert f"local features of {features['images']} images" in shown["catalogue"]
    assert {"on disk", "index of descriptors", "inverted file"} < shown.keys()


def test_filters_by_metadata(run: Run, indexed: Path, photo_folder: Path) -> None:
    table = photo_folder / "labels.csv"
    table.write_text("path,label,year\nphoto0.png,a,1990\nphoto2.png,a,2000\nphoto4.png,b,2010\n")
    assert run("index", table).returncode == 0
    query = photo_folder / "photo6.png"
    answer = json.loads(run("search", query, "--where", "label=a", "--where", "year>1995", "--json").stdout)
    assert [Path(result["path"]).name for result in answer["results"]] == ["photo2.png"]
    assert answer["results"][0]["metadata"] == {"label": "a", "year": "2000"}
    nothing = run("search", query, "--where", "label=z", "--json")
    assert (nothing.returncode, json.loads(nothing.stdout)["results"]) == (0, [])
    wrong = run("search", query, "--where", "label")
    assert wrong.returncode == 2
    assert "KEY=VALUE" in wrong.stderr


def test_remove_check_and_migrate(run: Run, indexed: Path, photo_folder: Path, painter: Painter) -> None:
    extra = painter(photo_folder / "extra.png", 99)
    assert run("index", extra).returncode == 0
    assert json.loads(run("remove", extra, "--json").stdout) == {"removed": 1, "images": 8}
    gone = run("remove", extra)
    assert gone.returncode == 1
    assert "Nothing was removed" in gone.stderr
    assert run("check").stdout == "gallery.tessera is sound: 8 images\n"
    (indexed / "index" / "manifest.json").unlink()
    damaged = run("check", "--json")
    assert damaged.returncode == 1
    assert json.loads(damaged.stdout)["ok"] is False
    repaired = run("check", "--repair", "--json")
    assert repaired.returncode == 0
    assert [finding["repaired"] for finding in json.loads(repaired.stdout)["findings"]] == [True]
    assert run("check").returncode == 0
    unknown = run("migrate", "--engine", "faisss")
    assert unknown.returncode == 2
    assert "Did you mean 'faiss'" in unknown.stderr
    assert json.loads(run("migrate", "--engine", "faiss", "--json").stdout) == {"engine": "faiss", "images": 8}


def test_the_gallery_may_be_named_by_the_environment(
    run: Run, indexed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert run("stats").returncode == 1
    monkeypatch.setenv("TESSERA_GALLERY", str(indexed))
    assert json.loads(run("stats", "--json").stdout)["images"] == 8


# -- bad input -------------------------------------------------------------------------------------------------------
