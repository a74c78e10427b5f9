"""Looking through a gallery without a query: pages in an order, months, folders, and where photos are from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tessera.errors import UsageError, unknown_name
from tessera.gallery.catalog import filters
from tessera.gallery.catalog.paths import from_blob
from tessera.gallery.catalog.records import Record
from tessera.gallery.catalog.snapshot import Snapshot

_DATE = "CAST(coalesce(json_extract(metadata, '$.date'), json_extract(facts, '$.date')) AS TEXT)"
_IS_DATED = f"{_DATE} GLOB '[0-9][0-9][0-9][0-9]-[0-9][0-9]*'"
_MONTH = f"CASE WHEN {_IS_DATED} THEN substr({_DATE}, 1, 7) ELSE '' END"
# By each order the key of an image, and whether keys fall. Pictures without a date come last either way.
ORDERS = {
    "added": ("images.id", False),
    "newest": (f"CASE WHEN {_IS_DATED} THEN {_DATE} ELSE '' END", True),
    "oldest": (f"CASE WHEN {_IS_DATED} THEN {_DATE} ELSE '~' END", False),
    "name": ("lower(tessera_name(images.path))", False),
}
_CELL = 50  # cells a degree: some two kilometres


@dataclass(frozen=True)
class Place:
    """Where several photos were taken: their mean position, how many, and one of them."""

    latitude: float
    longitude: float
    images: int
    cover: int


def sorted_page(
    snapshot: Snapshot,
    *,
    order: str,
    after_id: int,
    limit: int,
    conditions: Sequence[filters.AnyCondition],
    month: str | None = None,
) -> list[Record]:
    """At most `limit` images in an order of `ORDERS`, from the one after `after_id`; 0: from the first.

    month: only those of a month of `count_by_month`.
    """
    if order not in ORDERS:
        raise UsageError(unknown_name("order", order, list(ORDERS)))
    key, falls = ORDERS[order]
    clause, parameters = filters.to_sql(conditions)
    if month is not None:
        clause += f" AND {_MONTH} = ?"
        parameters.append(month)
    if after_id:
        last = next(snapshot.query(f"SELECT {key} FROM images WHERE id = ?", [after_id]), None)
        if last is None:
            raise UsageError(f"The image {after_id} has gone, so none comes after it. Begin again.")
        clause += f" AND ({key}, images.id) > (?, ?)" if not falls else f" AND ({key} < ? OR ({key} = ? AND id > ?))"
        parameters += [last[0], after_id] if not falls else [last[0], last[0], after_id]
    rows = snapshot.query(
        f"SELECT id FROM images WHERE state = 'ok' AND {clause} ORDER BY {key} {'DESC' if falls else ''}, id LIMIT ?",
        [*parameters, limit],
    )
    ids = [int(row[0]) for row in rows]
    found = snapshot.records(ids)
    return [found[image_id] for image_id in ids]


def count_by_month(snapshot: Snapshot, conditions: Sequence[filters.AnyCondition]) -> dict[str, int]:
    """How many images are from each month ("2019-06"), the last first; "" for those without a date, where there are."""
    clause, parameters = filters.to_sql(conditions)
    rows = snapshot.query(
        f"SELECT {_MONTH} AS month, count(*) "
        f"FROM images WHERE state = 'ok' AND {clause} GROUP BY month ORDER BY month DESC",
        parameters,
    )
    return dict(rows)


def count_by_folder(snapshot: Snapshot, without: bytes) -> dict[str, int]:
    """How many images lie in or below each folder, named from the one that holds them all. without: one to skip."""
    folders: Counter[bytes] = Counter()
    for (path,) in snapshot.query("SELECT path FROM images WHERE state = 'ok'"):
        folders[path.rpartition(b"/")[0]] += 1
    inside = without.rstrip(b"/") + b"/"
    kept = [folder.split(b"/") for folder in folders if not (folder + b"/").startswith(inside)]
    shared = 0
    while kept and all(len(parts) > shared and parts[shared] == kept[0][shared] for parts in kept):
        shared += 1
    counts: Counter[str] = Counter()
    for parts in kept:
        for end in range(shared + 1, len(parts) + 1):
            counts[from_blob(b"/".join(parts[shared:end]))] += folders[b"/".join(parts)]
    return dict(sorted(counts.items()))


def find_places(snapshot: Snapshot, most: int) -> list[Place]:
    """Where most photos were taken, in cells of some two kilometres."""
    at = {
        axis: f"tessera_number(coalesce(json_extract(metadata, '$.{axis}'), json_extract(facts, '$.{axis}')))"
        for axis in ("latitude", "longitude")
    }
    rows = snapshot.query(
        f"SELECT avg(y), avg(x), count(*), min(id) FROM (SELECT id, {at['latitude']} AS y, {at['longitude']} AS x "
        "FROM images WHERE state = 'ok') WHERE y BETWEEN -90 AND 90 AND x BETWEEN -180 AND 180 "
        f"GROUP BY round(y * {_CELL}), round(x * {_CELL}) ORDER BY count(*) DESC, min(id) LIMIT ?",
        [most],
    )
    return [Place(round(y, 5), round(x, 5), count, cover) for y, x, count, cover in rows]


def count_values(snapshot: Snapshot, values_a_key: int) -> dict[str, dict[str, int]]:
    """Every metadata key with its most frequent values and how many images have each."""
    rows = snapshot.query(
        # Days and places have nearly as many values as there are images: months are offered, places are not.
        "SELECT key, CASE key WHEN 'date' THEN substr(value, 1, 7) ELSE CAST(value AS TEXT) END, "
        "count(*) AS times FROM images, json_each(json_patch(coalesce(facts, '{}'), metadata)) "
        "WHERE state = 'ok' AND key NOT IN ('latitude', 'longitude') GROUP BY 1, 2 ORDER BY 1, times DESC, 2"
    )
    found: dict[str, dict[str, int]] = {}
    for key, value, times in rows:
        values = found.setdefault(key, {})
        if len(values) < values_a_key:
            values[value] = times
    return found
