"""results/*.csv to results/tables.md: every table, rows that are missing marked as not yet run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rows import SEEDS, TABLES, Table
from run import REPOSITORY, read_csv

COLUMNS = (("gldv2-test", "0"), ("gldv2-test", "1"), ("instances-val", "0"), ("instances-val", "1"))
HEADS = ("gldv2-50 test", "+ distractors", "instances val", "+ distractors")

# The paper's figures: ROxf and RPar Medium, ROxf and RPar Hard.
_ALL = "82.3 89.3 66.6 78.6"
PUBLISHED = {
    "components": (
        *("77.0 86.6 56.0 73.0", "79.8 88.2 62.5 76.0", "80.4 88.4 63.0 76.3", "81.3 89.2 65.0 78.5"),
        _ALL,
    ),
    "refinement": ("80.4 88.4 63.0 76.3", "81.3 89.3 63.5 78.2", "80.9 88.5 62.8 77.5", _ALL),
    "tokenizer": ("79.4 87.7 62.2 75.9", "81.1 87.8 63.7 76.2", _ALL),
    "tokens": (
        *("79.8 87.9 60.4 75.7", "80.3 88.7 62.3 76.3", "81.6 89.4 64.9 78.5"),
        _ALL,
        *("81.0 88.2 62.5 78.9", "79.3 87.1 61.8 76.6"),
    ),
}

# Table 1 row by row: label, row and codec here, and the paper's ROxf Medium, Hard, RPar Medium, Hard.
TABLE1: tuple[tuple[str, str, str, str], ...] = (
    ("*(A) Local feature aggregation*", "", "", ""),
    ("HesAff-rSIFT-ASMK\\*+SP", "hesaff", "asmk+sp", "60.60 36.70 61.40 35.00"),
    ("DELF-ASMK\\*+SP", "delf", "asmk+sp", "67.80 43.10 76.90 55.40"),
    ("DELF-R-ASMK\\*+SP", "delf", "rasmk+sp", "76.00 52.40 80.20 58.60"),
    ("HOW-VLAD†", "how", "vlad", "73.54 51.93 82.33 66.95"),
    ("HOW-ASMK\\*†", "how", "asmk", "80.42 62.51 85.43 70.76"),
    ("*(B) Global features and re-ranking*", "", "", ""),
    ("GeM+DSM", "gem-contrastive", "dsm", "65.30 39.20 77.40 56.20"),
    ("DELG+SP†", "delg-local", "delg+sp", "81.78 64.77 88.46 76.80"),
    ("DELG+SP\\*†, binarised", "delg-local", "delg+sp*", ""),
    ("*(C) Global features*", "", "", ""),
    ("R-MAC", "rmac-triplet", "flat", "60.90 32.40 78.90 59.40"),
    ("R-MAC†", "rmac", "flat", "75.14 53.77 85.28 71.28"),
    ("GeM-AP", "gem-ap", "flat", "67.50 42.80 80.10 60.50"),
    ("SOLAR", "solar-own", "flat", "69.90 47.90 81.60 64.50"),
    ("SOLAR†", "solar", "flat", "79.65 59.99 88.63 75.26"),
    ("DELG†", "delg", "flat", "78.24 60.15 88.21 76.15"),
    ("NetVLAD†", "netvlad", "flat", "73.91 56.45 86.81 73.61"),
    ("SPoC†", "spoc", "flat", ""),
    ("GeM†", "gem", "flat", ""),
    ("Token, PQ8", "token", "pq8", "82.02 65.90 89.16 78.07"),
    ("Token, PQ1", "token", "pq1", "82.30 66.62 89.33 78.55"),
    ("Token", "token", "flat", "82.28 66.57 89.34 78.56"),
)

# Table 2: row here, way it is extracted, and the paper's retrieval s, extraction ms and GB at a million.
TABLE2: tuple[tuple[str, str, str, str, str], ...] = (
    ("R50-DELF-ASMK\\*", "R50-DELF", "0.573", "176", "10.3"),
    ("R101-HOW-VLAD", "R101-HOW", "0.405", "263", "7.6"),
    ("R101-HOW-ASMK\\*", "R101-HOW", "0.712", "257", "14.3"),
    ("R101-DELG", "R101-DELG", "0.419", "109", "7.6"),
    ("R101-Token", "R101-Token", "0.287", "125", "3.9"),
    ("R101-Token PQ1", "R101-Token", "0.222", "128", "1.0"),
    ("R101-Token PQ8", "R101-Token", "0.104", "126", "0.1"),
)

_INTRODUCTION = (
    "Made by `python scripts/results/make.py tables` from `figures.csv`, `runs.csv` and `choices.csv`. mAP in percent, "
    "mean ± sample deviation over seeds (one number where there is one seed); settings in [protocol.md](protocol.md). "
    "*Not yet run* means what it says."
)
_OF_TABLE1 = (
    "The paper's columns are Revisited Oxford and Paris, Medium / Hard: another task, for the order of the systems "
    "only. Its cell DELF-R-ASMK\\*+SP, RPar+R1M Hard (58.60) repeats the cell before it and is a misprint."
)

_OF_TABLE2 = (
    "One thread of this machine, processor time; pictures of 1024 x 768 in the paper's networks with random weights, "
    "which cost the same. Galleries of fewer than a million images are extrapolated in proportion, and marked. The "
    "paper extracts on a GPU."
)


class Figures:
    """What figures.csv holds, by row, codec, set and distractors: one mAP a seed."""

    def __init__(self, path: Path) -> None:
        self.by_key: dict[tuple[str, str, str, str], dict[int, float]] = {}
        for found in read_csv(path):
            key = (found["row"], found["codec"], found["set"], found["distractors"])
            self.by_key.setdefault(key, {})[int(found["seed"])] = 100 * float(found["map"])

    def values(self, row: str, codec: str, column: tuple[str, str]) -> list[float]:
        return list(self.by_key.get((row, codec, *column), {}).values())

    def cells(self, row: str, codec: str) -> list[str]:
        """Mean and sample deviation over seeds of each column, and how many seeds there are."""
        of_columns = [self.values(row, codec, column) for column in COLUMNS]
        seeds = min(len(values) for values in of_columns)
        if not seeds:
            return ["not yet run", "", "", "", "0"]
        return [*(spread(values) for values in of_columns), str(seeds)]


def spread(values: Sequence[float]) -> str:
    if len(values) < 2:
        return f"{values[0]:.1f}"
    return f"{np.mean(values):.1f} ± {np.std(values, ddof=1):.1f}"


def table1(figures: Figures) -> str:
    head = ["system", *HEADS, "seeds", "paper, ROxf M / H", "RPar M / H"]
    lines = [_line(head), _line(["---", *["---:"] * (len(head) - 1)])]
    for label, row, codec, published in TABLE1:
        if not row:
            lines.append(_line([label, *[""] * (len(head) - 1)]))
            continue
        paper = published.split() or ["-"] * 4
        lines.append(_line([label, *figures.cells(row, codec), " / ".join(paper[:2]), " / ".join(paper[2:])]))
    return "\n".join(lines)


def ablation(table: Table, figures: Figures) -> str:
    published = PUBLISHED.get(table.name)
    head = [table.title, *HEADS, "seeds"] + (["paper, ROxf M / H", "RPar M / H"] if published else [])
    lines = [_line(head), _line(["---", *["---:"] * (len(head) - 1)])]
    for number, (name, label) in enumerate(table.rows.items()):
        cells = [label, *figures.cells(name, "flat")]
        if published:
            oxford_m, paris_m, oxford_h, paris_h = published[number].split()
            cells += [f"{oxford_m} / {oxford_h}", f"{paris_m} / {paris_h}"]
        lines.append(_line(cells))
    return "\n".join(lines)


def costs(path: Path) -> str:
    """What each run took."""
    head = ["row", "seeds", "rate", "steps", "training, CPU s", "last loss"]
    lines = [_line(head), _line(["---", *["---:"] * (len(head) - 1)])]
    runs = read_csv(path)
    for name in dict.fromkeys(found["row"] for found in runs):
        own = [found for found in runs if found["row"] == name and found["steps"]]
        if own:
            cpu = np.mean([float(found["train_cpu_s"]) for found in own])
            loss = np.mean([float(found["loss"]) for found in own])
            seeds = f"{len(own)} of {len(SEEDS)}"
            lines.append(_line([name, seeds, own[0]["rate"], own[0]["steps"], f"{cpu:.0f}", f"{loss:.2f}"]))
    return "\n".join(lines)


def choices(path: Path) -> str:
    found = read_csv(path)
    rates = sorted({row["rate"] for row in found}, key=float)
    lines = [_line(["system", *(f"rate {rate}" for rate in rates)]), _line(["---", *["---:"] * len(rates)])]
    for name in dict.fromkeys(row["row"] for row in found):
        by_rate = {row["rate"]: f"{100 * float(row['map']):.1f}" for row in found if row["row"] == name}
        lines.append(_line([name, *(by_rate.get(rate, "") for rate in rates)]))
    return "\n".join(lines)


def table2(results: Path) -> str:
    """Processor time on one thread beside the paper's; what was measured on fewer images is extrapolated and marked."""
    extracted = {found["row"]: found for found in read_csv(results / "table2-extract.csv")}
    searched: dict[str, dict[str, str]] = {}
    for found in sorted(read_csv(results / "table2-search.csv"), key=lambda found: int(found["images"])):
        searched[found["row"]] = found  # the largest gallery stays
    head = [
        "system",
        "retrieval s, top 100",
        "full ranking s",
        "paper",
        "extraction s",
        "paper ms (GPU)",
        "GB",
        "paper",
    ]
    lines = [_line(head), _line(["---", *["---:"] * (len(head) - 1)])]
    for label, network, *paper in TABLE2:
        measured = searched.get(label.replace("\\", ""))
        cells = ["not yet run", ""]
        memory = ""
        if measured is not None:
            factor = 1_000_000 / int(measured["images"])
            mark = "" if factor == 1 else f" (from {int(measured['images']):,})"
            cells = [f"{float(measured[key]) * factor / 1e3:.3f}{mark}" for key in ("top100_cpu_ms", "full_cpu_ms")]
            memory = f"{float(measured['bytes_an_image']) / 1e3:.1f}"
        took = extracted.get(network)
        took_s = "not yet run" if took is None else f"{float(took['cpu_ms']) / 1e3:.1f} ({took['scales']} scales)"
        lines.append(_line([label, *cells, paper[0], took_s, paper[1], memory, paper[2]]))
    return "\n".join(lines)


def shares(path: Path) -> str:
    rows = read_csv(path)
    if not rows:
        return "Not yet run."
    columns = sorted({row["share"] for row in rows}, key=float, reverse=True)
    lines = [_line(["system", *columns, "seeds"]), _line(["---", *["---:"] * (len(columns) + 1)])]
    for name in dict.fromkeys(row["row"] for row in rows):
        own = [row for row in rows if row["row"] == name]
        values = [[100 * float(row["map"]) for row in own if row["share"] == share] for share in columns]
        lines.append(_line([name, *(spread(found) for found in values), str(len(values[0]))]))
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def write_tables(results: Path = REPOSITORY / "results") -> Path:
    figures = Figures(results / "figures.csv")
    parts = [
        "# The paper's tables in small",
        _INTRODUCTION,
        "## Table 1",
        _OF_TABLE1,
        table1(figures),
        *(
            part
            for table in TABLES
            if table.name != "table1"
            for part in (f"## {table.title}", ablation(table, figures))
        ),
        "## mAP against the share of the picture that the object fills",
        shares(results / "share.csv"),
        "## Table 2",
        _OF_TABLE2,
        table2(results),
        "## What was trained, for how long",
        costs(results / "runs.csv"),
        "## Rates, chosen on val landmarks (mAP, seed 0)",
        choices(results / "choices.csv"),
    ]
    path = results / "tables.md"
    path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return path
