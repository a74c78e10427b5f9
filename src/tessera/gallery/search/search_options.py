"""What a search is asked to do, checked before anything is opened or decoded."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tessera.errors import UsageError, unknown_name
from tessera.gallery.catalog.filters import AnyCondition
from tessera.refiners import Refiner, find_expansion, find_reranker

WAYS = ("auto", "global", "local")


@dataclass(frozen=True)
class SearchOptions:
    """by: `auto`, descriptor and local features together; `global` or `local`, one of them alone.

    A refiner (expand, augment, rerank) follows a search by the descriptor: with one, `auto` is `global`.
    min_probability: hits below it are left out. rerank_timeout_s: how long local features may be compared; None, as
    infinity, is as long as it takes.
    """

    k: int = 10
    by: str = "auto"
    conditions: tuple[AnyCondition, ...] = ()
    expand: str | None = None
    augment: bool = False
    rerank: str | None = None
    rerank_timeout_s: float | None = None
    min_probability: float = 0.0

    def __post_init__(self) -> None:
        if isinstance(self.k, bool) or not isinstance(self.k, int | np.integer) or self.k < 1:
            raise UsageError(
                f"k must be a whole number of at least 1, not {self.k}. Ask for as many hits as you want to see."
            )
        if self.by not in WAYS:
            raise UsageError(unknown_name("way to search", self.by, WAYS))
        if self.by == "local" and self.has_refiner:
            raise UsageError(
                "expand, augment and rerank follow a search by the descriptor: leave them out, or --by local."
            )
        if not 0 <= self.min_probability <= 1:
            raise UsageError(f"a probability lies between 0 and 1: min_probability cannot be {self.min_probability}.")
        find_expansion(self.expand)
        find_reranker(self.rerank)
        if math.isnan(self.timeout_s):
            raise UsageError("rerank_timeout_s must be a number of seconds, math.inf or None, not NaN.")

    @property
    def has_refiner(self) -> bool:
        return self.expand is not None or self.rerank is not None or self.augment

    @property
    def uses_parts(self) -> bool:
        """Whether local features are to be searched, where the gallery has them."""
        return self.by == "local" or (self.by == "auto" and not self.has_refiner)

    @property
    def timeout_s(self) -> float:
        return math.inf if self.rerank_timeout_s is None else self.rerank_timeout_s

    @property
    def local_reranker(self) -> Refiner | None:
        """The re-ranker that compares local features, after the descriptors have chosen whose."""
        found = find_reranker(self.rerank)
        return found if found is not None and found.compares == "local features" else None

    @property
    def num_candidates(self) -> int:
        """How many images the descriptors are to choose."""
        return self.k if self.local_reranker is None else max(self.k, self.local_reranker.depth)
