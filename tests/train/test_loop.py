"""The loop in one process: it learns, stops, resumes to the bit, and says what went wrong."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tessera.errors import CheckpointError, ConfigError, DataError, TrainingError
from tessera.train import loop
from tessera.train.batches.inputs import _make_array
from tessera.train.build_run import load_data
from tessera.train.distributed import World
from tessera.train.dryrun import draw_images
from tessera.train.loop import Trainer, duration_text
from tessera.train.recipe import Recipe
from tessera.train.records.checkpoint import load_checkpoint
from tessera.train.records.scalars import ScalarLog, read_scalars
from tessera.train.runs import train_run, train_runs


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
    assert {row["name"] for row in rows} == {
        *("loss", "rate", "images_per_s", "gradient_norm"),
        *("accuracy", "val_loss", "map"),
    }
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


def test_no_step_is_missing_from_the_log_when_a_run_dies_before_it_is_written(
    make_trainer: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint may not be ahead of the log: resuming goes on behind it, and the step would never be logged."""
    trainer = make_trainer(loop={"epochs": 2, "checkpoint_minutes": 0.0})
    write = ScalarLog.write

    def dying(self: ScalarLog, epoch: int, step: int, **values: float) -> None:
        if step == 2:
            raise StopError
        write(self, epoch, step, **values)

    with monkeypatch.context() as patch, pytest.raises(StopError):
        patch.setattr(ScalarLog, "write", dying)
        trainer.train()
    resumed = make_trainer(loop={"epochs": 2, "checkpoint_minutes": 0.0})
    resumed.resume()
    resumed.train()
    steps = [row["step"] for row in read_scalars(resumed.run_dir / "scalars.csv") if row["name"] == "loss"]
    assert steps == list(range(1, resumed.step + 1))


def test_the_log_is_on_the_disk_before_its_checkpoint(
    make_trainer: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut may take what was not synced; the checkpoint is, and resuming goes on behind it."""
    trainer = make_trainer(loop={"checkpoint_minutes": 0.0})
    on_disk: list[int] = []
    sync, save = ScalarLog.sync, loop.save_checkpoint

    def noted(self: ScalarLog) -> None:
        sync(self)
        on_disk.append(self.path.stat().st_size)

    def checked(path: Path, *given: Any) -> None:
        assert path.name != "last.pt" or on_disk[-1] == (trainer.run_dir / "scalars.csv").stat().st_size
        save(path, *given)

    monkeypatch.setattr(ScalarLog, "sync", noted)
    monkeypatch.setattr(loop, "save_checkpoint", checked)
    trainer.train()
    assert len(on_disk) >= 2


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


@pytest.mark.parametrize("clip_norm", [0.0, 1.0])
def test_a_gradient_that_is_no_number_stops_the_run_and_spares_the_weights(
    make_trainer: Callable[..., Trainer], clip_norm: float
) -> None:
    trainer = make_trainer(optimiser={"clip_norm": clip_norm})
    before = {key: value.clone() for key, value in trainer.objective.state_dict().items()}
    parameter = trainer.objective.loss.weight
    parameter.register_hook(lambda gradient: gradient * math.inf)  # the loss itself stays finite
    with pytest.raises(TrainingError, match=r"the gradient's norm became (inf|nan) in epoch 1, step 1 "):
        trainer.train()
    assert torch.equal(trainer.objective.loss.weight, before["loss.weight"])
    assert not (trainer.run_dir / "last.pt").exists()


def test_resuming_on_other_images_is_refused(
    make_trainer: Callable[..., Trainer], make_recipe: Callable[..., Recipe], drawn_dir: Path, tmp_path: Path
) -> None:
    make_trainer(loop={"epochs": 1}).train()
    other = tmp_path / "other"
    shutil.copytree(drawn_dir, other)
    same = make_trainer(recipe=make_recipe(data={"root": str(other)}, loop={"epochs": 1}))
    same.resume()  # the same images elsewhere are the same images
    (other / "class3" / "2.jpg").rename(other / "class4" / "moved.jpg")
    with pytest.raises(TrainingError, match=r"started on other training images \(fingerprint .*--data"):
        make_trainer(recipe=make_recipe(data={"root": str(other)}, loop={"epochs": 1})).resume()


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
    loader: Any = trainer.run.loader
    assert loader.computed == len(trainer.run.images) * 2
    curve = losses(trainer.run_dir)
    assert all(math.isfinite(loss) for loss in curve)
    again = make_trainer("frozen", recipe=trainer.run.recipe)
    (trainer.run_dir / "last.pt").unlink()
    again.train()
    assert again.run.loader.computed == 0  # type: ignore[attr-defined]
    assert losses(again.run_dir) == curve


def test_frozen_maps_equal_the_backbone_up_to_half_precision(make_trainer: Callable[..., Trainer]) -> None:
    frozen, plain = make_trainer("a", frozen={"enabled": True, "views": 3}), make_trainer("b")
    wanted = frozen.run.sampler.indices(0)
    ((maps, _),) = frozen.run.loader.batches([wanted], 1)
    ((images, _),) = plain.run.loader.batches([wanted], 1)
    plain.objective.eval()
    with torch.no_grad():
        expected = plain.objective.network.backbone(images)
    assert torch.allclose(maps, expected, rtol=2e-3, atol=1e-3)  # type: ignore[arg-type]


def test_kept_maps_belong_to_their_pictures(
    make_trainer: Callable[..., Trainer], make_recipe: Callable[..., Recipe], drawn_dir: Path, tmp_path: Path
) -> None:
    frozen = {"enabled": True, "views": 1, "dir": str(tmp_path / "maps")}
    other = tmp_path / "other"
    draw_images(other, classes=8, per_class=6, side=48)  # other pictures of the same names
    first = make_trainer("a", frozen=frozen).run.loader
    second = make_trainer("b", recipe=make_recipe(frozen=frozen, data={"root": str(other)})).run.loader
    batch = [np.arange(4)]
    ((one, _),) = first.batches(batch, 0)
    ((two, _),) = second.batches(batch, 0)
    assert not torch.equal(one, two)  # type: ignore[arg-type]
    assert first.key != second.key  # type: ignore[attr-defined]


def test_a_map_knows_which_picture_it_is_of(
    make_trainer: Callable[..., Trainer], make_recipe: Callable[..., Recipe], tmp_path: Path
) -> None:
    draw_images(tmp_path / "many", classes=20, per_class=6, side=32)
    for path in (tmp_path / "many" / "class0").iterdir():
        path.unlink()
    (tmp_path / "many" / "class0" / "0.jpg").write_text("the one picture of its class is none")
    frozen = {"enabled": True, "views": 1}
    recipe = make_recipe(data={"root": str(tmp_path / "many"), "held_out": 0.0}, frozen=frozen)
    for _ in range(2):  # computed, then read from the disk
        ((_, sources),) = make_trainer(recipe=recipe).run.loader.batches([np.array([0, 5])], 0)
        assert sources[0] != 0 and sources[1] == 5


def test_an_array_that_another_process_made_first_stays(tmp_path: Path) -> None:
    for _ in range(2):
        _make_array(tmp_path / "a.npy", (3,), np.int64)
        array = np.lib.format.open_memmap(tmp_path / "a.npy", mode="r+")
        array[1] += 1
    assert array.tolist() == [0, 2, 0] and [path.name for path in tmp_path.iterdir()] == ["a.npy"]


def test_few_unreadable_images_are_listed_wherever_they_are_and_many_end_the_run(
    make_recipe: Callable[..., Recipe], tmp_path: Path
) -> None:
    draw_images(tmp_path / "many", classes=8, per_class=15, side=48)
    recipe = make_recipe(data={"root": str(tmp_path / "many")}, loop={"epochs": 1})
    held_out = load_data(recipe).held_out
    assert held_out is not None and len(held_out) < 100
    held_out.path(0).write_text("no picture")  # more than a hundredth of the held-out images, less of all
    said: list[str] = []
    train_run(recipe, tmp_path / "run", World(), said.append)
    assert any("1 images could not be read" in text for text in said)
    assert str(held_out.path(0)) in (tmp_path / "run" / "unreadable.txt").read_text()
    for index in range(1, 4):
        held_out.path(index).write_text("no picture")
    with pytest.raises(DataError, match="of 120 images cannot be read, more than 1%"):
        train_run(recipe, tmp_path / "again", World(), said.append)
    assert len((tmp_path / "again" / "unreadable.txt").read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        (
            {"task": {"kind": "tuples"}, "loss": {"name": "contrastive"}, "validation": {"metric": "accuracy"}},
            "validation.metric 'accuracy' is not measured here: this loss and these images give map",
        ),
        ({"loop": {"epochs": 0}}, "loop.epochs must be at least 1, not 0"),
        ({"loop": {"log_every": 0}}, "loop.log_every must be at least 1"),
        ({"validation": {"every_epochs": 0}}, "validation.every_epochs must be at least 1"),
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
    assert not (tmp_path / "runs").exists()  # refused before the first run, which may take days


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


def test_a_run_says_what_it_trains_and_how_long_it_will_take(make_trainer: Callable[..., Trainer]) -> None:
    trainer = make_trainer(loop={"epochs": 2})
    said: list[str] = []
    trainer.run.say = said.append
    assert "2 epochs of" in trainer.header()
    assert "M parameters" in trainer.header()
    assert str(trainer.run_dir) in trainer.header()
    trainer.train()
    steps = [line for line in said if " step " in line]
    assert all(line.endswith(" left") for line in steps)
    assert steps[-1].endswith("  0 s left")


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (89, "89 s"), (600, "10 min"), (12_000, "3 h 20 min")])
def test_durations(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text
