"""A foundation model's network from the tensors of its file; what does not match is listed in the file's names."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tessera.errors import CheckpointError, list_some
from tessera.models.convert.foundation_file import FoundationFile, describe_file, read_shape
from tessera.models.model_registry import build_model
from tessera.models.published.foundation import FoundationNetwork
from tessera.models.shapes import SHAPES


def build_foundation_file(file: FoundationFile, pooling: str = "cls") -> FoundationNetwork:
    """The network with the file's weights, in evaluation mode."""
    shape = read_shape(file)
    named = next((name for name, known in SHAPES.items() if known == shape), "of its own shape")
    network = build_model(file.family, backbone=named, shape=shape, pooling=pooling)
    assert isinstance(network, FoundationNetwork)
    network.backbone.load_state_dict(read_weights(file, network.backbone.state_dict()))
    return network.eval()


def read_weights(file: FoundationFile, wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of our backbone from a file's; missing, extra and misshapen ones are listed in the file's names."""
    state, layout = _unmasked(file.checkpoint.state), file.layout
    used: set[str] = set()
    missing: list[str] = []
    shapes: list[str] = []
    weights: dict[str, Tensor] = {}
    for ours, target in wanted.items():
        names = file.theirs(ours)
        found = [name for name in names if name in state]
        absent = [name for name in names if name not in state and not name.endswith(layout.absent or ("\0",))]
        used.update(found)
        missing += absent
        if not absent:
            pieces = [state.get(name, torch.zeros(len(target) // len(names))) for name in names]
            value = torch.cat(pieces) if len(pieces) > 1 else pieces[0]
            if names[0].removeprefix(file.prefix) in layout.transposed:
                value = value.T
            if value.shape != target.shape and _squeezed(value) != _squeezed(target):
                shapes.append(f"{' + '.join(names)} {tuple(value.shape)} instead of {tuple(target.shape)}")
            else:
                weights[ours] = value.reshape(target.shape).contiguous()
    extra = [key for key in state if key not in used and not _dropped(file, key)]
    if missing or extra:
        raise CheckpointError(
            f"{describe_file(file)} does not match it. Missing keys: {list_some(missing)}. "
            f"Extra keys: {list_some(extra)}."
        )
    if shapes:
        raise CheckpointError(f"{describe_file(file)} does not match it. Shapes: {list_some(shapes)}.")
    broken = [" + ".join(file.theirs(ours)) for ours, value in weights.items() if not bool(value.isfinite().all())]
    if broken:
        raise CheckpointError(f"{file.checkpoint.path} has NaN or infinite weights: {list_some(broken)}.")
    return weights


def _unmasked(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """DINOv3's own files keep a key bias and a mask that silences it."""
    masks = {key for key in state if key.endswith("qkv.bias_mask")}
    silenced = {
        key.removesuffix("_mask"): torch.where(state[key] == 0, 0.0, state[key.removesuffix("_mask")])
        for key in masks
        if key.removesuffix("_mask") in state
    }
    return {key: value for key, value in {**state, **silenced}.items() if key not in masks}


def _squeezed(tensor: Tensor) -> list[int]:
    return [side for side in tensor.shape if side != 1]


def _dropped(file: FoundationFile, key: str) -> bool:
    prefixes = file.layout.dropped
    return key.startswith(prefixes) or key.removeprefix(file.prefix).startswith(prefixes) if prefixes else False
