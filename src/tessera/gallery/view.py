"""What one search sees: the catalogue at one moment, and the index that shows it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tessera.gallery.catalog.records import Ids
from tessera.gallery.catalog.snapshot import Snapshot
from tessera.gallery.engines.engine import Allowed, Index, Shown


@dataclass(frozen=True)
class View:
    """Pinned by `Store.pin` for the length of a search, whatever others write meanwhile.

    shown: the index, of the snapshot's moment; of an earlier one where a service answers before it has caught up. Both
    hold descriptors of one model, dim numbers each.
    """

    snapshot: Snapshot
    shown: Shown
    dim: int

    @property
    def index(self) -> Index:
        return self.shown.index

    @property
    def is_current(self) -> bool:
        """Whether the index was pinned at the snapshot's own moment."""
        return self.shown.generation == self.snapshot.generation

    def most_found(self, allowed: Allowed | None) -> int:
        """As many images as a search can find at most; not counted where the index filters by itself."""
        if allowed is None or self.shown.can_filter(allowed.conditions):
            return self.index.size
        return min(self.index.size, len(allowed))

    def descriptors(self, ids: Ids) -> npt.NDArray[np.float32]:
        """Stored descriptors K D; zeros for an image that was removed a moment ago."""
        found = self.snapshot.descriptors(ids.tolist())
        rows = np.zeros((len(ids), self.dim), np.float32)
        for row, image_id in enumerate(ids.tolist()):
            if image_id in found:
                rows[row] = found[image_id]
        return rows
