"""Other people's checkpoints as bundles: `convert_checkpoint("file.pth", "bundle/")`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from tessera.errors import CheckpointError, UsageError, list_some
from tessera.models.backbones import build_backbone
from tessera.models.backbones.timm import TimmBackbone
from tessera.models.bundle import Bundle, ModelCard
from tessera.models.convert.foreign_checkpoint import Checkpoint, read_checkpoint, weight_files
from tessera.models.convert.formats import FORMATS, Format, backbone_of, recognise
from tessera.models.convert.foundation_file import assumptions, read_shape, recognise_foundation
from tessera.models.convert.learned import learned_whitenings, with_learned_whitening
from tessera.models.convert.tensors import build_foundation_file
from tessera.models.global_network import GlobalNetwork
from tessera.models.model_registry import build_model
from tessera.models.network import Network
from tessera.models.onnx_export import export_bundle, make_card
from tessera.storage import hash_file

__all__ = ["FORMATS", "convert_checkpoint", "convert_timm", "load_checkpoint"]


def convert_checkpoint(
    path: str | Path,
    output: str | Path,
    *,
    name: str | None = None,
    whitening: str | None = None,
    pooling: str | None = None,
    heads: int | None = None,
    activation: str | None = None,
    size: int | None = None,
    licence: str = "",
    origin: Mapping[str, str] | None = None,
) -> Bundle:
    """Recognise a checkpoint by its keys, check it key by key, and write a bundle.

    path: a file, or the folder of a Hugging Face model. name: of the model on its card; the output folder's by default.
    whitening: one of those that cirtorch learns after training and keeps in the file, as a last layer. The card's
    provenance lists what was there (`whitenings`). pooling, heads, activation: of a foundation model; the last two
    where no config.json tells them. size (of pictures), licence, origin (where the file is from): for the card.
    """
    source = Path(path)
    checkpoint = read_checkpoint(source)
    provenance: dict[str, Any] = {"command": "tessera convert", "file": source.name, "sha256": _hash(source)}
    provenance |= {} if origin is None else {"origin": dict(origin)}
    foundation = recognise_foundation(checkpoint)
    if foundation is not None:
        if whitening is not None:
            raise UsageError("--whitening is for cirtorch's files: this is a foundation model.")
        foundation = foundation.told(heads=heads, activation=activation)
        network: Network = build_foundation_file(foundation, pooling or "cls")
        shape = read_shape(foundation)
        provenance |= {"format": foundation.layout.name, "assumed": assumptions(foundation, shape)}
        card = make_card(network, name or Path(output).name, provenance=provenance, licence=licence)
        card = replace(card, preprocessing=replace(card.preprocessing, size=shape.size, scales=(1.0,)))
        return export_bundle(network, output, _with_size(card, size))
    if pooling or heads or activation:
        raise UsageError("--pooling, --heads and --activation are for foundation models: this file is of another kind.")
    if known := list(learned_whitenings(checkpoint)):
        provenance |= {"whitenings": known, "whitening": whitening}
    if whitening is not None:
        checkpoint = with_learned_whitening(checkpoint, whitening)
    found = recognise(checkpoint)
    network = _build(checkpoint, found)
    provenance["format"] = found.name
    card = make_card(network, name or Path(output).name, provenance=provenance, licence=licence)
    return export_bundle(network, output, _with_size(_with_normalisation(card, checkpoint), size))


def convert_timm(
    source: str, output: str | Path, *, name: str | None = None, pooling: str | None = None, size: int | None = None
) -> Bundle:
    """A pretrained model of timm by name, `timm:NAME`, as a bundle: GeM of its last map. timm fetches the weights."""
    if pooling not in (None, "gem"):
        raise UsageError("a model of timm gives a map: its pooling is gem.")
    pretrained = cast(TimmBackbone, build_backbone(source, "imagenet")).eval()
    pretrained.check_sizes(source.removeprefix("timm:"))
    network = cast(GlobalNetwork, build_model("gem-r50", backbone=source, dim=None, learnable_p=False).eval())
    network.backbone.load_state_dict(pretrained.state_dict())
    settings = pretrained.model.pretrained_cfg
    provenance = {
        "command": "tessera convert",
        "format": "timm",
        "file": source,
        "origin": str(settings.get("hf_hub_id")),
    }
    card = make_card(network, name or Path(output).name, provenance=provenance, licence=settings.get("license") or "")
    trained = int(settings["input_size"][-1])
    card = replace(card, preprocessing=replace(card.preprocessing, size=size or trained, scales=(1.0,)))
    return export_bundle(network, output, card)


def _with_size(card: ModelCard, size: int | None) -> ModelCard:
    return card if size is None else replace(card, preprocessing=replace(card.preprocessing, size=size))


def load_checkpoint(path: str | Path, *, heads: int | None = None, activation: str | None = None) -> Network:
    """The network of a checkpoint, in evaluation mode, without a bundle on the way."""
    checkpoint = read_checkpoint(Path(path))
    foundation = recognise_foundation(checkpoint)
    if foundation is not None:
        return build_foundation_file(foundation.told(heads=heads, activation=activation))
    return _build(checkpoint, recognise(checkpoint))


def _hash(source: Path) -> str | dict[str, str]:
    """Of a file; of a folder, each file of weights by its name."""
    return {file.name: hash_file(file) for file in weight_files(source)} if source.is_dir() else hash_file(source)


def _build(checkpoint: Checkpoint, found: Format) -> Network:
    kept = {key: value for key, value in checkpoint.state.items() if not key.startswith(found.dropped)}
    renamed = {found.to_ours(key): value for key, value in kept.items()}
    backbone = backbone_of(checkpoint, renamed)
    network = build_model(found.model, backbone=backbone, **found.configure(checkpoint))
    _check(network, renamed, checkpoint, found)
    network.load_state_dict({**_counters(network), **renamed})
    return network.eval()


def _check(network: Network, renamed: Mapping[str, Tensor], checkpoint: Checkpoint, found: Format) -> None:
    """Names, shapes and numbers, all complaints in the file's own names."""
    wanted = network.state_dict()
    missing = [found.to_theirs(key) for key in wanted if key not in renamed and not key.endswith("num_batches_tracked")]
    extra = [found.to_theirs(key) for key in renamed if key not in wanted]
    where = f"{checkpoint.path} looks like {found.name} but does not match it"
    if missing or extra:
        raise CheckpointError(f"{where}. Missing keys: {list_some(missing)}. Extra keys: {list_some(extra)}.")
    shapes = [
        f"{found.to_theirs(key)} {tuple(value.shape)} instead of {tuple(wanted[key].shape)}"
        for key, value in renamed.items()
        if value.shape != wanted[key].shape
    ]
    if shapes:
        raise CheckpointError(f"{where}. Shapes: {list_some(shapes)}.")
    broken = [found.to_theirs(key) for key, value in renamed.items() if not bool(torch.isfinite(value).all())]
    if broken:
        raise CheckpointError(f"{checkpoint.path} has NaN or infinite weights: {list_some(broken)}.")


def _counters(network: Network) -> dict[str, Tensor]:
    """Files from before torch 0.4.1 lack the batch norms' counters, which inference has no use for."""
    return {key: value for key, value in network.state_dict().items() if key.endswith("num_batches_tracked")}


def _with_normalisation(card: ModelCard, checkpoint: Checkpoint) -> ModelCard:
    """cirtorch and HOW write mean and std into their files; a file that names others than ImageNet's is obeyed."""
    tables: list[Any] = [checkpoint.extras.get("meta"), checkpoint.extras.get("net_params")]
    tables += [table.get("runtime") for table in tables if isinstance(table, Mapping)]
    for table in tables:
        if not isinstance(table, Mapping):
            continue
        mean, std = _triple(table.get("mean")), _triple(table.get("std"))
        nested = table.get("mean_std")
        if isinstance(nested, Sequence) and len(nested) == 2:
            mean, std = _triple(nested[0]), _triple(nested[1])
        if mean and std:
            return replace(card, preprocessing=replace(card.preprocessing, mean=mean, std=std))
    return card


def _triple(value: Any) -> tuple[float, ...] | None:
    try:
        numbers = tuple(float(number) for number in value)
    except (TypeError, ValueError):
        return None
    return numbers if len(numbers) == 3 else None
