"""The originals: small models of the transformers package with random weights, and their files in every layout."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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


def pooled(model: nn.Module, images: Tensor) -> Tensor:
    return model(images).pooler_output


def interpolated(model: nn.Module, images: Tensor) -> Tensor:
    tower = getattr(model, "vision_model", model)
    output = tower(images, interpolate_pos_encoding=True).pooler_output
    return model.visual_projection(output) if hasattr(model, "visual_projection") else output


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


BUILDERS: dict[str, Callable[[], Original]] = {
    "dinov2": lambda: _build_dinov2(registers=False, gated=False),
    "dinov2-reg": lambda: _build_dinov2(registers=True, gated=False),
    "dinov2-swiglu": lambda: _build_dinov2(registers=False, gated=True),
    "dinov2-reg-swiglu": lambda: _build_dinov2(registers=True, gated=True),
}


@pytest.fixture(scope="session", params=list(BUILDERS))
def original(request: pytest.FixtureRequest) -> Iterator[Original]:
    torch.manual_seed(0)
    yield BUILDERS[request.param]()


@pytest.fixture(scope="session")
def build_original() -> Callable[[str], Original]:
    return lambda name: BUILDERS[name]()
