"""A report of a run: the figures as JSON, as Markdown, and as one page with pictures that needs no other file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tessera import __version__
from tessera.evaluate.protocol import PROTOCOLS, relevance_for
from tessera.evaluate.reports.page import Strip, render_page
from tessera.evaluate.result import EvaluationResult, percent
from tessera.evaluate.run import ALL, Run
from tessera.storage import write_atomically

NUM_STRIPS = 60
NUM_SHOWN = 5
_LISTED = 10


def write_report(run: Run, folder: Path) -> Path:
    """Write report.json, report.md and report.html into a folder; returns the page."""
    write_atomically(folder / "report.json", (json.dumps(report_json(run), indent=2) + "\n").encode())
    write_atomically(folder / "report.md", render_markdown(run).encode())
    page = folder / "report.html"
    write_atomically(page, render_page(run.result, _settings(run.result), choose_strips(run)).encode())
    return page


def report_json(run: Run) -> dict[str, Any]:
    """The result with the names of the queries, their best images, and what was skipped."""
    names = run.benchmark.gallery_names
    return {
        "tessera": __version__,
        **run.result.to_json(),
        "queries": [
            {"name": name, "top": [names[i] for i in top]}
            for name, top in zip(run.benchmark.query_names, run.tops, strict=True)
        ],
        "unreadable": run.unreadable,
    }


def main_protocol(run: Run) -> str:
    """The protocol by which strips are framed and ordered."""
    defined = run.result.protocols
    return "medium" if "medium" in defined else next(iter(defined))


def choose_strips(run: Run, count: int = NUM_STRIPS) -> list[Strip]:
    """The queries to show, from the worst to the best; of many, evenly spread over the whole range of AP."""
    name = main_protocol(run)
    ap = run.result.protocols[name].ap
    order = [int(query) for query in np.argsort(ap, kind="stable") if not np.isnan(ap[query])]
    if len(order) > count:
        order = [order[place] for place in np.linspace(0, len(order) - 1, count).round().astype(int)]
    return [_strip(run, query, name) for query in order]


def _strip(run: Run, query: int, protocol: str) -> Strip:
    benchmark = run.benchmark
    relevance = relevance_for(benchmark.lists[query], PROTOCOLS.get(protocol, ALL))
    positives, junk = set(relevance.positives.tolist()), set(relevance.junk.tolist())
    best = [int(place) for place in run.tops[query][:NUM_SHOWN]]
    return Strip(
        name=benchmark.query_names[query],
        query=benchmark.queries[query],
        box=benchmark.boxes[query] if run.result.query == "box" else None,
        ap=float(run.result.protocols[protocol].ap[query]),
        num_positives=len(positives),
        images=[benchmark.gallery[i] for i in best],
        image_names=[benchmark.gallery_names[i] for i in best],
        verdicts=["positive" if i in positives else "junk" if i in junk else "negative" for i in best],
    )


def render_markdown(run: Run) -> str:
    """The figures, the settings that decided them, the notes and the hardest queries."""
    result = run.result
    header, *body = result.rows()
    lines = [f"# {result.dataset}: {result.model}", "", _row(header), _row(["---"] + ["---:"] * (len(header) - 1))]
    lines += [_row(row) for row in body]
    lines += ["", "| setting | value |", "| --- | --- |"]
    lines += [f"| {name} | {value} |" for name, value in _settings(result)]
    if result.notes:
        lines += ["", "Notes:", "", *(f"- {note}" for note in result.notes)]
    name = main_protocol(run)
    ap = result.protocols[name].ap
    worst = [int(query) for query in np.argsort(ap, kind="stable") if not np.isnan(ap[query])][:_LISTED]
    lines += ["", f"The hardest queries ({name}):", "", "| query | AP |", "| --- | ---: |"]
    lines += [f"| {_cell(run.benchmark.query_names[query])} | {percent(float(ap[query]))} |" for query in worst]
    if run.unreadable:
        lines += ["", "Images that could not be read:", ""]
        lines += [f"- {_cell(image)}: {_cell(reason)}" for image, reason in sorted(run.unreadable.items())]
    return "\n".join(lines) + "\n"


def _settings(result: EvaluationResult) -> list[tuple[str, str]]:
    """Everything that decided the figures, flattened to name and value."""
    rows = [("model", str(result.model)), ("query", str(result.query))]
    for name, value in result.details.items():
        if isinstance(value, dict):
            rows += [(f"{name}: {key}", _format(item)) for key, item in value.items()]
        elif value is not None:
            rows.append((name, _format(value)))
    return [*rows, ("tessera", __version__)]


def _format(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(_format(item) for item in value)
    if isinstance(value, float):
        return f"{value:.6g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
