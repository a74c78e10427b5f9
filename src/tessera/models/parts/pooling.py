"""From a map of local features to one vector: SPoC, MAC, CroW and GeM, as functions and as modules.

Each takes maps B C H W and gives B C, not normalised. R-MAC and its kin, which pool over windows, are in `rmac.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

EPS = 1e-6


def pool_spoc(maps: Tensor) -> Tensor:
    """The mean over positions (sum pooling, Babenko 2015, without its centre prior). B C H W to B C."""
    return maps.mean(dim=(-2, -1))


def pool_mac(maps: Tensor) -> Tensor:
    """The largest activation of each channel. B C H W to B C."""
    return maps.amax(dim=(-2, -1))


def pool_crow(maps: Tensor, eps: float = EPS) -> Tensor:
    """Cross-dimensional weighting (Kalantidis 2016): strong positions and rare channels count for more.

    A position's weight is the square root of its activations' sum, over the L2 norm of that sum's map; a channel's is
    the log of the inverse share of positions where it fires, like an idf. Negative activations have no meaning here:
    the maps come from a ReLU. B C H W to B C.
    """
    strength = maps.sum(dim=1, keepdim=True)  # B 1 H W
    length = strength.square().sum(dim=(-2, -1), keepdim=True).clamp_min(eps * eps).sqrt()
    positions = (strength / length).clamp_min(eps * eps).sqrt()
    fires = (maps > 0).to(maps.dtype).mean(dim=(-2, -1))  # B C
    channels = torch.log((fires.sum(dim=1, keepdim=True) + fires.shape[1] * eps) / (fires + eps))
    return channels * (positions * maps).sum(dim=(-2, -1))


def pool_gem(maps: Tensor, p: Tensor | float = 3.0, eps: float = EPS) -> Tensor:
    """Generalised mean (Radenovic 2018): p = 1 is the mean, p to infinity the maximum.

    p: a number, or a tensor of 1 or C exponents. Activations are raised to eps before the power, so that a zero has a
    gradient and a map of zeros gives eps. B C H W to B C.
    """
    return raise_to(maps, p, eps).mean(dim=(-2, -1)).pow(1 / p)


def raise_to(maps: Tensor, p: Tensor | float, eps: float = EPS) -> Tensor:
    """B C H W to B C H W: what GeM averages."""
    return maps.clamp_min(eps).pow(p.view(1, -1, 1, 1) if isinstance(p, Tensor) else p)


def normalise(vectors: Tensor, eps: float = EPS, dim: int = 1) -> Tensor:
    """Divide by the L2 norm plus eps over the channels, as the field's retrieval code does.

    Adding eps, not flooring by it: a unit vector comes out at 1 / (1 + eps).
    """
    norms: Tensor = torch.linalg.vector_norm(vectors, dim=dim, keepdim=True)
    return vectors / (norms + eps)


class SPoC(nn.Module):
    def forward(self, maps: Tensor) -> Tensor:
        return pool_spoc(maps)


class MAC(nn.Module):
    def forward(self, maps: Tensor) -> Tensor:
        return pool_mac(maps)


class CroW(nn.Module):
    def forward(self, maps: Tensor) -> Tensor:
        return pool_crow(maps)


class GeM(nn.Module):
    """Generalised mean with a learnt exponent `p`: one for all (`exponents` = 1), or one a channel (`exponents` = C).

    learnable=False keeps p out of the state: the compared re-implementations have a fixed 3 and no key for it.
    """

    p: Tensor | float

    def __init__(self, p: float = 3.0, *, exponents: int = 1, learnable: bool = True, eps: float = EPS) -> None:
        super().__init__()
        self.p = nn.Parameter(torch.full((exponents,), float(p))) if learnable else float(p)
        self.eps = eps

    def forward(self, maps: Tensor) -> Tensor:
        return pool_gem(maps, self.p, self.eps)

    def powers(self, maps: Tensor) -> Tensor:
        """B C H W to B C H W: `forward` is the `root` of their mean."""
        return raise_to(maps, self.p, self.eps)

    def root(self, means: Tensor) -> Tensor:
        """... C to ... C."""
        return means.pow(1 / self.p)

    def extra_repr(self) -> str:
        shown = f"{tuple(self.p.shape)} learnt" if isinstance(self.p, Tensor) else f"{self.p:g} fixed"
        return f"p={shown}, eps={self.eps:g}"


class Linear1x1(nn.Conv2d):
    """A whitening layer that takes ... C and gives ... D, kept as a 1x1 convolution.

    The compared nets store it so (weights D C 1 1), and a file must load unchanged.
    """

    def __init__(self, channels: int, dim: int) -> None:
        super().__init__(channels, dim, kernel_size=1)

    def forward(self, vectors: Tensor) -> Tensor:
        return functional.linear(vectors, self.weight.flatten(1), self.bias)
