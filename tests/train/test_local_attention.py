"""Local attention: a second stage over a finished backbone (DELF), and beside the global descriptor (DELG)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tessera.errors import ConfigError
from tessera.train.batches.inputs import ImageInputs
from tessera.train.batches.loader import PhotoLoader, PhotoReader
from tessera.train.loop import Trainer
from tessera.train.records.scalars import read_scalars

EASY = {"area": (0.8, 1.0), "jitter": (0.0, 0.0, 0.0, 0.0)}
DELF: dict[str, Any] = {
    "model": {"name": "delf-r50", "config": {"backbone": "tiny", "local_dim": 8, "hidden": 16}},
    "task": {"kind": "attention"},
    "transform": EASY,
    "optimiser": {"name": "adam", "rate": 0.005},
}
DELG: dict[str, Any] = {
    **DELF,
    "model": {"name": "delg-r50", "config": {"backbone": "tiny", "dim": 16, "local_dim": 8, "hidden": 16}},
    "task": {"kind": "attention", "joint": True},
}


def curve(run_dir: Path, name: str) -> list[float]:
    return [row["value"] for row in read_scalars(run_dir / "scalars.csv") if row["name"] == name]


def test_the_second_stage_learns_and_leaves_the_backbone(make_trainer: Callable[..., Trainer]) -> None:
    trainer = make_trainer(loop={"epochs": 6}, **DELF)
    before = {key: value.clone() for key, value in trainer.objective.state_dict().items()}
    scores = trainer.train()
    for name in ("loss", "loss_attention", "loss_reconstruction"):
        values = curve(trainer.run_dir, name)
        assert sum(values[-4:]) < sum(values[:4]), name
    after = trainer.objective.state_dict()
    moved = {key for key, value in after.items() if not torch.equal(value, before[key])}
    assert not any(key.startswith("network.backbone") for key in moved)
    for part in ("network.local.attention", "network.local.encoder", "network.local.decoder", "loss.linear"):
        assert any(key.startswith(part) for key in moved), part
    assert 0 <= scores["accuracy"] <= 1


def test_training_mode_leaves_a_backbone_that_is_not_trained_in_evaluation(
    make_trainer: Callable[..., Trainer],
) -> None:
    second_stage, joint = make_trainer("second", **DELF).objective, make_trainer("joint", **DELG).objective
    for objective in (second_stage, joint):
        objective.eval()
        assert objective.train() is objective
        assert objective.training and objective.network.local.training
    assert not second_stage.trains_backbone
    assert not any(part.training for part in second_stage.network.backbone.modules())
    assert joint.trains_backbone
    assert all(part.training for part in joint.network.backbone.modules())


def test_validation_scores_what_the_classifier_learns_from(make_trainer: Callable[..., Trainer]) -> None:
    trainer = make_trainer(**DELF)
    validation: Any = trainer.run.validation
    scores = validation.run(trainer.objective)
    images, network = validation.held_out, trainer.objective.network.eval()
    reader = PhotoReader(images.paths, images.labels, trainer.run.recipe.transform, seed=0)
    inputs = ImageInputs(PhotoLoader(reader), network.backbone, torch.device("cpu"))
    with torch.no_grad():
        pictures = inputs.to_inputs([reader.read(index, None)[0] for index in range(len(images))])
        expected = trainer.objective.loss(network.describe_raw(pictures), torch.from_numpy(images.labels))
    assert scores["val_loss"] == pytest.approx(float(expected), rel=1e-5)


def test_the_second_stage_trains_on_stored_maps(make_trainer: Callable[..., Trainer]) -> None:
    trainer = make_trainer(loop={"epochs": 2}, frozen={"enabled": True, "views": 1}, **DELF)
    trainer.train()
    assert trainer.run.loader.computed == len(trainer.run.images)  # type: ignore[attr-defined]
    assert len(curve(trainer.run_dir, "loss")) == 8


def test_a_second_stage_starts_from_the_backbone_of_the_first(make_trainer: Callable[..., Trainer]) -> None:
    first = make_trainer(
        "first", loop={"epochs": 1}, model={"name": "spoc-r50", "config": {"backbone": "tiny", "dim": 16}}
    )
    first.train()
    second = make_trainer("second", **{**DELF, "model": {**DELF["model"], "weights": str(first.run_dir)}})
    for key, value in first.objective.network.backbone.state_dict().items():
        assert torch.equal(second.objective.network.backbone.state_dict()[key], value), key


def test_joint_training_keeps_the_gradients_apart(make_trainer: Callable[..., Trainer]) -> None:
    trainer = make_trainer(loop={"epochs": 1}, **DELG)
    trainer.run.sampler.start_epoch(0)
    trainer._to_training()
    ((inputs, labels),) = next(trainer._batches())
    outputs = trainer.objective(inputs, labels)
    assert float(outputs["loss"].detach()) == pytest.approx(
        sum(float(outputs[name]) for name in ("global", "attention", "reconstruction")), rel=1e-5
    )
    joint = trainer.objective.network.describe_joint(inputs)
    trainer.objective.local_loss(joint.pooled, labels).backward()
    assert all(p.grad is None for p in trainer.objective.network.backbone.parameters())
    assert any(p.grad is not None for p in trainer.objective.network.local.attention.parameters())
    trainer.run.loader.photos.close()


@pytest.mark.parametrize("model", [DELG["model"], {"name": "delg-released", "config": {"backbone": "tiny", "dim": 16}}])
def test_joint_training_learns_both(make_trainer: Callable[..., Trainer], model: dict[str, Any]) -> None:
    tables = {**DELG, "model": model}
    if model["name"] == "delg-released":
        tables["task"] = {**DELG["task"], "local_loss": "arcface"}
    trainer = make_trainer(loop={"epochs": 6}, **tables)
    trainer.train()
    for name in ("loss_global", "loss_attention"):
        values = curve(trainer.run_dir, name)
        assert sum(values[-6:]) < sum(values[:6]), name


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"task": {"kind": "attention"}}, "of kind global"),
        ({**DELF, "task": {"kind": "attention", "joint": True}}, "of kind local"),
        ({"task": {"joint": True}}, "task.joint belongs to"),
        ({**DELF, "model": {"name": "how-r18", "config": {"backbone": "tiny"}}}, "'how-r18' has no attention"),
        ({"task": {"kind": "attention", "joint": True}}, "'token' has no local branch"),
    ],
)
def test_a_network_that_does_not_fit_the_stage_is_refused(
    make_trainer: Callable[..., Trainer], tables: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make_trainer(**tables)
