"""`tessera models` and `tessera convert` through the real entry point."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tessera.models.convert import FORMATS
from tessera.models.model_registry import MODELS, build_model


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tessera.cli.main", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_models_lists_every_entry() -> None:
    answer = run("models", "--json")
    assert answer.returncode == 0, answer.stderr
    rows = json.loads(answer.stdout)["models"]
    assert [row["name"] for row in rows] == list(MODELS)
    keys = {"name", "summary", "paper", "kind", "dim", "num_tokens", "parameters", "multiply_adds"}
    assert all(set(row) == keys and row["parameters"] > 0 and row["multiply_adds"] > 0 for row in rows)


def test_models_loads_no_torch() -> None:
    code = (
        "import sys; sys.argv = ['tessera', 'models']\n"
        "from tessera.cli.main import app\n"
        "try: app()\nexcept SystemExit as end: assert not end.code\n"
        "assert 'torch' not in sys.modules, 'torch was loaded'\n"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    assert "token-released" in answer.stdout


def test_an_unknown_model_is_one_sentence() -> None:
    answer = run("models", "token-r5")
    assert answer.returncode == 1 and answer.stdout == ""
    assert "Did you mean 'token-r50'" in answer.stderr and "Traceback" not in answer.stderr


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small file of the released network on ResNet-18, under the authors' names."""
    torch.manual_seed(0)
    found = next(entry for entry in FORMATS if entry.model == "token-released")
    network = build_model("token-released", backbone="resnet18", channels=32, dim=48).eval()
    path = tmp_path_factory.mktemp("file") / "released.pth"
    torch.save({"state_dict": {found.to_theirs(key): value for key, value in network.state_dict().items()}}, path)
    return path


@pytest.mark.slow
def test_convert_then_embed_gives_the_networks_descriptors(checkpoint: Path, tmp_path: Path) -> None:
    answer = run("convert", checkpoint, "-o", tmp_path / "bundle", "--json")
    assert answer.returncode == 0, answer.stderr
    told = json.loads(answer.stdout)
    assert told["format"] == "Token (from April 2022)" and told["dim"] == 48 and told["kind"] == "global"
    pixels = np.random.default_rng(0).integers(0, 256, (97, 130, 3), dtype=np.uint8)
    picture = tmp_path / "picture.png"
    Image.fromarray(pixels).save(picture)
    descriptors = []
    for runtime in ("onnx", "torch"):
        output = tmp_path / f"{runtime}.npz"
        embedded = run(
            "embed", picture, "-o", output, "--model", tmp_path / "bundle", "--scales", "1", "--runtime", runtime
        )
        assert embedded.returncode == 0, embedded.stderr
        with np.load(output) as file:
            descriptors.append(file["descriptors"][0])
    from tessera.models.convert import load_checkpoint

    network = load_checkpoint(checkpoint)
    image = torch.from_numpy(pixels).permute(2, 0, 1).float()[None] / 255
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (network.backbone.mean, network.backbone.std))
    with torch.inference_mode():
        expected = network((image - mean) / std)["descriptor"][0].numpy()
    for descriptor in descriptors:
        assert np.abs(descriptor - expected).max() < 1e-5


def test_convert_says_what_is_wrong_in_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "file.pth"
    torch.save({"conv.weight": torch.zeros(3)}, path)
    answer = run("convert", path, "-o", tmp_path / "bundle")
    assert answer.returncode == 1 and answer.stdout == ""
    assert "unknown kind" in answer.stderr and "Traceback" not in answer.stderr
    assert not (tmp_path / "bundle").exists()


def test_packaged_models_come_first_and_lines_are_short() -> None:
    answer = run("models")
    lines = answer.stdout.splitlines()
    assert lines[0].split("\t")[0] == "lite"
    assert len(lines) == 1 + len(MODELS)
    assert "AAAI" not in answer.stdout


def test_a_flag_shows_no_type() -> None:
    for command in ("models", "stats", "index", "train", "bench extract", "evaluate folder"):
        assert "bool" not in run(*command.split(), "--help").stdout


def test_python_m_tessera_is_tessera() -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "tessera", "--version"], capture_output=True, text=True, check=True, timeout=60
    )
    assert answer.stdout.startswith("tessera ")
