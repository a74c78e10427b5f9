"""Networks that others published, by name: where they are, under which licence, and what they are. Loads no torch.

Figures are left to their papers: nothing here was measured by us but the latency, with random weights of the same
shape, which decide no time (`scripts/time_backbones.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tessera.errors import ConfigError, unknown_name
from tessera.models.shapes import SHAPES

_APACHE = "Apache-2.0"
_MIT = "MIT"
_DINOV3 = "DINOv3 License (https://ai.meta.com/resources/models-and-libraries/dinov3-license/)"
# Seconds of processor time for one photo with sides of 1 and 3/4 of the size, ONNX Runtime on one core.
LATENCIES: dict[str, float] = {}
FREE_LICENCES = (_APACHE, _MIT)


@dataclass(frozen=True)
class KnownModel:
    """repo: on the Hugging Face hub. shape: its name among backbones. sha256: of its weights, where it is pinned."""

    name: str
    repo: str
    licence: str
    shape: str
    sha256: str | None = None

    @property
    def is_free(self) -> bool:
        return self.licence in FREE_LICENCES


def _known(licence: str, *rows: tuple[str, str, str]) -> list[KnownModel]:
    return [KnownModel(name, repo, licence, shape) for name, repo, shape in rows]


_SIZES = {"s": "small", "b": "base", "l": "large", "g": "giant"}
_DINOV3_VITS = {"s": "vits16", "splus": "vits16plus", "b": "vitb16", "l": "vitl16", "hplus": "vith16plus"}
_CONVNEXTS = {"t": "tiny", "s": "small", "b": "base", "l": "large"}

KNOWN = {
    model.name: model
    for model in (
        *_known(
            _APACHE, *((f"dinov2-{s}14", f"facebook/dinov2-{size}", f"dinov2-{s}14") for s, size in _SIZES.items())
        ),
        *_known(
            _APACHE,
            *(
                (f"dinov2-{s}14-reg", f"facebook/dinov2-with-registers-{size}", f"dinov2-{s}14-reg")
                for s, size in _SIZES.items()
            ),
        ),
        *_known(
            _MIT,
            ("clip-b32", "openai/clip-vit-base-patch32", "clip-b32"),
            ("clip-b16", "openai/clip-vit-base-patch16", "clip-b16"),
            ("clip-l14", "openai/clip-vit-large-patch14", "clip-l14"),
            ("openclip-b32", "laion/CLIP-ViT-B-32-laion2B-s34B-b79K", "openclip-b32"),
            ("openclip-l14", "laion/CLIP-ViT-L-14-laion2B-s32B-b82K", "openclip-l14"),
            ("openclip-h14", "laion/CLIP-ViT-H-14-laion2B-s32B-b79K", "openclip-h14"),
        ),
        *_known(
            _APACHE,
            ("siglip-b16", "google/siglip-base-patch16-224", "siglip-b16"),
            ("siglip-l16-256", "google/siglip-large-patch16-256", "siglip-l16-256"),
            ("siglip-so400m14-384", "google/siglip-so400m-patch14-384", "siglip-so400m14-384"),
            ("siglip2-b16", "google/siglip2-base-patch16-224", "siglip-b16"),
            ("siglip2-so400m14-384", "google/siglip2-so400m-patch14-384", "siglip-so400m14-384"),
        ),
        *_known(
            _DINOV3,
            *(
                (f"dinov3-{s}16", f"facebook/dinov3-{size}-pretrain-lvd1689m", f"dinov3-{s}16")
                for s, size in _DINOV3_VITS.items()
            ),
            *(
                (f"dinov3-convnext-{s}", f"facebook/dinov3-convnext-{size}-pretrain-lvd1689m", f"dinov3-convnext-{s}")
                for s, size in _CONVNEXTS.items()
            ),
        ),
    )
}


def find_known(name: str) -> KnownModel:
    if name not in KNOWN:
        raise ConfigError(
            unknown_name("published model", name, KNOWN)
            + " Others: download their files and give them to `tessera convert`."
        )
    return KNOWN[name]


def shape_facts(model: KnownModel) -> dict[str, Any]:
    """dim, parameters, size: of its shape. seconds: of one photo of that size on one core, where it was timed."""
    shape = SHAPES[model.shape]
    return {
        "dim": shape.dim,
        "parameters": shape.parameters,
        "size": shape.size,
        "seconds": LATENCIES.get(model.shape),
    }
