"""What a search is asked to do, checked before anything is opened or decoded."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tessera.errors import UsageError
from tessera.gallery.catalog.filters import AnyCondition
from tessera.refiners import Refiner, find_expansion, find_reranker


@dataclass(frozen=True)
class SearchOptions:
    """rerank_timeout_s: how long local features may be compared; None, as infinity, is as long as it takes."""

    k: int = 10
    conditions: tuple[AnyCondition, ...] = ()
    expand: str | None = None
    augment: bool = False
    rerank: str | None = None
    rerank_timeout_s: float | None = None

    def __post_init__(self) -> None:
        if isinstance(self.k, bool) or not isinstance(self.k, int | np.integer) or self.k < 1:
            raise UsageError(
                f"k must be a whole number of at least 1, not {self.k}. Ask for as many hits as you want to see."
            )
        find_expansion(self.expand)
        find_reranker(self.rerank)
        if math.isnan(self.timeout_s):
            raise UsageError("rerank_timeout_s must be a number of seconds, math.inf or None, not NaN.")

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
