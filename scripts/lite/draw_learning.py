"""Draw the curves of val_learning.csv or val_blocks.csv: what things gain and landmarks pay, step by step.

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
COLOURS = {"head": "tab:gray", "LFSA": "tab:red", "refinement": "tab:blue", "both": "tab:purple"}
LINES = {"hard": "-", "copies": "--", "mixed": "-.", "arcface": ":"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("--skip", help="blocks whose curves are left out")
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    with options.table.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if not row["left_out"]]
    (start,) = (row for row in rows if row["way"] == "start")
    curves: dict[str, list[dict[str, str]]] = defaultdict(list)
    for row in rows:
        if row["way"] != "start" and row.get("part", "1.0") == "1.0" and row.get("blocks", "") != options.skip:
            seed = f", seed {row['seed']}" if row["seed"] != "0" else ""
            blocks, of = (f"{row['blocks']}: ", f", {row['of']} steps") if "blocks" in row else ("", "")
            curves[f"{blocks}{row['way']}, rate {row['rate']}{of}{seed}"].append(row)
    plt.rcParams |= {"svg.hashsalt": "learning", "font.size": 8, "svg.fonttype": "none"}
    figure, axes = plt.subplots(1, len(COLUMNS), figsize=(9, 2.8), layout="constrained")
    for axis, (key, title) in zip(axes, COLUMNS.items(), strict=True):
        for name, curve in curves.items():
            points = [start, *curve]
            look = style_of(curve[0]) if "blocks" in start else {"label": name}
            axis.plot([int(row["step"]) for row in points], [float(row[key]) for row in points], marker=".", **look)
        axis.set_title(title)
        axis.set_xlabel("step")
    handles, labels = axes[0].get_legend_handles_labels()
    entries = dict(zip(labels, handles, strict=True))  # one for all rates and seeds
    if "blocks" in start:
        figure.legend(entries.values(), entries, loc="outside right", frameon=False, fontsize=6)
    else:
        axes[0].legend(frameon=False, fontsize=6)
    figure.savefig(options.output, metadata={"Date": None})


def style_of(row: dict[str, str]) -> dict[str, str]:
    """A colour for what learns, a line for how."""
    way = row["way"].split(",")[0]
    return {"color": COLOURS[row["blocks"]], "linestyle": LINES[way], "label": f"{row['blocks']}: {way}"}


if __name__ == "__main__":
    main()
