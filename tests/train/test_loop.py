"""The loop in one process: it learns, stops, resumes to the bit, and says what went wrong."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tessera.errors import CheckpointError, ConfigError, TrainingError
from tessera.train.checkpoint import load_checkpoint
from tessera.train.distributed import World
from tessera.train.loop import Trainer
from tessera.train.recipe import Recipe
from tessera.train.runs import train_run, train_runs
from tessera.train.scalars import read_scalars


def losses(run_dir: Path) -> list[float]:
    return [row["value"] for row in read_scalars(run_dir / "scalars.csv") if row["name"] == "loss"]


def weights(run_dir: Path) -> dict[str, Tensor]:
    state: dict[str, Tensor] = load_checkpoint(run_dir / "last.pt")["objective"]
    return state


def assert_same_weights(one: Path, other: Path) -> None:
    first, second = weights(one), weights(other)
    assert first.keys() == second.keys()
    assert [key for key in first if not torch.equal(first[key], second[key])] == []


class StopError(Exception):
    pass


def stop_after(trainer: Trainer, steps: int) -> None:
    """Break the run off as a kill would: nothing of the trainer survives but its files."""
    take = trainer._step

    def counted(parts: Any) -> float:
        if trainer.step == steps:
            raise StopError
        return take(parts)

    trainer._step = counted  # type: ignore[method-assign]
    with pytest.raises(StopError):
        trainer.train()


def test_a_run_learns_and_leaves_its_files(make_trainer: Callable[..., Trainer]) -> None:
    trainer = make_trainer(
        loop={"epochs": 12},
        optimiser={"rate": 0.003},
        model={"config": {"backbone": "tiny", "channels": 32, "dim": 32, "heads": 4, "dropout": 0.0}},
    )
    scores = trainer.train()
    curve = losses(trainer.run_dir)
    assert sum(curve[-6:]) / 6 < 0.8 * sum(curve[:6]) / 6
    assert scores["accuracy"] > 1 / 8 and 0 <= scores["map"] <= 1 and scores["best"] >= scores["map"]
    assert list((trainer.run_dir / "tensorboard").iterdir())
    rows = read_scalars(trainer.run_dir / "scalars.csv")
    assert {row["name"] for row in rows} == {"loss", "rate", "images_per_s", "accuracy", "val_loss", "map"}
    state = load_checkpoint(trainer.run_dir / "best.pt")
    assert state["fingerprint"] == trainer.run.recipe.fingerprint and state["recipe"]["model"]["name"] == "token"


@pytest.mark.parametrize(
    "extra", [{}, {"loop": {"average": 0.9, "accumulate": 2}}, {"optimiser": {"name": "adamw", "clip_norm": 1.0}}]
)
def test_a_run_broken_off_and_resumed_ends_with_the_same_weights(
    make_trainer: Callable[..., Trainer], make_recipe: Callable[..., Recipe], extra: dict[str, Any]
) -> None:
    tables = {**extra, "loop": {"checkpoint_minutes": 0.0, "epochs": 2, **extra.get("loop", {})}}
    left_alone = make_trainer("alone", **tables)
    left_alone.train()
    stop_after(make_trainer("broken", **tables), steps=5)
    resumed = make_trainer("broken", **tables)
    resumed.resume()
    assert resumed.step == 5
    resumed.train()
    assert_same_weights(left_alone.run_dir, resumed.run_dir)
    assert losses(left_alone.run_dir) == losses(resumed.run_dir)


def test_validation_and_resuming_draw_no_random_numbers(make_trainer: Callable[..., Trainer]) -> None:
    every = make_trainer("every")
    every.train()
    never = make_trainer("never")
    never.run.validation = None
    never.train()
    assert_same_weights(every.run_dir, never.run_dir)


def test_a_loss_that_is_no_number_stops_the_run_and_spares_the_weights(make_trainer: Callable[..., Trainer]) -> None:
    trainer = make_trainer(loop={"checkpoint_minutes": 0.0})
    stop_after(trainer, steps=2)
    again = make_trainer()
    again.resume()
    before = weights(again.run_dir)
    with torch.no_grad():
        again.objective.loss.weight.fill_(math.nan)
    with pytest.raises(TrainingError, match=r"the loss became nan in epoch 1, step 3 .*clip_norm") as caught:
        again.train()
    assert "last.pt" in str(caught.value)
    assert all(torch.isfinite(value).all() for value in before.values() if value.is_floating_point())


def test_resuming_with_another_recipe_is_refused(make_trainer: Callable[..., Trainer]) -> None:
    make_trainer(loop={"epochs": 1}).train()
    with pytest.raises(TrainingError, match=r"loop.epochs: 1 in the run, 2 now"):
        make_trainer(loop={"epochs": 2}).resume()


def test_a_damaged_or_missing_checkpoint_is_said(make_trainer: Callable[..., Trainer]) -> None:
    trainer = make_trainer()
    with pytest.raises(CheckpointError, match="has no checkpoint yet"):
        trainer.resume()
    trainer.run_dir.mkdir()
    (trainer.run_dir / "last.pt").write_bytes(b"PK\x03\x04 half a file")
    with pytest.raises(CheckpointError, match="cannot be read"):
        trainer.resume()
    torch.save({"some": "thing"}, trainer.run_dir / "last.pt")
    with pytest.raises(CheckpointError, match="not a checkpoint of a training run"):
        trainer.resume()


def test_parts_with_rate_zero_do_not_move(make_trainer: Callable[..., Trainer]) -> None:
    trainer = make_trainer(optimiser={"rates": {"network.backbone": 0}}, loop={"epochs": 1})
    before = {key: value.clone() for key, value in trainer.objective.state_dict().items()}
    trainer.train()
    moved = {key for key, value in weights(trainer.run_dir).items() if not torch.equal(value, before[key])}
    assert moved and not any(key.startswith("network.backbone") for key in moved)
    assert any(key.startswith("network.head") for key in moved) and "loss.weight" in moved


def test_the_frozen_mode_computes_each_map_once_and_trains_the_head(make_trainer: Callable[..., Trainer]) -> None:
    tables: dict[str, Any] = {"frozen": {"enabled": True, "views": 2}, "loop": {"epochs": 4}}
    trainer = make_trainer("frozen", **tables)
    trainer.train()
    feed: Any = trainer.run.feed
    assert feed.computed == len(trainer.run.labels) * 2
    curve = losses(trainer.run_dir)
    assert all(math.isfinite(loss) for loss in curve)
    again = make_trainer("frozen", recipe=trainer.run.recipe)
    (trainer.run_dir / "last.pt").unlink()
    again.train()
    assert again.run.feed.computed == 0  # type: ignore[attr-defined]
    assert losses(again.run_dir) == curve


def test_frozen_maps_equal_the_backbone_up_to_half_precision(make_trainer: Callable[..., Trainer]) -> None:
    frozen, plain = make_trainer("a", frozen={"enabled": True, "views": 3}), make_trainer("b")
    wanted = frozen.run.plan.indices(0)
    ((maps, _),) = frozen.run.feed.batches([wanted], 1)
    ((images, _),) = plain.run.feed.batches([wanted], 1)
    plain.objective.eval()
    with torch.no_grad():
        expected = plain.objective.network.backbone(images)
    assert torch.allclose(maps, expected, rtol=2e-3, atol=1e-3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"loss": {"name": "contrastive"}}, "task 'classify' feeds labels"),
        ({"task": {"kind": "listwise"}, "loss": {"name": "listwise-ap"}}, "freeze_batch_norm"),
        ({"transform": {"kind": "whole"}}, "freeze_batch_norm"),
        ({"frozen": {"enabled": True}, "transform": {"kind": "whole"}}, "frozen mode keeps maps of one size"),
        ({"loop": {"precision": "fp16"}}, "needs a GPU"),
        ({"loss": {"config": {"margn_rad": 0.1}}}, "Did you mean 'arcface.margin_rad'"),
        ({"model": {"config": {"backbone": "tiny", "num_token": 3}}}, "Did you mean 'num_tokens'"),
    ],
)
def test_what_cannot_work_is_refused_before_training(
    make_trainer: Callable[..., Trainer], tables: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make_trainer(**tables)


def test_bfloat16_trains(make_trainer: Callable[..., Trainer]) -> None:
    trainer = make_trainer(loop={"precision": "bf16", "epochs": 1})
    trainer.train()
    assert all(math.isfinite(loss) for loss in losses(trainer.run_dir))
    assert weights(trainer.run_dir)["loss.weight"].dtype == torch.float32


def test_a_class_with_one_image_is_trained_on_and_said(
    make_recipe: Callable[..., Recipe], drawn_dir: Path, tmp_path: Path
) -> None:
    lonely = tmp_path / "lonely"
    for source in drawn_dir.rglob("*.jpg"):
        if source.parent.name != "class0" or source.name == "0.jpg":
            target = lonely / source.relative_to(drawn_dir)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
    said: list[str] = []
    recipe = make_recipe(data={"root": str(lonely)}, loop={"epochs": 1})
    outcome = train_run(recipe, tmp_path / "run", World(), said.append)
    assert any("1 of 8 classes have one image only" in text for text in said)
    assert math.isfinite(outcome["scores"]["map"])


def test_without_validation_there_is_no_score_and_no_median(make_recipe: Callable[..., Recipe], tmp_path: Path) -> None:
    recipe = make_recipe(data={"held_out": 0.0}, loop={"epochs": 1})
    assert train_run(recipe, tmp_path / "run", World(), lambda text: None)["scores"] == {}
    with pytest.raises(TrainingError, match="no validation score to find the median by"):
        train_runs(recipe, tmp_path / "runs", World(), lambda text: None, count=2)


def test_the_median_of_several_runs_is_kept(make_recipe: Callable[..., Recipe], tmp_path: Path) -> None:
    recipe = make_recipe(loop={"epochs": 1}, validation={"metric": "loss"})
    outcome = train_runs(recipe, tmp_path / "runs", World(), lambda text: None, count=3)
    scores = sorted(run["scores"]["best"] for run in outcome["runs"])
    assert outcome["median"]["scores"]["best"] == scores[1] and len(set(scores)) == 3
    kept, chosen = load_checkpoint(tmp_path / "runs" / "best.pt"), Path(outcome["median"]["run_dir"]) / "best.pt"
    assert torch.equal(kept["objective"]["loss.weight"], load_checkpoint(chosen)["objective"]["loss.weight"])
    again = train_runs(recipe, tmp_path / "runs", World(), lambda text: None, count=3, resume=True)
    assert again["runs"] == outcome["runs"]


def test_a_folder_with_a_run_is_not_overwritten(make_recipe: Callable[..., Recipe], tmp_path: Path) -> None:
    recipe = make_recipe(loop={"epochs": 1})
    train_run(recipe, tmp_path / "run", World(), lambda text: None)
    with pytest.raises(TrainingError, match="already holds a run"):
        train_run(recipe, tmp_path / "run", World(), lambda text: None)
