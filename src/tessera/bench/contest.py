"""`tessera bench search --curve`: recall against time, memory and building, each competitor over its settings.

Whoever runs while the machine is busy looks slow. So the competitors take turns, one round after the other, and of each
setting the least processor time of all rounds counts.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from tessera.bench.peers import extra_of, is_missing, make_competitor
from tessera.bench.search import check_names, copies_of, prepare, run_phase, working_folder
from tessera.errors import MissingExtraError
from tessera.storage import atomic_path, write_atomically

TARGETS = {10: 0.98, 100: 0.95}  # recall@k at which times are compared
COLUMNS = (
    "competitor",
    "settings",
    "k",
    "recall",
    "cpu_ms",
    "wall_ms",
    "pareto",
    "memory_bytes",
    "code_bytes",
    "build_cpu_s",
    "count",
)
_SLOW = ("numpy", "flat", "pq1", "pq8", "faiss IndexPQ", "faiss IVF-PQ")  # nobody's choice where there are many
Point = dict[str, Any]
RunPhase = Callable[[Path, str, str], dict[str, Any]]


def measure_contest(
    *,
    count: int,
    dim: int,
    queries: int,
    seed: int = 0,
    only: Sequence[str] = (),
    rounds: int = 3,
    views: Path | None = None,
    groups: bool = False,
    folder: Path | None = None,
    keep: bool = False,
    say: Callable[[str], None] = lambda _: None,
    run: RunPhase = run_phase,
) -> dict[str, Any]:
    """Build every competitor, then let each answer at all its settings, in turn, `rounds` times.

    only: names of competitors; without, all but the slow ones. Graphs are built on all descriptors, too.
    Returns what was measured: a row for each setting and k (`COLUMNS`), and why some competitors have none.
    """
    names = check_names(only, peers=True) if only else [name for name in check_names((), True) if name not in _SLOW]
    asked = {"count": count, "dim": dim, "queries": queries, "seed": seed, "graph_count": count}
    missing: dict[str, str] = {}
    built: dict[str, dict[str, Any]] = {}
    curves: dict[str, list[Point]] = {}
    with working_folder(folder, keep) as work:
        room = sum(map(copies_of, names))
        setting = prepare(work, asked, room=room, views=views, groups=groups, say=say)
        for name in names:
            if is_missing(made := make_competitor(name)):
                missing[name] = f"{made.needs} is not installed (extra '{extra_of(made)}')"
                continue
            built[name] = run(work, name, "build")
            say(f"{name}: " + (built[name].get("failed") or f"built in {built[name]['build_cpu_s']:.1f} s"))
        for i in range(rounds):
            for name in [name for name in built if "failed" not in built[name]]:
                answer = run(work, name, "curve")
                if "failed" in answer:
                    built[name] = answer
                    curves.pop(name, None)
                    continue
                built[name]["memory_bytes"] = answer["memory_bytes"]
                curves[name] = _least(curves.get(name, []), answer["points"])
                say(f"round {i + 1} of {rounds}: {name}")
    missing |= {name: row["failed"] for name, row in built.items() if "failed" in row}
    rows = [row for name, points in curves.items() for row in _rows(name, points, built[name])]
    return {**setting, "load": list(os.getloadavg()), "rounds": rounds, "rows": rows, "missing": missing}


def _least(before: list[Point], now: list[Point]) -> list[Point]:
    """The same points with the least times of both."""
    if not before:
        return now
    times = ("cpu_ms", "wall_ms")
    return [new | {key: min(old[key], new[key]) for key in times} for old, new in zip(before, now, strict=True)]


def _rows(name: str, points: list[Point], built: dict[str, Any]) -> Iterable[Point]:
    best = {id(point) for k in TARGETS for point in operating_points(points, k)}
    kept = {key: built[key] for key in ("memory_bytes", "code_bytes", "build_cpu_s", "count")}
    for point in points:
        yield {"competitor": name, **point, "pareto": id(point) in best, **kept}


def operating_points(points: Sequence[Point], k: int) -> list[Point]:
    """Those with more recall@k than any that is as quick, the quickest first."""
    best: list[Point] = []
    for point in sorted((p for p in points if p["k"] == k), key=lambda p: (p["cpu_ms"], -p["recall"])):
        if not best or point["recall"] > best[-1]["recall"]:
            best.append(point)
    return best


def time_at(points: Sequence[Point], k: int, recall: float) -> float | None:
    """Milliseconds for a recall@k, between operating points by the logarithm of time; None where it is not reached.

    A competitor whose every setting has more recall gets the time of its quickest.
    """
    best = operating_points(points, k)
    for before, after in zip([None, *best], best, strict=False):
        if after["recall"] < recall:
            continue
        if before is None:
            return float(after["cpu_ms"])
        share = (recall - before["recall"]) / (after["recall"] - before["recall"])
        return float(before["cpu_ms"] * math.pow(after["cpu_ms"] / before["cpu_ms"], share))
    return None


def summarise(rows: Sequence[Point]) -> list[dict[str, Any]]:
    """A row a competitor, the quickest at the first target first: its times, what it reaches, what it holds."""
    found = []
    for name in dict.fromkeys(row["competitor"] for row in rows):
        mine = [row for row in rows if row["competitor"] == name]
        one: dict[str, Any] = {"competitor": name}
        for k, target in TARGETS.items():
            one[f"ms_at_{k}"] = time_at(mine, k, target)
            one[f"most_at_{k}"] = max((row["recall"] for row in mine if row["k"] == k), default=0.0)
        found.append(one | {key: mine[0][key] for key in ("memory_bytes", "code_bytes", "build_cpu_s")})
    first = f"ms_at_{next(iter(TARGETS))}"
    return sorted(found, key=lambda one: one[first] or math.inf)


def to_markdown(report: dict[str, Any]) -> str:
    """The summary, for people; the CSV has every point."""
    lines = []
    for one in summarise(report["rows"]):
        times = [
            f"({one[f'most_at_{k}']:.3f} reached)" if one[f"ms_at_{k}"] is None else f"{one[f'ms_at_{k}']:.2f}"
            for k in TARGETS
        ]
        held = f"{one['memory_bytes']:.0f} | {one['code_bytes']:.0f} | {one['build_cpu_s']:.1f}"
        lines.append(f"| {one['competitor']} | {' | '.join(times)} | {held} |")
    titles = [f"ms at recall@{k} {target}" for k, target in TARGETS.items()]
    head = (
        f"{report['count']:,} descriptors of {report['dim']} ({report['source']}), {report['queries']} queries, seed "
        f"{report['seed']}; processor time of one query on one thread, the least of {report['rounds']} rounds; "
        f"load {report['load'][0]:.1f}"
    )
    table = ["", *titles, "bytes in memory", "bytes of codes", "build CPU s"]
    notes = [f"- {name}: {why}" for name, why in report["missing"].items()]
    return "\n".join([head, "", "| " + " | ".join(table) + " |", "|" + "---|" * len(table), *lines, "", *notes])


def write_csv(report: dict[str, Any], path: Path) -> None:
    text = io.StringIO(newline="")
    table = csv.writer(text, lineterminator="\n")
    table.writerow(COLUMNS)
    for row in report["rows"]:
        shown = row | {"settings": json.dumps(row["settings"]), "pareto": int(row["pareto"])}
        table.writerow([f"{value:.4g}" if isinstance(value, float) else value for value in map(shown.get, COLUMNS)])
    write_atomically(path, text.getvalue().encode())


def read_csv(path: Path) -> list[Point]:
    """The rows that `write_csv` wrote."""
    with path.open(newline="") as file:
        read = list(csv.DictReader(file))
    kept = ("competitor", "settings")
    return [{key: value if key in kept else float(value) for key, value in row.items()} for row in read]


def draw(rows: Sequence[Point], path: Path, title: str = "") -> None:
    """The operating points of each competitor as a curve, a panel for each k; the form is the name's suffix."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("--figure", "train") from error
    figure = Figure(figsize=(11, 5), layout="constrained")
    names = list(dict.fromkeys(row["competitor"] for row in rows))
    for axes, k in zip(figure.subplots(1, 2), TARGETS, strict=True):
        for i, name in enumerate(names):
            best = operating_points([row for row in rows if row["competitor"] == name], k)
            ours = name in ("fast", "ivf")
            axes.plot(
                [point["cpu_ms"] for point in best],
                [point["recall"] for point in best],
                marker="osv^Dx"[i % 6],
                markersize=4,
                color=None if not ours else "black" if name == "fast" else "dimgrey",
                linewidth=2.2 if ours else 1,
                label=name,
            )
        axes.axhline(TARGETS[k], color="lightgrey", linewidth=1, zorder=0)
        axes.set(
            xscale="log", xlabel="ms a query (processor time, one thread)", ylabel=f"recall@{k}", ylim=(0.6, 1.005)
        )
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right center", fontsize="small")
    figure.suptitle(title)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format=path.suffix.lstrip(".") or "svg", metadata={"Date": None})


def main(
    curves: Annotated[list[Path], typer.Argument(help="Files that `tessera bench search --curve --csv` wrote.")],
    output: Annotated[Path, typer.Option("-o", help="Where the summary goes, a row for each file and competitor.")],
    figures: Annotated[Path | None, typer.Option(help="A folder for a figure of each file.")] = None,
) -> None:
    """Summarise and draw curves that were measured before.

    Example: python -m tessera.bench.contest results/search/contest-*.csv -o results/search/contest.csv
    """
    text = io.StringIO(newline="")
    table = csv.writer(text, lineterminator="\n")
    for i, path in enumerate(curves):
        rows = read_csv(path)
        for j, one in enumerate(summarise(rows)):
            if i == j == 0:
                table.writerow(["descriptors", *one])
            shown = (
                "" if value is None else f"{value:.3g}" if isinstance(value, float) else value for value in one.values()
            )
            table.writerow([path.stem.removeprefix("contest-"), *shown])
        if figures is not None:
            draw(rows, figures / f"{path.stem}.svg", f"{rows[0]['count']:,.0f} descriptors: {path.stem}")
    write_atomically(output, text.getvalue().encode())


if __name__ == "__main__":
    typer.run(main)
