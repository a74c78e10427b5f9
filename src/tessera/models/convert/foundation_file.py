"""Foundation models: a file's tensors to a network, its shape read off the tensors and its config.json."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from tessera.errors import CheckpointError
from tessera.models.convert.foreign_checkpoint import Checkpoint
from tessera.models.convert.hub_config import HubConfig, read_hub_config
from tessera.models.convert.layouts import LAYOUTS, Layout
from tessera.models.shapes import ConvNeXtShape, Shape, ViTShape

_ACTIVATIONS = {"gelu": "gelu", "quick_gelu": "quick_gelu", "gelu_pytorch_tanh": "gelu_tanh", "silu": "swiglu"}
_HEAD_CHANNELS = 64
_OPENAI_MARK = "input_resolution"  # a number that OpenAI's own CLIP files hold, and OpenCLIP's do not


@dataclass(frozen=True)
class FoundationFile:
    """A recognised file. prefix: what stands before the layout's own names in it."""

    checkpoint: Checkpoint
    layout: Layout
    prefix: str
    settings: HubConfig

    def find(self, ours: str) -> Tensor | None:
        """The first tensor that one of ours is made of, where it is there."""
        return self.checkpoint.state.get(self.theirs(ours)[0])

    def theirs(self, ours: str) -> tuple[str, ...]:
        names = self.layout.sources(ours)
        return tuple(name[1:] if name.startswith("^") else self.prefix + name for name in names)

    def has(self, ours: str) -> bool:
        return all(name in self.checkpoint.state for name in self.theirs(ours))

    def told(self, heads: int | None, activation: str | None) -> FoundationFile:
        """The same with what a user says of it."""
        settings = replace(
            self.settings,
            heads=heads or self.settings.heads,
            activation=activation or self.settings.activation,
        )
        return replace(self, settings=settings)

    @property
    def family(self) -> str:
        registers = self.layout.family == "dinov2" and self.find("register_tokens") is not None
        return "dinov2-reg" if registers else self.layout.family


def recognise_foundation(checkpoint: Checkpoint) -> FoundationFile | None:
    """The layout whose marks a file has, all behind one prefix; None where it is of another kind."""
    for layout in LAYOUTS:
        for key in checkpoint.state:
            if key.endswith(layout.marks[0]):
                prefix = key.removesuffix(layout.marks[0])
                whole = not prefix or prefix.endswith(".")
                if whole and all(prefix + mark in checkpoint.state for mark in layout.marks):
                    settings = read_hub_config(checkpoint.path, layout.model_types)
                    return FoundationFile(checkpoint, layout, prefix, settings)
    _refuse_text(checkpoint)
    return None


def _refuse_text(checkpoint: Checkpoint) -> None:
    words = ("token_embedding.weight", "word_embeddings.weight", "embed_tokens.weight")
    if any(key.endswith(words) for key in checkpoint.state):
        raise CheckpointError(
            f"{checkpoint.path} is a text tower: it reads words, not images. "
            "Convert the file with the image tower, or the one with both."
        )


def read_shape(file: FoundationFile) -> Shape:
    """The shape of the network in a file."""
    if file.layout.family == "dinov3-convnext":
        return _convnext_shape(file)
    given = dict(file.layout.given)
    weight = file.find("patch_embed.weight")
    if weight is None:
        raise CheckpointError(
            f"{describe_file(file)} lacks {file.theirs('patch_embed.weight')[0]}, the patches' projection."
        )
    if weight.ndim != 4:
        raise CheckpointError(
            f"{describe_file(file)} is a NaFlex network, which takes patches and masks instead of an image. "
            "Convert one of the family with a fixed size, such as siglip2-base-patch16-224."
        )
    width, channels, patch, other = weight.shape
    if channels != 3 or patch != other:
        raise CheckpointError(
            f"{describe_file(file)} has patches of {channels} x {patch} x {other}; 3 x N x N is needed."
        )
    gated = file.has("blocks.0.mlp.w12.weight")
    inner = file.find("blocks.0.mlp.w3.weight" if gated else "blocks.0.mlp.fc2.weight")
    has_class = given.get("summary", "class") == "class"
    registers, positions, projection = (
        file.find(ours) for ours in ("register_tokens", "pos_embed", "projection.weight")
    )
    settings = file.settings
    if settings.activation is not None:
        given["activation"] = _activation(file, settings.activation, gated)
    if gated:
        given["activation"] = "swiglu"
    shape = ViTShape(
        patch=patch,
        width=width,
        depth=_depth(file),
        heads=settings.heads or file.layout.heads.get(width, max(1, width // _HEAD_CHANNELS)),
        hidden=0 if inner is None else inner.shape[1],
        grid=0 if positions is None else _grid(file, positions, width, has_class),
        registers=0 if registers is None else registers.numel() // width,
        antialias=file.family == "dinov2-reg",
        projection=0 if projection is None else projection.numel() // width,
        **given,
    )
    if settings.activation is None and _OPENAI_MARK in file.checkpoint.state:
        shape = replace(shape, activation="quick_gelu")
    shape = replace(shape, **settings.numbers)
    _check_settings(file, shape)
    return shape


def assumptions(file: FoundationFile, shape: Shape) -> dict[str, Any]:
    """What neither the tensors nor a config.json told, and a user may know better."""
    if isinstance(shape, ConvNeXtShape):
        return {}
    assumed: dict[str, Any] = {} if file.settings.heads else {"heads": shape.heads}
    if file.family == "clip" and file.settings.activation is None and _OPENAI_MARK not in file.checkpoint.state:
        assumed["activation"] = shape.activation
    return assumed


def _depth(file: FoundationFile) -> int:
    depth = 0
    while file.has(f"blocks.{depth}.norm1.weight") or file.has(f"blocks.{depth}.norm2.weight"):
        depth += 1
    return depth


def _grid(file: FoundationFile, positions: Tensor, width: int, has_class: bool) -> int:
    count = positions.numel() // width - has_class
    side = math.isqrt(max(count, 0))
    if side**2 != count or not side:
        raise CheckpointError(f"{describe_file(file)} has {count} learnt positions, which are no square grid.")
    return side


def _activation(file: FoundationFile, name: str, gated: bool) -> str:
    known = _ACTIVATIONS.get(name)
    if known is None or (gated != (known == "swiglu") and not (gated and file.layout.family == "dinov2")):
        raise CheckpointError(
            f"{describe_file(file)} has the activation '{name}'{' in a gated MLP' if gated else ''}, "
            f"which is not known. Known: {', '.join(_ACTIVATIONS)}, the last for gated MLPs."
        )
    return known


def _convnext_shape(file: FoundationFile) -> ConvNeXtShape:
    widths, depths = [], []
    for stage in range(4):
        depth = 0
        while file.has(f"stages.{stage}.{depth}.dwconv.weight"):
            depth += 1
        weight = file.find(f"stages.{stage}.0.dwconv.weight")
        widths.append(0 if weight is None else len(weight))
        depths.append(depth)
    if 0 in depths:
        raise CheckpointError(
            f"{describe_file(file)} has {', '.join(map(str, depths))} blocks in its stages, and four are needed."
        )
    shape = ConvNeXtShape(tuple(widths), tuple(depths))  # type: ignore[arg-type]
    return replace(shape, **{key: value for key, value in file.settings.numbers.items() if key != "theta"})


def _check_settings(file: FoundationFile, shape: ViTShape) -> None:
    """A config.json that speaks of another network than the tensors: one of the two is not what it should be."""
    found = {"patch": shape.patch, "width": shape.width, "depth": shape.depth, "grid": shape.grid}
    for name, said in file.settings.claims.items():
        if name in found and said != found[name] and (name != "grid" or shape.grid):
            raise CheckpointError(
                f"{file.checkpoint.path}: its config.json says {name} {said}, its tensors have {found[name]}. "
                "The two are not of one network: get both from the same place."
            )
    if shape.width % shape.heads:
        raise CheckpointError(
            f"{describe_file(file)} has {shape.width} channels, which {shape.heads} heads do not divide."
        )
    periods = next((value for key, value in file.checkpoint.state.items() if key.endswith("rope_embed.periods")), None)
    if periods is not None:
        expected = shape.theta ** torch.arange(0, 1, 4 * shape.heads / shape.width)
        if periods.shape != expected.shape or not torch.allclose(periods, expected, rtol=0.01):
            raise CheckpointError(f"{describe_file(file)} has rotary periods other than {shape.theta:g}^(4i/d).")


def describe_file(file: FoundationFile) -> str:
    return f"{file.checkpoint.path} looks like {file.layout.name} but"
