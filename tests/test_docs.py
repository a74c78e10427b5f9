"""The documentation names only what there is, is made from what was measured, and leads everywhere."""

from __future__ import annotations

import ast
import csv
import hashlib
import importlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from PIL import Image

from tessera.cli.main import app

ROOT = Path(__file__).parent.parent
GUIDE = sorted(ROOT.glob("docs/*.md"))
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *GUIDE,
        *ROOT.glob("docs/reference/*.md"),
        *ROOT.glob("results/*.md"),
        *ROOT.glob("examples/*/*.md"),
    ]
)
TABLES = sorted(ROOT.glob("results/*/*.csv"))
MOST_LINES = 120
CODE = re.compile(r"```[a-z]*\n(.*?)```|`([^`]+)`", re.DOTALL)
COMMANDS: Any = typer.main.get_command(app)

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


@every_page
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
    assert [name for name in targets if "://" not in name and not (page.parent / name).exists()] == []


@every_page
def test_tests_that_pages_name_are_there(page: Path) -> None:
    named = re.findall(r"(?:tests/)?((?:\w+/)*test_\w+\.py)", page.read_text())
    assert [name for name in named if not (ROOT / "tests" / name).is_file()] == []


@every_page
def test_commands_have_the_options_that_pages_give_them(page: Path) -> None:
    wrong = []
    for line in command_lines(page.read_text()):
        command = COMMANDS
        words = line.split(" #")[0].split()[1:]
        while words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]
        known = {name for parameter in command.params for name in parameter.opts}
        named = [word.partition("=")[0] for word in words if word.startswith("--")]
        unknown_command = hasattr(command, "commands") and bool(words) and words[0].isalpha()
        if unknown_command or not known.issuperset(named):
            wrong.append(line)
    assert wrong == []


@every_page
def test_python_imports_what_there_is(page: Path) -> None:
    """Blocks of Python are whole, and what they import can be imported."""
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        if page.parent.name == "reference":
            continue  # signatures, made from what there is
        for node in ast.walk(ast.parse(block)):
            match node:
                case ast.Import(names=names):
                    for alias in names:
                        importlib.import_module(alias.name)
                case ast.ImportFrom(module=str(module), names=names):
                    found = importlib.import_module(module)
                    assert [alias.name for alias in names if not hasattr(found, alias.name)] == []


def command_lines(text: str) -> Iterator[str]:
    """What a reader would type after a prompt: in a block a line, in a sentence the code, both from `tessera` on."""
    for block, span in CODE.findall(text):
        for line in (block.replace("\\\n", " ").splitlines()) if block else [" ".join(span.split())]:
            if line.startswith("tessera "):
                yield line


def test_a_wrong_option_would_be_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    for text in ("`tessera search a.jpg --nearest`", "```\ntessera serch a.jpg\n```", "[a](b.md)"):
        page.write_text(text)
        with pytest.raises(AssertionError):
            test_links_lead_somewhere(page)
            test_commands_have_the_options_that_pages_give_them(page)


@pytest.mark.parametrize("page", GUIDE, ids=lambda page: page.name)
def test_a_page_of_the_guide_is_short_and_tells_no_story(page: Path) -> None:
    written = re.sub(r"<!-- (\w+)[^>]*-->.*?<!-- /\1 -->", "", text := page.read_text(), flags=re.DOTALL)
    assert len(written.splitlines()) <= MOST_LINES  # by hand: a table may gain a row
    assert re.findall(r"\(bar\b|[Tt]he bars? (?:is|was|were)|half an hour|an earlier day|yesterday", text) == []


def test_generated_pages_and_tables_are_up_to_date() -> None:
    """What `make reference` writes, from the commands, the schema, the docstrings, the recipes and results/."""
    command = [sys.executable, "scripts/docs/build.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("data", TABLES, ids=lambda data: str(data.relative_to(ROOT)))
def test_every_table_says_how_it_was_made(data: Path) -> None:
    made = tomllib.loads((data.parent / "runs.toml").read_text())[data.stem]
    assert {"command", "commit", "machine", "seed"} <= made.keys()
    assert all(isinstance(value, str) and value for value in made.values())
    with data.open(newline="") as file:
        rows = list(csv.reader(file))
    assert len(rows) > 1 and len({len(row) for row in rows}) == 1


def test_the_figure_of_a_run_is_drawn_from_its_table() -> None:
    data = ROOT / "results" / "training" / "gldv2-50.csv"
    with Image.open(ROOT / "docs" / "figures" / "training-gldv2-50.png") as drawn:
        source = drawn.info["Source"]
    assert source == f"sha256:{hashlib.sha256(data.read_bytes()).hexdigest()}"


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "scripts" / "docs")
    return importlib.import_module("tables")


def test_a_table_is_filled_by_its_marker(tables: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "speed.csv").write_text("codec,ms,k\nflat,189,100\nASMK*,4.98,100\nfast,1,10\n")
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    marker = '<!-- table: results/speed.csv columns="codec|ms=time, ms" where="k=100" -->'
    filled = tables.fill(f"before\n{marker}\nold\n<!-- /table -->\nafter", tmp_path / "docs" / "page.md")
    assert (
        "old" not in filled and filled.startswith(f"before\n{marker}\n") and filled.endswith("<!-- /table -->\nafter")
    )
    assert "| codec | time, ms |\n|---|---:|\n| flat | 189 |\n| ASMK\\* | 4.98 |\n\n" in filled
    assert "[Data](../results/speed.csv)" in filled
    assert tables.fill(filled, tmp_path / "docs" / "page.md") == filled


@pytest.mark.parametrize(
    "text",
    [
        "<!-- table: results/lite/sift.csv -->\nnever closed",
        '<!-- table: results/lite/sift.csv cols="a" -->\n<!-- /table -->',
        '<!-- table: results/lite/sift.csv rows="nothing" -->\n<!-- /table -->',
    ],
)
def test_a_marker_that_cannot_be_meant_is_refused(tables: Any, text: str) -> None:
    with pytest.raises(ValueError, match="page"):
        tables.fill(text, ROOT / "docs" / "page.md")


def test_every_example_photograph_is_credited() -> None:
    credits = (ROOT / "examples" / "photos" / "CREDITS.md").read_text()
    photos = [
        *(path.relative_to(ROOT / "examples" / "photos") for path in (ROOT / "examples" / "photos").rglob("*.jpg")),
        *(path.relative_to(ROOT / "examples") for path in (ROOT / "examples" / "queries").rglob("*.jpg")),
    ]
    assert len(photos) > 28
    assert [str(path) for path in photos if f"| {path} |" not in credits] == []
