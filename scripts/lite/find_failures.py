"""Where a bundle fails: mAP of each landmark, and the queries that fare worst with what came first instead.

    python scripts/lite/find_failures.py BUNDLE --photos PHOTOS --role test -o failures.json [--sheet failures.jpg]

Same lists as measure_lite.py: positives are the photos verified as the query's view, others of its landmark are junk.
--sheet draws each of the worst queries beside its best hits (wrong ones framed in red) for whoever has the photos.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from measure_lite import describe_by
from numpy.typing import NDArray
from photos import Photo, read_components, read_photos

from tessera.data.images import load_benchmark
from tessera.evaluate.protocol import average_precision
from tessera.models.bundle import Bundle

SHOWN = 5  # hits beside a query
TILE = 160  # pixels
GREEN, RED = (60, 160, 60), (60, 60, 200)  # as OpenCV orders colours


@dataclass(frozen=True)
class Outcome:
    """hits: (row, right or wrong) of the best answers that count."""

    query: int
    precision: float
    positives: int
    hits: list[tuple[int, bool]]


def search_all(
    descriptors: NDArray[np.float32], photos: Sequence[Photo], components: Sequence[Sequence[str]], role: str
) -> list[Outcome]:
    component = {photo: number for number, ids in enumerate(components) for photo in ids}
    groups = np.array([component.get(photo.id, -1) for photo in photos])
    landmarks = np.array([photo.landmark for photo in photos])
    outcomes = []
    for query in np.flatnonzero((groups >= 0) & np.array([photo.role == role for photo in photos])).tolist():
        order = np.argsort(-(descriptors @ descriptors[query]), kind="stable")
        order = order[order != query]
        right = groups[order] == groups[query]
        counts = right | (landmarks[order] != landmarks[query])
        order, right = order[counts], right[counts]
        precision = average_precision(np.flatnonzero(right), int(right.sum()))
        hits = list(zip(order[:SHOWN].tolist(), right[:SHOWN].tolist(), strict=True))
        outcomes.append(Outcome(query, precision, int(right.sum()), hits))
    return outcomes


def by_landmark(outcomes: Sequence[Outcome], photos: Sequence[Photo]) -> dict[str, dict[str, object]]:
    """Each landmark's mAP, queries, and which other landmark most often comes first."""
    groups: dict[int, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        groups[photos[outcome.query].landmark].append(outcome)
    table = {}
    for landmark, members in groups.items():
        wrong = [photos[row].landmark for member in members for row, right in member.hits[:1] if not right]
        table[str(landmark)] = {
            "kind": photos[members[0].query].kind,
            "map": round(100 * float(np.mean([member.precision for member in members])), 1),
            "queries": len(members),
            "first_hit_wrong": len(wrong),
            "most_often": max(set(wrong), key=wrong.count) if wrong else None,
        }
    return dict(sorted(table.items(), key=lambda item: item[1]["map"]))  # type: ignore[arg-type, return-value]


def draw_sheet(path: Path, outcomes: Sequence[Outcome], photos: Sequence[Photo]) -> None:
    rows = []
    for outcome in outcomes:
        tiles = [tile(photos[outcome.query], (120, 120, 120))]
        tiles += [tile(photos[row], GREEN if right else RED) for row, right in outcome.hits]
        rows.append(np.hstack(tiles))
    cv2.imwrite(str(path), np.vstack(rows))


def tile(photo: Photo, colour: tuple[int, int, int]) -> NDArray[np.uint8]:
    picture = np.asarray(load_benchmark(photo.path, size=TILE))[..., ::-1]
    canvas = np.full((TILE + 8, TILE + 8, 3), colour, np.uint8)
    y, x = (TILE + 8 - picture.shape[0]) // 2, (TILE + 8 - picture.shape[1]) // 2
    canvas[y : y + picture.shape[0], x : x + picture.shape[1]] = picture
    return canvas


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--photos", type=Path, required=True)
    parser.add_argument("--components", type=Path, default=Path("results/lite/components.csv"))
    parser.add_argument("--role", choices=["val", "test"], default="val")
    parser.add_argument("--size", type=int, default=384)
    parser.add_argument("--worst", type=int, default=24, help="queries to list, at most two of a view")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--sheet", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    components = read_components(options.components)
    roles = {options.role, "val"}
    photos = [photo for photo in read_photos(options.photos) if photo.role in roles]
    descriptors = describe_by(Bundle.open(options.bundle), photos, options.size, options.threads)
    outcomes = sorted(search_all(descriptors, photos, components, options.role), key=lambda o: o.precision)
    component = {photo: number for number, ids in enumerate(components) for photo in ids}
    seen: dict[int, int] = defaultdict(int)
    worst: list[Outcome] = []
    for outcome in outcomes:
        view = component[photos[outcome.query].id]
        seen[view] += 1
        if seen[view] <= 2 and len(worst) < options.worst:
            worst.append(outcome)
    report = {
        "landmarks": by_landmark(outcomes, photos),
        "below_10": sum(outcome.precision < 0.1 for outcome in outcomes),
        "perfect": sum(outcome.precision > 0.999 for outcome in outcomes),
        "queries": len(outcomes),
        "worst": [
            {
                "query": photos[outcome.query].id,
                "landmark": photos[outcome.query].landmark,
                "ap": round(100 * outcome.precision, 1),
                "positives": outcome.positives,
                "first": [(photos[row].id, photos[row].landmark) for row, _ in outcome.hits],
            }
            for outcome in worst
        ],
    }
    options.output.write_text(json.dumps(report, indent=1) + "\n")
    if options.sheet:
        draw_sheet(options.sheet, worst, photos)
    print(json.dumps({key: value for key, value in report.items() if key != "worst"}, indent=1))


if __name__ == "__main__":
    main()
