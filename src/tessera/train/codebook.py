"""The one row that learns no network: words for local features, by k-means over the training images."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tessera.config import to_mapping
from tessera.data.images import load_photo
from tessera.data.labelled import ImageSet
from tessera.data.unreadable import UnreadableLog
from tessera.errors import DataError, ImageError, unknown_name
from tessera.local.codebook import Codebook
from tessera.local.features import LocalExtractor
from tessera.storage import write_atomically
from tessera.train.order import random_order
from tessera.train.recipe import Recipe

_FEATURES_A_WORD = 40  # more change the words little


def train_codebook(recipe: Recipe, images: ImageSet, run_dir: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Write `codebook.npy` and `run.json`. Images are taken in random order until there are enough features."""
    extractor = build_extractor(recipe.model.name)
    wanted = recipe.task.words * _FEATURES_A_WORD
    unreadable = UnreadableLog(len(images))
    collected: list[np.ndarray] = []
    found = used = 0
    for index in random_order(len(images), recipe.seed, 0):
        try:
            photo = load_photo(images.path(int(index)), size=recipe.evaluate.size)
        except ImageError as error:
            unreadable.record(images.files[index], error)
            continue
        features = extractor.extract(photo).descriptors
        collected.append(features)
        found, used = found + len(features), used + 1
        if found >= wanted:
            break
    if found < recipe.task.words:
        raise DataError(
            f"{used} images have {found} local features, fewer than the {recipe.task.words} words asked for: give more "
            "images, or set task.words."
        )
    say(f"{found} local features of {used} images for {recipe.task.words} words. {unreadable.describe()}")
    Codebook.train(np.concatenate(collected)[:wanted], recipe.task.words, seed=recipe.seed).save(
        run_dir / "codebook.npy"
    )
    outcome = {"words": recipe.task.words, "features": found, "images": used, "extractor": recipe.model.name}
    described = {"recipe": to_mapping(recipe), "fingerprint": recipe.fingerprint, **outcome}
    write_atomically(run_dir / "run.json", json.dumps(described, indent=2).encode() + b"\n")
    return {"run_dir": str(run_dir), "seed": recipe.seed, "fingerprint": recipe.fingerprint, **outcome, "scores": {}}


def build_extractor(name: str) -> LocalExtractor:
    """Local features without a network."""
    if name == "sift":
        from tessera.local.sift import SiftExtractor

        return SiftExtractor()
    if name == "hesaff-rsift":
        from tessera.local.hessian import HessianAffineExtractor

        return HessianAffineExtractor()
    raise DataError(unknown_name("local extractor", name, ("sift", "hesaff-rsift")))
