"""Diffusion over small galleries: mAP by name for a few neighbours and dampings (results/boxes-and-diffusion.md).

python scripts/measure_diffusion.py gldv2-50 [--model lite] [--role val] [--size 256]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from tessera.data.sets.leave_one_out import load_labelled_source
from tessera.evaluate.protocol import relevance_for, score_query
from tessera.evaluate.run import ALL
from tessera.extract.extractor import Extractor
from tessera.index.expansion import diffuse

SETTINGS = [(50, 0.99), (10, 0.99), (50, 0.8), (20, 0.8), (10, 0.8), (5, 0.8)]


def mean_precision(rows: np.ndarray, labels: np.ndarray, setting: tuple[int, float] | None) -> float:
    """Every image asks for the others of its class; `setting` re-scores the whole list."""
    precisions = []
    everyone = np.arange(len(rows))
    for query in everyone:
        others = np.delete(everyone, query)
        order = others[np.argsort(-(rows[others] @ rows[query]), kind="stable")]
        if setting is not None:
            scores = diffuse(rows[query], rows[order], neighbours=setting[0], damping=setting[1])
            order = order[np.argsort(-scores, kind="stable")]
        lists = {"easy": others[labels[others] == labels[query]], "hard": [], "junk": []}
        found = score_query(order, relevance_for(lists, ALL), ())
        precisions.append(found.ap if found else np.nan)
    return float(np.nanmean(precisions))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path)
    parser.add_argument("--model", default="lite")
    parser.add_argument("--role", default="val")
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--per-class", type=int, nargs="+", default=[5, 10, 25])
    options = parser.parse_args()
    images = load_labelled_source(options.photos, roles=[options.role], kinds=(), split=None)
    labels = np.asarray(images.labels)
    firsts = [np.flatnonzero(labels == label)[: max(options.per_class)] for label in np.unique(labels)]
    chosen = np.concatenate(firsts)
    extractor = Extractor(options.model, size=options.size, scales=[1.0])
    paths = [images.paths[row] for row in chosen]
    described = [found.descriptor for found in extractor.extract(paths, loader="benchmark")]
    rows = np.stack([row for row in described if row is not None])
    assert len(rows) == len(paths), "every photo must be readable"
    print("| images | plain | " + " | ".join(f"k {k}, {damping}" for k, damping in SETTINGS) + " |")
    print("|---:|" + "---:|" * (1 + len(SETTINGS)))
    for count in options.per_class:
        kept = np.concatenate([np.flatnonzero(labels[chosen] == label)[:count] for label in np.unique(labels)])
        figures = [mean_precision(rows[kept], labels[chosen][kept], setting) for setting in (None, *SETTINGS)]
        print(f"| {len(kept)} | " + " | ".join(f"{figure:.3f}" for figure in figures) + " |", flush=True)


if __name__ == "__main__":
    main()
