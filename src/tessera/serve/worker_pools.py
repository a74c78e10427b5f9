"""Threads for blocking work: so many a kind of work, first come first served, within a time limit."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
from collections import defaultdict
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal, TypeVar

from tessera.serve.problems import ProblemError

MOST_TOGETHER = 8  # more gain little, and the first of them waits for the last

T = TypeVar("T")
PoolName = Literal["network", "search", "files", "writing"]


class WorkerPools:
    """One pool of threads for each kind of work, so that a burst of one kind does not hold up the others.

    A request that has waited too long is never begun. One that was begun cannot be stopped: it keeps its thread until
    it is done, so that late answers do not pile more work on the cores.
    """

    def __init__(self, cores: int, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        # The network's runs share the cores, so more at once only add waiting, and each holds the maps of a picture; a
        # search is one thread's work; files wait for the disk; the gallery has one writer.
        counts: dict[PoolName, int] = {
            "network": max(1, cores // 2),
            "search": cores,
            "files": max(2, cores),
            "writing": 1,
        }
        self._pools = {
            name: ThreadPoolExecutor(count, f"tessera-{name}", initializer=_search_alone)
            for name, count in counts.items()
        }
        self._waiting: defaultdict[Hashable, list[tuple[Any, Future[Any]]]] = defaultdict(list)
        self._waiting_lock = threading.Lock()

    async def run(self, pool: PoolName, call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """The call's answer, or a problem (504) when the time is over."""
        work = functools.partial(contextvars.copy_context().run, call, *args, **kwargs)  # logs know their request
        late = " What was begun is finished all the same: look before you try again." if pool == "writing" else ""
        return await self._within_time(self._pools[pool].submit(work), late)

    async def run_together(
        self, pool: PoolName, call: Callable[..., list[Any]], item: object, **shared: Hashable
    ) -> Any:
        """What `call([item], **shared)` answers to the item, where calls that wait at once are made as one.

        call: takes a list of items and gives for each, in order, its answer or the exception to raise.
        """
        kind = (call, *sorted(shared.items()))
        answer: Future[Any] = Future()
        with self._waiting_lock:
            self._waiting[kind].append((item, answer))
        self._pools[pool].submit(self._answer_waiting, kind, functools.partial(call, **shared))
        return await self._within_time(answer)

    def _answer_waiting(self, kind: Hashable, call: Callable[[list[Any]], list[Any]]) -> None:
        """Answer those that have waited longest, one batch a call; every item has a call submitted for it."""
        with self._waiting_lock:
            batch, rest = self._waiting[kind][:MOST_TOGETHER], self._waiting[kind][MOST_TOGETHER:]
            self._waiting[kind] = rest
            if not rest:
                del self._waiting[kind]
        batch = [(item, answer) for item, answer in batch if answer.set_running_or_notify_cancel()]
        if not batch:
            return
        try:
            found = call([item for item, _ in batch])
        except Exception as error:
            found = [error] * len(batch)
        for (_, answer), value in zip(batch, found, strict=True):
            if isinstance(value, Exception):
                answer.set_exception(value)
            else:
                answer.set_result(value)

    async def _within_time(self, running: Future[T], late: str = "") -> T:
        try:
            return await asyncio.wait_for(asyncio.wrap_future(running), self.timeout_s)
        except TimeoutError:
            raise ProblemError(504, f"This took longer than {self.timeout_s:g} s.{late}") from None

    def close(self) -> None:
        """Begin nothing more. What runs is finished by its thread."""
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)
        with self._waiting_lock:
            for waiting in self._waiting.values():
                for _, answer in waiting:
                    answer.cancel()


def _search_alone() -> None:
    """One core a search: two at once that both ask for all cores spend more time waiting than searching."""
    import faiss

    faiss.omp_set_num_threads(1)
