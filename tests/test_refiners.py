"""The table of what may follow a search is the only one: every surface reads it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer

from tessera import refiners
from tessera.cli.main import app
from tessera.errors import UsageError
from tessera.index.refinement import RESCORERS
from tessera.refiners import EXPANSIONS, RERANKERS, Refiner, Requirement, all_refiners

ROOT = Path(__file__).parent.parent


def test_entries_say_what_they_need_and_whether_it_is_here() -> None:
    absent = Requirement("no_such_module", "--no-deps nothing")
    entry = Refiner("x", "rerank", "descriptors", "X", "does x", 5, "little", (absent, Requirement("numpy", "numpy")))
    assert entry.missing == (absent,)
    assert entry.install == "pip install --no-deps nothing && pip install numpy"
    assert entry.to_json()["available"] is False
    assert RERANKERS["global"].missing == () and RERANKERS["global"].install == ""


def test_names_that_are_not_known_are_refused_with_the_nearest() -> None:
    assert refiners.find_expansion(None) is refiners.find_reranker(None) is None
    with pytest.raises(UsageError, match=r"expansion 'aqee' is not known. Did you mean 'aqe'"):
        refiners.find_expansion("aqee")
    with pytest.raises(UsageError, match=r"re-ranking 'globl' is not known. Did you mean 'global'"):
        refiners.find_reranker("globl")


@pytest.mark.parametrize("path", [["search"], ["evaluate", "folder"], ["evaluate", "roxford5k"]], ids=" ".join)
def test_the_command_line_offers_what_the_table_has(path: list[str]) -> None:
    command = typer.main.get_command(app)
    for name in path:
        command = command.commands[name]  # type: ignore[attr-defined]
    options = {parameter.name: parameter for parameter in command.params}
    for name, table in (("expand", EXPANSIONS), ("rerank", RERANKERS)):
        assert options[name].metavar == refiners.choices(table)
        assert all(entry.summary in options[name].help for _, entry in table.items())  # type: ignore[attr-defined]
    assert options["augment"].help == refiners.AUGMENT_SUMMARY.capitalize() + "."  # type: ignore[attr-defined]


def test_the_docs_show_the_table() -> None:
    assert refiners.to_markdown() in (ROOT / "docs" / "search.md").read_text(), "run `make reference`"


def test_every_entry_has_its_code() -> None:
    """`aqe` changes the query, so it rescores nothing."""
    assert {entry.name for entry in all_refiners() if entry.compares == "descriptors"} == {"aqe", *RESCORERS}


def test_no_other_module_lists_the_names() -> None:
    """Two of them in one tuple, or joined by bars, is a second table."""
    names = "|".join(entry.name for entry in all_refiners())
    listed = re.compile(rf"['\"]({names})['\"],\s*['\"]({names})['\"]|\b({names})\|({names})\b")
    sources = [path for path in (ROOT / "src" / "tessera").rglob("*") if path.suffix in (".py", ".html", ".js")]
    found = [str(path) for path in sources if path.name != "refiners.py" and listed.search(path.read_text())]
    assert found == []
