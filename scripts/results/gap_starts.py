"""Where a Token network may start instead of at random: each keeps more of what ImageNet left in the maps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from tessera.models.parts.closed_form import fit_projection, fit_tokens
from tessera.models.token import TokenHead

Labels = npt.NDArray[np.int64]
Start = Callable[[Any, npt.NDArray[np.float16], Labels], None]

_SAMPLE = 40_000  # local features that directions and tokens are fitted to


@torch.no_grad()
def quieten(network: Any, crops: npt.NDArray[np.float16], labels: Labels) -> None:
    """The refinement begins as nothing: the norms of its branches multiply by zero."""
    del crops, labels
    for block in cast(TokenHead, network.head).refinement:
        for norm in (block.self_norm, block.cross_norm):
            nn.init.zeros_(cast(nn.LayerNorm, norm).weight)


@torch.no_grad()
def keep_angles(network: Any, crops: npt.NDArray[np.float16], labels: Labels, *, whiten: bool = False) -> None:
    """Reduction by PCA, tokenizer by hard EM, W_g one isometry for all tokens: angles stay about those of the maps.

    whiten: what changes between photos of one label is divided out before the isometry.
    """
    head = cast(TokenHead, network.head)
    quieten(network, crops, labels)
    channels, dim = head.tokenizer.channels, head.dim
    flat = np.moveaxis(crops, 1, -1).reshape(-1, crops.shape[1])
    chosen = np.random.default_rng(0).permutation(len(flat))[:_SAMPLE]
    sample = flat[np.sort(chosen)].astype(np.float32)
    values, vectors = np.linalg.eigh(np.cov(sample.T, dtype=np.float64))
    directions = vectors[:, ::-1][:, :channels]  # C' C
    spreads = np.sqrt(values[::-1][:channels].clip(1e-12))
    convolution, norm = cast(nn.Sequential, head.reduction)
    _fill(convolution.weight, directions.T[:, :, None, None])
    mean = sample.mean(axis=0) @ directions
    _fill(norm.weight, spreads)  # the batch norm takes the mean away and gives each direction its spread back
    _fill(norm.running_mean, mean)
    _fill(norm.running_var, spreads**2)
    reduced = ((sample - sample.mean(axis=0)) @ directions).astype(np.float32)
    _fill(head.tokenizer.weight, fit_tokens(reduced, head.num_tokens))
    isometry, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((dim, channels)))  # D C
    if whiten:
        head.eval()
        tokens = torch.cat([head.tokens(torch.from_numpy(part.astype(np.float32)))[0] for part in _parts(crops)])
        matrix, _ = fit_projection(tokens.mean(dim=1).numpy(), labels, 1, channels)
        isometry = isometry @ matrix
    _fill(head.projection.weight, np.concatenate([isometry / head.num_tokens] * head.blocks, axis=1))


def keep_whitened_angles(network: Any, crops: npt.NDArray[np.float16], labels: Labels) -> None:
    keep_angles(network, crops, labels, whiten=True)


def _parts(crops: npt.NDArray[np.float16], size: int = 256) -> list[npt.NDArray[np.float16]]:
    return [crops[start : start + size] for start in range(0, len(crops), size)]


def _fill(target: Any, values: npt.NDArray[Any]) -> None:
    target.copy_(torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32)))


START_OF: dict[str, Start] = {"quiet": quieten, "isometric": keep_angles, "whitened": keep_whitened_angles}
