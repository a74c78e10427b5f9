"""The documentation names only what there is: files, commands and their options."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from tessera.cli.main import app

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "examples" / "photos" / "CREDITS.md"])
CODE = re.compile(r"```[a-z]*\n(.*?)```|`([^`]+)`", re.DOTALL)

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


@every_page
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
    assert [name for name in targets if "://" not in name and not (page.parent / name).exists()] == []


@every_page
def test_commands_have_the_options_that_pages_give_them(page: Path) -> None:
    wrong = []
    for line in command_lines(page.read_text()):
        command: Any = typer.main.get_command(app)
        words = line.split(" #")[0].split()[1:]
        while words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]
        known = {name for parameter in command.params for name in parameter.opts}
        named = [word.partition("=")[0] for word in words if word.startswith("--")]
        unknown_command = hasattr(command, "commands") and bool(words) and words[0].isalpha()
        if unknown_command or not known.issuperset(named):
            wrong.append(line)
    assert wrong == []


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


def test_the_readme_leads_to_every_page() -> None:
    assert [page.name for page in ROOT.glob("docs/*.md") if page.name not in (ROOT / "README.md").read_text()] == []


def test_every_example_photograph_is_credited() -> None:
    credits = (ROOT / "examples" / "photos" / "CREDITS.md").read_text()
    photos = [
        *(path.relative_to(ROOT / "examples" / "photos") for path in (ROOT / "examples" / "photos").rglob("*.jpg")),
        *(path.relative_to(ROOT / "examples") for path in (ROOT / "examples" / "queries").rglob("*.jpg")),
    ]
    assert len(photos) > 28
    assert [str(path) for path in photos if f"| {path} |" not in credits] == []
