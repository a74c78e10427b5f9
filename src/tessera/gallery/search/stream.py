"""Many queries in one run: described in bulk, ahead of the search, and answered in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from tessera.data.images import Source
from tessera.errors import TesseraError
from tessera.gallery.results import SearchResult
from tessera.gallery.search.query import Query, QueryPicture

if TYPE_CHECKING:
    from tessera.extract.extractor import Extractor

Answer = tuple[str, Query | TesseraError, SearchResult | TesseraError]
Search = Callable[[Sequence[QueryPicture]], list[SearchResult]]
_AT_ONCE = 32


class _Asked:
    """A query on its way: to be described, or with its outcome already."""

    def __init__(self, name: str, query: Query | TesseraError) -> None:
        self.name, self.query = name, query
        self.picture: QueryPicture | None = None
        self.error: TesseraError | None = query if isinstance(query, TesseraError) else None
        if not isinstance(query, TesseraError):
            try:
                self.picture = QueryPicture(query)
            except TesseraError as error:
                self.error = error


def stream_answers(
    queries: Iterable[tuple[str, Query | TesseraError]],
    extractor: Extractor,
    search: Search,
) -> Iterator[Answer]:
    """Answer queries in order; the network works ahead while some are searched for."""
    waiting: deque[_Asked] = deque()  # in order; those before the first that is with the network are ready
    ready: list[_Asked] = []

    def to_describe() -> Iterator[Source]:
        for name, query in queries:
            asked = _Asked(name, query)
            waiting.append(asked)
            if asked.picture is not None and (source := asked.picture.whole_picture) is not None:
                yield source

    for extraction in extractor.extract(to_describe()):
        while not _needs_network(asked := waiting.popleft()):
            ready.append(asked)
        assert asked.picture is not None
        if extraction.descriptor is None:
            asked.error = extraction.error
        else:
            asked.picture.was_described(extractor.fingerprint, extraction.descriptor)
        ready.append(asked)
        if len(ready) >= _AT_ONCE:
            yield from _answer(ready, search)
            ready = []
    yield from _answer([*ready, *waiting], search)


def _needs_network(asked: _Asked) -> bool:
    return asked.picture is not None and asked.picture.whole_picture is not None


def _answer(
    ready: Sequence[_Asked], search: Callable[[Sequence[QueryPicture]], list[SearchResult]]
) -> Iterator[Answer]:
    pictures = [asked.picture for asked in ready if asked.error is None and asked.picture is not None]
    results = iter(search(pictures) if pictures else [])
    for asked in ready:
        yield asked.name, asked.query, asked.error if asked.error is not None else next(results)
