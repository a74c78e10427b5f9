"""What lies beside the tensors of a Hugging Face or OpenCLIP model: config.json and the like, plain JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tessera.errors import CheckpointError


@dataclass(frozen=True)
class HubConfig:
    """heads, activation: as the file names them. numbers: eps, theta, mean and std, where they are said.

    claims: what the tensors tell too, and must agree with: patch, width, depth, grid.
    """

    heads: int | None = None
    activation: str | None = None
    numbers: Mapping[str, Any] = field(default_factory=dict)
    claims: Mapping[str, int] = field(default_factory=dict)


def read_hub_config(path: Path, model_types: Sequence[str]) -> HubConfig:
    """Of a model's folder, or of the folder a file lies in where its config.json is of the same kind of model."""
    folder = path if path.is_dir() else path.parent
    config = _read(folder / "config.json")
    numbers: dict[str, Any] = {}
    if config.get("model_type") in model_types:
        tower = config.get("vision_config", config)
        numbers = {
            ours: tower[theirs]
            for ours, theirs in (("eps", "layer_norm_eps"), ("theta", "rope_theta"))
            if theirs in tower
        }
        read = HubConfig(
            heads=tower.get("num_attention_heads"),
            activation=tower.get("hidden_act"),
            claims=_claims(tower),
        )
        processor = _read(folder / "preprocessor_config.json")
        numbers |= _normalisation(processor.get("image_mean"), processor.get("image_std"))
    else:
        openclip = _read(folder / "open_clip_config.json")
        model, processor = openclip.get("model_cfg", {}), openclip.get("preprocess_cfg", {})
        read = _read_openclip(model, model.get("vision_cfg", {}))
        numbers = _normalisation(processor.get("mean"), processor.get("std"))
    return HubConfig(read.heads, read.activation, numbers, read.claims)


def _read_openclip(model: Mapping[str, Any], vision: Mapping[str, Any]) -> HubConfig:
    """A tower of timm's (SigLIP) has its own activation, of which this file says nothing."""
    known = "embed_dim" in model and "timm_model_name" not in vision
    activation = "quick_gelu" if model.get("quick_gelu") else "gelu"
    heads = vision["width"] // vision["head_width"] if {"width", "head_width"} <= vision.keys() else None
    return HubConfig(heads=heads, activation=activation if known else None)


def _claims(tower: Mapping[str, Any]) -> dict[str, int]:
    names = {"patch": "patch_size", "width": "hidden_size", "depth": "num_hidden_layers"}
    claims = {ours: tower[theirs] for ours, theirs in names.items() if isinstance(tower.get(theirs), int)}
    if isinstance(tower.get("image_size"), int) and claims.get("patch"):
        claims["grid"] = tower["image_size"] // claims["patch"]
    return claims


def _normalisation(mean: Any, std: Any) -> dict[str, tuple[float, ...]]:
    if isinstance(mean, list) and isinstance(std, list) and len(mean) == len(std) == 3:
        return {"mean": tuple(map(float, mean)), "std": tuple(map(float, std))}
    return {}


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        table = json.loads(path.read_text())
    except (ValueError, OSError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON: {error}. Get the file again from its source.") from error
    return table if isinstance(table, dict) else {}
