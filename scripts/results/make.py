"""Make the tables of results/: `python scripts/results/make.py table1 --data DATA`.

    python scripts/results/make.py all --data DATA                     every table, every seed; goes on where it stopped
    python scripts/results/make.py tokens --data DATA --seeds 0        one table
    python scripts/results/make.py row token --data DATA --seeds 1     one row
    python scripts/results/make.py maps --data DATA                    the pictures' maps alone
    python scripts/results/make.py tables                              results/tables.md and the figures, from the CSVs

    python scripts/results/make.py share --data DATA                   mAP against the share that the object fills
    python scripts/results/make.py top-five                            several systems' first five for one query

DATA holds gldv2-50/ and instances/. Runs and maps go to --work (runs/results), figures to results/*.csv. Several
processes may run the same command: each takes rows that are free. --smoke runs any of it in minutes, on a few photos,
into --work alone.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from dsm_row import DSM_ROW, make_dsm_row
from figures import draw_all
from gap_figure import draw_gap
from local_rows import LOCAL_ROWS, make_local_row
from paper_tables import write_tables
from rows import DEFAULT, HOW_PCA, HOW_TRAINED, REFERENCES, ROWS, SEEDS, TABLES
from run import REPOSITORY, Bench, locked, make_reference, make_row, say
from share import SYSTEMS, make_share
from top_five import make_top_five

# Every table once with the first seed, then the others: what was stopped early has all of its systems.
ORDER = ("table1", "tokens", "components", "refinement", "tokenizer", "local", "equal-d", "own-loss", "dsm")
ONCE = ("references", "short", "last-stage")  # with the first seed only
LOCAL_TABLE = [name for name in LOCAL_ROWS if name not in (HOW_PCA, HOW_TRAINED)]  # these two stand in other tables


def main() -> None:
    tables = {**{table.name: list(table.rows) for table in TABLES}, "local": LOCAL_TABLE, "dsm": [DSM_ROW]}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["all", "row", "maps", "share", "top-five", "tables", *tables])
    parser.add_argument("names", nargs="*", help="with `row` and `share`: which")
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--work", type=Path, default=Path("runs/results"))
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--smoke", action="store_true")
    given = parser.parse_args()
    work = given.work.absolute()
    results = work / "results" if given.smoke else REPOSITORY / "results"
    bench = Bench(given.data.absolute(), work, results, given.smoke)
    if given.what == "maps":
        say(f"{len(bench.maps.paths)} pictures have their maps")
    elif given.what == "all":
        for seed in given.seeds:
            for table in (*ORDER, *(ONCE if seed == given.seeds[0] else ())):
                make_rows(bench, tables[table], seed)
            make_share(bench, seed)
        make_share(bench, given.seeds[0], [DEFAULT])
        make_top_five(bench)
    elif given.what == "share":
        for seed in given.seeds:
            make_share(bench, seed, given.names or SYSTEMS)
    elif given.what == "top-five":
        make_top_five(bench)
    elif given.what != "tables":
        for seed in given.seeds:
            make_rows(bench, given.names if given.what == "row" else tables[given.what], seed)
    drawn = draw_all(results)
    if (results / "gap.csv").is_file():
        drawn.append(draw_gap(results / "gap.csv", results / "figures" / "gap.svg"))
    for path in (write_tables(results), *drawn):
        say(f"written: {path}")


def make_rows(bench: Bench, names: list[str], seed: int) -> None:
    for name in names:
        with locked(bench, f"row-{name}-{seed}", wait=False) as mine:
            if not mine:
                say(f"{name}, seed {seed}: another process is at it")
                continue
            if name in REFERENCES:
                make_reference(bench, name)
            elif name in LOCAL_ROWS:
                make_local_row(bench, LOCAL_ROWS[name], seed)
            elif name == DSM_ROW:
                make_dsm_row(bench, seed)
            else:
                make_row(bench, ROWS[name], seed)
            say(f"{name}, seed {seed}: done")


if __name__ == "__main__":
    main()
