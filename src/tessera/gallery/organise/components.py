"""Connected components of pairs, and those that hold together: a chain of look-alikes is no group."""

from __future__ import annotations

from collections.abc import Iterable


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
