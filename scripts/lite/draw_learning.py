"""Draw the curves of results/lite/val_learning.csv: what things gain and landmarks pay, step by step.

python scripts/lite/draw_learning.py results/lite/val_learning.csv -o results/figures/learning.svg
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

COLUMNS = {"things": "things, mAP", "views": "landmarks by views", "name": "landmarks by name"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    with options.table.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if not row["left_out"]]
    (start,) = (row for row in rows if row["way"] == "start")
    curves: dict[str, list[dict[str, str]]] = defaultdict(list)
    for row in rows:
        if row["way"] != "start" and row["part"] == "1.0":
            seed = f", seed {row['seed']}" if row["seed"] != "0" else ""
            curves[f"{row['way']}, rate {row['rate']}{seed}"].append(row)
    plt.rcParams |= {"svg.hashsalt": "learning", "font.size": 8, "svg.fonttype": "none"}
    figure, axes = plt.subplots(1, len(COLUMNS), figsize=(9, 2.8), layout="constrained")
    for axis, (key, title) in zip(axes, COLUMNS.items(), strict=True):
        for name, curve in curves.items():
            points = [start, *curve]
            axis.plot([int(row["step"]) for row in points], [float(row[key]) for row in points], marker=".", label=name)
        axis.set_title(title)
        axis.set_xlabel("step")
    axes[0].legend(frameon=False, fontsize=6)
    figure.savefig(options.output, metadata={"Date": None})


if __name__ == "__main__":
    main()
