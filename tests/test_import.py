"""`import tessera` and `tessera --help` are instant: nothing heavy is loaded before it is needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from tessera.cli.main import app

HEAVY = ("torch", "faiss", "fastapi", "onnxruntime", "cv2", "kornia", "pymilvus", "ray", "matplotlib")
# What any Typer application loads for a page of help, whatever it does: the measure that a slow or busy machine shares.
YARDSTICK = "import typer.rich_utils, rich.markdown"
HELP = "import sys\nsys.argv = {}\nfrom tessera.cli.main import app\napp(standalone_mode=False)"


def run(code: str) -> dict[str, object]:
    """Run code in a fresh interpreter; the heavy modules it loaded and the seconds of processor time it took."""
    report = (
        "import json, resource, sys\n"
        f"loaded = [name for name in {HEAVY!r} if name in sys.modules]\n"
        "used = resource.getrusage(resource.RUSAGE_SELF)\n"
        "print(json.dumps({'loaded': loaded, 'seconds': used.ru_utime + used.ru_stime}), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "COLUMNS": "100"},
    )
    answer = json.loads(done.stderr.splitlines()[-1])
    assert isinstance(answer, dict)
    return answer | {"stdout": done.stdout}


# Processor time, beside the yardstick's that is taken in turn: a machine that is busy slows both.
@pytest.mark.parametrize(
    ("code", "at_most"),
    [
        ("import tessera", 0.7),
        (HELP.format(["tessera", "--help"]), 4),
        (HELP.format(["tessera", "index", "--help"]), 4),
    ],
    ids=["import", "help", "help-of-a-command"],
)
def test_nothing_heavy_is_loaded_and_it_is_instant(code: str, at_most: float) -> None:
    best = yardstick = float("inf")
    for _ in range(6):
        answer = run(code)
        assert answer["loaded"] == []
        best = min(best, float(str(answer["seconds"])))
        yardstick = min(yardstick, float(str(run(YARDSTICK)["seconds"])))
        if best < at_most * yardstick:
            break
    assert best < at_most * yardstick


def test_help_lists_the_commands_and_each_page_ends_with_an_example() -> None:
    pages = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "100"}).stdout
    for command in ("index", "search", "remove", "stats", "check", "migrate"):
        assert f" {command} " in pages
        page = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"}).stdout
        assert page.rstrip().splitlines()[-1].strip().startswith("Example: tessera")


def test_the_names_of_the_interface_are_there() -> None:
    import tessera

    assert {"Gallery", "Hit", "TesseraError"} <= set(tessera.__all__)
    with pytest.raises(AttributeError):
        tessera.nothing  # noqa: B018
