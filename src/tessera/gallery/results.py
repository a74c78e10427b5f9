"""What a gallery answers with: hits, reports and progress."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, overload


@dataclass(frozen=True)
class Hit:
    """One image found. rank: zero-based; score: what the hits are ordered by, 1 for the same image.

    The score is the probability where there is one, else the inner product of unit descriptors. probability: that the
    image shows the same thing. verified: whether geometry confirms it, with so many inliers; None where local features
    were not compared. parts: the scores that the probability was worked out from. width, height: of the upright
    picture, where they are known.
    """

    rank: int
    id: int
    path: str
    score: float
    metadata: dict[str, Any]
    inliers: int | None = None
    width: int | None = None
    height: int | None = None
    probability: float | None = None
    verified: bool | None = None
    parts: dict[str, float] | None = None

    def to_json(self) -> dict[str, Any]:
        answer = {
            "rank": self.rank,
            "id": self.id,
            "path": self.path,
            "score": self.score,
            "metadata": self.metadata,
        }
        more = {
            "probability": self.probability,
            "verified": self.verified,
            "inliers": self.inliers,
            "parts": self.parts,
        }
        return answer | {key: value for key, value in more.items() if value is not None}


class SearchResult(Sequence[Hit]):
    """The hits, best first, and how long it took: `timing_ms` has the keys embed, search and total.

    certain: whether the collection surely shows what was asked for; None where nothing was calibrated (by the
    descriptor alone). degrees: by how many the query had to be turned, counter-clockwise, to be found.
    """

    def __init__(
        self,
        hits: Sequence[Hit],
        timing_ms: dict[str, float],
        notes: Sequence[str] = (),
        *,
        certain: bool | None = None,
        degrees: int = 0,
    ) -> None:
        self.hits = list(hits)
        self.timing_ms = timing_ms
        self.notes = list(notes)
        self.certain = certain
        self.degrees = degrees

    @overload
    def __getitem__(self, index: int) -> Hit: ...
    @overload
    def __getitem__(self, index: slice) -> list[Hit]: ...
    def __getitem__(self, index: int | slice) -> Hit | list[Hit]:
        return self.hits[index]

    def __len__(self) -> int:
        return len(self.hits)

    def __iter__(self) -> Iterator[Hit]:
        return iter(self.hits)

    def __repr__(self) -> str:
        return f"SearchResult({self.hits!r})"

    def _repr_html_(self) -> str:
        """A strip of pictures, for a notebook."""
        from tessera.explain.strip import hits_html

        return hits_html(self)

    def to_json(self) -> dict[str, Any]:
        answer: dict[str, Any] = {"results": [hit.to_json() for hit in self.hits], "timing_ms": self.timing_ms}
        if self.certain is not None:
            answer["certain"] = self.certain
        if self.notes:
            answer["notes"] = self.notes
        return answer


@dataclass(frozen=True)
class Problem:
    """A file, a folder or a line that was passed over, and why."""

    path: str
    reason: str


@dataclass(frozen=True)
class IndexProgress:
    """How far an index run is: of `total` files that are new or changed, `done` are stored."""

    done: int
    total: int
    failed: int


@dataclass
class IndexReport:
    """What an index run did. Every count is of files; `problems` holds the first of them with their reasons."""

    images: int = 0
    added: int = 0
    changed: int = 0
    unchanged: int = 0
    moved: int = 0  # same content, another path, the old file gone: the same image
    reused: int = 0
    redescribed: int = 0  # by another model, in a rebuild
    failed: int = 0
    failed_before: int = 0
    vanished: int = 0
    pruned: int = 0
    passed_over: int = 0
    ignored: int = 0  # removed on purpose before
    remarks: int = 0  # on pictures that were taken all the same
    metadata_given: int = 0  # pictures that a list or the caller said something of
    metadata_read: int = 0  # pictures whose files said something of themselves
    seconds: float = 0.0
    others: Counter[str] = field(default_factory=Counter)  # videos and pictures that are not read, by their endings
    problems: list[Problem] = field(default_factory=list)
    local: dict[str, Any] | None = None  # what became of the local features, where they were asked for

    MAX_PROBLEMS = 100

    def add_problem(self, path: str, reason: str) -> None:
        if len(self.problems) < self.MAX_PROBLEMS:
            self.problems.append(Problem(path, reason))

    def add_remark(self, path: str, reason: str) -> None:
        """Something to say of a picture that was taken all the same."""
        self.remarks += 1
        self.add_problem(path, reason)

    @property
    def found(self) -> int:
        """How many pictures the sources held."""
        return self.added + self.changed + self.moved + self.unchanged + self.failed + self.failed_before

    def to_json(self) -> dict[str, Any]:
        answer: dict[str, Any] = {
            "images": self.images,
            "found": self.found,
            "added": self.added,
            "changed": self.changed,
            "moved": self.moved,
            "unchanged": self.unchanged,
            "reused": self.reused,
            "redescribed": self.redescribed,
            "failed": self.failed,
            "failed_before": self.failed_before,
            "vanished": self.vanished,
            "pruned": self.pruned,
            "passed_over": self.passed_over,
            "ignored": self.ignored,
            "others": dict(self.others),
            "metadata": {"given": self.metadata_given, "read": self.metadata_read},
            "seconds": round(self.seconds, 3),
            "problems": [{"path": problem.path, "reason": problem.reason} for problem in self.problems],
        }
        return answer if self.local is None else {**answer, "local": self.local}
