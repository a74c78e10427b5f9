"""One small explicit table a kind: models, losses, codecs, data sets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from tessera.errors import ConfigError, unknown_name

T = TypeVar("T")


class Registry(Generic[T]):
    """Names and their entries, in the order of registration; the same name twice is an error."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, T] = {}

    def add(self, name: str, entry: T) -> T:
        if name in self._entries:
            raise ConfigError(f"{self.kind} '{name}' is registered twice.")
        self._entries[name] = entry
        return entry

    def __getitem__(self, name: str) -> T:
        if name not in self._entries:
            raise ConfigError(unknown_name(self.kind, name, self._entries))
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def items(self) -> Iterator[tuple[str, T]]:
        return iter(self._entries.items())
