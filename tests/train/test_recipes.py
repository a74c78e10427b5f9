"""Every recipe file: it reads, stays short, and its own network, loss and sampler take one step."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path

import pytest

import tessera
from tessera.models.model_registry import MODELS
from tessera.train.distributed import World
from tessera.train.dryrun import dry_run
from tessera.train.recipe import load_recipe

ROOT = Path(tessera.__file__).parent / "recipes"
FILES = sorted(ROOT.rglob("*.toml"))
ROWS = [path for path in FILES if path.parent.name not in ("base", "small")]
NAMES = [str(path.relative_to(ROOT).with_suffix("")) for path in ROWS]


def test_every_row_of_the_tables_has_a_file() -> None:
    tables = [load_recipe(path).table for path in ROWS]
    assert len({load_recipe(path).name for path in ROWS if path.parent.name == "table1"}) == 24
    counts = {start: sum(table.startswith(start) for table in tables) for start in ("Table 1 (A)", "Table 1 (B)")}
    assert counts == {"Table 1 (A)": 6, "Table 1 (B)": 4}
    for folder, rows in {"components": 5, "refinement": 4, "tokenizer": 3, "tokens": 6}.items():
        assert len(list((ROOT / folder).glob("*.toml"))) == rows


@pytest.mark.parametrize("path", ROWS, ids=NAMES)
def test_a_row_is_a_few_lines_over_a_base(path: Path) -> None:
    lines = [line for line in path.read_text().splitlines() if line.strip() and not line.startswith("#")]
    assert len(lines) <= 14 and "base" in tomllib.loads(path.read_text())
    recipe = load_recipe(path)
    assert recipe.table and (recipe.model.name in MODELS or recipe.task.kind == "codebook")
    for figures in recipe.published.values():
        assert len(figures) == 2 and all(0 < figure < 100 for figure in figures)


def test_the_default_recipe_has_the_settings_of_the_paper() -> None:
    recipe = load_recipe(ROOT / "table1" / "c-token-r101.toml")
    optimiser, loop = recipe.optimiser, recipe.loop
    assert (optimiser.name, optimiser.rate, optimiser.momentum, optimiser.weight_decay) == ("sgd", 0.01, 0.9, 1e-4)
    assert (loop.epochs, loop.batch_size, recipe.transform.crop, recipe.schedule.kind) == (30, 128, 512, "linear")
    assert recipe.loss.config == {"margin_rad": 0.2, "scale": 32.0} and recipe.schedule.final_rate == 0
    config = MODELS[recipe.model.name].resolve(**recipe.model.config)
    assert (config.dim, config.blocks, config.num_tokens) == (1024, 2, 4)
    released = load_recipe(ROOT / "variants" / "token-released-r101.toml")
    assert released.schedule.kind == "cosine" and released.schedule.warmup_epochs == 5 and released.optimiser.nesterov
    assert released.optimiser.rate == pytest.approx(0.01 * 128 / 4 / 256)


@pytest.mark.slow
@pytest.mark.parametrize("path", ROWS, ids=NAMES)
def test_a_dry_run_takes_one_step(path: Path) -> None:
    recipe = load_recipe(path, ["transform.crop=64"])
    if recipe.task.kind == "codebook":
        pytest.importorskip("kornia")
    outcome = dry_run(recipe, World(), lambda text: None)
    assert outcome["model"] == recipe.model.name and outcome["stand_ins"]["data"]
    if recipe.task.kind != "codebook":
        assert outcome["backbone"] == MODELS[recipe.model.name].resolve(**recipe.model.config).backbone
        assert math.isfinite(outcome["loss_value"])
        assert outcome["sampler"] == {"tuples": "TupleSampler", "listwise": "BalancedSampler"}.get(
            recipe.task.kind, "ShuffledSampler"
        )
