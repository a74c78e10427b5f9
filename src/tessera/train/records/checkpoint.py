"""The whole state of a run in one file, written so that it is there or not there: never half.

Everything is tensors and plain values, so a checkpoint loads with `weights_only`: a file from a stranger runs no code.
"""

from __future__ import annotations

import random
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tessera.config import to_mapping
from tessera.errors import CheckpointError, StorageError
from tessera.storage import atomic_path
from tessera.train.recipe import Recipe

FORMAT = 1
LAST = "last.pt"
BEST = "best.pt"


def save_checkpoint(path: Path, recipe: Recipe, state: dict[str, Any]) -> None:
    """Write the state with the resolved recipe and its fingerprint."""
    content = {"format": FORMAT, "recipe": to_mapping(recipe), "fingerprint": recipe.fingerprint, **state}
    with atomic_path(path) as temporary:
        try:
            torch.save(content, temporary)
        except RuntimeError as error:  # what torch's writer makes of a full disk
            raise StorageError(f"{path} cannot be written: {str(error).splitlines()[0]} Is the disk full?") from error


def checkpoint_of(run: Path) -> Path:
    """The weights of a run to go on with: its best, its last where no validation chose, or the one file named."""
    if not run.is_dir():
        return run
    return run / BEST if (run / BEST).is_file() else run / LAST


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint of a run, whatever device wrote it."""
    if not path.is_file():
        raise CheckpointError(f"{path} is not there: that folder holds no run, or one that has no checkpoint yet.")
    _refuse_damage(path)
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file may raise anything; nothing of it has been run
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise CheckpointError(f"{path} cannot be read: {first} Take another checkpoint of the run.") from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise CheckpointError(f"{path} is not a checkpoint of a training run (format {FORMAT}).")
    return state


def _refuse_damage(path: Path) -> None:
    """Hold every tensor against the checksum that torch writes with it, and does not look at when it reads."""
    try:
        with zipfile.ZipFile(path) as archive:
            bad = archive.testzip()
    except (zipfile.BadZipFile, OSError, ValueError, EOFError, NotImplementedError, zlib.error) as error:
        raise CheckpointError(f"{path} cannot be read: {error}. Take another checkpoint of the run.") from error
    if bad is not None:
        raise CheckpointError(f"{path} is damaged: {bad} is not what was written. Take another checkpoint of the run.")


def random_state() -> dict[str, Any]:
    """Where python's, numpy's and torch's generators stand."""
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    state = {
        "python": random.getstate(),
        "numpy": (str(name), torch.from_numpy(np.asarray(keys).astype(np.int64)), position, has_gauss, cached),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def restore_random_state(state: dict[str, Any]) -> None:
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def seed_everything(seed: int, rank: int) -> None:
    """Each process its own dropout, all from one seed."""
    random.seed(seed * 1009 + rank)
    np.random.seed((seed * 1009 + rank) % (1 << 32))
    torch.manual_seed(seed * 1009 + rank)
