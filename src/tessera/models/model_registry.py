"""Every network by name: what it is, its paper, and how to build it. Loads no torch until something is built."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tessera.models.compared.compared_systems import SYSTEMS
from tessera.models.entry import ModelEntry
from tessera.models.published.families import FOUNDATIONS
from tessera.registry import Registry

if TYPE_CHECKING:
    from tessera.models.network import Network

TOKEN_PAPER = "Wu et al., Learning Token-based Representation for Image Retrieval, AAAI 2022"


def build_model(name: str, *, weights: str | Path | None = None, **overrides: Any) -> Network:
    """Build a registered network, any configuration key overridden: build_model("token-r50", num_tokens=6).

    weights: of the backbone only: None, "imagenet" or a path. They are no part of the architecture.
    """
    entry = MODELS[name]
    network = entry.build(entry.resolve(**overrides))
    if weights is not None:
        from tessera.models.backbones import load_backbone_weights

        load_backbone_weights(network.backbone, str(network.architecture["config"]["backbone"]), weights)
    return network


_PAPERS = ("tessera.models.token:build_token", "tessera.models.token:TokenConfig")
_RELEASED = ("tessera.models.compared.released:build_released", "tessera.models.compared.released:ReleasedConfig")


def _token(kind: tuple[str, str], name: str, summary: str, **config: Any) -> ModelEntry:
    target, config_class = kind
    return ModelEntry(
        name=name,
        summary=summary,
        paper=TOKEN_PAPER,
        dim=1024,
        num_tokens=4,
        target=target,
        config_class=config_class,
        config=config,
    )


_TOKEN_NETWORKS = (
    _token(_PAPERS, "token", "the paper's network, every part of it a configuration key; ResNet-50, C = 1024"),
    _token(_PAPERS, "token-r18", "the paper's network on ResNet-18, C = 512", backbone="resnet18", channels=512),
    _token(_PAPERS, "token-r50", "the paper's network on ResNet-50, C = 1024", backbone="resnet50"),
    _token(_PAPERS, "token-r101", "the paper's network on ResNet-101, C = 1024", backbone="resnet101"),
    _token(
        _PAPERS,
        "token-r101-c2048",
        "the literal paper: ResNet-101 without a reduction",
        backbone="resnet101",
        channels=None,
    ),
    _token(_PAPERS, "token-r50-v1", "the paper's network on ResNet-50 v1 (Keras weights)", backbone="resnet50-v1"),
    _token(
        _PAPERS,
        "token-lite",
        "tokens on the levels of EfficientNet-Lite0, as generalised means: what `lite` is",
        backbone="efficientnet-lite0-levels",
        channels=None,
        lfsa=False,
        power=3.0,
        blocks=0,
        bias=True,
        shared=True,
    ),
    _token(
        _PAPERS,
        "token-mobile",
        "the paper's network on MobileNetV2, C = 256",
        backbone="mobilenet-v2",
        channels=256,
    ),
    _token(_RELEASED, "token-released", "the network whose weights the authors released (April 2022), ResNet-50"),
    _token(_RELEASED, "token-released-r18", "the released network on ResNet-18", backbone="resnet18"),
    _token(_RELEASED, "token-released-r101", "the released network on ResNet-101", backbone="resnet101"),
    _token(_RELEASED, "token-legacy", "the authors' first public network (December 2021), ResNet-50", legacy=True),
    _token(
        _RELEASED,
        "token-legacy-r101",
        "the first public network on ResNet-101",
        legacy=True,
        backbone="resnet101",
    ),
)

MODELS: Registry[ModelEntry] = Registry("model")
for _entry in (*_TOKEN_NETWORKS, *SYSTEMS, *FOUNDATIONS):
    MODELS.add(_entry.name, _entry)
