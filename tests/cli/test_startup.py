"""What a command loads before it answers: time depends on the machine, a list of modules does not."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer.main

from tessera.cli.main import COMMANDS, app

Run = Callable[..., Any]
# Every package from outside that one search needs; what else is loaded, every user waits for.
NEEDED = {"cv2", "faiss", "numpy", "onnxruntime", "packaging", "PIL", "typer", "annotated_doc", "shellingham"}
NOT_NEEDED = {
    "tessera.bench",
    "tessera.evaluate",
    "tessera.explain",
    "tessera.gallery.check",
    "tessera.gallery.ingest.importing",
    "tessera.gallery.organise",
    "tessera.serve",
    "tessera.train",
    "PIL.PdfParser",  # of the formats that are never opened
    "urllib.request",
}
REPORT = """
import atexit, json, sys
@atexit.register
def report():
    outside = [name for name, module in sys.modules.items()
               if "site-packages" in (getattr(module, "__file__", None) or "") and "." not in name]
    print(json.dumps({"outside": outside, "all": list(sys.modules)}))
from tessera.cli.main import main
main()
"""


def loaded_by(*words: str | Path) -> tuple[set[str], set[str]]:
    """Packages from outside, and all modules, that a command line loads whose standard error is a terminal."""
    terminal, ours = pty.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-c", REPORT, *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=ours,
            text=True,
            check=False,
        )
    finally:
        os.close(ours)
        os.close(terminal)
    assert done.returncode == 0, done.stdout
    report = json.loads(done.stdout.splitlines()[-1])
    return set(report["outside"]), set(report["all"])


def test_a_search_loads_what_it_needs(indexed: Path, photo_folder: Path) -> None:
    outside, everything = loaded_by("search", photo_folder / "photo0.png", "-g", indexed, "-k", "3")
    # Cython and SWIG make modules of their own name.
    assert {name for name in outside if not name.startswith("_")} <= NEEDED
    assert not NOT_NEEDED & everything
    assert {name for name in everything if name.startswith("tessera.cli.")} == {
        f"tessera.cli.{name}" for name in ("commands", "main", "options", "output", "queries", "search", "settings")
    }


def test_help_loads_its_own_command_only() -> None:
    outside, everything = loaded_by("search", "--help")
    assert not {"numpy", "pydantic", "PIL"} & outside
    assert "tessera.cli.index" not in everything


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_alone_is_the_command_among_all(name: str) -> None:
    from tessera.cli.main import make_app

    alone = typer.main.get_command(make_app([name])).commands[name]  # type: ignore[attr-defined]
    among = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    assert (alone.help, alone.epilog, type(alone)) == (among.help, among.epilog, type(among))
    assert [param.opts for param in alone.params] == [param.opts for param in among.params]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-k", "many"], "valid integer"),
        (["--min-probability", "half"], "valid number"),
        (["--csv"], "requires an argument"),
    ],
)
def test_values_that_are_wrong_are_still_refused(run: Run, words: list[str], message: str) -> None:
    answer = run("search", "photo0.png", *words)
    assert answer.returncode != 0
    assert message in answer.stderr


def test_the_help_begins_with_what_most_people_want(run: Run) -> None:
    answer = run("--help")
    parts = [answer.stdout.index(part) for part in ("Your photos", "The gallery", "Networks and research")]
    assert parts == sorted(parts)
    assert answer.stdout.index(" search ") < parts[1] < answer.stdout.index(" stats ") < parts[2]
    assert "Begin with: tessera index" in answer.stdout


def test_errors_have_no_colour_where_none_is_wanted(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    coloured: list[str] = []
    monkeypatch.setattr("tessera.cli.output.typer.secho", lambda message, **_: coloured.append(message))
    assert run("search", "none.jpg").stderr == ""
    assert "There is no gallery" in coloured[0]
    monkeypatch.setenv("NO_COLOR", "1")
    assert "There is no gallery" in run("search", "none.jpg").stderr


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("search --rerank ", {"global", "sp", "dsm", "lightglue"}),
        ("search --device c", {"cpu", "cuda"}),
        ("index --codec p", {"pq1", "pq8"}),
        ("models get clip-b", {"clip-b16", "clip-b32"}),
        ("ser", {"serve"}),
    ],
)
def test_a_shell_completes_what_may_be_given(line: str, offered: set[str]) -> None:
    variables = {
        "_TESSERA_COMPLETE": "complete_bash",
        "COMP_WORDS": f"tessera {line}",
        "COMP_CWORD": str(line.count(" ") + 1),
    }
    answer = subprocess.run(
        [sys.executable, "-c", "import sys; sys.argv = ['tessera']; from tessera.cli.main import main; main()"],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert set(answer.stdout.split()) == offered, answer.stderr
