"""The shapes of foundation models: everything that decides their arithmetic, and the published ones by name.

A checkpoint is not bound to these names: `tessera convert` reads the shape off its tensors. Loads no torch.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from tessera.models.preprocessing import IMAGENET_MEAN, IMAGENET_STD

Activation: TypeAlias = Literal["gelu", "gelu_tanh", "quick_gelu", "swiglu"]

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
HALF = (0.5, 0.5, 0.5)


@dataclass(frozen=True)
class ViTShape:
    """A vision transformer.

    hidden: of the MLPs; of SwiGLU each of the two halves. grid: side of the square of learnt positions it was trained
    with; 0 has rotary positions (RoPE) of base `theta`. antialias: how the grid is interpolated to other sizes.
    registers: tokens beside the class token that carry no output. pre_norm: a norm before the first block (CLIP).
    summary: the vector of the whole image: the class token, or attention pooling by a learnt probe (SigLIP).
    projection: of CLIP's class token into the space it shares with text; 0 leaves it out.
    """

    patch: int
    width: int
    depth: int
    heads: int
    hidden: int
    grid: int = 0
    registers: int = 0
    activation: Activation = "gelu"
    eps: float = 1e-6
    antialias: bool = False
    pre_norm: bool = False
    patch_bias: bool = True
    layer_scale: bool = False
    summary: Literal["class", "probe"] = "class"
    projection: int = 0
    theta: float = 100.0
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD

    @property
    def size(self) -> int:
        """The side in pixels that it was trained with, or a usual one where positions are rotary."""
        return self.grid * self.patch or 32 * self.patch

    @property
    def dim(self) -> int:
        """Of the summary."""
        return self.projection or self.width

    @property
    def parameters(self) -> int:
        width, hidden, gated = self.width, self.hidden, self.activation == "swiglu"
        attention = 4 * width * (width + 1)
        mlp = (3 if gated else 2) * width * hidden + (2 if gated else 1) * hidden + width
        block = attention + mlp + 4 * width + 2 * width * self.layer_scale
        tokens = (
            (self.summary == "class") + self.registers + (self.grid**2 + (self.summary == "class")) * bool(self.grid)
        )
        total = self.depth * block + width * (3 * self.patch**2 + self.patch_bias) + tokens * width + 2 * width
        total += 2 * width * self.pre_norm + width * self.projection
        return total + (attention + mlp + 3 * width if self.summary == "probe" else 0)


@dataclass(frozen=True)
class ConvNeXtShape:
    """widths and depths of the four stages."""

    widths: tuple[int, int, int, int]
    depths: tuple[int, int, int, int]
    eps: float = 1e-6
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD

    @property
    def size(self) -> int:
        return 512

    @property
    def dim(self) -> int:
        return self.widths[-1]

    @property
    def parameters(self) -> int:
        stem = self.widths[0] * (3 * 16 + 3)
        halves = sum(2 * a + b * (4 * a + 1) for a, b in itertools.pairwise(self.widths))
        blocks = sum(
            depth * (8 * w * w + (49 + 1 + 2 + 4 + 1 + 1) * w)
            for w, depth in zip(self.widths, self.depths, strict=True)
        )
        return stem + halves + blocks + 2 * self.widths[-1]


Shape: TypeAlias = ViTShape | ConvNeXtShape


def _plain(patch: int, width: int, depth: int, heads: int, grid: int) -> ViTShape:
    return ViTShape(patch, width, depth, heads, 4 * width, grid)


def _dinov2() -> Iterator[tuple[str, ViTShape]]:
    shapes = {
        "s": _plain(14, 384, 12, 6, 37),
        "b": _plain(14, 768, 12, 12, 37),
        "l": _plain(14, 1024, 24, 16, 37),
        "g": replace(_plain(14, 1536, 40, 24, 37), hidden=4096, activation="swiglu"),
    }
    for size, shape in shapes.items():
        scaled = replace(shape, layer_scale=True)
        yield f"dinov2-{size}14", scaled
        yield f"dinov2-{size}14-reg", replace(scaled, registers=4, antialias=True)


def _clip() -> Iterator[tuple[str, ViTShape]]:
    for name, shape, projection in (
        ("clip-b32", _plain(32, 768, 12, 12, 7), 512),
        ("clip-b16", _plain(16, 768, 12, 12, 14), 512),
        ("clip-l14", _plain(14, 1024, 24, 16, 16), 768),
        ("openclip-b32", _plain(32, 768, 12, 12, 7), 512),
        ("openclip-l14", _plain(14, 1024, 24, 16, 16), 768),
        ("openclip-h14", _plain(14, 1280, 32, 16, 16), 1024),
    ):
        clip = replace(shape, eps=1e-5, pre_norm=True, patch_bias=False, projection=projection)
        activation: Activation = "quick_gelu" if name.startswith("clip") else "gelu"
        yield name, replace(clip, activation=activation, mean=CLIP_MEAN, std=CLIP_STD)


def _siglip() -> Iterator[tuple[str, ViTShape]]:
    for name, shape in (
        ("siglip-b16", _plain(16, 768, 12, 12, 14)),
        ("siglip-l16-256", _plain(16, 1024, 24, 16, 16)),
        ("siglip-so400m14-384", replace(_plain(14, 1152, 27, 16, 27), hidden=4304)),
    ):
        yield name, replace(shape, activation="gelu_tanh", summary="probe", mean=HALF, std=HALF)


def _dinov3() -> Iterator[tuple[str, Shape]]:
    for name, shape in (
        ("dinov3-s16", _plain(16, 384, 12, 6, 0)),
        ("dinov3-splus16", replace(_plain(16, 384, 12, 6, 0), activation="swiglu")),
        ("dinov3-b16", _plain(16, 768, 12, 12, 0)),
        ("dinov3-l16", _plain(16, 1024, 24, 16, 0)),
        ("dinov3-hplus16", replace(_plain(16, 1280, 32, 20, 0), activation="swiglu")),
    ):
        yield name, replace(shape, registers=4, layer_scale=True, eps=1e-5)
    yield "dinov3-convnext-t", ConvNeXtShape((96, 192, 384, 768), (3, 3, 9, 3))
    yield "dinov3-convnext-s", ConvNeXtShape((96, 192, 384, 768), (3, 3, 27, 3))
    yield "dinov3-convnext-b", ConvNeXtShape((128, 256, 512, 1024), (3, 3, 27, 3))
    yield "dinov3-convnext-l", ConvNeXtShape((192, 384, 768, 1536), (3, 3, 27, 3))


SHAPES: dict[str, Shape] = dict([*_dinov2(), *_clip(), *_siglip(), *_dinov3()])
