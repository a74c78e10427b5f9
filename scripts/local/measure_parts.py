"""Measure the default search, and fit the curve that makes probabilities of its scores.

    python scripts/local/measure_parts.py --data DATA --role val -o WORK/val
    python scripts/local/measure_parts.py --data DATA --role train --model ONE --sets SET... -o WORK/one
    python scripts/local/measure_parts.py --data DATA --role train --model OTHER --sets SET... --also WORK/one --fit \
        -o WORK/other

DATA holds `instances` and `gldv2-50`. All photos of the role make one gallery, in the folder WORK/ROLE, kept for the
next run; gldv2-50's areas are distractors only. Each query is searched twice: leave one out, and with every photo of
its thing taken out. Writes `map.csv`, `reliability.csv` and `certainty.csv`; `--fit` prints the curve. What was
found is kept as well: `--again` judges it by other weights (`--weights`) without searching.

The packaged model was fitted to sets of the train role, and would find them better than what nobody has seen. So the
curve is fitted with twins of it that were fitted to half of the sets each, asked with the other half.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
import pickle
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tessera import Gallery
from tessera.evaluate.protocol import average_precision
from tessera.gallery.engines.engine import Allowed
from tessera.gallery.search.query import QueryPicture
from tessera.gallery.search.search_options import SearchOptions
from tessera.gallery.view import View
from tessera.local.calibration import EVIDENCE, Calibration, fall, load_calibration
from tessera.local.parts import PartsModel
from tessera.local.postings import aggregate_query

Array = npt.NDArray[np.float64]
KEPT = "queries.pkl"
SHOWN = 10  # hits of a query that the curve is about: what a person looks at
BINS = 10
KNOTS = 16
LEAST_STEP = 0.001
OUTERMOST = (-10.0, 0.0005), (30.0, 0.9995)  # no hits say what holds beyond the last knots


@dataclass(frozen=True)
class Photo:
    path: Path
    thing: str
    set: str
    asks: bool = True


@dataclass(frozen=True)
class Query:
    """What was found for one query. right: of each hit, whether it shows the same thing."""

    set: str
    num_right: int  # in the gallery
    evidence: Array  # of its hits, K E
    right: npt.NDArray[np.bool_]  # K
    inliers: npt.NDArray[np.int64]  # K
    neighbours: npt.NDArray[np.float32]  # K: how near each is to what is verified
    without: Array  # evidence, its thing taken out
    neighbours_without: npt.NDArray[np.float32]
    others: dict[str, npt.NDArray[np.int64]]  # at which ranks lite alone and ASMK* alone find what is right


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--role", choices=("train", "val"), default="val")
    parser.add_argument("--model", default="lite", help="a bundle to describe with")
    parser.add_argument("--sets", nargs="+", help="ask with photos of these sets alone")
    parser.add_argument("--also", type=Path, nargs="+", default=[], help="folders of other runs, judged together")
    parser.add_argument("--every", type=int, default=1, help="ask with every n-th photo of instances")
    parser.add_argument("--every-landmark", type=int, default=4, help="and of gldv2-50")
    parser.add_argument("--most", type=int, default=1000, help="photos of each landmark of gldv2-50")
    parser.add_argument("--first", type=int, default=0, help="the first of every n")
    parser.add_argument("--again", action="store_true", help="do not search: judge what the last run found")
    parser.add_argument("--weights", type=float, nargs=len(EVIDENCE), help=f"of {', '.join(EVIDENCE)}")
    parser.add_argument("--fit", action="store_true", help="fit the curve, and judge by what was fitted")
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    if not args.again:
        (args.output / KEPT).write_bytes(pickle.dumps(search(args)))
    asked = [query for folder in (args.output, *args.also) for query in pickle.loads((folder / KEPT).read_bytes())]
    calibration = load_calibration(PartsModel.open().folder)
    if args.weights:
        calibration = dataclasses.replace(calibration, weights=tuple(args.weights))
    write_map(asked, calibration, args.output / "map.csv")
    if args.fit:
        calibration = dataclasses.replace(calibration, curve=fit_curve(asked, calibration))
        print(json.dumps({"curve": calibration.curve}))
    write_reliability(asked, calibration, args.output / "reliability.csv")
    write_certainty(asked, calibration, args.output / "certainty.csv")


def search(args: argparse.Namespace) -> list[Query]:
    photos = list(read_photos(args.data, args.role, args.most))
    asking = [k for k, photo in enumerate(photos) if photo.asks and (not args.sets or photo.set in args.sets)]
    landmarks = [k for k in asking if photos[k].set == "gldv2-50"][args.first :: args.every_landmark]
    queries = [k for k in asking if photos[k].set != "gldv2-50"][args.first :: args.every] + landmarks
    with Gallery(args.output / "gallery", args.model) as gallery:
        fill(gallery, photos, args.output)
        return list(ask(gallery, photos, queries))


def read_photos(data: Path, role: str, most: int) -> Iterator[Photo]:
    with (data / "instances" / "labels.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if row["role"] == role:
                yield Photo(data / "instances" / row["path"], f"{row['set']}/{row['label']}", row["set"])
    folder = data / "gldv2-50"
    with (folder / "roles.csv").open(newline="") as file:
        kinds = {row["landmark_id"]: row["kind"] for row in csv.DictReader(file) if row["role"] == role}
    with (folder / "duplicates.csv").open(newline="") as file:
        dropped = {row["drop"] for row in csv.DictReader(file)}
    seen: Counter[str] = Counter()
    with (folder / "train.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            name, kind = row["id"], kinds.get(row["landmark_id"])
            if kind is not None and name not in dropped and seen[row["landmark_id"]] < most:
                seen[row["landmark_id"]] += 1
                path = folder / "train" / name[0] / name[1] / name[2] / f"{name}.jpg"
                yield Photo(path, f"gldv2-50/{row['landmark_id']}", "gldv2-50", asks=kind == "object")


def fill(gallery: Gallery, photos: list[Photo], folder: Path) -> None:
    listed = folder / "photos.txt"
    listed.write_text("".join(f"{photo.path.resolve()}\n" for photo in photos))
    print(gallery.index(listed))
    wanted = {str(photo.path.resolve()) for photo in photos}
    if others := [image.id for image in _all_images(gallery) if image.path not in wanted]:
        gallery.remove(others, ignore=False)  # of a run with more photos


def ask(gallery: Gallery, photos: list[Photo], queries: list[int]) -> Iterator[Query]:
    ids = {image.path: image.id for image in _all_images(gallery)}
    own_ids = np.array([ids[str(photo.path.resolve())] for photo in photos])
    things = np.array([photo.thing for photo in photos])
    thing_of = dict(zip(own_ids.tolist(), things.tolist(), strict=True))
    store, parts = gallery._store, gallery._searcher._parts
    with store.pin() as view:
        for done, k in enumerate(queries):
            picture = QueryPicture(photos[k].path, exclude=int(own_ids[k]))
            descriptor = picture.describe(view.snapshot, lambda: store.open_extractor(view.snapshot))
            features = parts.describe(picture)
            own, everything = int(own_ids[k]), SearchOptions(len(photos))
            strangers = Allowed((), partial(np.sort, own_ids[things != things[k]]))
            hits = parts.search(view, descriptor, features, everything, None, own)
            without = parts.search(view, descriptor, features, SearchOptions(SHOWN), strangers, own)

            def is_right(found: Any, thing: str = photos[k].thing) -> npt.NDArray[np.bool_]:
                return np.array([thing_of.get(int(i)) == thing for i in found], bool)

            right = is_right(hits.ids)
            others = {
                "lite": np.flatnonzero(right[np.argsort(-hits.cosines, kind="stable")]),
                "ASMK*": np.flatnonzero(is_right(_by_asmk(parts, view, features, own))),
            }
            num_right = int((things == things[k]).sum()) - 1
            if num_right:
                sides = (hits.neighbours, without.evidence, without.neighbours)
                yield Query(photos[k].set, num_right, hits.evidence, right, hits.inliers, *sides, others)
            if done % 50 == 49:
                print(f"{done + 1} of {len(queries)} queries", flush=True)


def _all_images(gallery: Gallery) -> Iterator[Any]:
    after = 0
    while page := gallery.images(after_id=after, limit=1000):
        yield from page
        after = page[-1].id


def _by_asmk(parts: Any, view: View, features: Any, own: int) -> list[int]:
    ids, scores = parts.postings.scores(*aggregate_query(parts.model.encode_query(features)))
    return [int(i) for i in ids[np.argsort(-scores, kind="stable")] if i != own]


def write_map(asked: list[Query], calibration: Calibration, path: Path) -> None:
    by_set: dict[str, list[Query]] = defaultdict(list)
    for query in asked:
        by_set[query.set].append(query)
    ways = [*asked[0].others, "default search"]
    rows = []
    for name, queries in sorted(by_set.items(), key=lambda item: (item[0] == "gldv2-50", item[0])):
        means = [
            100 * np.mean([average_precision(_ranks(q, way, calibration), q.num_right) for q in queries])
            for way in ways
        ]
        rows.append([name, len(queries), *(f"{mean:.1f}" for mean in means)])
    _write(path, ["set", "queries", *ways], rows)


def _ranks(query: Query, way: str, calibration: Calibration) -> npt.NDArray[np.int64]:
    if way in query.others:
        return query.others[way]
    order = np.argsort(-calibration.rank_scores(query.evidence, query.neighbours), kind="stable")
    return np.flatnonzero(query.right[order])


def fit_curve(asked: list[Query], calibration: Calibration) -> tuple[tuple[float, float], ...]:
    """The curve over the best hits of every query, every set worth the same: means of KNOTS parts, made to rise."""
    parts = [_shown(query, calibration) for query in asked]
    sizes: Counter[str] = Counter()
    for query, (scores, _) in zip(asked, parts, strict=True):
        sizes[query.set] += len(scores)
    scores, right = (np.concatenate([part[side] for part in parts]).astype(np.float64) for side in (0, 1))
    weights = np.concatenate([np.full(len(s), 1 / sizes[q.set]) for q, (s, _) in zip(asked, parts, strict=True)])
    order = np.argsort(scores, kind="stable")
    scores, right, weights = scores[order], right[order], weights[order]
    bins = np.minimum(np.cumsum(weights) / weights.sum() * KNOTS, KNOTS - 1).astype(int)
    knots = [float(np.average(scores[bins == k], weights=weights[bins == k])) for k in range(KNOTS)]
    blocks: list[tuple[float, float, int]] = []  # mean, weight, knots: neighbours that fall are joined
    for k in range(KNOTS):
        blocks.append((float(np.average(right[bins == k], weights=weights[bins == k])), weights[bins == k].sum(), 1))
        while len(blocks) > 1 and blocks[-2][0] >= blocks[-1][0]:
            (mean, weight, count), (before, weight_before, count_before) = blocks.pop(), blocks.pop()
            joined = weight + weight_before
            blocks.append(((mean * weight + before * weight_before) / joined, joined, count + count_before))
    means = [mean for mean, _, count in blocks for _ in range(count)]
    level = np.arange(KNOTS) * LEAST_STEP  # a better hit is a little more likely, even where training cannot tell
    chances = np.minimum(means, OUTERMOST[1][1] - LEAST_STEP * KNOTS) + level
    curve = [(round(x, 3), round(float(p), 4)) for x, p in zip(knots, chances, strict=True)]
    return (OUTERMOST[0], *curve, OUTERMOST[1])


def _shown(query: Query, calibration: Calibration) -> tuple[Array, npt.NDArray[np.bool_]]:
    """The scores of the best hits, and whether they are right."""
    best = np.argsort(-calibration.rank_scores(query.evidence, query.neighbours), kind="stable")[:SHOWN]
    return calibration.scores(query.evidence)[best], query.right[best]


def write_reliability(asked: list[Query], calibration: Calibration, path: Path) -> None:
    """The reliability diagram of the best hits, and the expected calibration error, over all and by set."""
    rows = []
    for name in ["all", *sorted({query.set for query in asked})]:
        parts = [_shown(query, calibration) for query in asked if name in ("all", query.set)]
        chances = np.concatenate([fall(calibration.probabilities(part[0])) for part in parts])
        right = np.concatenate([part[1] for part in parts])
        bins = np.minimum((chances * BINS).astype(int), BINS - 1)
        error = 0.0
        for number in range(BINS):
            inside = bins == number
            if not inside.any():
                continue
            foretold, seen = chances[inside].mean(), right[inside].mean()
            error += inside.mean() * abs(foretold - seen)
            if name == "all":
                rows.append([name, number / BINS, int(inside.sum()), f"{foretold:.3f}", f"{seen:.3f}"])
        rows.append([name, "expected calibration error", len(chances), "", f"{error:.4f}"])
    _write(path, ["set", "probability from", "hits", "foretold", "seen"], rows)


def write_certainty(asked: list[Query], calibration: Calibration, path: Path) -> None:
    """How many are told that nothing is certain: of queries with an answer in the gallery, and of those without."""
    rows = []
    for name in ["all", *sorted({query.set for query in asked})]:
        chosen = [query for query in asked if name in ("all", query.set)]
        told = [
            np.mean([_first(*answer, calibration) < calibration.certain for answer in answers])
            for answers in (
                [(q.evidence, q.neighbours) for q in chosen],
                [(q.without, q.neighbours_without) for q in chosen],
            )
        ]
        first = np.mean([_shown(query, calibration)[1][:1].any() for query in chosen])
        rows.append([name, len(chosen), f"{first:.3f}", f"{told[0]:.3f}", f"{told[1]:.3f}"])
    _write(path, ["set", "queries", "first hit right", "nothing certain", "nothing certain, thing taken out"], rows)


def _first(evidence: Array, neighbours: npt.NDArray[np.float32], calibration: Calibration) -> float:
    """The probability of the first hit."""
    order = np.argsort(-calibration.rank_scores(evidence, neighbours), kind="stable")
    return float(fall(calibration.probabilities(calibration.scores(evidence[order])))[:1].sum())


def _write(path: Path, head: list[str], rows: list[list[Any]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([head, *rows])
    print(f"\n{path.name}")
    for row in [head, *rows]:
        print("  ".join(str(cell).ljust(14) for cell in row))


if __name__ == "__main__":
    main()
