"""What a person says does not belong together: pairs of contents that neither copies nor groups are made of."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING

from tessera.errors import UsageError

if TYPE_CHECKING:
    from tessera.gallery.store import Store

_PREFIX = "apart:"


def pairs_apart(store: Store, kind: str) -> set[tuple[str, str]]:
    """Pairs of contents, by their hashes in order, that were taken apart. A content beside itself: its exact copies."""
    with store.catalog.read() as snapshot:
        return set(snapshot.compared_pairs(_PREFIX + kind))


def take_apart(store: Store, kind: str, ids: Sequence[int], image_id: int | None = None) -> None:
    """Write down that these images do not belong together, or that one does not belong to them; for the one writer.

    It is kept by contents: files may move, and what the pairs scored stays as it is.
    """
    with store.catalog.write() as batch:
        found = batch.records(list(ids) if image_id is None else [image_id, *ids])
        lacking = [wanted for wanted in (*ids, *([image_id] if image_id else [])) if wanted not in found]
        if lacking:
            raise UsageError(f"There is no image {lacking[0]} in this gallery.")
        unread = [str(image_id) for image_id, record in found.items() if record.state != "ok"]
        if unread:
            raise UsageError(f"The image {unread[0]} could not be read, so it is a copy of none and in no group.")
        contents = sorted({str(found[other].content_hash) for other in ids})
        if image_id is None:
            pairs = [*combinations(contents, 2), *((content, content) for content in contents)]
        else:
            own = str(found[image_id].content_hash)
            pairs = [(own, other) for other in contents if other != own]
        batch.add_compared_pairs(_PREFIX + kind, dict.fromkeys(pairs, 0.0))
        batch.changed = True
