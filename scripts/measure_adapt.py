"""What `tessera adapt` is worth: a head fitted to some photos of a set, measured on photos of other things of it.

    python scripts/measure_adapt.py THINGS -o results/networks/adapt.csv [--model BUNDLE]...

THINGS is a folder whose `labels.csv` has path, label, set and role. The head is fitted to a set's train photos, whose
labels it is not told, without and with the pairs that geometry verifies. Every val photo of the set then looks for the
others of its label among all val photos of all sets, at one scale: mean average precision in percent.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parent / "lite"))
from measure_lite import score_sets
from photos import Photo, read_labelled

from tessera.data.images import load_photo
from tessera.models.bundle import Bundle
from tessera.models.global_network import GlobalNetwork
from tessera.models.parts.closed_form import fit_projection, fit_tokens
from tessera.models.token import TokenHead
from tessera.train.adapt import (
    HELD_OUT,
    VIEWS,
    AdaptSettings,
    Prepare,
    head_over,
    load_base,
    mean_tokens,
    measure,
    project,
    sample_features,
    set_projection,
    set_tokenizer,
    views_of,
)
from tessera.train.verified_pairs import join_pairs, verified_pairs

Array = NDArray[np.float32]
SETS = ("tmbud", "grocery", "grozi120", "beerlabels", "campusloop")
ALL = "all five"


class Base:
    """A bundle's network with the maps of the val photos, which every head over it shares."""

    def __init__(self, bundle: Bundle, shown: list[Photo], size: int) -> None:
        self.network, way = load_base(bundle), bundle.card.preprocessing
        self.name, self.size = bundle.card.name, size
        self.prepare: Prepare = lambda image: torch.from_numpy(way.normalise([image]))
        with torch.inference_mode():
            self.maps = [
                self.network.backbone(self.prepare(load_photo(photo.path, size=self.size))).half() for photo in shown
            ]

    @torch.inference_mode()
    def describe(self, network: GlobalNetwork) -> Array:
        raw = torch.cat([network.head.describe(maps.float()) for maps in self.maps])
        return torch.nn.functional.normalize(raw, dim=1).numpy()


def adapt_to(base: Base, photos: list[Photo], settings: AdaptSettings) -> dict[str, tuple[Array, int, float, float]]:
    """By way of fitting: val descriptors, verified pairs, and the command's own measure before and after."""
    views = [
        list(views_of(load_photo(photo.path, size=base.size), base.size, number, settings.seed))
        for number, photo in enumerate(photos)
    ]
    features, negative = sample_features(base.network, views, base.prepare)
    network = head_over(base.network, settings, len(views), negative)
    head = cast(TokenHead, network.head)
    set_tokenizer(head, fit_tokens(features, settings.num_tokens, settings.seed))
    fitted = [number for number in range(len(views)) if number % HELD_OUT]
    tokens = mean_tokens(network, [views[number] for number in fitted], base.prepare)
    rows, before = tokens.reshape(-1, tokens.shape[-1]), measure(base.network, views, base.prepare)
    results = {}
    pairs: list[tuple[int, int]] = []
    for way in ("without pairs", "with pairs"):
        if way == "with pairs":
            pairs = verified_pairs([views[number][0] for number in fitted], project(head, tokens[:, 0]))
        instances = np.repeat(join_pairs(len(fitted), pairs), VIEWS)
        set_projection(head, fit_projection(rows, instances, settings.num_tokens, head.dim))
        results[way] = (base.describe(network), len(pairs), before, measure(network, views, base.prepare))
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("things", type=Path)
    parser.add_argument("--model", action="append", default=[], help="a bundle; `lite` when none is given")
    parser.add_argument("--sets", nargs="+", default=[*SETS, ALL])
    parser.add_argument("--size", type=int, default=384, help="longer side of pictures")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    shown = read_labelled(options.things, role="val")
    settings = replace(AdaptSettings(), seed=options.seed)
    for model in options.model or ["lite"]:
        base = Base(Bundle.open(model), shown, options.size)
        rows: dict[str, Array] = {"as it is": base.describe(base.network)}
        told: dict[str, tuple[int, float, float]] = {}
        write_rows(options.output, base.name, "nothing", rows, told, shown, 0.0)
        for name in options.sets:
            begin = time.process_time()
            found = adapt_to(base, read_labelled(options.things, SETS if name == ALL else [name]), settings)
            rows, told = ({way: values[0] for way, values in found.items()}, {w: v[1:] for w, v in found.items()})
            write_rows(options.output, base.name, name, rows, told, shown, time.process_time() - begin)


def write_rows(
    path: Path,
    model: str,
    fitted: str,
    rows: dict[str, Array],
    told: dict[str, tuple[int, float, float]],
    shown: list[Photo],
    seconds: float,
) -> None:
    for way, descriptors in rows.items():
        pairs, before, after = told.get(way, (0, float("nan"), float("nan")))
        row = {"model": model, "fitted_to": fitted, "way": way, "verified_pairs": pairs}
        row |= {key: round(value, 1) for key, value in score_sets(descriptors, shown).items()}
        row |= {"own_before": round(100 * before, 1), "own_after": round(100 * after, 1), "seconds": round(seconds)}
        new = not path.is_file()
        with path.open("a", newline="") as file:
            writer = csv.DictWriter(file, list(row))
            if new:
                writer.writeheader()
            writer.writerow(row)
        print(row, flush=True)


if __name__ == "__main__":
    main()
