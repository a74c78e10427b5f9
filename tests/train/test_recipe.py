"""Recipes: bases, overrides, misspelt keys, and what may differ when a run is resumed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tessera.config import find_config, to_mapping
from tessera.errors import ConfigError, TrainingError
from tessera.train.recipe import Recipe, check_same, flatten, load_recipe


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_recipe_is_laid_over_its_base_table_by_table(tmp_path: Path) -> None:
    write(tmp_path / "base.toml", "seed = 3\n[optimiser]\nrate = 0.5\nmomentum = 0.7\n")
    path = write(tmp_path / "row.toml", 'base = "base.toml"\n[optimiser]\nrate = 0.25\n')
    recipe = load_recipe(path)
    assert (recipe.seed, recipe.optimiser.rate, recipe.optimiser.momentum, recipe.name) == (3, 0.25, 0.7, "row")


def test_settings_come_last_and_take_numbers_words_lists_and_booleans(tmp_path: Path) -> None:
    path = write(tmp_path / "row.toml", "[optimiser]\nrate = 0.25\n")
    recipe = load_recipe(
        path,
        [
            "optimiser.rate=1",
            "schedule.kind=cosine",
            "transform.area=[0.5, 1.0]",
            "loop.freeze_batch_norm=true",
            "model.config.num_tokens=6",
            'data.root="a b"',
        ],
    )
    assert recipe.optimiser.rate == 1.0 and recipe.schedule.kind == "cosine" and recipe.transform.area == (0.5, 1.0)
    assert recipe.loop.freeze_batch_norm and recipe.model.config == {"num_tokens": 6} and recipe.data.root == "a b"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[optimiser]\nratte = 0.1\n", "Did you mean 'optimiser.rate'"),
        ("optimizer = {}\n", "Did you mean 'optimiser'"),
        ('[schedule]\nkind = "cosin"\n', "Did you mean 'cosine'"),
        ("[loop]\nepochs = 'many'\n", "loop.epochs must be of type int"),
        ("[loop\n", "cannot be read"),
        ('base = "missing.toml"\n', "missing.toml is not there"),
        ('base = "row.toml"\n', "its own base"),
        ("[transform]\narea = [0.9, 0.1]\n", "transform.area"),
    ],
)
def test_a_mistake_is_named_with_the_file(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path / "row.toml", text)
    with pytest.raises(ConfigError, match="recipe") as caught:
        load_recipe(path)
    assert message in str(caught.value)


def test_another_name_starts_its_own_keys_anew(tmp_path: Path) -> None:
    write(tmp_path / "base.toml", '[loss]\nname = "arcface"\nconfig = { margin_rad = 0.3 }\n')
    path = write(tmp_path / "row.toml", 'base = "base.toml"\n[loss]\nname = "contrastive"\n')
    assert load_recipe(path).loss.config == {}
    assert load_recipe(path, ["loss.name=arcface"]).loss.config == {}
    same = write(tmp_path / "same.toml", 'base = "base.toml"\n[loss]\nname = "arcface"\nconfig = { scale = 4.0 }\n')
    assert load_recipe(same).loss.config == {"margin_rad": 0.3, "scale": 4.0}


@pytest.mark.parametrize("setting", ["rate", "=3", "seed.low=3"])
def test_a_setting_that_is_none_is_refused(tmp_path: Path, setting: str) -> None:
    path = write(tmp_path / "row.toml", "seed = 1\n")
    with pytest.raises(ConfigError, match="--set"):
        load_recipe(path, [setting])


def test_another_recipe_is_refused_with_the_differing_keys(make_recipe: Callable[..., Recipe]) -> None:
    saved = to_mapping(make_recipe())
    with pytest.raises(TrainingError, match=r"optimiser.rate: 0.003 in the run, 0.5 now") as caught:
        check_same(saved, make_recipe(optimiser={"rate": 0.5}))
    assert "loop.epochs" not in str(caught.value)
    with pytest.raises(TrainingError, match=r"model.config.dropout"):
        check_same(saved, make_recipe(model={"config": {"backbone": "tiny"}}))


def test_keys_that_change_no_number_are_free(make_recipe: Callable[..., Recipe]) -> None:
    one, other = make_recipe(), make_recipe(loop={"workers": 7, "checkpoint_minutes": 1.0}, data={"root": "elsewhere"})
    check_same(to_mapping(one), other)
    assert one.fingerprint == other.fingerprint
    assert one.fingerprint != make_recipe(seed=1).fingerprint


def test_a_recipe_is_found_by_name_or_said_to_be_unknown() -> None:
    assert find_config("recipes", "c-token-r50").name == "c-token-r50.toml"
    with pytest.raises(ConfigError, match="Did you mean 'table1/c-token-r50'"):
        find_config("recipes", "c-tokn-r50")
    with pytest.raises(ConfigError, match=r"system 'how-asmx' .* Did you mean 'how-asmk'"):
        find_config("systems", "how-asmx")


def test_flatten_keeps_empty_tables() -> None:
    assert flatten({"a": {"b": 1, "c": {}}, "d": 2}) == {"a.b": 1, "a.c": {}, "d": 2}


def test_a_packaged_recipe_is_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("table1/c-token-r50", "c-token-r50", "recipes/table1/c-token-r50.toml"):
        assert load_recipe(find_config("recipes", name)).model.name == "token-r50"
    assert find_config("systems", "systems/sift-asmk.toml") == find_config("systems", "sift-asmk")
    with pytest.raises(ConfigError, match="Did you mean 'table1/c-token-r50'"):
        find_config("recipes", "table1/c-token-r5")
