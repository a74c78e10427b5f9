"""The learned whitenings that cirtorch keeps beside a network (`meta.Lw`), as its last layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tessera.errors import CheckpointError, unknown_name
from tessera.models.convert.foreign_checkpoint import Checkpoint


def learned_whitenings(checkpoint: Checkpoint) -> dict[str, Mapping[str, Any]]:
    """Those that a file holds, by name: DATA/ss was learnt on descriptors of one scale, DATA/ms of several."""
    meta = checkpoint.extras.get("meta")
    tables = meta.get("Lw") if isinstance(meta, Mapping) else None
    if not isinstance(tables, Mapping):
        return {}
    return {
        f"{data}/{kind}": table
        for data, kinds in tables.items()
        if isinstance(kinds, Mapping)
        for kind, table in kinds.items()
        if isinstance(table, Mapping) and {"m", "P"} <= table.keys()
    }


def with_learned_whitening(checkpoint: Checkpoint, name: str) -> Checkpoint:
    """The checkpoint with one of its learned whitenings as the layer `whiten`: P (x - m) of the unit vector x.

    Exact at one scale. Over several, cirtorch whitens the mean of the scales' descriptors, and a bundle takes the mean
    of the whitened ones.
    """
    known = learned_whitenings(checkpoint)
    if name not in known:
        raise CheckpointError(f"{checkpoint.path}: " + unknown_name("learned whitening", name, list(known)))
    if "whiten.weight" in checkpoint.state:
        raise CheckpointError(f"{checkpoint.path} has a whitening layer of its own: leave --whitening out.")
    projection, mean = _matrix(known[name]["P"]), _matrix(known[name]["m"]).reshape(-1)
    if projection.ndim != 2 or projection.shape[1] != len(mean):
        raise CheckpointError(
            f"{checkpoint.path}: the learned whitening {name} has P of shape {tuple(projection.shape)} and "
            f"m of {len(mean)} numbers."
        )
    layer = {"whiten.weight": projection.float(), "whiten.bias": -(projection @ mean).float()}
    return replace(checkpoint, state={**checkpoint.state, **layer})


def _matrix(value: Any) -> Tensor:
    return torch.as_tensor(np.asarray(value), dtype=torch.float64)
