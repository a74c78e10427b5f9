"""The registry's entries for the systems that the paper compares with. Loads no torch.

Names: SYSTEM-BACKBONE, 2048-d as the paper's re-trained rows; `-r101-1024` at the Token network's own size, for a fair
comparison; `SYSTEM-released` the re-implementation in the authors' code, where it differs from the system's paper.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tessera.models.entry import ModelEntry

DEPTHS = {"r50": "resnet50", "r101": "resnet101"}
EQUAL_DIM = 1024

_COMPARED = "tessera.models.compared"
_POOLED = (f"{_COMPARED}.pooled:build_pooled", f"{_COMPARED}.pooled:PooledConfig")

# name: summary, paper, target and configuration class, what the entry sets
_SYSTEMS: dict[str, tuple[str, str, tuple[str, str], dict[str, Any]]] = {
    "spoc": (
        "mean of the map, whitened",
        "Babenko and Lempitsky, Aggregating Deep Convolutional Features, ICCV 2015",
        _POOLED,
        {"pooling": "spoc"},
    ),
    "mac": (
        "maximum of each channel, whitened",
        "Tolias et al., Particular Object Retrieval with Integral Max-Pooling, ICLR 2016",
        _POOLED,
        {"pooling": "mac"},
    ),
    "crow": (
        "mean weighted by strong positions and rare channels, whitened",
        "Kalantidis et al., Cross-dimensional Weighting, ECCVW 2016",
        _POOLED,
        {"pooling": "crow"},
    ),
    "rmac": (
        "regional maxima, each whitened, summed",
        "Gordo et al., End-to-end Learning of Deep Visual Representations, IJCV 2017",
        _POOLED,
        {"pooling": "rmac", "whitening": "regional"},
    ),
    "gem": (
        "generalised mean with a learnt exponent, whitened",
        "Radenovic et al., Fine-tuning CNN Image Retrieval with No Human Annotation, TPAMI 2018",
        _POOLED,
        {"pooling": "gem"},
    ),
    "gem-ap": (
        "generalised mean and one layer, for the listwise AP loss",
        "Revaud et al., Learning with Average Precision, ICCV 2019",
        _POOLED,
        {"pooling": "gem", "normalise": False},
    ),
    "netvlad": (
        "residuals to 64 soft-assigned words, whitened",
        "Arandjelovic et al., NetVLAD, CVPR 2016",
        (f"{_COMPARED}.netvlad:build_netvlad", f"{_COMPARED}.netvlad:NetVLADConfig"),
        {},
    ),
    "solar": (
        "second-order attention after conv4 and conv5, generalised mean, whitened",
        "Ng et al., SOLAR, ECCV 2020",
        (f"{_COMPARED}.solar:build_solar", f"{_COMPARED}.solar:SolarConfig"),
        {},
    ),
    "delg": (
        "generalised mean, whitened; a local branch on conv4",
        "Cao et al., Unifying Deep Local and Global Features, ECCV 2020",
        (f"{_COMPARED}.delg:build_delg", f"{_COMPARED}.delg:DelgConfig"),
        {},
    ),
}

_RELEASED: dict[str, tuple[str, int, tuple[str, str], dict[str, Any]]] = {
    "rmac": (
        "R-MAC as the Token authors re-trained it: the un-normalised sum is whitened",
        2048,
        _POOLED,
        {"pooling": "rmac", "normalise": False, "convolution": True},
    ),
    "netvlad": (
        "NetVLAD as the Token authors re-trained it: an encoder, four words",
        1024,
        (f"{_COMPARED}.netvlad:build_netvlad_released", f"{_COMPARED}.netvlad:NetVLADReleasedConfig"),
        {},
    ),
    "solar": (
        "SOLAR as the Token authors re-trained it: attention after conv5 only, p = 3",
        2048,
        (f"{_COMPARED}.solar:build_solar_released", f"{_COMPARED}.solar:SolarReleasedConfig"),
        {},
    ),
    "delg": (
        "DELG as the Token authors re-trained it: no autoencoder",
        2048,
        (f"{_COMPARED}.delg:build_delg_released", f"{_COMPARED}.delg:DelgReleasedConfig"),
        {},
    ),
}


def _system_entries() -> Iterator[ModelEntry]:
    for system, (summary, paper, (target, config_class), config) in _SYSTEMS.items():
        for name, backbone, dim in (
            (f"{system}-r18", "resnet18", 512),
            (f"{system}-r50", "resnet50", 2048),
            (f"{system}-r101", "resnet101", 2048),
            (f"{system}-r101-{EQUAL_DIM}", "resnet101", EQUAL_DIM),
        ):
            yield ModelEntry(
                name=name,
                summary=f"{summary}, {_spoken(backbone)}",
                paper=paper,
                dim=dim,
                target=target,
                config_class=config_class,
                config={**config, "backbone": backbone, "dim": dim},
            )


def _released_entries() -> Iterator[ModelEntry]:
    for system, (summary, dim, (target, config_class), config) in _RELEASED.items():
        for suffix, backbone in DEPTHS.items():
            yield ModelEntry(
                name=f"{system}-released" if suffix == "r50" else f"{system}-released-{suffix}",
                summary=f"{summary}, {_spoken(backbone)}",
                paper=_SYSTEMS[system][1],
                dim=dim,
                target=target,
                config_class=config_class,
                config={**config, "backbone": backbone, "dim": dim},
            )


def _local_entries() -> Iterator[ModelEntry]:
    how = "Tolias et al., Learning and Aggregating Deep Local Descriptors, ECCV 2020"
    for suffix, backbone in (("r18", "resnet18"), ("r50", "resnet50-conv4"), ("r101", "resnet101-conv4")):
        yield ModelEntry(
            name=f"how-{suffix}",
            summary=f"local features weighted by their norm, reduced to 128, {_spoken(backbone)}",
            paper=how,
            dim=128,
            kind="local",
            target=f"{_COMPARED}.how:build_how",
            config_class=f"{_COMPARED}.how:HowConfig",
            config={"backbone": backbone},
        )
    delf = "Noh et al., Large-scale Image Retrieval with Attentive Deep Local Features, ICCV 2017"
    for system, paper, summary in (
        ("delf", delf, "local features with learnt attention and an autoencoder to 128"),
        ("delg-local", _SYSTEMS["delg"][1], "DELG's local branch by itself"),
    ):
        for suffix, backbone in DEPTHS.items():
            yield ModelEntry(
                name=f"{system}-{suffix}",
                summary=f"{summary}, {_spoken(backbone)} up to conv4",
                paper=paper,
                dim=128,
                kind="local",
                target=f"{_COMPARED}.delf:build_delf",
                config_class=f"{_COMPARED}.delf:DelfConfig",
                config={"backbone": f"{backbone}-conv4"},
            )


def _spoken(backbone: str) -> str:
    name, _, stage = backbone.removeprefix("resnet").partition("-")
    return f"ResNet-{name}" + (f" up to {stage}" if stage else "")


SYSTEMS = (*_system_entries(), *_released_entries(), *_local_entries())
