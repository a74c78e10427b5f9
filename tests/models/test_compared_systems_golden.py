"""The authors' comparison networks against the numbers of their own code, and HOW against its own."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import Tensor

from tessera.models.losses.arcface import ArcFace, ArcFaceConfig
from tessera.models.model_registry import build_model

SYSTEMS = ["rmac", "delg", "solar", "netvlad"]
STAGES = {"block1.0": "conv1", "block1.1": "bn1", **{f"block{i}": f"layer{i - 1}" for i in (2, 3, 4, 5)}}
LOCAL = ("attention.", "reduction.")


def rename(key: str) -> str:
    """The authors' names to ours: torchvision's for the backbone, the rest below the head or the local branch."""
    if not key.startswith("backbone."):
        return ("local." if key.startswith(LOCAL) else "head.") + key
    name = key.removeprefix("backbone.")
    stage = next(stage for stage in STAGES if name.startswith(f"{stage}."))
    return f"backbone.{STAGES[stage]}{name.removeprefix(stage)}"


@pytest.fixture(scope="module")
def backbone(fill: ModuleType, golden_dir: Path) -> dict[str, Tensor]:
    """The seeded weights that all four nets share: a tensor depends on its name, its shape and the seed only."""
    spec = json.loads((golden_dir / "nets" / "rmac_r50_spec.json").read_text())
    return fill.seeded_state_dict([row for row in spec if row[0].startswith("backbone.")], 1234)


@pytest.fixture(scope="module", params=SYSTEMS)
def case(request: pytest.FixtureRequest, fill: ModuleType, golden_dir: Path, backbone: dict[str, Tensor]) -> tuple:
    """Its name, the strictly loaded network, the classifiers that its file carries, and the golden numbers."""
    system = request.param
    spec = json.loads((golden_dir / "nets" / f"{system}_r50_spec.json").read_text())
    state = fill.seeded_state_dict([row for row in spec if not row[0].startswith("backbone.")], 1234)
    classifiers = {key: state.pop(key) for key in list(state) if key.startswith("classifier")}
    with torch.device("meta"):
        network = build_model(f"{system}-released")
    network.load_state_dict({rename(key): value for key, value in (backbone | state).items()}, assign=True)
    assert {row[0] for row in spec} == {*backbone, *state, *classifiers}
    with np.load(golden_dir / "nets" / f"{system}_r50.npz") as file:
        return system, network.eval(), classifiers, dict(file)


def picture(fill: ModuleType, height: int, width: int, seed: int) -> Tensor:
    return fill.imagenet_normalise(fill.synthetic_rgb(height, width, seed))


@pytest.mark.slow
def test_descriptors_and_losses_are_the_golden_ones(case: tuple, fill: ModuleType) -> None:
    system, network, classifiers, golden = case
    network.float()
    with torch.no_grad():
        for name, size in (("a", (224, 320, 1)), ("b", (320, 256, 2))):
            measured = network(picture(fill, *size))["descriptor"][0].numpy()
            assert np.abs(measured - golden[f"out_{name}"]).max() < 1e-5
        if system == "rmac":  # the published class cannot train
            assert set(golden) == {"out_a", "out_b", "out64_a", "out64_b"}
            return
        batch = torch.cat([picture(fill, 128, 160, seed) for seed in (3, 4)])
        if system == "delg":
            joint = network.describe_joint(batch)
            check_loss(joint.raw, classifiers["classifier_block5.weight"], 0.2, golden["loss"][0], golden["logits"])
            check_loss(
                joint.pooled, classifiers["classifier_block4.weight"], 0.1, golden["loss"][1], golden["local_logits"]
            )
        else:
            raw = network.describe_raw(batch)
            check_loss(raw, classifiers["classifier.weight"], 0.2, golden["loss"], golden["logits"])


def check_loss(raw: Tensor, weight: Tensor, margin_rad: float, loss: float, logits: np.ndarray) -> None:
    labels = torch.tensor([3, 7])
    arcface = ArcFace(ArcFaceConfig(margin_rad, "sqrt_dim"), dim=weight.shape[1], num_classes=weight.shape[0])
    arcface.load_state_dict({"weight": weight})
    measured = arcface.logits(raw, labels)
    assert np.abs(measured.numpy() - logits).max() < 1e-5 * max(1.0, np.abs(logits).max())
    assert arcface(raw, labels).item() == pytest.approx(float(loss), rel=1e-5)
    assert math.isclose(arcface.scale, math.sqrt(weight.shape[1]))


@pytest.mark.slow
def test_double_precision_agrees_to_a_billionth(case: tuple, fill: ModuleType) -> None:
    _, network, _, golden = case
    network.double()
    with torch.no_grad():
        measured = network(picture(fill, 224, 320, 1).double())["descriptor"][0].numpy()
    assert np.abs(measured - golden["out64_a"]).max() < 1e-9
