"""A bundle's backbone with a token head that is fitted to one's own photos: no labels, no gradient, minutes.

Each photo is its own instance, seen whole and in two crops in another light. Photos whose nearest neighbours are
verified by geometry are joined into one. What changes within an instance is divided out of the descriptor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from tessera.config import to_mapping
from tessera.data.images import Pixels, load_photo
from tessera.data.sets.folder import list_images
from tessera.data.transforms import TransformConfig, augment, random_of
from tessera.errors import DataError, ImageError, ModelError
from tessera.models.adapted import AdaptedConfig
from tessera.models.bundle import Bundle
from tessera.models.global_network import GlobalNetwork
from tessera.models.model_registry import build_model
from tessera.models.onnx_export import export_bundle, load_network, make_card
from tessera.models.parts.closed_form import fit_projection, fit_tokens
from tessera.models.token import TokenHead
from tessera.train.verified_pairs import join_pairs, verified_pairs

Array = NDArray[np.float32]
Views = Sequence[Sequence[Pixels]]  # of each photo: whole, most of it, a part
Prepare = Callable[[Pixels], torch.Tensor]  # an image as the network's input, 1 3 H W

LEAST_PHOTOS = 16
VIEWS = 3
_CROPS = (
    TransformConfig(area=(0.5, 0.95), flip=0.0),
    TransformConfig(area=(0.15, 0.6), flip=0.0),
)
_POSITIONS = 64  # of a photo, for the tokenizer
HELD_OUT = 10  # every so many photos is left out of the fit, and measured
_GRAIN = 32


@dataclass(frozen=True)
class AdaptSettings:
    """most: photos to fit to, evenly spaced where there are more. pairs: whether to look for verified ones."""

    num_tokens: int = 4
    dim: int = 1024
    most: int = 2000
    pairs: bool = True
    seed: int = 0


def adapt(
    bundle: Bundle,
    photos: Path,
    output: Path,
    settings: AdaptSettings | None = None,
    *,
    name: str | None = None,
    progress: Callable[[int, int, int], None] | None = None,
) -> Bundle:
    """Fit a token head to the photos below a folder and write the adapted bundle.

    The card's figures say how often a part of a photo finds its whole among photos that were not fitted to, with the
    bundle's own descriptor and with the new one.
    """
    settings = settings or AdaptSettings()
    base = load_base(bundle)
    views = read_views(photos, bundle.card.preprocessing.size, settings, progress)

    def prepare(image: Pixels) -> torch.Tensor:
        return torch.from_numpy(bundle.card.preprocessing.normalise([image]))

    features, negative = sample_features(base, views, prepare)
    network = head_over(base, settings, len(views), negative)
    pairs, measured = fit_head(network, views, features, settings, prepare)
    figures = {
        "part finds its whole, photos not fitted to": {"before": measure(base, views, prepare), "after": measured}
    }
    card = make_card(network, name or output.name)
    card = replace(
        card,
        preprocessing=bundle.card.preprocessing,
        training_data=f"{bundle.card.training_data}; head fitted to {len(views)} photos".lstrip("; "),
        licence=bundle.card.licence,
        paper=bundle.card.paper or card.paper,
        figures=figures,
        provenance={
            "command": "tessera adapt",
            "base": {"name": bundle.card.name, "fingerprint": bundle.card.fingerprint},
            "photos": len(views),
            "verified_pairs": pairs,
            "settings": to_mapping(settings),
        },
    )
    return export_bundle(network, output, card)


def load_base(bundle: Bundle) -> GlobalNetwork:
    """The network of a bundle in torch, where it has one with a map."""
    if bundle.card.kind != "global":
        raise ModelError(f"{bundle.card.name} is a {bundle.card.kind} model: a head is fitted to global ones only.")
    if not bundle.weights_path.is_file():
        raise ModelError(
            f"{bundle.card.name} is a graph without weights of its own (from an ONNX file), and a token head needs its "
            "map. Convert the network's checkpoint instead."
        )
    return cast(GlobalNetwork, load_network(bundle))


def head_over(base: GlobalNetwork, settings: AdaptSettings, photos: int, negative: bool) -> GlobalNetwork:
    """A network's backbone with a token head that nothing was fitted to yet. negative: whether its maps have signs."""
    config = AdaptedConfig(
        backbone=str(base.architecture["config"].get("backbone", "")),
        base=base.architecture,
        num_tokens=settings.num_tokens,
        power=1.0 if negative else 3.0,
        dim=min(settings.dim, base.backbone.channels, photos * VIEWS - 1),
    )
    network = cast(GlobalNetwork, build_model("adapted", **to_mapping(config)))
    network.backbone.load_state_dict(base.backbone.state_dict())
    return network.eval()


def read_views(
    folder: Path, size: int, settings: AdaptSettings, progress: Callable[[int, int, int], None] | None
) -> list[list[Pixels]]:
    """Whole, most and a part of each photo; those that cannot be read are passed over."""
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder. Give the folder that your photos are in.")
    names = list_images(folder)
    names = names[:: max(1, -(-len(names) // settings.most))]
    views, failed = [], 0
    for number, name in enumerate(names):
        try:
            photo = load_photo(folder / name, size=size)
            views.append(list(views_of(photo, size, number, settings.seed)))
        except ImageError:
            failed += 1
        if progress is not None:
            progress(number + 1, len(names), failed)
    if len(views) < LEAST_PHOTOS:
        raise DataError(
            f"{folder} has {len(views)} photos that can be read, and a head needs {LEAST_PHOTOS} at least, better some "
            "hundreds. Give a folder with more of your own photos."
        )
    return views


def views_of(photo: Pixels, size: int, number: int, seed: int) -> Iterator[Pixels]:
    yield photo
    side = max(_GRAIN, min(size, max(photo.shape[:2])) * 3 // 4 // _GRAIN * _GRAIN)
    for kind, crop in enumerate(_CROPS):
        yield augment(photo, replace(crop, crop=side), random_of(seed, kind, number))


@torch.inference_mode()
def sample_features(network: GlobalNetwork, views: Views, prepare: Prepare) -> tuple[Array, bool]:
    """Some local features of the whole photos that are fitted to, N C, and whether any is negative."""
    samples = []
    for whole in (photo[0] for number, photo in enumerate(views) if number % HELD_OUT):
        rows = network.backbone(prepare(whole)).flatten(2)[0].T.numpy()
        samples.append(rows[:: max(1, len(rows) // _POSITIONS)])
    features = np.concatenate(samples)
    return features, bool((features < 0).any())


def fit_head(
    network: GlobalNetwork, views: Views, features: Array, settings: AdaptSettings, prepare: Prepare
) -> tuple[int, float]:
    """Set the tokenizer and W_g. Returns how many pairs were verified, and the measure of the result."""
    head = cast(TokenHead, network.head)
    set_tokenizer(head, fit_tokens(features, settings.num_tokens, settings.seed))
    fitted = [number for number in range(len(views)) if number % HELD_OUT]
    tokens = mean_tokens(network, [views[number] for number in fitted], prepare)  # N VIEWS C
    instances = np.arange(len(fitted))
    rows = tokens.reshape(-1, tokens.shape[-1])
    set_projection(head, fit_projection(rows, np.repeat(instances, VIEWS), settings.num_tokens, head.dim))
    pairs: list[tuple[int, int]] = []
    if settings.pairs:
        pairs = verified_pairs([views[number][0] for number in fitted], project(head, tokens[:, 0]))
        instances = join_pairs(len(fitted), pairs)
        set_projection(head, fit_projection(rows, np.repeat(instances, VIEWS), settings.num_tokens, head.dim))
    return len(pairs), measure(network, views, prepare)


@torch.inference_mode()
def mean_tokens(network: GlobalNetwork, views: Views, prepare: Prepare) -> Array:
    head = cast(TokenHead, network.head)
    means = [
        [head.tokens(network.backbone(prepare(view)))[0].mean(dim=1)[0].numpy() for view in photo] for photo in views
    ]
    return np.array(means, dtype=np.float32)


def set_tokenizer(head: TokenHead, weight: Array) -> None:
    with torch.no_grad():
        cast(Any, head.tokenizer).weight.copy_(torch.from_numpy(weight))


def set_projection(head: TokenHead, fitted: tuple[Array, Array]) -> None:
    with torch.no_grad():
        head.projection.weight.copy_(torch.from_numpy(fitted[0]))
        head.projection.bias.copy_(torch.from_numpy(fitted[1]))


def project(head: TokenHead, means: Array) -> Array:
    """Descriptors of unit norm from mean tokens, N C."""
    weight, bias = (tensor.detach().numpy() for tensor in (head.projection.weight, head.projection.bias))
    rows = means @ (weight.T * head.num_tokens) + bias
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True).clip(1e-12), dtype=np.float32)


@torch.inference_mode()
def measure(network: GlobalNetwork, views: Views, prepare: Prepare) -> float:
    """How often a part finds its whole first, among the photos held out."""
    held_out = views[::HELD_OUT]
    wholes, parts = (
        np.concatenate([network(prepare(photo[kind]))["descriptor"].numpy() for photo in held_out])
        for kind in (0, VIEWS - 1)
    )
    return float(((parts @ wholes.T).argmax(axis=1) == np.arange(len(held_out))).mean())
