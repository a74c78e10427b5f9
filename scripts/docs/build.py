"""Write the generated pages of docs/reference and the tables of every page, or check that they are up to date.

python scripts/docs/build.py [--check]
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import command_reference
import http_reference
import python_reference
import recipe_reference
import settings_reference
import tables

from tessera.refiners import to_markdown

_REFINERS = re.compile(r"(<!-- refiners -->).*?(<!-- /refiners -->)", re.DOTALL)  # what may follow a search
REFERENCE = {
    "commands.md": command_reference.make_page,
    "http.md": http_reference.make_page,
    "python.md": python_reference.make_page,
    "recipes.md": recipe_reference.make_page,
    "settings.md": settings_reference.make_page,
}


def generated_files() -> Iterator[tuple[Path, str]]:
    """Each file that is made, or holds a part that is, with what should stand in it."""
    reference = tables.ROOT / "docs" / "reference"
    for name, make_page in REFERENCE.items():
        yield reference / name, make_page()
    for path in sorted([*tables.ROOT.glob("docs/*.md"), *tables.ROOT.glob("results/*.md")]):
        text = _REFINERS.sub(lambda match: f"{match[1]}\n\n{to_markdown()}\n\n{match[2]}", path.read_text())
        yield path, tables.fill(text, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if anything is out of date")
    check = parser.parse_args().check
    stale = [(path, text) for path, text in generated_files() if not path.is_file() or path.read_text() != text]
    for path, text in stale:
        print(f"{'out of date' if check else 'written'}: {path.relative_to(tables.ROOT)}", file=sys.stderr)
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    if check and stale:
        sys.exit("Run `make reference` and look at what it changes.")


if __name__ == "__main__":
    main()
