"""results/*.csv to results/tables.md: every table, rows that are missing marked as not yet run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from gap_variants import GROUPS
from rows import DEFAULT_BY, HOW_PCA, HOW_TRAINED, REFERENCES, SEEDS, SYSTEM_LABELS, TABLES, Table
from run import REPOSITORY, read_csv

from tessera.storage import write_atomically

NO_SEEDS = "-"  # of what nothing random is in
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
    ("GeM+DSM", "gem-dsm", "dsm", "65.30 39.20 77.40 56.20"),
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
    ("R50-DELF-RASMK\\*", "R50-DELF", "1.534", "1410", "27.6"),
    ("R50-DELF-ASMK\\*", "R50-DELF", "0.573", "176", "10.3"),
    ("R101-HOW-VLAD", "R101-HOW", "0.405", "263", "7.6"),
    ("R101-HOW-ASMK\\*", "R101-HOW", "0.712", "257", "14.3"),
    ("R101-DELG", "R101-DELG", "0.419", "109", "7.6"),
    ("R101-DELG+SP\\*", "R101-DELG+SP", "49.382", "259", "22.6"),
    ("R101-DELG+SP", "R101-DELG+SP", "58.328", "259", "485.9"),
    ("R101-Token", "R101-Token", "0.287", "125", "3.9"),
    ("R101-Token PQ1", "R101-Token", "0.222", "128", "1.0"),
    ("R101-Token PQ8", "R101-Token", "0.104", "126", "0.1"),
)
SEARCHED_AS = {"R50-DELF-ASMK*": "R101-HOW-ASMK*"}  # a thousand features of 128 numbers an image: the same work
AGAIN = {"R101-DELG+SP": "R101-DELG", "R101-DELG+SP*": "R101-DELG"}  # what is re-ranked; that part does not grow

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
    "which cost the same. The paper extracts on a GPU. Smaller galleries are extrapolated to a million images in "
    "proportion; re-ranking a hundred and finding a query's words do not grow. Local systems have "
    "1,000 features of 128 numbers an image (drawn), so both ASMK\\* rows are one measurement, and R-ASMK\\* has "
    "four regions beside the whole image; what finds regions is not in its extraction here. DELG+SP keeps positions, "
    "scales and strengths beside the features; its extraction is its global network at seven scales."
)
_OF_GAP = (
    "One thing changed at a time, on the val landmarks alone; what it says is in [gap.md](gap.md). The rows of "
    "the tables have 366 steps."
)


_OF_COSTS = (
    "The least over seeds; measuring is by the clock, in part of a busy machine, and where nothing stands before it, "
    "training is in it; 0 where the choice of the rate had measured already. The runs of this table together: "
    "{hours:.1f} hours."
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
        cells = [label, *figures.cells(name, "asmk" if name in (HOW_PCA, HOW_TRAINED) else "flat")]
        if name in REFERENCES:
            cells[-1] = NO_SEEDS
        if published:
            oxford_m, paris_m, oxford_h, paris_h = published[number].split()
            cells += [f"{oxford_m} / {oxford_h}", f"{paris_m} / {paris_h}"]
        lines.append(_line(cells))
    return "\n".join(lines)


def costs(path: Path) -> str:
    """What each run took: the least of its seeds, since one of them makes the crops' maps for all rows."""
    head = ["row", "seeds", "rate", "steps", "training, CPU s", "measuring, s", "last loss"]
    lines = [_line(head), _line(["---", *["---:"] * (len(head) - 1)])]
    runs, total = read_csv(path), 0.0
    for name in dict.fromkeys(found["row"] for found in runs):
        own = [found for found in runs if found["row"] == name]
        cpu = min(float(found["train_cpu_s"] or 0) for found in own)
        measured = min(float(found["describe_s"]) for found in own)
        total += len(own) * (cpu + measured)
        losses = [float(found["loss"]) for found in own if found["loss"]]
        cells = [f"{cpu:.0f}", f"{measured:.0f}", f"{np.mean(losses):.2f}"] if losses else ["", f"{measured:.0f}", ""]
        lines.append(_line([name, f"{len(own)} of {len(SEEDS)}", own[0]["rate"], own[0]["steps"], *cells]))
    return "\n".join((*lines, "", _OF_COSTS.format(hours=total / 3600)))


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
    searched: dict[str, list[dict[str, str]]] = {}
    for found in sorted(read_csv(results / "table2-search.csv"), key=lambda found: int(found["images"])):
        searched.setdefault(found["row"], []).append(found)
    head = ["system", "retrieval s, top 100", "full ranking s", "paper", "measured on", "extraction s"]
    head += ["paper ms (GPU)", "GB", "paper"]
    lines = [_line(head), _line(["---", *["---:"] * (len(head) - 1)])]
    for label, network, *paper in TABLE2:
        took = extracted.get(network)
        took_s = "not yet run" if took is None else f"{float(took['cpu_ms']) / 1e3:.1f} ({took['scales']} scales)"
        *times, size, memory = at_a_million(searched, label.replace("\\", ""))
        lines.append(_line([label, *times, paper[0], size, took_s, paper[1], memory, paper[2]]))
    if {"R101-Token", "R101-DELG"} <= extracted.keys():
        here = float(extracted["R101-Token"]["cpu_ms"]) / float(extracted["R101-DELG"]["cpu_ms"])
        lines += ["", f"Extraction of R101-Token over that of R101-DELG: {here:.2f}; in the paper {125 / 109:.2f}."]
    return "\n".join(lines)


def at_a_million(searched: dict[str, list[dict[str, str]]], name: str) -> list[str]:
    """Seconds for the best hundred and for all, the galleries that were measured, and GB."""
    first = searched.get(AGAIN.get(name, SEARCHED_AS.get(name, name)), [])
    again = searched.get(name, []) if name in AGAIN else []
    if not first or (name in AGAIN and not again):
        return ["not yet run", "", "", ""]
    added = sum(float(found["top100_cpu_ms"]) for found in again) / 1e3 + float(first[-1]["query_cpu_ms"] or 0) / 1e3
    values = [in_proportion(first[-1], key) / 1e3 + added for key in ("top100_cpu_ms", "full_cpu_ms")]
    memory = sum(float(found["bytes_an_image"]) for found in (first[-1], *again)) / 1e3
    return [*(f"{value:.3f}" for value in values), f"{int(first[-1]['images']):,}, extrapolated", f"{memory:.1f}"]


def in_proportion(found: dict[str, str], key: str) -> float:
    """At a million; what a query itself costs stands apart (`query_cpu_ms`)."""
    return float(found[key]) * 1_000_000 / int(found["images"])


def shares(path: Path) -> str:
    rows = read_csv(path)
    if not rows:
        return "Not yet run."
    columns = sorted({row["share"] for row in rows}, key=float, reverse=True)
    lines = [_line(["system", *columns, "seeds"]), _line(["---", *["---:"] * (len(columns) + 1)])]
    for name in dict.fromkeys(row["row"] for row in rows):
        own = [row for row in rows if row["row"] == name]
        values = [[100 * float(row["map"]) for row in own if row["share"] == share] for share in columns]
        seeds = NO_SEEDS if name in DEFAULT_BY else str(len(values[0]))
        lines.append(_line([SYSTEM_LABELS[name], *(spread(found) for found in values), seeds]))
    return "\n".join(lines)


def gap_table(path: Path) -> str:
    """Every variant that was measured, in the order of the groups; over seeds, where there are several."""
    head = ["what", "variant", "labels", "steps", "seeds", "last loss", "mAP, val"]
    lines = [_line(head), _line(["---", "---", *["---:"] * (len(head) - 2)])]
    rows = read_csv(path)
    for group, variants in GROUPS.items():
        for variant in variants:
            own = [row for row in rows if (row["group"], row["variant"]) == (group, variant.name)]
            if own:
                losses = [float(row["loss"]) for row in own if row["loss"] != "nan"]
                last = f"{np.mean(losses):.2f}" if losses else ""
                found = spread([100 * float(row["map"]) for row in own])
                lines.append(
                    _line([group, variant.name, own[0]["classes"], own[0]["steps"], str(len(own)), last, found])
                )
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
        "## What holds Token back here: mAP on val landmarks",
        _OF_GAP,
        gap_table(results / "gap.csv"),
        "## Table 2",
        _OF_TABLE2,
        table2(results),
        "## What was trained, for how long",
        costs(results / "runs.csv"),
        "## Rates, chosen on val landmarks (mAP, seed 0)",
        choices(results / "choices.csv"),
    ]
    path = results / "tables.md"
    write_atomically(path, ("\n\n".join(parts) + "\n").encode())
    return path
