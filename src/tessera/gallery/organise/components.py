"""Connected components of pairs, and those that hold together: a chain of look-alikes is no group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TypeAlias

Edges: TypeAlias = Mapping[tuple[int, int], float]

_MOST_COUNTED = 20  # an image is compared with so many neighbours


def connected_components(count: int, edges: Iterable[tuple[int, int]]) -> list[list[int]]:
    """The rows of each component, ascending, single ones included."""
    parent = list(range(count))

    def root(row: int) -> int:
        while parent[row] != row:
            parent[row] = parent[parent[row]]
            row = parent[row]
        return row

    for first, second in edges:
        a, b = root(first), root(second)
        parent[max(a, b)] = min(a, b)
    members: dict[int, list[int]] = {}
    for row in range(count):
        members.setdefault(root(row), []).append(row)
    return list(members.values())


def join_components(count: int, edges: Edges, least: float, strong: float) -> list[list[int]]:
    """Components of the edges of `least` and more, with a limit on chaining.

    Strongest first. Two groups join where a quarter of all pairs of one and the other match: a chance match, a thing
    that stands in one photo of each, or what one brand prints on all it sells does not make them one. Nobody is
    compared with everybody, so a large group counts as one of `_MOST_COUNTED`. Groups of several images need two edges;
    where one has only two, a strong edge will do.
    """
    accepted = sorted((-score, pair) for pair, score in edges.items() if score >= least)
    group_of = list(range(count))
    members = {row: [row] for row in range(count)}
    between: Counter[tuple[int, int]] = Counter()
    for negative, (first, second) in accepted:
        a, b = sorted((group_of[first], group_of[second]))
        if a == b:
            continue
        between[a, b] += 1
        smaller, larger = sorted((len(members[a]), len(members[b])))
        quarter = smaller * min(larger, _MOST_COUNTED) / 4
        is_easy = smaller == 1 or (smaller == 2 and -negative >= strong)
        if between[a, b] < max(quarter, 1 if is_easy else 2):
            continue
        for row in members[b]:
            group_of[row] = a
        members[a] += members.pop(b)
        for (c, d), times in list(between.items()):
            if b in (c, d):
                other = d if c == b else c
                if other != a:
                    between[min(a, other), max(a, other)] += times
                del between[c, d]
    return [sorted(rows) for rows in members.values()]
