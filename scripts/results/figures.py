"""results/*.csv to results/figures/: curves with error bars, and what systems find first, as far as it is there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from paper_tables import PUBLISHED, Figures
from rows import SYSTEM_LABELS, TABLES
from run import read_csv
from top_five import draw_top_five

from tessera.storage import atomic_path

mpl.use("svg")
import matplotlib.pyplot as plt
from matplotlib.ticker import MaxNLocator

mpl.rcParams.update(
    {
        "svg.hashsalt": "tessera",  # the same figures give the same file
        "font.size": 9.5,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": "#8a8a90",
        "axes.labelcolor": "#1c1c1e",
        "axes.titlesize": 10.5,
        "axes.titlelocation": "left",
        "axes.titlepad": 10,
        "axes.grid": True,
        "grid.color": "#e6e6ea",
        "axes.axisbelow": True,
        "xtick.color": "#55555a",
        "ytick.color": "#55555a",
        "legend.frameon": False,
    }
)

COLUMN = {"gldv2-test": "gldv2-50 test", "instances-val": "instances val"}
NUMBERS = {"l1": 1, "l2": 2, "l3": 3, "token": 4, "l6": 6, "l8": 8}
BLUE, ORANGE, GREEN, RED, VIOLET, GREY = "#005ca8", "#d9730d", "#007a54", "#c2362b", "#7a4fb5", "#8a8a90"
COLOURS = {"default": "#1c1c1e", "spoc": GREEN, "gem": ORANGE, "solar": VIOLET, "delg": RED, "how": GREY, "token": BLUE}
Points = Sequence[tuple[float, Sequence[float]]]


def draw_all(results: Path) -> list[Path]:
    figures, folder = Figures(results / "figures.csv"), results / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    drawn = [draw_tokens(figures, folder / "tokens.svg"), draw_ablations(figures, folder / "ablations.svg")]
    if read_csv(results / "share.csv"):
        drawn.append(draw_share(results / "share.csv", folder / "share.svg"))
    if read_csv(results / "top-five.csv"):
        drawn.append(draw_top_five(results / "top-five.csv", folder / "top-five.jpg"))
    return drawn


def draw_tokens(figures: Figures, path: Path) -> Path:
    """mAP against the number of tokens on both sets, alone and with distractors, and the paper's own curve."""
    figure, panels = plt.subplots(1, 3, figsize=(10, 3.1))
    for axes, (name, title) in zip(panels, COLUMN.items(), strict=False):
        for distractors, label, colour in (("0", "alone", BLUE), ("1", "with distractors", GREY)):
            points = [(number, figures.values(row, "flat", (name, distractors))) for row, number in NUMBERS.items()]
            curve(axes, [(number, values) for number, values in points if values], label, colour)
        axes.set_title(title)
    paper = [[float(value) for value in row.split()] for row in PUBLISHED["tokens"]]  # ROxf M, RPar M, ROxf H, RPar H
    for column, label, colour in ((2, "ROxf Hard", BLUE), (3, "RPar Hard", GREY)):
        points = [(number, [row[column]]) for number, row in zip(NUMBERS.values(), paper, strict=True)]
        curve(panels[2], points, label, colour)
    panels[2].set_title("the paper, full scale")
    for axes in panels:
        axes.set_xlabel("tokens L")
        axes.set_xticks(list(NUMBERS.values()))
        axes.margins(y=0.25)
        axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.legend(loc="upper center", ncols=2, fontsize=8.5)
    panels[0].set_ylabel("mAP, %")
    return save(figure, path)


def draw_ablations(figures: Figures, path: Path) -> Path:
    """Components, refinement halves and tokenizers: a panel a table and set, a point a row, over seeds its bar."""
    tables = [table for table in TABLES if table.name in ("components", "refinement", "tokenizer")]
    figure = plt.figure(figsize=(12.5, 3))
    halves = figure.subfigures(1, len(tables), width_ratios=(1.05, 1.1, 1))
    first: dict[str, Axes] = {}
    for half, table in zip(halves, tables, strict=True):
        panels = half.subplots(1, len(COLUMN), sharey=True)
        for axes, (name, title), colour in zip(panels, COLUMN.items(), (BLUE, ORANGE), strict=True):
            found = [(place, figures.values(row, "flat", (name, "0"))) for place, row in enumerate(table.rows)]
            spread_points(axes, [(place, values) for place, values in found if values], "", colour)
            axes.sharex(first.setdefault(name, axes))  # of one set all tables have one axis
            axes.margins(x=0.12)
            axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
            axes.set_xlabel(f"{title}, mAP %", fontsize=8.5)
        labels = [label.replace(", refinement", ",\nrefinement") for label in table.rows.values()]
        panels[0].set_yticks(range(len(labels)), [label.replace("self- and ", "self- and\n") for label in labels])
        panels[0].set_ylim(len(labels) - 0.5, -0.5)
        panels[0].set_title(table.title)
        half.subplots_adjust(left=0.34, right=0.97, bottom=0.2, top=0.86, wspace=0.3)
    return save(figure, path, tight=False)


def draw_share(path: Path, target: Path) -> Path:
    """mAP against the share of the picture that the object fills."""
    figure, axes = plt.subplots(figsize=(7, 4))
    rows = read_csv(path)
    present = {row["row"] for row in rows}
    for name, colour in COLOURS.items():
        if name in present:
            by_share: dict[float, list[float]] = {}
            for row in rows:
                if row["row"] == name:
                    by_share.setdefault(float(row["share"]), []).append(100 * float(row["map"]))
            curve(axes, sorted(by_share.items()), SYSTEM_LABELS[name].replace("\\", ""), colour)
    axes.set_xscale("log", base=2)
    axes.set_xticks([1, 0.5, 0.25, 0.125, 0.0625], ["all of it", "1/2", "1/4", "1/8", "1/16"])
    axes.set_yscale("log")  # what is lost is a factor
    axes.set_yticks([0.5, 1, 2, 5, 10, 20, 50], ["0.5", "1", "2", "5", "10", "20", "50"])
    axes.minorticks_off()
    axes.set_xlabel("share of the picture that the object fills")
    axes.set_ylabel("mAP, %")
    axes.legend(loc="lower right", ncols=2, fontsize=8.5)
    return save(figure, target)


def curve(axes: Axes, points: Points, label: str, colour: str) -> None:
    """Means over seeds, joined, with the sample deviation as a bar."""
    if points:
        means, spreads = means_and_spreads(points)
        axes.errorbar(
            [x for x, _ in points],
            means,
            yerr=spreads,
            marker="o",
            ms=4.5,
            lw=1.6,
            capsize=2.5,
            label=label,
            color=colour,
        )


def spread_points(axes: Axes, points: Points, label: str, colour: str) -> None:
    """A point a row, its bar lying."""
    if points:
        means, spreads = means_and_spreads(points)
        axes.errorbar(
            means, [y for y, _ in points], xerr=spreads, fmt="o", ms=5, lw=1.6, capsize=2.5, label=label, color=colour
        )


def means_and_spreads(points: Points) -> tuple[list[float], list[float]]:
    means = [float(np.mean(values)) for _, values in points]
    return means, [float(np.std(values, ddof=1)) if len(values) > 1 else 0.0 for _, values in points]


def save(figure: plt.Figure, path: Path, *, tight: bool = True) -> Path:
    if tight:
        figure.tight_layout()
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="svg", metadata={"Date": None})
    plt.close(figure)
    return path
