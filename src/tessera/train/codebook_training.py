"""The one row that learns no network: words for local features, by k-means over the training images."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tessera.config import to_mapping
from tessera.data.sets.labelled import ImageSet
from tessera.data.unreadable import MAX_SHARE
from tessera.errors import DataError
from tessera.local.system import SystemConfig, build_system
from tessera.storage import write_atomically
from tessera.train.batches.sampler import random_order
from tessera.train.recipe import Recipe


def train_codebook(recipe: Recipe, images: ImageSet, run_dir: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Make the run's folder a system of ASMK* that stands where a bundle may, and write its `run.json`.

    Images are taken in random order until there are enough features.
    """
    config = SystemConfig(
        name=recipe.name,
        extractor=recipe.model.name,
        words=recipe.task.words,
        size=recipe.evaluate.size,
        rerank="sp" if recipe.evaluate.rerank == "sp" else "",
    )
    order = random_order(len(images), recipe.seed, 0)
    system = build_system(config, (images.path(int(index)) for index in order), run_dir, seed=recipe.seed, say=say)
    made = system.config.provenance
    if made["unreadable"] > MAX_SHARE * len(images):
        raise DataError(f"{made['unreadable']} of {len(images)} images cannot be read, more than {MAX_SHARE:.0%}.")
    outcome = {"words": recipe.task.words, "features": made["features"], "images": made["images"]}
    described = {"recipe": to_mapping(recipe), "fingerprint": recipe.fingerprint, **outcome}
    write_atomically(run_dir / "run.json", json.dumps(described, indent=2).encode() + b"\n")
    return {"run_dir": str(run_dir), "seed": recipe.seed, "fingerprint": recipe.fingerprint, **outcome, "scores": {}}
