"""Read a checkpoint of somebody else's training: weights and plain data only, never code."""

from __future__ import annotations

import json
import pickle
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tessera.errors import CheckpointError
from tessera.models.convert.torchscript import is_torchscript, read_torchscript

_NESTED = ("state_dict", "model_state_dict", "model", "net")
_PREFIX = "module."
_FOLDER_WEIGHTS = (
    "model.safetensors",
    "open_clip_model.safetensors",
    "pytorch_model.bin",
    "open_clip_pytorch_model.bin",
)


@dataclass(frozen=True)
class Checkpoint:
    """A flat state dict (without `module.`, in float32) and what lay beside it in the file."""

    path: Path
    state: dict[str, Tensor]
    extras: dict[str, Any] = field(default_factory=dict)


def read_checkpoint(path: Path) -> Checkpoint:
    """Load flat or nested dictionaries, .safetensors too, or the folder of a Hugging Face model.

    Pickles are read with `weights_only`: beside tensors and plain containers only numpy arrays and numbers are admitted
    (cirtorch and HOW keep some), so a file that asks for anything else is refused before anything of it runs.
    """
    if path.is_dir():
        loaded: Any = {name: tensor for file in weight_files(path) for name, tensor in _load(file).items()}
    elif path.is_file():
        loaded = _load(path)
    else:
        raise CheckpointError(f"{path} is not a file, nor a folder. Give the checkpoint to convert.")
    if not isinstance(loaded, Mapping):
        raise CheckpointError(f"{path} holds a {type(loaded).__name__}, not a dictionary of weights.")
    state: Mapping[Any, Any] = loaded
    extras: dict[str, Any] = {}
    for key in _NESTED:
        if isinstance(loaded.get(key), Mapping):
            state = loaded[key]
            extras = {str(name): value for name, value in loaded.items() if name != key}
            break
    tensors = {str(name): value for name, value in state.items() if isinstance(value, Tensor)}
    if not tensors:
        raise CheckpointError(
            f"{path} holds no weights: neither itself nor under {', '.join(_NESTED)} has it a dictionary of tensors."
        )
    others = [str(name) for name, value in state.items() if not isinstance(value, Tensor)]
    if others:
        raise CheckpointError(f"{path} has entries among its weights that are no tensors: {', '.join(others[:8])}.")
    if all(name.startswith(_PREFIX) for name in tensors):
        tensors = {name.removeprefix(_PREFIX): value for name, value in tensors.items()}
    return Checkpoint(path, {name: _tidy(name, value) for name, value in tensors.items()}, extras)


def weight_files(path: Path) -> list[Path]:
    """The files with the weights of a model's folder; several where they are in shards, which an index names."""
    for name in _FOLDER_WEIGHTS:
        index_path = path / f"{name}.index.json"
        if index_path.is_file():
            return [_shard(path, shard) for shard in _shards(index_path)]
        if (path / name).is_file():
            return [path / name]
    raise CheckpointError(f"{path} holds no weights: none of {', '.join(_FOLDER_WEIGHTS)} is there.")


def _shards(index_path: Path) -> list[str]:
    try:
        return sorted(set(json.loads(index_path.read_text())["weight_map"].values()))
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise CheckpointError(f"{index_path} cannot be read: {error}. Get the file again from its source.") from error


def _shard(path: Path, name: str) -> Path:
    if Path(name).name != name or not (path / name).is_file():
        raise CheckpointError(f"{path} lacks {name}, which its index names. Get the whole folder again.")
    return path / name


def _load(path: Path) -> Any:
    _refuse_stand_in(path)
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        if is_torchscript(path):
            return read_torchscript(path)
        with torch.serialization.safe_globals(_numpy_globals()), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the pickle's protocol: what it cannot read it refuses
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged or malicious file may raise anything; nothing of it has been run
        raise CheckpointError(f"{path} cannot be read: {_reason(error)} Get the file again from its source.") from error


def _refuse_stand_in(path: Path) -> None:
    """What downloads leave where a file of weights should be."""
    with path.open("rb") as file:
        start = file.read(100).lstrip().lower()
    if start.startswith(b"version https://git-lfs"):
        raise CheckpointError(f"{path} is a Git LFS pointer and not the weights: run `git lfs pull` in its folder.")
    if start.startswith((b"<!doctype", b"<html")):
        raise CheckpointError(f"{path} is a web page and not the weights: follow its link to the file itself.")


def _reason(error: Exception) -> str:
    text = str(error)
    if asked := re.search(r"(?:GLOBAL|global) ([\w.]+)", text):
        return f"it asks for {asked[1]}, and only tensors, numpy arrays and plain data are loaded."
    if "PytorchStreamReader" in text or isinstance(error, EOFError):
        return "it is truncated or damaged."
    if isinstance(error, pickle.UnpicklingError | KeyError | ValueError | IndexError):
        return "it is no file of weights, or a damaged one."
    lines = text.splitlines()
    return f"{lines[0].rstrip('.') if lines else type(error).__name__}."


def _numpy_globals() -> list[Any]:
    """What a pickled numpy array or number names; none of it runs code of the file's choosing."""
    from numpy._core import multiarray

    kinds = [type(np.dtype(kind)) for kind in ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?")]
    rebuild, scalar = multiarray._reconstruct, multiarray.scalar
    old = "numpy.core.multiarray"  # the name before numpy 2
    return [
        rebuild,
        scalar,
        (rebuild, f"{old}._reconstruct"),
        (scalar, f"{old}.scalar"),
        np.ndarray,
        np.dtype,
        *kinds,
    ]


def _tidy(name: str, value: Tensor) -> Tensor:
    """Float32, and batch norm counters as the scalars that torch has had since 0.4."""
    if name.endswith("num_batches_tracked") and value.numel() == 1:
        return value.detach().reshape(())
    return value.detach().float() if value.is_floating_point() else value.detach()
