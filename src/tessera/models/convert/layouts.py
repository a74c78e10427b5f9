"""How files of foundation models call their tensors: one table a layout, from our names to theirs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tessera.models.shapes import CLIP_MEAN, CLIP_STD, HALF

Names = Mapping[str, str | tuple[str, ...]]

_TEXT = ("text_model.", "text_projection", "logit_scale", "logit_bias", "token_embedding.", "positional_embedding")


@dataclass(frozen=True)
class Layout:
    """One way of naming the tensors of one family.

    marks: keys that tell it from the others, after whatever prefix the file has.
    names: ours to theirs; `#` is a block's number, a name that ends in a dot stands for all that begin with it, and
    several of theirs are laid end to end; `^` marks one outside the file's prefix.
    absent: theirs that a file may lack, which are zeros then. transposed: theirs that are.
    dropped: what is in the file and not in the network: masks of the training, classifiers, the text tower.
    model_types: of the config.json that belongs to it. given: what of the shape no tensor tells.
    heads: of some widths; of the others one for 64 channels.
    """

    name: str
    family: str
    marks: tuple[str, ...]
    names: Names
    absent: tuple[str, ...] = ()
    transposed: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    model_types: tuple[str, ...] = ()
    given: Mapping[str, Any] = field(default_factory=dict)
    heads: Mapping[int, int] = field(default_factory=dict)

    def sources(self, ours: str) -> tuple[str, ...]:
        """What the file calls one of our tensors."""
        for pattern, theirs in self.names.items():
            open_end = pattern.endswith(".")
            regex = re.escape(pattern).replace(r"\#", r"(\d+)") + ("(.+)" if open_end else "")
            if match := re.fullmatch(regex, ours):
                numbers = match.groups()[:-1] if open_end else match.groups()
                rest = match.groups()[-1] if open_end else ""
                each = (theirs,) if isinstance(theirs, str) else theirs
                return tuple(_fill(name, numbers) + rest for name in each)
        return (ours,)


def _fill(template: str, numbers: tuple[str, ...]) -> str:
    for number in numbers:
        template = template.replace("#", number, 1)
    return template


def _triple(stem: str, q: str = "q_proj.", k: str = "k_proj.", v: str = "v_proj.") -> tuple[str, str, str]:
    return stem + q, stem + k, stem + v


_HF_ATTENTION = "encoder.layer.#.attention.attention."
_DINOV2_GIVEN = {"eps": 1e-6, "layer_scale": True}

DINOV2_HF = Layout(
    "DINOv2 (Hugging Face)",
    "dinov2",
    ("embeddings.patch_embeddings.projection.weight", "encoder.layer.0.layer_scale1.lambda1"),
    {
        "cls_token": "embeddings.cls_token",
        "pos_embed": "embeddings.position_embeddings",
        "register_tokens": "embeddings.register_tokens",
        "patch_embed.": "embeddings.patch_embeddings.projection.",
        "blocks.#.attn.qkv.": _triple(_HF_ATTENTION, "query.", "key.", "value."),
        "blocks.#.attn.proj.": "encoder.layer.#.attention.output.dense.",
        "blocks.#.ls1": "encoder.layer.#.layer_scale1.lambda1",
        "blocks.#.ls2": "encoder.layer.#.layer_scale2.lambda1",
        "blocks.#.norm1.": "encoder.layer.#.norm1.",
        "blocks.#.norm2.": "encoder.layer.#.norm2.",
        "blocks.#.mlp.w12.": "encoder.layer.#.mlp.weights_in.",
        "blocks.#.mlp.w3.": "encoder.layer.#.mlp.weights_out.",
        "blocks.#.mlp.": "encoder.layer.#.mlp.",
        "norm.": "layernorm.",
    },
    dropped=("embeddings.mask_token", "classifier."),
    model_types=("dinov2", "dinov2_with_registers"),
    given=_DINOV2_GIVEN,
)
DINOV2_ORIGINAL = Layout(
    "DINOv2",
    "dinov2",
    ("patch_embed.proj.weight", "blocks.0.ls1.gamma", "pos_embed"),
    {
        "patch_embed.": "patch_embed.proj.",
        "blocks.#.ls1": "blocks.#.ls1.gamma",
        "blocks.#.ls2": "blocks.#.ls2.gamma",
    },
    dropped=("mask_token",),
    given=_DINOV2_GIVEN,
)

_CLIP_GIVEN = {"eps": 1e-5, "pre_norm": True, "patch_bias": False, "mean": CLIP_MEAN, "std": CLIP_STD}
_CLIP_HEADS = {1280: 16, 1408: 16, 1664: 16}  # OpenCLIP's H, g and bigG
_LAYER = "encoder.layers.#."
_HF_LAYERS: Names = {
    "blocks.#.norm1.": f"{_LAYER}layer_norm1.",
    "blocks.#.norm2.": f"{_LAYER}layer_norm2.",
    "blocks.#.attn.qkv.": _triple(f"{_LAYER}self_attn."),
    "blocks.#.attn.proj.": f"{_LAYER}self_attn.out_proj.",
    "blocks.#.mlp.": f"{_LAYER}mlp.",
    "norm.": "post_layernorm.",
    "pos_embed": "embeddings.position_embedding.weight",
    "patch_embed.": "embeddings.patch_embedding.",
}
CLIP_HF = Layout(
    "CLIP (Hugging Face)",
    "clip",
    ("embeddings.class_embedding", "pre_layrnorm.weight"),
    {
        **_HF_LAYERS,
        "cls_token": "embeddings.class_embedding",
        "norm_pre.": "pre_layrnorm.",
        "projection.": "^visual_projection.",
    },
    dropped=(*_TEXT, "embeddings.position_ids"),
    model_types=("clip", "clip_vision_model"),
    given={**_CLIP_GIVEN, "activation": "quick_gelu"},
    heads=_CLIP_HEADS,
)
CLIP_ORIGINAL = Layout(
    "CLIP or OpenCLIP",
    "clip",
    ("class_embedding", "conv1.weight", "transformer.resblocks.0.ln_1.weight"),
    {
        "cls_token": "class_embedding",
        "pos_embed": "positional_embedding",
        "patch_embed.": "conv1.",
        "norm_pre.": "ln_pre.",
        "norm.": "ln_post.",
        "projection.weight": "proj",
        "blocks.#.norm1.": "transformer.resblocks.#.ln_1.",
        "blocks.#.norm2.": "transformer.resblocks.#.ln_2.",
        "blocks.#.attn.qkv.": "transformer.resblocks.#.attn.in_proj_",
        "blocks.#.attn.proj.": "transformer.resblocks.#.attn.out_proj.",
        "blocks.#.mlp.fc1.": "transformer.resblocks.#.mlp.c_fc.",
        "blocks.#.mlp.fc2.": "transformer.resblocks.#.mlp.c_proj.",
    },
    transposed=("proj",),
    dropped=(*_TEXT, "transformer.", "ln_final.", "text.", "input_resolution", "context_length", "vocab_size"),
    given=_CLIP_GIVEN,
    heads=_CLIP_HEADS,
)

_SIGLIP_GIVEN = {"eps": 1e-6, "activation": "gelu_tanh", "summary": "probe", "mean": HALF, "std": HALF}
_SIGLIP_HEADS = {1152: 16, 1536: 16}  # So400m and g
SIGLIP_HF = Layout(
    "SigLIP (Hugging Face)",
    "siglip",
    ("embeddings.patch_embedding.bias", "encoder.layers.0.self_attn.q_proj.weight"),
    {
        **_HF_LAYERS,
        "pool.probe": "head.probe",
        "pool.qkv.": "head.attention.in_proj_",
        "pool.proj.": "head.attention.out_proj.",
        "pool.norm.": "head.layernorm.",
        "pool.mlp.": "head.mlp.",
    },
    dropped=(*_TEXT, "embeddings.position_ids"),
    model_types=("siglip", "siglip_vision_model", "siglip2", "siglip2_vision_model"),
    given=_SIGLIP_GIVEN,
    heads=_SIGLIP_HEADS,
)
SIGLIP_OPENCLIP = Layout(
    "SigLIP (OpenCLIP, timm)",
    "siglip",
    ("attn_pool.latent", "patch_embed.proj.weight"),
    {
        "patch_embed.": "patch_embed.proj.",
        "pool.probe": "attn_pool.latent",
        "pool.qkv.": ("attn_pool.q.", "attn_pool.kv."),
        "pool.": "attn_pool.",
    },
    dropped=(*_TEXT, "text."),
    given=_SIGLIP_GIVEN,
    heads=_SIGLIP_HEADS,
)

_DINOV3_GIVEN = {"eps": 1e-5, "layer_scale": True}
_DINOV3_HEADS = {4096: 32}  # the 7B
DINOV3_HF = Layout(
    "DINOv3 (Hugging Face)",
    "dinov3",
    ("embeddings.patch_embeddings.weight", "layer.0.attention.q_proj.weight"),
    {
        "cls_token": "embeddings.cls_token",
        "register_tokens": "embeddings.register_tokens",
        "patch_embed.": "embeddings.patch_embeddings.",
        "blocks.#.norm1.": "layer.#.norm1.",
        "blocks.#.norm2.": "layer.#.norm2.",
        "blocks.#.attn.qkv.": _triple("layer.#.attention."),
        "blocks.#.attn.proj.": "layer.#.attention.o_proj.",
        "blocks.#.ls1": "layer.#.layer_scale1.lambda1",
        "blocks.#.ls2": "layer.#.layer_scale2.lambda1",
        "blocks.#.mlp.w12.": ("layer.#.mlp.gate_proj.", "layer.#.mlp.up_proj."),
        "blocks.#.mlp.w3.": "layer.#.mlp.down_proj.",
        "blocks.#.mlp.fc1.": "layer.#.mlp.up_proj.",
        "blocks.#.mlp.fc2.": "layer.#.mlp.down_proj.",
    },
    absent=("k_proj.bias",),
    dropped=("embeddings.mask_token",),
    model_types=("dinov3_vit",),
    given=_DINOV3_GIVEN,
    heads=_DINOV3_HEADS,
)
DINOV3_ORIGINAL = Layout(
    "DINOv3",
    "dinov3",
    ("patch_embed.proj.weight", "blocks.0.ls1.gamma", "rope_embed.periods"),
    {
        **DINOV2_ORIGINAL.names,
        "register_tokens": "storage_tokens",
        "blocks.#.mlp.w12.": ("blocks.#.mlp.w1.", "blocks.#.mlp.w2."),
    },
    dropped=("mask_token", "rope_embed."),
    given=_DINOV3_GIVEN,
    heads=_DINOV3_HEADS,
)

CONVNEXT_HF = Layout(
    "DINOv3 ConvNeXt (Hugging Face)",
    "dinov3-convnext",
    ("stages.0.downsample_layers.0.weight", "stages.0.layers.0.depthwise_conv.weight"),
    {
        "downsample_layers.#.": "stages.#.downsample_layers.",
        "stages.#.#.dwconv.": "stages.#.layers.#.depthwise_conv.",
        "stages.#.#.norm.": "stages.#.layers.#.layer_norm.",
        "stages.#.#.pwconv1.": "stages.#.layers.#.pointwise_conv1.",
        "stages.#.#.pwconv2.": "stages.#.layers.#.pointwise_conv2.",
        "stages.#.#.gamma": "stages.#.layers.#.gamma",
        "norm.": "layer_norm.",
    },
    model_types=("dinov3_convnext",),
)
CONVNEXT_ORIGINAL = Layout(
    "DINOv3 ConvNeXt",
    "dinov3-convnext",
    ("downsample_layers.0.0.weight", "stages.0.0.dwconv.weight", "norm.weight"),
    {},
    dropped=("norms.", "mask_token", "head."),
)

# In this order: a layout's marks are in none of those after it.
LAYOUTS = (
    DINOV3_ORIGINAL,
    DINOV3_HF,
    SIGLIP_OPENCLIP,
    DINOV2_HF,
    DINOV2_ORIGINAL,
    CLIP_HF,
    CLIP_ORIGINAL,
    SIGLIP_HF,
    CONVNEXT_HF,
    CONVNEXT_ORIGINAL,
)
