"""Make the tables of results/: `python scripts/results/make.py table1 --data DATA`.

    python scripts/results/make.py all --data DATA                     every table, every seed; goes on where it stopped
    python scripts/results/make.py tokens --data DATA --seeds 0        one table
    python scripts/results/make.py row token --data DATA --seeds 1     one row

DATA holds gldv2-50/ and instances/. Runs and maps go to --work (runs/results), figures to results/*.csv.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rows import ROWS, SEEDS, TABLES
from run import Bench, make_row, plan, say


def main() -> None:
    tables = {table.name: table for table in TABLES}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["all", "row", *tables])
    parser.add_argument("names", nargs="*", choices=[[], *ROWS], help="with `row`: which")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("runs/results"))
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    given = parser.parse_args()
    bench = Bench(given.data.absolute(), given.work.absolute())
    if given.what == "row":
        names = given.names
    else:
        chosen = TABLES if given.what == "all" else (tables[given.what],)
        names = list(dict.fromkeys(name for table in chosen for name in table.rows))
    for row, seed in plan([ROWS[name] for name in names], given.seeds):
        make_row(bench, row, seed)
        say(f"{row.name}, seed {seed}: done")


if __name__ == "__main__":
    main()
