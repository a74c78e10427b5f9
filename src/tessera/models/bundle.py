"""A model as a folder: `model.onnx`, `weights.safetensors` and the card `model.json`. Loads no torch."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from tessera.config import fingerprint, from_mapping, to_mapping
from tessera.errors import BundleDamagedError, ConfigError, ModelError, unknown_name
from tessera.models.model_registry import MODELS
from tessera.models.preprocessing import Preprocessing
from tessera.storage import hash_file, parse_json, write_atomically

PACKAGED_DIR = Path(__file__).parent.parent / "bundles"
DEFAULT_MODEL = "lite"
_MAX_DIM = 65536
POSITION_CONTRIBUTIONS = "places"  # the output's name in its graph, and the graph's file; part of the bundle format


@dataclass(frozen=True)
class ModelCard:
    """What a bundle says of itself (`model.json`)."""

    name: str
    kind: Literal["global", "local"]
    architecture: dict[str, Any]  # {"model": registry name, "config": resolved configuration}
    dim: int  # D
    num_tokens: int = 0  # L; 0 for networks without tokens
    stride: int = 32
    preprocessing: Preprocessing = field(default_factory=Preprocessing)
    fingerprint: str = ""  # of the weights, the graph and the preprocessing: what decides a descriptor
    training_data: str = ""
    licence: str = ""
    paper: str = ""
    figures: dict[str, Any] = field(default_factory=dict)  # measured, each with the command that made it
    provenance: dict[str, Any] = field(default_factory=dict)  # command, seed, time, hashes


class Bundle:
    """An opened bundle. `Bundle.open` takes the name of a packaged model or the path of a folder."""

    def __init__(self, path: Path, card: ModelCard) -> None:
        self.path = path
        self.card = card

    @property
    def onnx_path(self) -> Path:
        return self.path / "model.onnx"

    @property
    def position_contributions_path(self) -> Path:
        """The graph of what each position adds to the descriptor; only bundles whose tokens allow it have one."""
        return self.path / f"{POSITION_CONTRIBUTIONS}.onnx"

    @property
    def weights_path(self) -> Path:
        return self.path / "weights.safetensors"

    @classmethod
    def open(cls, name_or_path: str | Path = DEFAULT_MODEL) -> Bundle:
        path = Path(name_or_path)
        if not path.is_dir():
            packaged = PACKAGED_DIR / str(name_or_path)
            if "/" in str(name_or_path) or not packaged.is_dir():
                raise ModelError(_without_bundle(str(name_or_path)))
            path = packaged
        card_path = path / "model.json"
        if not card_path.is_file():
            raise ModelError(
                f"{path} is not a bundle: it has no model.json. `tessera export` and `tessera convert` make one."
            )
        try:
            card = from_mapping(ModelCard, parse_json(card_path.read_text()))
        except (ValueError, TypeError, ConfigError) as error:
            raise ModelError(f"{card_path} cannot be read: {error}. Make the bundle again.") from error
        _refuse_absurd(card, card_path)
        bundle = cls(path, card)
        bundle._verify_once()
        return bundle

    @classmethod
    def seal(cls, path: Path, card: ModelCard) -> Bundle:
        """Write the card beside a finished graph and weights, with the fingerprint of what is there."""
        bundle = cls(path, card)
        sealed = replace(card, fingerprint=bundle.measure_fingerprint())
        write_atomically(path / "model.json", json.dumps(to_mapping(sealed), indent=2).encode() + b"\n")
        return cls(path, sealed)

    def fingerprint_at(self, size: int | None = None, scales: Sequence[float] | None = None) -> str:
        """Of everything that decides a descriptor: weights, graph, preprocessing, size and scales.

        Only descriptors with equal fingerprints may be compared. size, scales: the card's own unless given.
        """
        own = self.card.preprocessing
        size, scales = own.size if size is None else size, own.scales if scales is None else scales
        return fingerprint(self.card.fingerprint, size, list(scales))

    def measure_fingerprint(self) -> str:
        """The fingerprint of the files as they are now; `verify` compares it with the card's."""
        digest = hashlib.sha256(json.dumps(to_mapping(self.card.preprocessing), sort_keys=True).encode())
        for file in self._files():
            digest.update(hash_file(file).encode())
        return digest.hexdigest()[:16]

    def verify(self) -> None:
        """Hold every file against the card: one flipped bit would give other descriptors under the same name."""
        if not self.onnx_path.is_file():
            raise BundleDamagedError(f"{self.path} has no model.onnx: the bundle is incomplete. Make it again.")
        if (measured := self.measure_fingerprint()) != self.card.fingerprint:
            raise BundleDamagedError(
                f"The files in {self.path} do not match its model.json (fingerprint {measured}, "
                f"expected {self.card.fingerprint}): the bundle was changed or damaged. Make it again."
            )

    def _files(self) -> list[Path]:
        return [
            file for file in (self.onnx_path, self.position_contributions_path, self.weights_path) if file.is_file()
        ]

    def _verify_once(self) -> None:
        """`verify`, but once a process for files that stay as they are: hashing takes some 10 ms for 11 MB."""
        states = [(file.name, file.stat()) for file in self._files()]
        seen = (self.card, *((name, state.st_ino, state.st_size, state.st_mtime_ns) for name, state in states))
        if _VERIFIED.get(self.path.absolute()) != seen:
            self.verify()
            _VERIFIED[self.path.absolute()] = seen


def _refuse_absurd(card: ModelCard, card_path: Path) -> None:
    """Numbers that no network has: a division by zero, or more memory than there is."""
    preprocessing = card.preprocessing
    numbers = (*preprocessing.mean, *preprocessing.std, *preprocessing.scales)
    reasons = {
        f"dim is {card.dim}": not 1 <= card.dim <= _MAX_DIM,
        f"num_tokens is {card.num_tokens}": not 0 <= card.num_tokens <= _MAX_DIM,
        f"stride is {card.stride}": not 1 <= card.stride <= _MAX_DIM,
        f"size is {preprocessing.size}": not 1 <= preprocessing.size <= _MAX_DIM,
        "mean, std or scales are not finite": not all(map(math.isfinite, numbers)),
        "mean and std are not of three channels": not len(preprocessing.mean) == len(preprocessing.std) == 3,
        "std is not above zero": min(preprocessing.std, default=0) <= 0,
        "scales are none, or not above zero and below 16": not preprocessing.scales
        or not all(0 < scale < 16 for scale in preprocessing.scales),
    }
    found = [reason for reason, holds in reasons.items() if holds]
    if found:
        raise ModelError(f"{card_path} cannot be meant: {', '.join(found)}. Make the bundle again.")


_VERIFIED: dict[Path, tuple[Any, ...]] = {}  # by folder: the card and the files that were found sound


def _without_bundle(name: str) -> str:
    if "/" in name:
        return f"There is no bundle at {name}. Check the path, or name a packaged model: {', '.join(packaged_names())}."
    if name in MODELS:
        return (
            f"'{name}' is a network, and no weights of it are packaged. `tessera train` and `tessera export` make a "
            "bundle of it, `tessera convert` makes one of a published checkpoint: give its folder. "
            f"Packaged: {', '.join(packaged_names())}."
        )
    return unknown_name("model", name, packaged_names()) + " Or give the folder of a bundle."


def packaged_names() -> list[str]:
    """The bundles that ship inside the package."""
    return sorted(path.name for path in PACKAGED_DIR.glob("*") if (path / "model.json").is_file())
