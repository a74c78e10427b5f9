"""Photos of the same place or thing: verified matches, joined to groups that hold together.

Each image is compared by local features with its nearest by descriptor; pairs that were compared are remembered by
their contents, so another run compares only what is new. Groups are kept with the images: they survive a move of the
files, and another model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tessera.data.images import Pixels
from tessera.gallery.catalog.records import Record
from tessera.gallery.organise.apart import pairs_apart
from tessera.gallery.organise.compared_pairs import ComparedPairs, when_nobody_writes
from tessera.gallery.organise.components import Edges, join_components
from tessera.gallery.organise.duplicates import images_by_content, stored_descriptors
from tessera.gallery.organise.pair_reader import PairReader, order_pairs
from tessera.index.neighbours import neighbour_pairs
from tessera.local.colours import colour_difference
from tessera.local.verification import VerificationConfig

if TYPE_CHECKING:
    from tessera.gallery.store import Store

PAIR_KIND = "match"
_NEIGHBOURS = 20
_LEAST_COSINE = 0.2
_GEOMETRY = VerificationConfig(min_similarity=0.85, threshold_px=4.0, min_inliers=8)
# Inliers that make a match, those that alone may join two groups, and how many blocks may differ in colour; found on
# photos of instances (results/photos/linking.csv).
LEAST_INLIERS = 12
STRONG_INLIERS = 40
MOST_COLOUR_DIFFERENCE = 0.05
_BLOCK = 512
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class PhotoGroup:
    """Photos of one place or thing, the cover first: it agrees most with the others."""

    id: int
    images: tuple[Record, ...]

    @property
    def cover(self) -> Record:
        return self.images[0]

    def to_json(self) -> dict[str, Any]:
        images = [{"id": record.id, "path": record.path} for record in self.images]
        return {"group": self.id, "cover": images[0], "images": images}

    def _repr_html_(self) -> str:
        """A strip of pictures, for a notebook."""
        from tessera.explain.strip import strip_html

        return strip_html((record.path, "" if rank else "cover") for rank, record in enumerate(self.images))


def find_groups(store: Store, progress: Progress = lambda *_: None) -> list[PhotoGroup]:
    """Compare what was not compared before, join, and keep the groups. The gallery is locked only to write."""
    _compare(store, images_by_content(store, None), progress)

    def join() -> list[PhotoGroup]:
        with store.write():
            return join_groups(store)

    return when_nobody_writes(join)


def join_groups(store: Store) -> list[PhotoGroup]:
    """Make the groups of all pairs that were compared, but for those a person took apart; the caller is the writer."""
    by_content = images_by_content(store, None)
    contents = list(by_content)
    matches = _matches(store, contents)
    rows = join_components(len(contents), matches, LEAST_INLIERS, STRONG_INLIERS)
    inliers: Counter[int] = Counter()
    for pair, count in matches.items():
        for row in pair:
            inliers[row] += int(count)
    members = []
    for component in rows:
        central = sorted(component, key=lambda row: (-inliers[row], row))
        images = [record for row in central for record in by_content[contents[row]]]
        if len(images) > 1:
            members.append(images)
    members.sort(key=lambda images: (-len(images), images[0].path))
    numbers = _numbers(members)
    with store.catalog.write() as batch:
        batch.set_groups({n: [record.id for record in images] for n, images in zip(numbers, members, strict=True)})
    return read_groups(store)


def rejoin_groups(store: Store) -> None:
    """Put images that came back into their groups, by the pairs that were compared; where none were, there is none."""
    with store.write():
        with store.catalog.read() as snapshot:
            is_grouped = bool(snapshot.compared_pairs(PAIR_KIND))
        if is_grouped:
            join_groups(store)


def read_groups(store: Store) -> list[PhotoGroup]:
    """The groups as they were found last, the largest first."""
    with store.catalog.read() as snapshot:
        kept = snapshot.groups()
        records = snapshot.records([image_id for ids in kept.values() for image_id in ids])
    groups = [PhotoGroup(number, tuple(records[i] for i in ids)) for number, ids in kept.items() if len(ids) > 1]
    return sorted(groups, key=lambda group: (-len(group.images), group.id))


def read_group(store: Store, image_id: int) -> PhotoGroup | None:
    """The group that an image is in, as groups were found last."""
    with store.catalog.read() as snapshot:
        record = snapshot.records([image_id]).get(image_id)
        if record is None or record.group_id is None:
            return None
        ids = snapshot.group(record.group_id)
        records = snapshot.records(ids)
    return PhotoGroup(record.group_id, tuple(records[i] for i in ids)) if len(ids) > 1 else None


def _compare(store: Store, by_content: Mapping[str, Sequence[Record]], progress: Progress) -> None:
    """Count the inliers of pairs of neighbours that were not compared yet."""
    contents = list(by_content)
    compared = ComparedPairs(store, PAIR_KIND)
    firsts = [by_content[content][0] for content in contents]
    lacking = []
    if len(firsts) > 1:
        near = neighbour_pairs(stored_descriptors(store, firsts), _NEIGHBOURS, _LEAST_COSINE)
        pairs = zip(near.queries.tolist(), near.rows.tolist(), strict=True)
        lacking = order_pairs(pair for pair in pairs if compared.lacks(*(contents[row] for row in pair)))
    reader = PairReader({record.id: record for record in firsts})
    for start in range(0, len(lacking), _BLOCK):
        part = lacking[start : start + _BLOCK]
        pairs_of_ids = [(firsts[a].id, firsts[b].id) for a, b in part]
        found = zip(part, pairs_of_ids, _verify(reader, pairs_of_ids), strict=True)
        compared.add({(contents[a], contents[b]): float(score) for (a, b), ids, score in found if reader.has_read(ids)})
        progress(start + len(part), len(lacking))
    when_nobody_writes(compared.save)
    reader.warn()


def _matches(store: Store, contents: Sequence[str]) -> Edges:
    """The inliers of each pair of rows that was ever compared."""
    row_of = {content: row for row, content in enumerate(contents)}
    apart = pairs_apart(store, PAIR_KIND)
    with store.catalog.read() as snapshot:
        known = snapshot.compared_pairs(PAIR_KIND)
    return {
        (min(row_of[a], row_of[b]), max(row_of[a], row_of[b])): score
        for (a, b), score in known.items()
        if a in row_of and b in row_of and (a, b) not in apart
    }


def _verify(reader: PairReader, pairs: Sequence[tuple[int, int]]) -> list[int]:
    """The inliers of each pair; none where the shapes agree, but not the colours."""
    matches = reader.verify_pairs(pairs, _GEOMETRY)
    agreeing = [at for at, match in enumerate(matches) if match.inliers >= _GEOMETRY.min_inliers]

    def compare(at: int, first: Pixels, second: Pixels) -> float:
        match = matches[agreeing[at]]
        assert match.transformation is not None and match.points is not None
        return colour_difference(first, second, match.transformation, match.points)

    differences = reader.compare_pixels([pairs[at] for at in agreeing], compare, 1.0)
    inliers = [0] * len(pairs)
    for at, difference in zip(agreeing, differences, strict=True):
        if difference <= MOST_COLOUR_DIFFERENCE:
            inliers[at] = matches[at].inliers
    return inliers


def _numbers(members: Sequence[Sequence[Record]]) -> list[int]:
    """A number for each group: the one that most of its images had, unless a larger group has taken it."""
    taken: set[int] = set()
    highest = max((record.group_id or 0 for images in members for record in images), default=0)
    numbers = []
    for images in members:
        before = Counter(record.group_id for record in images if record.group_id is not None)
        number = next((number for number, _ in before.most_common() if number not in taken), None)
        if number is None:
            highest += 1
            number = highest
        taken.add(number)
        numbers.append(number)
    return numbers
