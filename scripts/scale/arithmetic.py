"""Cores, bytes, hours and money for a million, a hundred million and ten billion images, from measured figures.

    python scripts/scale/arithmetic.py -o results/scale/sizes.csv

Costs of an image: results/scale/image.csv (measure_image.py). Search: results/search/in-turn.csv by the descriptor and
results/parts/cost.csv with local features. Prices are examples, of Linux on demand in us-east-1, as public pages gave
them once: put your own in `MACHINES`.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
COUNTS = (1_000_000, 100_000_000, 10_000_000_000)
HOURS_A_MONTH = 730
OBJECT_STORE_USD = 0.023  # a GB and month
USED = 0.8  # of memory and disks
FAST_BYTES, FAST_MS = 56, 3.00  # `fast`: bytes of memory an image, milliseconds of one core a million images
HNSW_BYTES = 4 * 1024 + 2 * 24 * 4 + 16  # descriptor, links of M = 24, id; HNSW as the engine builds it
CODES_BYTES = 128 + 8 + 4  # IVF_PQ as the engine builds it: code, id, its share of the lists
# A search of 100,000 images with local features, the query's own included, on two cores: beyond 200,000 images a
# shortlist of 1,000 is scored and 200 are verified, so it grows no more.
PARTS_MS = 2 * 452.0
TARGET_MS = 50.0  # a query, by as many cores as it takes


@dataclass(frozen=True)
class Machine:
    cores: int  # two hardware threads are one
    memory_gb: float
    disk_gb: float
    usd_an_hour: float


MACHINES = {
    "c5.4xlarge": Machine(8, 32, 0, 0.68),
    "i3.2xlarge": Machine(4, 61, 1900, 0.624),
    "r4.8xlarge": Machine(16, 244, 0, 1553 / HOURS_A_MONTH),
}


def read_costs(path: Path = ROOT / "results" / "scale" / "image.csv") -> dict[str, float]:
    with path.open(newline="") as file:
        return {row["what"]: float(row["value"]) for row in csv.DictReader(file)}


def estimate(count: int, *, local: bool, cost: dict[str, float]) -> dict[str, str | float]:
    """One row. local: with local features and the lists that find by them."""
    describing, serving, holding = MACHINES["c5.4xlarge"], MACHINES["i3.2xlarge"], MACHINES["r4.8xlarge"]
    core_hours = count * (cost["descriptor_ms"] + local * cost["local_features_ms"]) / 3.6e6
    stored = count * (cost["descriptor_bytes"] + local * cost["local_features_bytes"])
    on_disk = count * (cost["descriptor_bytes"] + local * (cost["local_features_bytes"] + cost["lists_bytes"]))
    by_memory = count * FAST_BYTES / (USED * serving.memory_gb * 1e9)
    by_disk = on_disk / (USED * serving.disk_gb * 1e9)
    by_time = count / 1e6 * FAST_MS / TARGET_MS / serving.cores
    servers = math.ceil(max(by_memory, by_disk, by_time))
    limit = max((by_memory, "memory"), (by_disk, "disk"), (by_time, "cores"))[1]
    holders, coders = (math.ceil(count * size / (USED * holding.memory_gb * 1e9)) for size in (HNSW_BYTES, CODES_BYTES))
    query_ms = count / 1e6 * FAST_MS + (PARTS_MS if local else cost["descriptor_ms"])
    return {
        "images": count,
        "local_features": "yes" if local else "no",
        "core_hours": round(core_hours),
        "extraction_usd": round(core_hours / describing.cores * describing.usd_an_hour),
        "stored_tb": round(stored / 1e12, 3),
        "stored_usd_a_month": round(stored / 1e9 * OBJECT_STORE_USD),
        "fast_machines": servers,
        "fast_limit": limit,
        "fast_usd_a_month": round(servers * serving.usd_an_hour * HOURS_A_MONTH),
        "hnsw_machines": holders,
        "hnsw_usd_a_month": round(holders * holding.usd_an_hour * HOURS_A_MONTH),
        "codes_machines": coders,
        "codes_usd_a_month": round(coders * holding.usd_an_hour * HOURS_A_MONTH),
        "query_core_ms": round(query_ms),
        "million_queries_usd": round(query_ms / 3600 * 1000 / serving.cores * serving.usd_an_hour),
    }


def rows() -> Iterator[dict[str, str | float]]:
    cost = read_costs()
    for count in COUNTS:
        for local in (False, True):
            yield estimate(count, local=local, cost=cost)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    made = list(rows())
    with options.output.open("w", newline="") as file:
        table = csv.DictWriter(file, list(made[0]), lineterminator="\n")
        table.writeheader()
        table.writerows(made)


if __name__ == "__main__":
    main()
