"""results/*.csv to results/figures/*.svg: curves with error bars. Only what is there is drawn."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from paper_tables import Figures
from rows import TABLES
from run import read_csv

mpl.use("svg")
mpl.rcParams["svg.hashsalt"] = "tessera"  # the same figures give the same file
import matplotlib.pyplot as plt  # noqa: E402

COLUMN = {"gldv2-test": "gldv2-50 test", "instances-val": "instances val"}
NUMBERS = {"l1": 1, "l2": 2, "l3": 3, "token": 4, "l6": 6, "l8": 8}


def draw_all(results: Path) -> list[Path]:
    figures, folder = Figures(results / "figures.csv"), results / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    drawn = [draw_tokens(figures, folder / "tokens.svg"), draw_ablations(figures, folder / "ablations.svg")]
    if read_csv(results / "share.csv"):
        drawn.append(draw_share(results / "share.csv", folder / "share.svg"))
    return drawn


def draw_tokens(figures: Figures, path: Path) -> Path:
    """mAP against the number of tokens, both sets, alone and with distractors."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.2))
    for axes, (name, title) in zip((left, right), COLUMN.items(), strict=True):
        for distractors, label in (("0", "alone"), ("1", "with distractors")):
            points = [(number, figures.values(row, "flat", (name, distractors))) for row, number in NUMBERS.items()]
            _bars(axes, [(number, values) for number, values in points if values], label)
        axes.set_title(title)
        axes.set_xlabel("tokens L")
        axes.set_xticks(list(NUMBERS.values()))
        axes.legend(frameon=False)
    left.set_ylabel("mAP, %")
    return _save(figure, path)


def draw_ablations(figures: Figures, path: Path) -> Path:
    """Components, refinement halves and tokenizers: a point a row, its spread over seeds as a bar."""
    tables = [table for table in TABLES if table.name in ("components", "refinement", "tokenizer")]
    figure, grid = plt.subplots(1, len(tables), figsize=(11, 3.6))
    for axes, table in zip(grid, tables, strict=True):
        for name, title in COLUMN.items():
            found = [(place, figures.values(row, "flat", (name, "0"))) for place, row in enumerate(table.rows)]
            _bars(axes, [(place, values) for place, values in found if values], title)
        axes.set_title(table.title)
        axes.set_xticks(range(len(table.rows)))
        axes.set_xticklabels([label.replace(", ", ",\n") for label in table.rows.values()], fontsize=7)
    grid[0].set_ylabel("mAP, %")
    grid[0].legend(frameon=False)
    return _save(figure, path)


def draw_share(path: Path, target: Path) -> Path:
    """mAP against the share of the picture that the object fills."""
    figure, axes = plt.subplots(figsize=(5, 3.6))
    rows = read_csv(path)
    for name in dict.fromkeys(row["row"] for row in rows):
        by_share: dict[float, list[float]] = {}
        for row in rows:
            if row["row"] == name:
                by_share.setdefault(float(row["share"]), []).append(100 * float(row["map"]))
        _bars(axes, sorted(by_share.items()), "HOW-ASMK*" if name == "how" else name)
    axes.set_xscale("log", base=2)
    axes.set_xlabel("share of the picture that the object fills")
    axes.set_ylabel("mAP, %")
    axes.legend(frameon=False)
    return _save(figure, target)


def _bars(axes: Axes, points: list[tuple[float, list[float]]], label: str) -> None:
    if points:
        means = [float(np.mean(values)) for _, values in points]
        spreads = [float(np.std(values, ddof=1)) if len(values) > 1 else 0.0 for _, values in points]
        axes.errorbar([x for x, _ in points], means, yerr=spreads, marker="o", capsize=3, label=label)


def _save(figure: plt.Figure, path: Path) -> Path:
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
    return path
