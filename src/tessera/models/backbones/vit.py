"""Vision transformers of the foundation models: DINOv2 and v3, CLIP, SigLIP. Parameter names are DINOv2's."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tessera.errors import ConfigError
from tessera.models.backbones.base import Backbone
from tessera.models.backbones.positions import resize_grid, rotary_angles, rotate
from tessera.models.shapes import Activation, ViTShape


class PatchConv2d(nn.Conv2d):
    """A convolution whose stride is its kernel, over pictures of any size.

    The far edges are repeated to fill the last patch. Sides that are multiples lose and gain nothing, others are not
    cut, and a strip that is thinner than a patch has one.
    """

    def __init__(self, inputs: int, outputs: int, side: int, *, bias: bool = True) -> None:
        super().__init__(inputs, outputs, side, side, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        missing = self.stride[0] - 1
        return super().forward(F.pad(x, (0, missing, 0, missing), mode="replicate"))


class Mlp(nn.Module):
    def __init__(self, width: int, hidden: int, activation: Activation) -> None:
        super().__init__()
        self.activation = activation
        self.fc1, self.fc2 = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc1(x)
        if self.activation == "quick_gelu":
            x = x * torch.sigmoid(1.702 * x)
        else:
            x = F.gelu(x, approximate="tanh" if self.activation == "gelu_tanh" else "none")
        return cast(Tensor, self.fc2(x))


class SwiGLU(nn.Module):
    """w12 holds the gate, then what it lets through."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.w12, self.w3 = nn.Linear(width, 2 * hidden), nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        gate, values = self.w12(x).chunk(2, dim=-1)
        return cast(Tensor, self.w3(F.silu(gate) * values))


def _build_mlp(shape: ViTShape) -> Mlp | SwiGLU:
    if shape.activation == "swiglu":
        return SwiGLU(shape.width, shape.hidden)
    return Mlp(shape.width, shape.hidden, shape.activation)


class SelfAttention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, angles: Tensor | None, prefix: int) -> Tensor:
        """x: B S C; angles: of the positions after the first `prefix`. Returns B S C."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)  # B N S C/N each
        if angles is not None:
            q, k = (torch.cat([y[:, :, :prefix], rotate(y[:, :, prefix:], angles)], dim=2) for y in (q, k))
        values = F.scaled_dot_product_attention(q, k, v)
        return cast(Tensor, self.proj(values.transpose(1, 2).flatten(2)))


class Block(nn.Module):
    """Attention and MLP, normed before; with layer scale the branches have a factor a channel."""

    def __init__(self, shape: ViTShape) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(shape.width, shape.eps)
        self.attn = SelfAttention(shape.width, shape.heads)
        self.norm2 = nn.LayerNorm(shape.width, shape.eps)
        self.mlp = _build_mlp(shape)
        self.ls1 = nn.Parameter(torch.ones(shape.width)) if shape.layer_scale else None
        self.ls2 = nn.Parameter(torch.ones(shape.width)) if shape.layer_scale else None

    def forward(self, x: Tensor, angles: Tensor | None, prefix: int) -> Tensor:
        branch: Tensor = self.attn(self.norm1(x), angles, prefix)
        x = x + (branch if self.ls1 is None else branch * self.ls1)
        branch = self.mlp(self.norm2(x))
        return x + (branch if self.ls2 is None else branch * self.ls2)


class ProbePooling(nn.Module):
    """SigLIP's head: one learnt query attends to all positions, then an MLP."""

    def __init__(self, shape: ViTShape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.probe = nn.Parameter(torch.randn(1, 1, shape.width) * 0.02)
        self.qkv, self.proj = nn.Linear(shape.width, 3 * shape.width), nn.Linear(shape.width, shape.width)
        self.norm = nn.LayerNorm(shape.width, shape.eps)
        self.mlp = _build_mlp(shape)

    def forward(self, x: Tensor) -> Tensor:
        """x: B S C. Returns B C."""
        width = x.shape[-1]
        weight, bias = self.qkv.weight, self.qkv.bias
        query = F.linear(self.probe, weight[:width], bias[:width]).expand(x.shape[0], -1, -1)
        keys, values = F.linear(x, weight[width:], bias[width:]).chunk(2, dim=-1)
        q, k, v = (y.view(*y.shape[:2], self.heads, -1).transpose(1, 2) for y in (query, keys, values))
        pooled = self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))[:, 0]
        return cast(Tensor, pooled + self.mlp(self.norm(pooled)))


class VisionTransformer(Backbone):
    """Patches to a normed map of one position a patch, and a summary of the whole image beside it."""

    def __init__(self, shape: ViTShape) -> None:
        super().__init__()
        if shape.width % shape.heads or (not shape.grid and (shape.width // shape.heads) % 4):
            raise ConfigError(f"{shape.width} channels cannot be split into {shape.heads} heads.")
        self.shape = shape
        self.channels, self.stride = shape.width, shape.patch
        self.stage_channels = (shape.width, 0)
        self.mean, self.std = shape.mean, shape.std
        has_class = shape.summary == "class"
        self.prefix = int(has_class) + shape.registers
        self.patch_embed = PatchConv2d(3, shape.width, shape.patch, bias=shape.patch_bias)
        self.cls_token = _tokens(1, shape.width) if has_class else None
        self.register_tokens = _tokens(shape.registers, shape.width) if shape.registers else None
        self.pos_embed = _tokens(has_class + shape.grid**2, shape.width) if shape.grid else None
        self.norm_pre = nn.LayerNorm(shape.width, shape.eps) if shape.pre_norm else nn.Identity()
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.depth))
        self.norm = nn.LayerNorm(shape.width, shape.eps)
        self.pool = None if has_class else ProbePooling(shape)
        self.projection = nn.Linear(shape.width, shape.projection, bias=False) if shape.projection else nn.Identity()

    @property
    def summary_channels(self) -> int:
        return self.shape.dim

    def embed(self, features: Tensor) -> Tensor:
        """features: B C H W, patches. Returns B S C with positions; the class token first, then registers."""
        x, grid = features.flatten(2).transpose(1, 2), self.shape.grid
        positions = self.pos_embed
        if positions is not None:
            square = positions[0, positions.shape[1] - grid**2 :].view(grid, grid, -1)
            x = x + resize_grid(square, features, self.shape.antialias).flatten(0, 1)
        first = []
        if self.cls_token is not None:
            first.append(self.cls_token if positions is None else self.cls_token + positions[:, :1])
        if self.register_tokens is not None:
            first.append(self.register_tokens)
        return torch.cat([*(tokens.expand(x.shape[0], -1, -1) for tokens in first), x], dim=1)

    def forward_summary(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features = self.patch_embed(images)
        head_dim = self.shape.width // self.shape.heads
        angles = None if self.shape.grid else rotary_angles(features, head_dim, self.shape.theta)
        x = self.norm_pre(self.embed(features))
        for block in self.blocks:
            x = block(x, angles, self.prefix)
        x = self.norm(x)
        patches = x[:, self.prefix :]
        summary = self.projection(x[:, 0]) if self.pool is None else self.pool(patches)
        return summary, patches.transpose(1, 2).reshape(features.shape)

    def forward(self, images: Tensor) -> Tensor:
        return self.forward_summary(images)[1]

    def conv4(self, images: Tensor) -> Tensor:
        """Its one map, for heads and matching that want one at stride 16 or so."""
        return cast(Tensor, self(images))

    def conv5(self, conv4: Tensor) -> Tensor:
        raise ConfigError("a vision transformer has one map, at the stride of its patches: it has no conv5.")


def _tokens(number: int, width: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(1, number, width) * 0.02)
