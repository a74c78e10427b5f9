"""Networks that others published, by name: where they are, under which licence, and what they are. Loads no torch.

Figures are those that the authors published, as they are told in the files that PUBLISHED names; those whose files
state none have none. Nothing here was measured by us but the latency, with random weights of the same shape, which
decide no time (`scripts/time_backbones.py`).
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
LATENCIES = {
    "dinov2-s14": 0.78,
    "dinov2-s14-reg": 0.75,
    "dinov2-b14": 2.49,
    "dinov2-b14-reg": 2.41,
    "dinov2-l14": 8.57,
    "dinov2-l14-reg": 8.55,
    "clip-b32": 0.09,
    "clip-b16": 0.30,
    "clip-l14": 1.34,
    "openclip-b32": 0.09,
    "openclip-l14": 1.34,
    "siglip-b16": 0.30,
    "siglip-l16-256": 1.35,
    "dinov3-s16": 0.50,
    "dinov3-splus16": 0.62,
    "dinov3-b16": 1.73,
    "dinov3-l16": 5.93,
    "dinov3-convnext-t": 0.38,
    "dinov3-convnext-s": 0.74,
    "dinov3-convnext-b": 1.32,
    "dinov3-convnext-l": 2.90,
}
FREE_LICENCES = (_APACHE, _MIT)
# Percent. oxford_hard: mAP of the frozen class token on Revisited Oxford; knn and zero_shot: accuracy on ImageNet-1k.
_DINOV2_FIGURES = {"s": (43.2, 79.0), "b": (49.5, 82.1), "l": (54.0, 83.5), "g": (52.3, 83.5)}
PUBLISHED: dict[str, dict[str, float]] = {
    # facebookresearch/dinov2, MODEL_CARD.md
    **{f"dinov2-{s}14": {"oxford_hard": hard, "knn": knn} for s, (hard, knn) in _DINOV2_FIGURES.items()},
    # facebookresearch/dinov2, README.md
    "dinov2-s14-reg": {"knn": 79.1},
    "dinov2-b14-reg": {"knn": 82.0},
    "dinov2-l14-reg": {"knn": 83.8},
    "dinov2-g14-reg": {"knn": 83.7},
    # mlfoundations/open_clip, docs/openclip_results.csv
    "clip-b32": {"zero_shot": 63.3},
    "clip-b16": {"zero_shot": 68.3},
    "clip-l14": {"zero_shot": 75.5},
    "openclip-b32": {"zero_shot": 66.6},
    "openclip-l14": {"zero_shot": 75.3},
    "openclip-h14": {"zero_shot": 78.0},
}


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
    """dim, parameters, size: of its shape. seconds: of one photo of that size on one core, where it was timed.

    published: its authors' figures in percent, where they state any.
    """
    shape = SHAPES[model.shape]
    return {
        "dim": shape.dim,
        "parameters": shape.parameters,
        "size": shape.size,
        "seconds": LATENCIES.get(model.shape),
        "published": PUBLISHED.get(model.name, {}),
    }
