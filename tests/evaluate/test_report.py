"""Reports, and `tessera evaluate` through its real entry point with the packaged model."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from oxford_in_small import ColourExtractor, make_oxford
from PIL import Image

from tessera.data.sets.revisited import load_revisited
from tessera.evaluate.method import DescriptorMethod
from tessera.evaluate.reports.report import choose_strips, render_markdown, write_report
from tessera.evaluate.run import Run, RunConfig, run_benchmark


@pytest.fixture
def run(tmp_path: Path) -> Run:
    benchmark = load_revisited("roxford5k", make_oxford(tmp_path / "roxford5k"))
    return run_benchmark(
        benchmark, DescriptorMethod(ColourExtractor(), "colour <1>"), RunConfig(cache_dir=tmp_path / "cache")
    )


def test_the_page_needs_no_other_file_and_frames_every_verdict(run: Run, tmp_path: Path) -> None:
    page = write_report(run, tmp_path / "report").read_text()
    assert not re.search(r"(src|href)='(?!data:)", page)
    assert "<script" not in page
    assert "colour &lt;1&gt;" in page
    assert page.count("<article class='strip'>") == 3
    assert page.count("<figure class='query'>") == 3
    # Each query has three positives and one junk image first, then a wrong one.
    counts = {verdict: page.count(f"<figure class='{verdict}'>") for verdict in ("positive", "junk", "negative")}
    assert counts == {"positive": 9, "junk": 3, "negative": 3}
    first = re.search(r"<figure class='query'><img src='data:image/jpeg;base64,([^']+)'", page)
    assert first is not None
    with Image.open(io.BytesIO(base64.b64decode(first.group(1)))) as picture:
        assert picture.size == (60, 40)
        red, green, _ = picture.convert("RGB").getpixel((20, 6))  # type: ignore[misc]
        assert min(red, green) > 120  # the box's yellow on the query


def test_report_as_json_and_markdown(run: Run, tmp_path: Path) -> None:
    write_report(run, tmp_path / "report")
    content = json.loads((tmp_path / "report" / "report.json").read_text())
    assert content["protocols"]["medium"]["map"] == 1.0
    assert content["queries"][0]["name"] == "query_red"
    assert content["queries"][0]["top"][0].startswith("red_")
    text = render_markdown(run)
    assert "| medium | 100.00 | 100.00 | 100.00 | 100.00 | 3 |" in text
    assert "| fingerprints: images | " in text
    assert "published were 70 and 4,993" in text


def test_strips_are_spread_from_the_worst_to_the_best(run: Run) -> None:
    assert [strip.name for strip in choose_strips(run, count=2)] == ["query_red", "query_blue"]
    assert [strip.num_positives for strip in choose_strips(run)] == [3, 3, 3]


def tessera(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tessera.cli.main", "evaluate", *map(str, arguments)]
    environment = {**os.environ, "COLUMNS": "200", "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=environment)


def test_command_on_revisited_oxford(tmp_path: Path) -> None:
    data = make_oxford(tmp_path / "data")
    options = ("--data", data, "--scales", "1", "--cache", tmp_path / "cache", "--json")
    done = tessera("roxford5k", *options, "--report", tmp_path / "report")
    assert done.returncode == 0, done.stderr
    content = json.loads(done.stdout)
    assert (content["dataset"], content["model"], content["query"]) == ("roxford5k", "lite", "box")
    assert set(content["protocols"]) == {"easy", "medium", "hard"}
    assert all(0 <= score["map"] <= 1 for score in content["protocols"].values())
    assert len(content["protocols"]["hard"]["ap"]) == 3
    assert content["scales"] == [1.0]
    assert (tmp_path / "report" / "report.html").is_file()
    assert "published were 70 and 4,993" in done.stderr
    whole = json.loads(tessera("roxford5k", *options, "--query", "whole").stdout)
    assert whole["query"] == "whole"
    assert whole["described"] == {"network": 3, "cache": 12}
    expanded = json.loads(tessera("roxford5k", *options, "--expand", "aqe", "--rerank", "global").stdout)
    assert (expanded["expand"], expanded["rerank"]) == ("aqe", "global")


def test_command_on_a_folder_and_its_errors(tmp_path: Path) -> None:
    data = make_oxford(tmp_path / "data")
    (data / "mine.csv").write_text("path,label\n" + "".join(f"jpg/red_{i}.jpg,red\n" for i in range(4)))
    cache = ("--cache", tmp_path / "cache", "--scales", "1")
    done = tessera("folder", "--data", data / "mine.csv", *cache)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1].split() == ["all", "100.00", "100.00", "100.00", "100.00", "4"]
    missing = tessera("rparis6k", "--data", data, *cache)
    assert (missing.returncode, missing.stdout) == (1, "")
    assert "there is no gnd_rparis6k.pkl" in missing.stderr
    assert tessera("roxford5k", "--data", data, "--model", "tokn", *cache).returncode == 1
    assert tessera("roxford5k", "--data", data, "--expand", "aq", *cache).returncode == 2
    assert tessera("roxford5k", "--data", data, "--query", "half", *cache).returncode == 2


@pytest.mark.parametrize("command", ["roxford5k", "rparis6k", "folder", "ranks"])
def test_help_ends_with_an_example(command: str) -> None:
    done = tessera(command, "--help")
    assert done.returncode == 0
    assert done.stdout.rstrip().splitlines()[-1].strip().startswith(f"Example: tessera evaluate {command}")
