"""`tessera evaluate ranks` through its real entry point, and the files it reads."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tessera.data.ground_truth import read_ground_truth
from tessera.errors import DataError, EvaluationError
from tessera.evaluate.ranks import evaluate_ranks, read_ranks


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tessera.cli.main", "evaluate", *map(str, arguments)]
    wide = {**os.environ, "COLUMNS": "200"}
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=wide)


@pytest.fixture(scope="module")
def case(golden_dir: Path) -> dict[str, Any]:
    return json.loads((golden_dir / "revisitop" / "case0.json").read_text())  # type: ignore[no-any-return]


@pytest.fixture
def files(case: dict[str, Any], tmp_path: Path) -> dict[str, Path]:
    """The golden case in each form that the command admits."""
    paths = {name: tmp_path / name for name in ("list.json", "dict.json", "list.pkl", "dict.pkl", "r.npy", "r.json")}
    whole = {
        "gnd": [{**lists, "bbx": [0.0, 1.0, 2.5, 3.0]} for lists in case["gnd"]],
        "imlist": [f"im{i}" for i in range(case["n_db"])],
        "qimlist": [f"q{i}" for i in range(case["n_queries"])],
    }
    arrays = [{name: np.array(ids) for name, ids in lists.items()} for lists in case["gnd"]]
    paths["list.json"].write_text(json.dumps(case["gnd"]))
    paths["dict.json"].write_text(json.dumps(whole))
    paths["list.pkl"].write_bytes(pickle.dumps(arrays))
    paths["dict.pkl"].write_bytes(pickle.dumps(whole, protocol=2))
    np.save(paths["r.npy"], np.array(case["ranks_db_by_query"]).T)
    paths["r.json"].write_text(json.dumps(case["ranks_db_by_query"]))
    return paths


@pytest.mark.parametrize("truth", ["list.json", "dict.json", "list.pkl", "dict.pkl"])
@pytest.mark.parametrize("ranks", ["r.npy", "r.json"])
def test_every_form_gives_the_golden_figures(
    case: dict[str, Any], files: dict[str, Path], truth: str, ranks: str
) -> None:
    result = evaluate_ranks(files[truth], files[ranks]).to_json()
    for letter, name in (("E", "easy"), ("M", "medium"), ("H", "hard")):
        expected, found = case["expected"][letter], result["protocols"][name]
        assert found["map"] == pytest.approx(expected["mAP"], abs=1e-12)
        assert [value is None for value in found["ap"]] == [value is None for value in expected["APs"]]
        assert found["ap"] == pytest.approx(expected["APs"], abs=1e-12)
        assert list(found["mp"]) == ["1", "5", "10"]
        assert list(found["mp"].values()) == pytest.approx(expected["mPk"], abs=1e-12)


def test_command_prints_json_and_a_table(case: dict[str, Any], files: dict[str, Path]) -> None:
    done = run("ranks", "--ground-truth", files["dict.pkl"], "--ranks", files["r.npy"], "--json")
    assert (done.returncode, done.stderr) == (0, "")
    content = json.loads(done.stdout)
    assert list(content) == ["dataset", "model", "query", "protocols"]
    assert content["protocols"]["hard"]["map"] == pytest.approx(case["expected"]["H"]["mAP"], abs=1e-12)
    table = run("ranks", "--ground-truth", files["list.json"], "--ranks", files["r.json"]).stdout
    assert table.splitlines()[0].split() == ["protocol", "mAP", "mP@1", "mP@5", "mP@10", "queries"]
    assert table.splitlines()[2].split() == ["medium", "33.67", "63.64", "48.18", "39.09", "11"]


def test_a_protocol_without_a_figure_says_why_and_keeps_the_others(tmp_path: Path) -> None:
    (tmp_path / "g.json").write_text('[{"easy": [], "hard": [1], "junk": []}]')
    (tmp_path / "r.json").write_text("[[1, 0]]")
    files = ("--ground-truth", tmp_path / "g.json", "--ranks", tmp_path / "r.json")
    done = run("ranks", *files, "--json")
    assert done.returncode == 0
    reason = "protocol easy: no query has a positive, so that there is nothing to average."
    assert done.stderr == f"no figure for easy: {reason}\n"
    protocols = json.loads(done.stdout)["protocols"]
    assert protocols["hard"]["map"] == 1.0
    assert protocols["easy"] == {
        "map": None,
        "ap": [None],
        "mp": {"1": None, "5": None, "10": None},
        "error": reason,
    }
    asked = run("ranks", *files, "--protocol", "easy")
    assert (asked.returncode, asked.stdout, asked.stderr) == (1, "", f"error: {reason}\n")
    assert run("ranks", *files, "--protocol", "hard").stdout.splitlines()[1].split()[1] == "100.00"


@pytest.mark.parametrize("name", ["all_queries_empty", "truncated_ranks_no_positive_found"])
def test_command_errors_are_one_sentence_and_exit_1(golden_dir: Path, tmp_path: Path, name: str) -> None:
    case = json.loads((golden_dir / "revisitop" / "edge.json").read_text())[name]
    (tmp_path / "g.json").write_text(json.dumps(case["gnd"]))
    (tmp_path / "r.json").write_text(json.dumps(case["ranks"]))
    failed = run("ranks", "--ground-truth", tmp_path / "g.json", "--ranks", tmp_path / "r.json", "--json")
    assert (failed.returncode, failed.stdout) == (1, "")
    assert failed.stderr.startswith("error: protocol easy: ")
    assert "Traceback" not in failed.stderr
    assert run("ranks", "--ranks", tmp_path / "r.json").returncode == 2


def test_truncated_lists_of_different_lengths(tmp_path: Path) -> None:
    (tmp_path / "g.json").write_text('[{"easy": [0, 3]}, {"easy": [1]}]')
    (tmp_path / "r.json").write_text("[[0], [2, 1, 0]]")
    result = evaluate_ranks(tmp_path / "g.json", tmp_path / "r.json", protocols=["easy"])
    assert result.protocols["easy"].ap.tolist() == [0.5, 0.25]


def test_one_list_of_positives_has_one_protocol(tmp_path: Path) -> None:
    (tmp_path / "g.json").write_text('[{"ok": [1, 3]}]')
    (tmp_path / "r.json").write_text("[[0, 1, 2, 3]]")
    scores = evaluate_ranks(tmp_path / "g.json", tmp_path / "r.json").protocols
    assert list(scores) == ["all"]
    assert scores["all"].map == pytest.approx(1 / 3, abs=1e-12)
    with pytest.raises(EvaluationError, match="one protocol is 'all'"):
        evaluate_ranks(tmp_path / "g.json", tmp_path / "r.json", protocols=["hard"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ('{"imlist": []}', "has no 'gnd'. It has: imlist"),
        ('{"gnd": 5}', "must hold a list with one entry a query"),
        ('"text"', "must hold a list"),
        ("[[1, 2]]", "query 0: its entry must have lists easy, hard and junk, not list"),
        ('[{"bbx": [1, 2, 3, 4]}]', "has none of the lists"),
        ('[{"easy": ["a"]}]', "query 0, easy must be a flat list of whole numbers"),
        ('[{"easy": [[1], [2, 3]]}]', "is not a flat list"),
        ('[{"easy": [-1]}]', "has the id -1"),
        ('{"gnd": [{"easy": [2]}], "imlist": ["a", "b"]}', "has the id 2, which is not in the gallery of 2"),
        ('{"gnd": [{"easy": [0]}], "qimlist": ["a", "b"]}', "names 2 queries and has the ground truth of 1"),
        ('[{"easy": [0], "bbx": [1, 2, 3]}]', "a box is four numbers"),
        ('[{"easy": [0], "bbx": [5, 2, 3, 4]}]', "is inside out"),
        ('{"gnd": [{"easy": [0]}], "imlist": ["../../etc/passwd"]}', "no name of a picture"),
        ('{"gnd": [{"easy": [0]}], "imlist": [7]}', "no name of a picture: '7'"),
    ],
)
def test_bad_ground_truths(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "g.json").write_text(content)
    with pytest.raises(DataError, match=message):
        read_ground_truth(tmp_path / "g.json")


@pytest.mark.parametrize("kind", ["S", "U", "O", "list"])
@pytest.mark.parametrize("protocol", [2, 5])
def test_names_of_pictures_come_as_text_or_bytes_with_or_without_suffix(
    tmp_path: Path, kind: str, protocol: int
) -> None:
    names = ["all_souls_000013.jpg", "christ_church_000179"]
    given = names if kind == "list" else np.array(names, dtype=kind)
    content = {"gnd": [{"easy": [1], "bbx": np.array([1, 2, 3, 4])}], "imlist": given, "qimlist": given[:1]}
    (tmp_path / "g.pkl").write_bytes(pickle.dumps(content, protocol=protocol))
    truth = read_ground_truth(tmp_path / "g.pkl")
    assert truth.gallery_names == ("all_souls_000013", "christ_church_000179")
    assert truth.query_names == ("all_souls_000013",) and truth.boxes == ((1.0, 2.0, 3.0, 4.0),)


def test_ground_truth_of_another_kind_and_a_malicious_one(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"is a .pkl or a .json"):
        read_ground_truth(tmp_path / "g.mat")
    (tmp_path / "g.pkl").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(DataError, match=r"it wants os.system"):
        read_ground_truth(tmp_path / "g.pkl")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("r.npy", np.zeros((2, 5), dtype=int), "ranks for 5 queries, and the ground truth has 2. It looks transposed"),
        ("r.npy", np.zeros((5, 2)), "array of whole numbers"),
        ("r.npy", np.zeros(5, dtype=int), "one N x Q array"),
        ("r.npy", b"\x93NUMPY\x01", "cannot be read as an array"),
        ("r.npy", np.array([{}, {}], dtype=object), "cannot be read as an array"),
        ("r.json", b"[[1, 2]]", "ranks for 1 queries, and the ground truth has 2"),
        ("r.json", b"[1, 2]", "list of lists"),
        ("r.json", b'[["a"], [1]]', "query 0 must be a flat list of whole numbers"),
        ("r.txt", b"", r"ranks are a .npy"),
    ],
)
def test_bad_ranks(tmp_path: Path, name: str, content: Any, message: str) -> None:
    path = tmp_path / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        np.save(path, content, allow_pickle=True)
    with pytest.raises(EvaluationError, match=message):
        read_ranks(path, 2)
