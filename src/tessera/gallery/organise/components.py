"""Connected components of pairs, and those that hold together: a chain of look-alikes is no group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TypeAlias

Edges: TypeAlias = Mapping[tuple[int, int], float]


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

    Strongest first. One image joins a group, or another image, by one edge; two groups join by a strong edge or by two
    edges between them. So one chance match between two groups does not make them one.
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
        is_single = min(len(members[a]), len(members[b])) == 1
        if not (is_single or -negative >= strong or between[a, b] >= 2):
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
