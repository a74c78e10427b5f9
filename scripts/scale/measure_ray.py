"""Two workers of Ray beside two independent processes: pictures a second, start-up aside.

    python scripts/scale/measure_ray.py PHOTOS -n 5000 --rounds 3 -o results/scale/ray.csv

Both ways describe the same photos with one thread a worker, in turn. A round's rate is that of the last nine tenths:
what comes before opens networks and places actors.
"""

from __future__ import annotations

import argparse
import csv
import multiprocessing
import time
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

from tessera.extract.extractor import Extractor
from tessera.extract.ray import RayExtractor

WORKERS = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path)
    parser.add_argument("-n", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    paths = [str(path) for path in sorted(options.photos.rglob("*.jpg"))[: options.n]]
    rows, ratios = [], []
    for number in range(options.rounds):
        processes, ray = rate(time_processes(paths)), rate(time_ray(paths))
        ratios.append(ray / processes)
        rows.append([number + 1, len(paths), f"{processes:.2f}", f"{ray:.2f}", f"{ratios[-1]:.3f}"])
        print(*rows[-1], flush=True)
    with options.output.open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["round", "photos", "two_processes_a_second", "two_ray_workers_a_second", "ratio"])
        table.writerows(rows)
    print(f"median ratio {median(ratios):.3f}")


def rate(moments: list[float]) -> float:
    """Pictures a second after the first tenth."""
    moments.sort()
    first = len(moments) // 10
    return (len(moments) - 1 - first) / (moments[-1] - moments[first])


def time_ray(paths: list[str]) -> list[float]:
    return [time.monotonic() for _ in RayExtractor("lite", actors=WORKERS).extract(paths)]


def time_processes(paths: list[str]) -> list[float]:
    spawn = multiprocessing.get_context("spawn")
    running = []
    for worker in range(WORKERS):
        here, there = spawn.Pipe(duplex=False)
        process = spawn.Process(target=describe, args=(paths[worker::WORKERS], there))
        process.start()
        running.append((process, here))
    moments = [moment for _, here in running for moment in here.recv()]
    for process, _ in running:
        process.join()
    return moments


def describe(paths: list[str], answers: Connection) -> None:
    extractor = Extractor("lite", threads=1)
    answers.send([time.monotonic() for _ in extractor.extract(paths)])


if __name__ == "__main__":
    main()
