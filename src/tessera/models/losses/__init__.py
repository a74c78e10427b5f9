"""What a network learns from, as one table: `build_loss("arcface", dim=1024, num_classes=81313)`.

Reading the table loads no torch; building an entry does. An entry's `batch` says what the trainer must feed it:
`labels`: un-normalised descriptors B D and class labels B;
`tuples`: descriptors T R D, each row of T a query, its positive and R - 2 negatives;
`list`: descriptors B D and labels B of one large batch, ranked as a whole;
`maps`: local features and their reconstruction, B C H W each.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from tessera.config import from_mapping
from tessera.errors import ConfigError
from tessera.registry import Registry

if TYPE_CHECKING:
    from torch import nn

__all__ = ["LOSSES", "LossEntry", "build_loss"]

Batch = Literal["labels", "tuples", "list", "maps"]


@dataclass(frozen=True)
class LossEntry:
    """load: imports the module and gives its class and its configuration's class."""

    summary: str
    paper: str
    batch: Batch
    load: Callable[[], tuple[type[nn.Module], type[Any]]]


LOSSES: Registry[LossEntry] = Registry("loss")


def build_loss(name: str, *, dim: int | None = None, num_classes: int | None = None, **overrides: Any) -> nn.Module:
    """Build a loss by name; keys of its configuration override the defaults.

    dim and num_classes are needed by losses over labels, which carry a classifier, and ignored by the others.
    """
    entry = LOSSES[name]
    loss_class, config_class = entry.load()
    config = from_mapping(config_class, overrides, where=f"{name}.")
    if entry.batch != "labels":
        return loss_class(config)
    if dim is None or num_classes is None:
        raise ConfigError(f"loss '{name}' has a classifier: give the descriptor's dim and num_classes.")
    return loss_class(config, dim=dim, num_classes=num_classes)


def _loader(module: str, loss: str, config: str) -> Callable[[], tuple[type[nn.Module], type[Any]]]:
    def load() -> tuple[type[nn.Module], type[Any]]:
        found = importlib.import_module(f"tessera.models.losses.{module}")
        return getattr(found, loss), getattr(found, config)

    return load


for _name, _entry in {
    "arcface": LossEntry(
        "additive angular margin over classes (eq. 12, 13)",
        "Deng 2019",
        "labels",
        _loader("arcface", "ArcFace", "ArcFaceConfig"),
    ),
    "contrastive": LossEntry(
        "pairs within or beyond a radius",
        "Radenovic 2018",
        "tuples",
        _loader("tuples", "Contrastive", "ContrastiveConfig"),
    ),
    "triplet": LossEntry(
        "negatives further than the positive", "Schroff 2015", "tuples", _loader("tuples", "Triplet", "TripletConfig")
    ),
    "solar": LossEntry(
        "triplets with second-order similarity", "Ng 2020", "tuples", _loader("tuples", "Triplet", "SolarLossConfig")
    ),
    "listwise-ap": LossEntry(
        "average precision of a batch, by histogram",
        "Revaud 2019",
        "list",
        _loader("listwise", "ListwiseAP", "ListwiseConfig"),
    ),
    "reconstruction": LossEntry(
        "an autoencoder of local features",
        "Cao 2020",
        "maps",
        _loader("reconstruction", "Reconstruction", "ReconstructionConfig"),
    ),
}.items():
    LOSSES.add(_name, _entry)
