"""The registry's entries for foundation models, one a family; sizes are backbones (`SHAPES`). Loads no torch."""

from __future__ import annotations

from collections.abc import Iterator

from tessera.models.entry import ModelEntry
from tessera.models.shapes import SHAPES

# family: its usual size, what it is, its paper
FAMILIES = {
    "dinov2": (
        "dinov2-s14",
        "DINOv2, the class token; S, B, L, g",
        "Oquab et al., DINOv2: Learning Robust Visual Features without Supervision, TMLR 2024",
    ),
    "dinov2-reg": (
        "dinov2-s14-reg",
        "DINOv2 with registers, the class token; S, B, L, g",
        "Darcet et al., Vision Transformers Need Registers, ICLR 2024",
    ),
    "clip": (
        "clip-b32",
        "CLIP and OpenCLIP, the projected class token; B, L, H, g",
        "Radford et al., Learning Transferable Visual Models From Natural Language Supervision, ICML 2021",
    ),
    "siglip": (
        "siglip-b16",
        "SigLIP and SigLIP 2, attention pooling; B, L, So400m, g",
        "Zhai et al., Sigmoid Loss for Language Image Pre-Training, ICCV 2023",
    ),
    "dinov3": ("dinov3-s16", "DINOv3, the class token; S, S+, B, L, H+", "Siméoni et al., DINOv3, 2025"),
    "dinov3-convnext": (
        "dinov3-convnext-t",
        "DINOv3 distilled into ConvNeXt, the normed mean; T, S, B, L",
        "Siméoni et al., DINOv3, 2025",
    ),
}


def _entries() -> Iterator[ModelEntry]:
    for family, (backbone, summary, paper) in FAMILIES.items():
        yield ModelEntry(
            name=family,
            summary=summary,
            paper=paper,
            dim=SHAPES[backbone].dim,
            target="tessera.models.published.foundation:build_foundation",
            config_class="tessera.models.published.foundation:FoundationConfig",
            config={"backbone": backbone},
        )


ADAPTED = ModelEntry(
    name="adapted",
    summary="tokens over the map of any other network, fitted to one's own photos by `tessera adapt`",
    paper="Wu et al., Learning Token-based Representation for Image Retrieval, AAAI 2022",
    dim=384,
    num_tokens=4,
    target="tessera.models.adapted:build_adapted",
    config_class="tessera.models.adapted:AdaptedConfig",
)
FOUNDATIONS = (*_entries(), ADAPTED)
