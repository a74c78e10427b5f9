"""How long a command takes from the shell, by one or several trees of the source, in turn.

python scripts/time_command.py --tree before=../old/src --tree now=src -- search bridge.jpg -g photos.tessera
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path


def run_once(words: list[str], tree: str) -> tuple[float, float]:
    """Seconds by the clock and of the processor."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [sys.executable, "-m", "tessera", *words]
    subprocess.run(command, env={**environment, "PYTHONPATH": tree}, check=True, stdout=subprocess.DEVNULL)
    elapsed, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return elapsed, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", action="append", required=True, metavar="NAME=FOLDER")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("words", nargs="+", help="what follows `tessera`")
    given = parser.parse_args()
    trees = dict(tree.split("=", 1) for tree in given.tree)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in trees}
    for turn in range(given.rounds + 1):
        for name, tree in trees.items():
            seconds = run_once(given.words, str(Path(tree).resolve()))
            if turn:  # the first reads from disk and writes bytecode
                times[name].append(seconds)
    print("tree,wall_median_s,wall_least_s,cpu_median_s,cpu_least_s")
    for name, taken in times.items():
        figures = [
            f"{choose(column):.3f}" for column in zip(*taken, strict=True) for choose in (statistics.median, min)
        ]
        print(",".join([name, *figures]))


if __name__ == "__main__":
    main()
