"""Which files are known, told apart by their keys, and how each becomes a network of the registry."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from tessera.errors import CheckpointError
from tessera.models.backbones.resnet import BASIC_DEPTHS, BLOCKS
from tessera.models.convert.foreign_checkpoint import Checkpoint
from tessera.models.convert.layouts import LAYOUTS

State = Mapping[str, Tensor]

_AUTHORS_BACKBONE = (
    ("backbone.block1.0.", "backbone.conv1."),
    ("backbone.block1.1.", "backbone.bn1."),
    *((f"backbone.block{stage}.", f"backbone.layer{stage - 1}.") for stage in (2, 3, 4, 5)),
)
_SEQUENTIAL_BACKBONE = (
    ("features.0.", "backbone.conv1."),
    ("features.1.", "backbone.bn1."),
    *((f"features.{index}.", f"backbone.layer{index - 3}.") for index in (4, 5, 6, 7)),
)
_SOLAR_BACKBONE = (
    ("features.conv1.0.", "backbone.conv1."),
    ("features.conv1.1.", "backbone.bn1."),
    ("features.conv2_x.2.", "backbone.layer1."),
    *((f"features.conv{stage}_x.", f"backbone.layer{stage - 1}.") for stage in (3, 4, 5)),
)


@dataclass(frozen=True)
class Format:
    """One kind of file.

    marks: keys that it has and those tried before it do not.
    model: the registry entry it becomes; `configure` gives what the file itself decides of its configuration.
    renames: prefixes there and here. dropped: prefixes of classifiers, and of what is stored but never used.
    """

    name: str
    marks: tuple[str, ...]
    model: str
    renames: tuple[tuple[str, str], ...]
    configure: Callable[[Checkpoint], dict[str, Any]]
    dropped: tuple[str, ...] = ("classifier",)

    def to_ours(self, key: str) -> str:
        return _replace_prefix(key, self.renames)

    def to_theirs(self, key: str) -> str:
        return _replace_prefix(key, tuple((ours, theirs) for theirs, ours in self.renames))


def _replace_prefix(key: str, renames: tuple[tuple[str, str], ...]) -> str:
    for old, new in renames:
        if key.startswith(old):
            return new + key.removeprefix(old)
    return key


def _configure_token(checkpoint: Checkpoint) -> dict[str, Any]:
    state = checkpoint.state
    legacy = "tr.tokens.weight" in state
    tokens = state["tr.tokens.weight"] if legacy else state["tr.query"][0]
    config: dict[str, Any] = {"num_tokens": tokens.shape[0], "channels": tokens.shape[1]}
    blocks = {key.split(".")[2] for key in state if key.startswith("tr.decoder.")}
    if "tr.proj.0.weight" in state:
        config["dim"] = state["tr.proj.0.weight"].shape[0]
    return {**config, "blocks": len(blocks)}


def _configure_delg(checkpoint: Checkpoint) -> dict[str, Any]:
    config = _configure_whitened(checkpoint)
    if "reduction.weight" in checkpoint.state:
        config["local_dim"] = checkpoint.state["reduction.weight"].shape[0]
    return config


def _configure_whitened(checkpoint: Checkpoint) -> dict[str, Any]:
    weight = checkpoint.state.get("whiten.weight")
    return {} if weight is None else {"dim": weight.shape[0]}


def _configure_netvlad(checkpoint: Checkpoint) -> dict[str, Any]:
    _, dim, clusters = checkpoint.state["vlad.centroids"].shape
    return {"dim": dim, "clusters": clusters}


def _configure_how(checkpoint: Checkpoint) -> dict[str, Any]:
    weight = checkpoint.state.get("dim_reduction.weight", checkpoint.state.get("whiten.weight"))
    config: dict[str, Any] = {"dim": None if weight is None else weight.shape[0]}
    meta = {**_table(checkpoint, "meta"), **_table(checkpoint, "net_params")}
    smoothing = meta.get("feat_pool_k", _nested(meta, "smoothing", "kernel_size"))
    return config if smoothing is None else {**config, "smoothing": int(smoothing)}


def _configure_cirtorch(checkpoint: Checkpoint) -> dict[str, Any]:
    meta, state = _table(checkpoint, "meta"), checkpoint.state
    regional = bool(meta.get("regional")) or any(key.startswith(("pool.rpool.", "pool.whiten.")) for key in state)
    exponents = state.get("pool.p", state.get("pool.rpool.p"))
    pooling = str(meta.get("pooling", "" if exponents is None else "gem")).lower()
    if pooling not in ("gem", "gemmp", "mac", "spoc", "rmac"):
        raise CheckpointError(
            f"{checkpoint.path} is a cirtorch network, but says nothing of its pooling: neither meta.pooling (gem, "
            f"gemmp, mac, spoc or rmac; found {pooling or 'nothing'}) nor pool.p is in it."
        )
    if regional and pooling == "rmac":
        raise CheckpointError(f"{checkpoint.path} has regions of regions (regional R-MAC), which no paper describes.")
    final, regions = state.get("whiten.weight"), state.get("pool.whiten.weight")
    layer = regions if final is None else final
    return {
        "pooling": pooling.removesuffix("mp"),
        "exponents": "shared" if exponents is None or exponents.numel() == 1 else "channels",
        "whitening": "global" if not regional else "regional" if final is None else "both",
        "local": bool(meta.get("local_whitening")) or "lwhiten.weight" in state,
        "dim": None if layer is None and not regional else layer.shape[0] if layer is not None else 2048,
    }


def _configure_solar(checkpoint: Checkpoint) -> dict[str, Any]:
    blocks = {f"soa{stage}": f"features.soa{stage}.v.weight" in checkpoint.state for stage in (4, 5)}
    return {"dim": None, **_configure_whitened(checkpoint), **blocks}


# In this order: each has a mark that none before it has.
FORMATS = (
    Format(
        "Token (from April 2022)",
        ("tr.query",),
        "token-released",
        (*_AUTHORS_BACKBONE, ("tr.", "head.")),
        _configure_token,
    ),
    Format(
        "Token (before April 2022)",
        ("tr.tokens.weight",),
        "token-legacy",
        (*_AUTHORS_BACKBONE, ("tr.", "head.")),
        _configure_token,
    ),
    Format(
        "NetVLAD of the Token authors",
        ("vlad.centroids",),
        "netvlad-released",
        (*_AUTHORS_BACKBONE, ("vlad.", "head.vlad.")),
        _configure_netvlad,
    ),
    Format(
        "SOLAR of the Token authors",
        ("pooling.f.0.weight",),
        "solar-released",
        (*_AUTHORS_BACKBONE, ("pooling.", "head.pooling."), ("whiten.", "head.whiten.")),
        _configure_whitened,
    ),
    Format(
        "DELG of the Token authors",
        ("attention.att_conv1.weight",),
        "delg-released",
        (
            *_AUTHORS_BACKBONE,
            ("whiten.", "head.whiten."),
            ("attention.", "local.attention."),
            ("reduction.", "local.reduction."),
        ),
        _configure_delg,
    ),
    Format(
        "R-MAC of the Token authors",
        ("backbone.block1.0.weight", "whiten.weight"),
        "rmac-released",
        (*_AUTHORS_BACKBONE, ("whiten.", "head.whiten.")),
        _configure_whitened,
    ),
    Format(
        "SOLAR",
        ("features.conv1.0.weight",),
        "solar-r101",
        (
            *_SOLAR_BACKBONE,
            ("features.soa", "soa"),
            ("pool.", "head.pool."),
            ("whiten.", "head.whiten."),
        ),
        _configure_solar,
        dropped=("classifier", "features.soa4.gamma", "features.soa5.gamma"),
    ),
    Format("HOW", ("features.0.weight", "dim_reduction.weight"), "how-r50", _SEQUENTIAL_BACKBONE, _configure_how),
    Format(
        "cirtorch",
        ("features.0.weight",),
        "gem-r50",
        (
            *_SEQUENTIAL_BACKBONE,
            ("pool.rpool.", "head.pool.pool."),
            ("pool.", "head.pool."),
            ("whiten.", "head.whiten."),
            ("lwhiten.", "head.lwhiten."),
        ),
        _configure_cirtorch,
    ),
)


def recognise(checkpoint: Checkpoint) -> Format:
    """The format of a checkpoint, by its keys."""
    state = checkpoint.state
    for found in FORMATS:
        if all(mark in state for mark in found.marks):
            return _old_how(found, state)
    raise CheckpointError(
        f"{checkpoint.path} is of an unknown kind: its keys ({', '.join(list(state)[:5])}, ...) are those of none of "
        f"{'; '.join(entry.name for entry in (*FORMATS, *LAYOUTS))}."
    )


def _old_how(found: Format, state: State) -> Format:
    """HOW's files before its first release call the reduction `whiten`: a 1x1 convolution, cirtorch's is linear."""
    whiten = state.get("whiten.weight")
    if found.name != "cirtorch" or whiten is None or whiten.ndim != 4:
        return found
    how = next(entry for entry in FORMATS if entry.name == "HOW")
    return replace(how, renames=(*how.renames, ("whiten.", "dim_reduction.")))


def backbone_of(checkpoint: Checkpoint, renamed: State) -> str:
    """The name of the ResNet whose blocks the renamed keys count."""
    counts = [0, 0, 0, 0]
    for key in renamed:
        if match := re.match(r"backbone\.layer(\d)\.(\d+)\.conv1\.weight$", key):
            stage = int(match[1]) - 1
            counts[stage] = max(counts[stage], int(match[2]) + 1)
    basic = "backbone.layer1.0.conv3.weight" not in renamed
    for depth, blocks in BLOCKS.items():
        if (depth in BASIC_DEPTHS) == basic:
            if tuple(counts) == blocks:
                return f"resnet{depth}"
            if tuple(counts[:3]) == blocks[:3] and counts[3] == 0:
                return f"resnet{depth}-conv4"
    raise CheckpointError(
        f"{checkpoint.path} has the depth of no known ResNet: its stages have {', '.join(map(str, counts))} "
        f"{'basic' if basic else 'bottleneck'} blocks. Known depths: {', '.join(map(str, BLOCKS))}."
    )


def _table(checkpoint: Checkpoint, key: str) -> dict[str, Any]:
    value = checkpoint.extras.get(key)
    return {str(name): entry for name, entry in value.items()} if isinstance(value, Mapping) else {}


def _nested(table: Mapping[str, Any], *keys: str) -> Any:
    value: Any = table
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value
