"""The originals: small models of the transformers package with random weights, and their files in every layout."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn

os.environ["TRANSFORMERS_VERBOSITY"] = "critical"
transformers = pytest.importorskip("transformers")

VIT = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
TOWER = {**VIT, "intermediate_size": 96, "image_size": 48, "patch_size": 16}
TEXT = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 30}
TEXT |= {"bos_token_id": 1, "eos_token_id": 2}


@dataclass(frozen=True)
class Original:
    """A model of the transformers package. multiple: what sides are multiples of. rename: to the original's layout."""

    name: str
    model: nn.Module
    multiple: int
    describe: Callable[[nn.Module, Tensor], Tensor]
    rename: Callable[[dict[str, Tensor]], dict[str, Tensor]]
    hidden: Callable[[nn.Module, Tensor], Tensor] = lambda model, images: model(images).last_hidden_state
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    untold: Mapping[str, str] = field(default_factory=dict)  # the activation, by layouts that cannot tell it

    def descriptor(self, images: Tensor) -> Tensor:
        """images: B 3 H W, normalised. Returns B D of unit norm."""
        with torch.inference_mode():
            return nn.functional.normalize(self.describe(self.model, images), dim=-1)

    def patches(self, images: Tensor) -> Tensor:
        """B S C: the normed patches, without class and register tokens."""
        positions = (images.shape[2] // self.multiple) * (images.shape[3] // self.multiple)
        with torch.inference_mode():
            return self.hidden(self.model, images)[:, -positions:]

    def preprocess(self, photo: Path, side: int) -> tuple[Image.Image, Tensor]:
        """What the original's processor cuts out of a photo, before and after its normalisation."""
        settings = {"size": {"shortest_edge": side + 5}, "crop_size": {"height": side, "width": side}}
        settings |= {"image_mean": list(self.mean), "image_std": list(self.std), "resample": 3, "do_center_crop": True}
        processor = transformers.BitImageProcessorPil(**settings)
        with Image.open(photo) as image:
            pixels = processor(image, return_tensors="pt")["pixel_values"]
            plain = processor(image, return_tensors="np", do_normalize=False, do_rescale=False)["pixel_values"][0]
        return Image.fromarray(plain.transpose(1, 2, 0).astype("uint8")), pixels

    def save_folder(self, folder: Path) -> Path:
        self.model.save_pretrained(folder)
        settings = f'{{"image_mean": {list(self.mean)}, "image_std": {list(self.std)}}}'
        (folder / "preprocessor_config.json").write_text(settings)
        return folder

    def save_single(self, folder: Path) -> Path:
        """One safetensors file by itself, without a config.json."""
        self.save_folder(folder / "whole")
        path = folder / "single.safetensors"
        (folder / "whole" / "model.safetensors").rename(path)
        return path

    def save_original(self, folder: Path) -> Path:
        self.save_folder(folder / "whole")
        path = folder / "original.pth"
        torch.save(self.rename(load_file(folder / "whole" / "model.safetensors")), path)
        return path

    def save_program(self, folder: Path) -> Path:
        """As OpenAI gave CLIP: a TorchScript archive, with three numbers that only its files have."""
        state = torch.load(self.save_original(folder), weights_only=True)
        root = Tree()
        for key, value in {**state, **{name: torch.tensor(7) for name in OPENAI_NUMBERS}}.items():
            *path, name = key.split(".")
            module: nn.Module = root
            for step in path:
                if step not in module._modules:
                    module.add_module(step, Tree())
                module = module._modules[step]
            module.register_buffer(name, value)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch would rather have another format
            torch.jit.script(root).save(str(folder / "program.pt"))
        return folder / "program.pt"


class Tree(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return images


OPENAI_NUMBERS = ("input_resolution", "context_length", "vocab_size")


def pooled(model: nn.Module, images: Tensor) -> Tensor:
    return model(images).pooler_output


def interpolated(model: nn.Module, images: Tensor) -> Tensor:
    tower = getattr(model, "vision_model", model)
    output = tower(images, interpolate_pos_encoding=True).pooler_output
    return model.visual_projection(output) if hasattr(model, "visual_projection") else output


def normed(model: nn.Module, images: Tensor) -> Tensor:
    """CLIP norms its class token alone; as a map its patches are normed, too."""
    tower = model.vision_model
    return tower.post_layernorm(tower(images, interpolate_pos_encoding=True).last_hidden_state)


def interpolated_patches(model: nn.Module, images: Tensor) -> Tensor:
    return model.vision_model(images, interpolate_pos_encoding=True).last_hidden_state


def renamed(state: dict[str, Tensor], *pairs: tuple[str, str]) -> dict[str, Tensor]:
    result = {}
    for key, value in state.items():
        name = key
        for old, new in pairs:
            name = name.replace(old, new)
        result[name] = value
    return result


def fused(state: dict[str, Tensor], names: tuple[str, ...], into: str) -> dict[str, Tensor]:
    """Lay q, k and v (any that end in the first of `names`) end to end."""
    result = {key: value for key, value in state.items() if not any(f"{name}." in key for name in names)}
    for key in state:
        for kind in ("weight", "bias"):
            if key.endswith(f"{names[0]}.{kind}"):
                stem = key.removesuffix(f"{names[0]}.{kind}")
                size = state[key].shape[0]
                result[f"{stem}{into}{kind}"] = torch.cat(
                    [state.get(f"{stem}{name}.{kind}", torch.zeros(size)) for name in names]
                )
    return result


def dinov2_original(state: dict[str, Tensor]) -> dict[str, Tensor]:
    state = fused(state, ("attention.query", "attention.key", "attention.value"), "qkv.")
    return renamed(
        state,
        ("embeddings.patch_embeddings.projection", "patch_embed.proj"),
        ("embeddings.position_embeddings", "pos_embed"),
        ("embeddings.", ""),
        ("encoder.layer.", "blocks."),
        ("attention.qkv", "attn.qkv"),
        ("attention.output.dense", "attn.proj"),
        ("layer_scale1.lambda1", "ls1.gamma"),
        ("layer_scale2.lambda1", "ls2.gamma"),
        ("weights_in", "w12"),
        ("weights_out", "w3"),
        ("layernorm.", "norm."),
    )


def clip_original(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """OpenCLIP's names, with a text tower beside the image tower."""
    image = {key.removeprefix("vision_model."): value for key, value in state.items() if "text" not in key}
    image.pop("logit_scale")
    image["proj"] = image.pop("visual_projection.weight").T.contiguous()
    image = fused(image, ("q_proj", "k_proj", "v_proj"), "in_proj_")
    image = renamed(
        image,
        ("embeddings.class_embedding", "class_embedding"),
        ("embeddings.patch_embedding", "conv1"),
        ("embeddings.position_embedding.weight", "positional_embedding"),
        ("pre_layrnorm", "ln_pre"),
        ("post_layernorm", "ln_post"),
        ("encoder.layers.", "transformer.resblocks."),
        ("self_attn.", "attn."),
        ("layer_norm", "ln_"),
        ("mlp.fc1", "mlp.c_fc"),
        ("mlp.fc2", "mlp.c_proj"),
    )
    words = {"token_embedding.weight": torch.zeros(30, 16), "transformer.resblocks.0.ln_1.weight": torch.ones(16)}
    words |= {
        "positional_embedding": torch.zeros(7, 16),
        "ln_final.weight": torch.ones(16),
        "logit_scale": torch.ones(()),
    }
    return {**{f"visual.{key}": value for key, value in image.items()}, **words, "text_projection": torch.ones(16, 24)}


def siglip_original(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The names of timm's tower inside OpenCLIP."""
    image = {key.removeprefix("vision_model."): value for key, value in state.items() if "text" not in key}
    image = {key: value for key, value in image.items() if not key.startswith("logit")}
    width = image["head.probe"].shape[-1]
    for kind in ("weight", "bias"):
        packed = image.pop(f"head.attention.in_proj_{kind}")
        image[f"attn_pool.q.{kind}"], image[f"attn_pool.kv.{kind}"] = packed[:width].clone(), packed[width:].clone()
    image = fused(image, ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), "attn.qkv.")
    image["embeddings.position_embedding.weight"] = image["embeddings.position_embedding.weight"][None]
    image = renamed(
        image,
        ("embeddings.patch_embedding", "patch_embed.proj"),
        ("embeddings.position_embedding.weight", "pos_embed"),
        ("encoder.layers.", "blocks."),
        ("self_attn.out_proj", "attn.proj"),
        ("layer_norm", "norm"),
        ("post_layernorm", "norm"),
        ("head.probe", "attn_pool.latent"),
        ("head.attention.out_proj", "attn_pool.proj"),
        ("head.layernorm", "attn_pool.norm"),
        ("head.mlp", "attn_pool.mlp"),
    )
    words = {
        "text.token_embedding.weight": torch.zeros(30, 16),
        "logit_scale": torch.ones(()),
        "logit_bias": torch.ones(()),
    }
    return {**{f"visual.trunk.{key}": value for key, value in image.items()}, **words}


def dinov3_original(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """With the periods of its rotary positions, and a key bias that a mask silences."""
    state = fused(state, ("attention.q_proj", "attention.k_proj", "attention.v_proj"), "attn.qkv.")
    state = renamed(
        state,
        ("embeddings.patch_embeddings", "patch_embed.proj"),
        ("embeddings.register_tokens", "storage_tokens"),
        ("embeddings.", ""),
        ("layer.", "blocks."),
        ("attention.o_proj", "attn.proj"),
        ("layer_scale1.lambda1", "ls1.gamma"),
        ("layer_scale2.lambda1", "ls2.gamma"),
        ("mlp.gate_proj", "mlp.w1"),
        *((("mlp.up_proj", "mlp.w2"), ("mlp.down_proj", "mlp.w3")) if "layer.0.mlp.gate_proj.weight" in state else ()),
        ("mlp.up_proj", "mlp.fc1"),
        ("mlp.down_proj", "mlp.fc2"),
    )
    for key in [key for key in state if key.endswith("qkv.bias")]:
        mask = torch.ones_like(state[key])
        third = len(mask) // 3
        mask[third : 2 * third] = 0
        state[f"{key}_mask"] = mask
        state[key] = torch.where(mask == 0, 7.0, state[key])
    return {**state, "rope_embed.periods": 100 ** torch.arange(0, 1, 4 / 64)}


def convnext_original(state: dict[str, Tensor]) -> dict[str, Tensor]:
    moved = {re.sub(r"stages\.(\d)\.downsample_layers", r"downsample_layers.\1", key): state[key] for key in state}
    renamed_state = renamed(
        moved,
        (".layers.", "."),
        ("depthwise_conv", "dwconv"),
        ("pointwise_conv", "pwconv"),
        (".layer_norm", ".norm"),
        ("layer_norm", "norm"),
    )
    return {**renamed_state, "norms.3.weight": renamed_state["norm.weight"], "norms.3.bias": renamed_state["norm.bias"]}


def _randomise(model: nn.Module) -> nn.Module:
    """Every parameter away from the zeros and ones that it starts with."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)
    return model.eval()


def _build_dinov2(registers: bool, gated: bool) -> Original:
    config: dict[str, Any] = {**VIT, "image_size": 42, "patch_size": 14, "mlp_ratio": 2, "use_swiglu_ffn": gated}
    kind = "Dinov2WithRegisters" if registers else "Dinov2"
    model = getattr(transformers, f"{kind}Model")(getattr(transformers, f"{kind}Config")(**config))
    name = f"dinov2{'-reg' if registers else ''}{'-swiglu' if gated else ''}"
    return Original(name, _randomise(model), 14, pooled, dinov2_original)


def _build_clip(activation: str) -> Original:
    """OpenCLIP's own files have GELU; OpenAI's have the quick one, which no tensor tells."""
    config = transformers.CLIPConfig(
        text_config={**TEXT, "projection_dim": 24},
        vision_config={**TOWER, "hidden_act": activation, "projection_dim": 24},
        projection_dim=24,
    )
    mean, std = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
    model = _randomise(transformers.CLIPModel(config))
    untold = {"original" if activation == "quick_gelu" else "single": activation}
    return Original("clip", model, 16, interpolated, clip_original, normed, mean, std, untold)


def _build_siglip() -> Original:
    config = transformers.SiglipConfig(text_config={**TEXT, "projection_size": 128}, vision_config=TOWER)
    half = (0.5, 0.5, 0.5)
    model = _randomise(transformers.SiglipModel(config))
    return Original("siglip", model, 16, interpolated, siglip_original, interpolated_patches, half, half)


def _build_dinov3(gated: bool) -> Original:
    shape = {**VIT, "intermediate_size": 96, "num_register_tokens": 4, "image_size": 48, "patch_size": 16}
    config = transformers.DINOv3ViTConfig(**shape, use_gated_mlp=gated, hidden_act="silu" if gated else "gelu")
    return Original("dinov3", _randomise(transformers.DINOv3ViTModel(config)), 16, pooled, dinov3_original)


def _build_convnext() -> Original:
    config = transformers.DINOv3ConvNextConfig(hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 2, 1])
    model = _randomise(transformers.DINOv3ConvNextModel(config))
    return Original("dinov3-convnext", model, 32, pooled, convnext_original)


BUILDERS: dict[str, Callable[[], Original]] = {
    "dinov2": lambda: _build_dinov2(registers=False, gated=False),
    "dinov2-reg": lambda: _build_dinov2(registers=True, gated=False),
    "dinov2-swiglu": lambda: _build_dinov2(registers=False, gated=True),
    "dinov2-reg-swiglu": lambda: _build_dinov2(registers=True, gated=True),
    "clip": lambda: _build_clip("quick_gelu"),
    "openclip": lambda: _build_clip("gelu"),
    "siglip": _build_siglip,
    "dinov3": lambda: _build_dinov3(gated=False),
    "dinov3-gated": lambda: _build_dinov3(gated=True),
    "dinov3-convnext": _build_convnext,
}


def _build(name: str) -> Original:
    """The same numbers at every call."""
    torch.manual_seed(0)
    return BUILDERS[name]()


@pytest.fixture(scope="session", params=list(BUILDERS))
def original(request: pytest.FixtureRequest) -> Original:
    return _build(request.param)


@pytest.fixture(scope="session")
def build_original() -> Callable[[str], Original]:
    return _build
