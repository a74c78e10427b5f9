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

    Strongest first. One image joins a group, or another image, by one edge. Two groups join where at least half as many
    edges lead from one to the other as the smaller has images, and two at least; a strong one will do for a group of
    two. So a chance match between two groups, or a thing that stands in one photo of each, does not make them one.
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
        smaller = min(len(members[a]), len(members[b]))
        is_easy = smaller == 1 or (smaller == 2 and -negative >= strong)
        if not is_easy and between[a, b] < max(2, (smaller + 1) // 2):
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
