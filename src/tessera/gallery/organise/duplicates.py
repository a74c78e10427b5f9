"""Exact and near copies of pictures, in groups, and which of them to keep.

Candidates come from two sides. Descriptors find copies that were cut, framed or written on; signatures find those that
were turned or mirrored, which descriptors take for other pictures. What remains is laid over each other and compared
pixel by pixel (`local.alignment`), by the symmetry that the signatures say or the transformation that local features
agree on. Pairs that were compared are remembered by their contents.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tessera.data.images import Pixels
from tessera.data.signature import SIDE, is_framed, make_signature, symmetry
from tessera.errors import GalleryLockedError, ImageError
from tessera.gallery.catalog.records import Record
from tessera.gallery.catalog.snapshot import stored_dim
from tessera.gallery.ingest.reading import load_indexed
from tessera.gallery.organise.apart import pairs_apart
from tessera.gallery.organise.compared_pairs import ComparedPairs, when_nobody_writes
from tessera.gallery.organise.components import connected_components
from tessera.gallery.organise.pair_reader import PairReader, order_pairs
from tessera.index.neighbours import NeighbourSearch, neighbour_pairs
from tessera.local.alignment import NOTHING, Agreement, compare_aligned, symmetry_transformation
from tessera.local.verification import VerificationConfig

if TYPE_CHECKING:
    from tessera.gallery.store import Store

PAIR_KIND = "copy"
_TOGETHER_NS = 3600 * 10**9
_NEVER_NS = 1 << 63  # a file without a usable time is never taken for the original
_NEIGHBOURS = 8
_AT_ONCE = 256  # pairs between two reports of progress, which are written down together
_LEAST_COSINE = 0.6  # of descriptors
_LEAST_LIKENESS = 0.85  # of signatures
_LAID_DOWN = {0: 0, 1: 3, 2: 2, 4: 4}  # symmetries that people make, with their inverses: as it is, turned, mirrored
_GEOMETRY = VerificationConfig(
    min_similarity=0.85, model="affinity", threshold_px=3.0, min_inliers=8, max_zoom=6.0, max_stretch=1.5
)
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Copy:
    """A picture that shows what the kept one shows. exact: byte for byte; agreement: correlation of their pixels."""

    record: Record
    exact: bool
    agreement: float


@dataclass(frozen=True)
class CopyGroup:
    """Pictures that are copies of each other: which to keep, why, and the rest."""

    keep: Record
    reason: str
    copies: tuple[Copy, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "keep": {"id": self.keep.id, "path": self.keep.path},
            "reason": self.reason,
            "copies": [
                {
                    "id": copy.record.id,
                    "path": copy.record.path,
                    "kind": "exact" if copy.exact else "near",
                    "agreement": round(copy.agreement, 3),
                }
                for copy in self.copies
            ],
        }

    def _repr_html_(self) -> str:
        """A strip of pictures, for a notebook."""
        from tessera.explain.strip import strip_html

        kept = (self.keep.path, f"keep: {self.reason}")
        return strip_html([kept, *((copy.record.path, "exact" if copy.exact else "near") for copy in self.copies)])


def find_duplicates(
    store: Store, ids: Sequence[int] | None = None, progress: Progress = lambda *_: None
) -> list[CopyGroup]:
    """Groups of copies, the largest first. ids: only among these images.

    Writes down which pairs were compared; the gallery is locked only for that.
    """
    by_content = images_by_content(store, ids)
    contents = list(by_content)  # one picture of each content stands for all
    firsts = [same[0] for same in by_content.values()]
    compared = ComparedPairs(store, PAIR_KIND)
    candidates, symmetries = _candidates(store, firsts)
    lacking = [(a, b) for a, b in candidates if compared.lacks(contents[a], contents[b])]
    reader = PairReader({record.id: record for record in firsts})
    for scores in _compare(reader, lacking, symmetries, [record.id for record in firsts], progress):
        compared.add({(contents[a], contents[b]): score for (a, b), score in scores.items()})
    when_nobody_writes(compared.save)
    reader.warn()
    return read_duplicates(store, ids)


def read_duplicates(store: Store, ids: Sequence[int] | None = None) -> list[CopyGroup]:
    """Groups of copies by the pairs that were compared before, without those that a person took apart."""
    by_content = images_by_content(store, ids)
    contents = list(by_content)
    row_of = {content: row for row, content in enumerate(contents)}
    apart = pairs_apart(store, PAIR_KIND)
    edges = {
        (row_of[a], row_of[b]): score
        for (a, b), score in _known_pairs(store).items()
        if score > 0 and a in row_of and b in row_of and (a, b) not in apart
    }
    best: dict[int, float] = {}
    for pair, score in edges.items():
        for row in pair:
            best[row] = max(score, best.get(row, 0.0))
    joined = [
        {row: by_content[contents[row]] for row in rows}
        for rows in connected_components(len(contents), edges)
        if len(rows) > 1 or (len(by_content[contents[rows[0]]]) > 1 and (contents[rows[0]],) * 2 not in apart)
    ]
    with store.catalog.read() as snapshot:
        signatures = snapshot.signatures([r.id for members in joined for same in members.values() for r in same])
    framed = {image_id for image_id, signature in signatures.items() if is_framed(signature)}
    groups = [_group(members, best, framed) for members in joined]
    return sorted(groups, key=lambda group: (-len(group.copies), group.keep.path))


def read_records(store: Store, ids: Sequence[int] | None) -> list[Record]:
    """These images, or all that can be searched, by their ids."""
    with store.catalog.read() as snapshot:
        chosen = np.concatenate([*snapshot.stream_ids(), np.empty(0, np.int64)]) if ids is None else np.asarray(ids)
        found = snapshot.records([int(image_id) for image_id in chosen])
    return [found[image_id] for image_id in sorted(found)]


def images_by_content(store: Store, ids: Sequence[int] | None) -> dict[str, list[Record]]:
    """These images, or all, by the hash of what they hold."""
    found: dict[str, list[Record]] = {}
    for record in read_records(store, ids):
        found.setdefault(str(record.content_hash), []).append(record)
    return found


def _candidates(store: Store, records: Sequence[Record]) -> tuple[list[tuple[int, int]], dict[tuple[int, int], int]]:
    """Pairs of rows of `records` that may be copies, and of those that signatures found, by which symmetry."""
    if len(records) < 2:
        return [], {}
    near = neighbour_pairs(stored_descriptors(store, records), _NEIGHBOURS, _LEAST_COSINE)
    symmetries = _turned_pairs(_signatures(store, records))
    pairs = {(int(a), int(b)) for a, b in zip(near.queries, near.rows, strict=True)} | symmetries.keys()
    return sorted(pairs), symmetries


def stored_descriptors(store: Store, records: Sequence[Record]) -> npt.NDArray[np.float16]:
    """N D of these images, in half precision: at 100,000 every other form is felt."""
    rows = {record.id: row for row, record in enumerate(records)}
    with store.catalog.read() as snapshot:
        vectors = np.zeros((len(records), stored_dim(snapshot)), np.float16)
        for ids, part in snapshot.stream_descriptors():
            wanted = [(position, rows[i]) for position, i in enumerate(ids.tolist()) if i in rows]
            vectors[[row for _, row in wanted]] = part[[position for position, _ in wanted]]
    return vectors


def _signatures(store: Store, records: Sequence[Record]) -> npt.NDArray[np.float32]:
    """N SIDE SIDE of zero mean and unit norm; made now where indexing did not, zero where there is nothing to see."""
    with store.catalog.read() as snapshot:
        stored = snapshot.signatures([record.id for record in records])
    made: dict[int, bytes] = {}
    for record in records:
        if record.id not in stored:
            try:
                made[record.id] = make_signature(load_indexed(record, 256))
            except ImageError:
                continue
    if made:
        with contextlib.suppress(GalleryLockedError), store.write(), store.catalog.write() as batch:
            batch.set_signatures(made)
    blank = bytes(SIDE * SIDE)
    raw = b"".join(stored.get(record.id) or made.get(record.id, blank) for record in records)
    squares = np.frombuffer(raw, np.uint8).reshape(len(records), -1).astype(np.float32)
    squares -= squares.mean(axis=1, keepdims=True)
    norms = np.linalg.norm(squares, axis=1, keepdims=True)
    squares /= np.maximum(norms, 1e-6)
    return squares.reshape(len(records), SIDE, SIDE)


def _turned_pairs(squares: npt.NDArray[np.float32]) -> dict[tuple[int, int], int]:
    """Pairs of rows whose signatures are alike when the first is turned or mirrored, and by which symmetry."""
    count = len(squares)
    search = NeighbourSearch(squares.reshape(count, -1))
    best: dict[tuple[int, int], tuple[float, int]] = {}
    for number, inverse in _LAID_DOWN.items():
        turned = np.ascontiguousarray(symmetry(squares, number)).reshape(count, -1)
        found = search.search(turned, _NEIGHBOURS + 1, _LEAST_LIKENESS)
        for a, b, score in zip(found.queries.tolist(), found.rows.tolist(), found.scores.tolist(), strict=True):
            pair, way = ((a, b), number) if a < b else ((b, a), inverse)
            if a != b and score > best.get(pair, (0.0, 0))[0]:
                best[pair] = score, way
    return {pair: way for pair, (_, way) in best.items()}


def _compare(
    reader: PairReader,
    pairs: Sequence[tuple[int, int]],
    symmetries: dict[tuple[int, int], int],
    image_ids: Sequence[int],
    progress: Progress,
) -> Iterator[dict[tuple[int, int], float]]:
    """The agreement of each pair, 0 for those that are no copies; in pieces."""
    total = len(pairs)

    def check(part: Sequence[tuple[int, int]], transformations: Sequence[Any]) -> dict[tuple[int, int], float]:
        named = [(image_ids[a], image_ids[b]) for a, b in part]

        def compare(at: int, first: Pixels, second: Pixels) -> Agreement:
            return compare_aligned(first, second, transformations[at])

        agreements = reader.compare_pixels(named, compare, NOTHING)
        return {pair: one.correlation for pair, one in zip(part, agreements, strict=True) if one.is_copy}

    straight = order_pairs(pair for pair in pairs if pair in symmetries)
    copies: set[tuple[int, int]] = set()
    for start in range(0, len(straight), _AT_ONCE):
        part = straight[start : start + _AT_ONCE]
        found = check(part, [symmetry_transformation(symmetries[pair]) for pair in part])
        yield found
        copies |= found.keys()
        progress(len(copies), total)
    rest = order_pairs(pair for pair in pairs if pair not in copies)
    for start in range(0, len(rest), _AT_ONCE):
        part = rest[start : start + _AT_ONCE]
        matches = reader.verify_pairs([(image_ids[a], image_ids[b]) for a, b in part], _GEOMETRY)
        fitting = [
            (pair, match.transformation)
            for pair, match in zip(part, matches, strict=True)
            if match.transformation is not None and match.inliers >= _GEOMETRY.min_inliers
        ]
        found = check([pair for pair, _ in fitting], [transformation for _, transformation in fitting])
        scores = dict.fromkeys(part, 0.0) | found
        yield {(a, b): score for (a, b), score in scores.items() if reader.has_read((image_ids[a], image_ids[b]))}
        progress(total - len(rest) + start + len(part), total)


def _known_pairs(store: Store) -> dict[tuple[str, str], float]:
    with store.catalog.read() as snapshot:
        return snapshot.compared_pairs(PAIR_KIND)


def _group(
    members: Mapping[int, Sequence[Record]], agreement: Mapping[int, float], framed: Container[int]
) -> CopyGroup:
    """One group of the pictures of each content, by row. agreement: how far each row agrees with another of them."""
    keep, reason = choose_original((record for same in members.values() for record in same), framed)
    copies = []
    for row, same in members.items():
        is_exact = same[0].content_hash == keep.content_hash
        score = 1.0 if is_exact else agreement[row]
        copies += [Copy(record, is_exact, score) for record in same if record is not keep]
    return CopyGroup(keep, reason, tuple(copies))


def choose_original(records: Iterable[Record], framed: Container[int] = ()) -> tuple[Record, str]:
    """The picture to keep: the one that still says which camera took it, then the largest, the oldest, the longest.

    framed: ids of those that stand in a plain frame, which is what makes them larger; they come after the others.
    Files that were written within an hour of one another may have been copied together: none of them is older.
    """
    candidates = list(records)
    questions: list[tuple[str, Callable[[Record], Any]]] = [
        ("it still has its camera's data", lambda record: "camera" in record.metadata),
        ("it has no frame", lambda record: record.id not in framed),
        ("it is the largest", lambda record: (record.width or 0) * (record.height or 0)),
        ("it is the oldest", lambda record: _time_of(record) < oldest + _TOGETHER_NS),
        ("its file is the largest", lambda record: record.size),
        ("its path is the shortest", lambda record: (-len(record.path), [-ord(letter) for letter in record.path])),
    ]
    for reason, measure in questions:
        oldest = min(map(_time_of, candidates))
        values = [measure(record) for record in candidates]
        most = max(values)
        if any(value != most for value in values):
            candidates = [record for record, value in zip(candidates, values, strict=True) if value == most]
            if len(candidates) == 1:
                return candidates[0], reason
    return candidates[0], "they are alike in everything"


def _time_of(record: Record) -> int:
    return record.mtime_ns if record.mtime_ns > 0 else _NEVER_NS
