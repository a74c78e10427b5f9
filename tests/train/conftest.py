"""Drawn pictures and a recipe so small that a step takes milliseconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tessera.config import from_mapping
from tessera.train.build_run import build_run, load_data
from tessera.train.distributed import World
from tessera.train.dryrun import draw_images
from tessera.train.loop import Trainer
from tessera.train.recipe import Recipe

TINY = {"backbone": "tiny", "channels": 32, "dim": 32, "heads": 4, "dropout": 0.1}


@pytest.fixture(scope="session")
def drawn_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """8 classes of 6 pictures."""
    folder = tmp_path_factory.mktemp("drawn")
    draw_images(folder, classes=8, per_class=6, side=64)
    return folder


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def make_recipe(drawn_dir: Path) -> Callable[..., Recipe]:
    """A recipe over the drawn pictures; keyword arguments are tables laid over it."""

    def make(**tables: Any) -> Recipe:
        values: dict[str, Any] = {
            "name": "tiny",
            "data": {"name": "folder", "root": str(drawn_dir), "held_out": 0.34},
            "model": {"name": "token", "weights": "none", "config": dict(TINY)},
            "transform": {"crop": 64},
            "optimiser": {"rate": 0.003},
            "loop": {"epochs": 3, "batch_size": 8, "log_every": 1, "workers": 1},
            "validation": {"size": 64},
        }
        for name, table in tables.items():
            values[name] = {**values.get(name, {}), **table} if isinstance(table, dict) else table
        return from_mapping(Recipe, values)

    return make


@pytest.fixture
def make_trainer(make_recipe: Callable[..., Recipe], tmp_path: Path) -> Callable[..., Trainer]:
    def make(folder: str = "run", *, recipe: Recipe | None = None, **tables: Any) -> Trainer:
        chosen = recipe or make_recipe(**tables)
        run_dir = tmp_path / folder
        return Trainer(build_run(chosen, load_data(chosen), World(), run_dir), run_dir)

    return make
