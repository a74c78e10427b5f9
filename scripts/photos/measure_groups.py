"""`tessera group` on labelled photos: pairwise precision and recall over the inliers asked for, as JSON and a CSV.

Usage: python scripts/photos/measure_groups.py INSTANCES --gallery G.tessera -o results/photos/groups.json \\
    --same pairs/pairs/LePoint1=pairs/pairs/mag --same pairs/pairs/shout=pairs/pairs/wash
INSTANCES: a folder with labels.csv (path, label, set, role); the photos of role val are described and grouped, without
the local features of the default search, which groups do not use. --role train for the others.
--same: two names of one thing; the curve has figures with and without that correction.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path

from measure_duplicates import describe

import tessera
from tessera.gallery.organise import groups as grouping
from tessera.gallery.organise.components import join_components


def pair_scores(groups: list[list[str]], labels: dict[str, str]) -> tuple[float, float, int]:
    """Pairwise precision and recall of groups of paths against labels, and how many pairs were joined."""
    joined = right = 0
    for paths in groups:
        counts = Counter(labels[path] for path in paths)
        joined += len(paths) * (len(paths) - 1) // 2
        right += sum(count * (count - 1) // 2 for count in counts.values())
    wanted = sum(count * (count - 1) // 2 for count in Counter(labels.values()).values())
    return (right / joined if joined else 1.0), right / wanted, joined


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--gallery", type=Path, required=True)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--role", default="val")
    parser.add_argument("--same", action="append", default=[], metavar="SET/LABEL=SET/LABEL")
    options = parser.parse_args()
    with (options.data / "labels.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["role"] == options.role]
    labels = {str((options.data / row["path"]).absolute()): f"{row['set']}/{row['label']}" for row in rows}
    sets = {str((options.data / row["path"]).absolute()): row["set"] for row in rows}
    with tessera.Gallery(options.gallery) as gallery:
        describe(gallery, [Path(path) for path in labels])
        started = time.process_time()
        found = gallery.groups()
        seconds = time.process_time() - started
        with gallery._catalog.read() as snapshot:
            compared = snapshot.compared_pairs(grouping.PAIR_KIND)
        hashes = {str(record.content_hash): record.path for record in gallery.images(limit=1_000_000)}
    contents = sorted(hashes)
    row_of = {content: row for row, content in enumerate(contents)}
    edges = {(row_of[a], row_of[b]): score for (a, b), score in compared.items() if a in row_of and b in row_of}
    known = {hashes[content]: labels[hashes[content]] for content in contents}
    one_name = dict(reversed(same.split("=")) for same in options.same)
    corrected = {path: one_name.get(label, label) for path, label in labels.items()}
    curve = []
    for least in (8, 10, 12, 14, 16, 18, 20, 24, 28, 32, 40, 60):
        parts = join_components(len(contents), edges, least, max(grouping.STRONG_INLIERS, 2 * least))
        paths = [[hashes[contents[row]] for row in part] for part in parts]
        precision, recall, joined = pair_scores(paths, known)
        right = [round(value, 4) for value in pair_scores(paths, {path: corrected[path] for path in known})[:2]]
        curve.append(
            {
                "inliers": least,
                "precision": round(precision, 4),
                "recall": round(recall, 4),
                "precision_corrected": right[0],
                "recall_corrected": right[1],
                "pairs": joined,
            }
        )
    members = [[record.path for record in group.images] for group in found]
    chosen, chosen_corrected = pair_scores(members, labels), pair_scores(members, corrected)
    by_set = {}
    for name in sorted(set(sets.values())):
        inside = {path: label for path, label in labels.items() if sets[path] == name}
        paths = [[record.path for record in group.images if record.path in inside] for group in found]
        by_set[name] = [round(value, 4) for value in pair_scores(paths, inside)[:2]]
    answer = {
        "command": "python " + " ".join([os.path.relpath(sys.argv[0]), "INSTANCES", "--gallery", "G", "-o", "OUT"]),
        "role": options.role,
        "photos": len(contents),
        "pairs_compared": len(edges),
        "cpu_seconds": round(seconds, 1),
        "least_inliers": grouping.LEAST_INLIERS,
        "precision": round(chosen[0], 4),
        "recall": round(chosen[1], 4),
        "same": options.same,
        "precision_corrected": round(chosen_corrected[0], 4),
        "recall_corrected": round(chosen_corrected[1], 4),
        "precision_recall_by_set": by_set,
        "curve": curve,
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(answer, indent=1) + "\n")
    with options.output.with_suffix(".csv").open("w", newline="") as file:
        table = csv.DictWriter(file, list(curve[0]), lineterminator="\n")
        table.writeheader()
        table.writerows(curve)
    print(json.dumps(answer, indent=1))


if __name__ == "__main__":
    main()
