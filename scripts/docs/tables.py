"""Tables of a page, made from the data in results/.

    <!-- table: results/search/million.csv columns="codec|ms_median=ms" where="k=100" -->
    ...                                                  # whatever stands here is replaced
    <!-- /table -->

columns: which, in which order, each with the heading it gets after `=`; all without it. where: rows of one value.
rows: those with these in the first column, in the data's own order.
"""

from __future__ import annotations

import csv
import os
import re
from pathlib import Path

from markup import table

ROOT = Path(__file__).resolve().parents[2]
_MARKER = re.compile(r"(<!-- table: (\S+)((?: \w+=\"[^\"]*\")*) -->\n).*?(<!-- /table -->)", re.DOTALL)
_OPTION = re.compile(r' (\w+)="([^"]*)"')


def fill(text: str, page: Path) -> str:
    """The page's text with each table made anew."""

    def make(match: re.Match[str]) -> str:
        opening, name, options, closing = match.groups()
        return f"{opening}\n{_render(ROOT / name, dict(_OPTION.findall(options)), page)}\n\n{closing}"

    if text.count("<!-- table: ") != len(_MARKER.findall(text)):
        raise ValueError(f"{page}: a table's marker is not closed by <!-- /table -->, or its options cannot be read.")
    return _MARKER.sub(make, text)


def _render(data: Path, options: dict[str, str], page: Path) -> str:
    if unknown := options.keys() - {"columns", "rows", "where"}:
        raise ValueError(f"{page}: a table has no option {', '.join(unknown)}.")
    with data.open(newline="") as file:
        rows = list(csv.DictReader(file))
    if "where" in options:
        key, _, value = options["where"].partition("=")
        rows = [row for row in rows if row[key] == value]
    if "rows" in options:
        wanted = options["rows"].split("|")
        rows = [row for row in rows if next(iter(row.values())) in wanted]
        if len(rows) != len(wanted):
            raise ValueError(f"{page}: {data.name} has {len(rows)} of the {len(wanted)} rows that are asked for.")
    named = [column.partition("=") for column in options.get("columns", "|".join(rows[0])).split("|")]
    header = [title or name.replace("_", " ") for name, _, title in named]
    body = table(header, [[_escaped(row[name]) for name, _, _ in named] for row in rows])
    link = Path(os.path.relpath(data, page.parent)).as_posix()
    return f"{body}\n\n[Data]({link}), [how they were made]({Path(link).parent.as_posix()}/runs.toml)."


def _escaped(value: str) -> str:
    """A star is a star: ASMK* is a name."""
    return value if "`" in value else value.replace("*", "\\*")
