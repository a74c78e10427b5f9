"""A system: what turns local features into an image search, as one small file that stands wherever a bundle may.

    {"name": "sift-asmk", "extractor": "sift", "kind": "asmk", "words": 4096, "codebook": "codebook.npy"}

Kinds: `asmk` and `rasmk` rank by an inverted file, `vlad` and `tokens` give one descriptor an image. JSON or TOML;
paths in it are relative to the file. A folder with a `system.json` is a system too.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tessera.config import fingerprint, from_mapping, to_mapping
from tessera.data.images import load_photo
from tessera.errors import ConfigError, ImageError, IndexingError, ModelError
from tessera.local.codebook import Codebook
from tessera.local.extractors import open_local_extractor
from tessera.local.features import LocalExtractor
from tessera.local.inverted_file import KernelConfig
from tessera.refiners import RERANKERS
from tessera.storage import hash_file, parse_json, write_atomically

FILE_NAME = "system.json"
PACKAGED_DIR = Path(__file__).parent.parent / "systems"
_FEATURES_A_WORD = 40  # more change the words little
_MIN_FEATURES = 10_000  # VLAD's few words must not come from a handful of images


@dataclass(frozen=True)
class SystemConfig:
    """extractor: a name, or the folder of a local bundle. scales: of a network; empty for its own.

    words, codebook: of asmk, rasmk and vlad. regions: of rasmk, a JSON file (image's file name to boxes in fractions of
    width and height) or a global model with tokens, whose attention is the detector. intra, power: vlad's
    normalisations. tokens: the file of a network over sets, with the keys of its `network` (SetTokensConfig) and of its
    `training` (TokenTrainingConfig). rerank: `sp` over the best `depth`, with these features.
    """

    name: str
    extractor: str = "sift"
    kind: Literal["asmk", "rasmk", "vlad", "tokens"] = "asmk"
    count: int = 1000
    size: int = 1024
    scales: tuple[float, ...] = ()
    words: int = 65536
    codebook: str = "codebook.npy"
    kernel: KernelConfig = field(default_factory=KernelConfig)
    regions: str = ""
    intra: bool = True
    power: float = 0.5
    tokens: str = ""
    network: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    rerank: Literal["", "sp"] = ""
    depth: int = RERANKERS["sp"].depth
    provenance: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key in ("count", "size", "words", "depth", "power"):
            if not getattr(self, key) > 0:
                raise ConfigError(f"{key} of a system must be above 0, not {getattr(self, key)}.")
        if not all(scale > 0 for scale in self.scales):
            raise ConfigError(f"the scales of a system must be above 0, not {list(self.scales)}.")


class System:
    """An opened system. `System.open` takes a file or a folder that has one."""

    def __init__(self, config: SystemConfig, folder: Path) -> None:
        self.config, self.folder = config, folder

    @classmethod
    def open(cls, path: str | Path) -> System:
        file = system_file(path)
        if file is None:
            raise ModelError(f"{path} is not a system: it is no .json or .toml file and has no {FILE_NAME}.")
        return cls(read_config(file), file.parent)

    @property
    def name(self) -> str:
        return self.config.name

    @cached_property
    def extractor(self) -> LocalExtractor:
        options: dict[str, Any] = {"count": self.config.count}
        if self.config.scales:
            options["scales"] = self.config.scales
        return open_local_extractor(self._place(self.config.extractor), **options)

    @cached_property
    def codebook(self) -> Codebook:
        codebook = Codebook.load(self.folder / self.config.codebook)
        if codebook.dim != self.extractor.dim:
            raise IndexingError(
                f"the codebook of {self.name} has words of dimension {codebook.dim}, its extractor "
                f"'{self.extractor.name}' gives {self.extractor.dim}. Build the system again."
            )
        return codebook

    @property
    def fingerprint(self) -> str:
        """Of everything that decides a ranking or a descriptor."""
        config = to_mapping(replace(self.config, name="", provenance={}, extractor="", codebook="", tokens=""))
        files = [self.folder / name for name in (self.config.codebook, self.config.tokens) if name]
        hashes = [hash_file(file) if file.is_file() else "" for file in files]
        return fingerprint(config, self.extractor.fingerprint, hashes)

    def _place(self, name: str) -> str:
        beside = self.folder / name
        return str(beside) if beside.is_dir() else name


def system_file(path: str | Path) -> Path | None:
    """The file of a system, by its path or a packaged one's name; None where it is none (a bundle, a model's name)."""
    given = Path(path)
    if given.is_file() and given.suffix in (".json", ".toml"):
        return given
    folders = [given, PACKAGED_DIR / given] if len(given.parts) == 1 else [given]
    return next((folder / FILE_NAME for folder in folders if (folder / FILE_NAME).is_file()), None)


def read_config(path: Path) -> SystemConfig:
    try:
        text = path.read_text(encoding="utf-8")
        values = tomllib.loads(text) if path.suffix == ".toml" else parse_json(text)
        if not isinstance(values, dict):
            raise ConfigError("it must be a table of keys.")
        kernel = values.get("kernel")
        if isinstance(kernel, dict) and "effort" in kernel:  # its name in 0.1
            values["kernel"] = {**kernel, "nprobe": kernel["effort"]}
            del values["kernel"]["effort"]
        return from_mapping(SystemConfig, {"name": path.stem, **values})
    except (OSError, ValueError, ConfigError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise ConfigError(f"the system {path} cannot be read: {reason}") from error


def open_extractor_of(name: str | Path) -> LocalExtractor:
    """The extractor of a system, or one by its own name or bundle."""
    file = system_file(name)
    return open_local_extractor(name) if file is None else System.open(file).extractor


def build_system(
    config: SystemConfig, images: Iterable[Path], folder: Path, *, seed: int = 0, say: Callable[[str], None] = print
) -> System:
    """Fit the words to images and write the system's folder. Images are read in order until features are enough.

    A network's features for the words come from scale 1 alone, as HOW has it.
    """
    if config.kind in ("asmk", "rasmk", "vlad"):
        wanted = max(config.words * _FEATURES_A_WORD, _MIN_FEATURES)
        options: dict[str, Any] = {"count": config.count}
        if Path(config.extractor).is_dir():
            options["scales"] = (1.0,)
        extractor = open_local_extractor(config.extractor, **options)
        collected: list[np.ndarray] = []
        found = used = unreadable = 0
        for path in images:
            try:
                features = extractor.extract(load_photo(path, size=config.size)).descriptors
            except ImageError as error:
                say(f"skipped: {error}")
                unreadable += 1
                continue
            collected.append(np.asarray(features, np.float32))
            found, used = found + len(features), used + 1
            if found >= wanted:
                break
        features = np.concatenate(collected) if collected else np.zeros((0, extractor.dim), np.float32)
        say(f"{found} local features of {used} images for {config.words} words")
        codebook = Codebook.train(features[:wanted], config.words, seed=seed)
        codebook.save(folder / config.codebook)
        config = replace(config, provenance={"images": used, "features": found, "unreadable": unreadable, "seed": seed})
    return write_system(config, folder)


def write_system(config: SystemConfig, folder: Path) -> System:
    """Write a system's file into its folder; an extractor's bundle is named by its full path."""
    if Path(config.extractor).is_dir():
        config = replace(config, extractor=str(Path(config.extractor).absolute()))
    write_atomically(folder / FILE_NAME, json.dumps(to_mapping(config), indent=2).encode() + b"\n")
    return System(config, folder)
