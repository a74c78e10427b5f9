"""Threads for blocking work: so many a kind of work, first come first served, within a time limit."""

from __future__ import annotations

import asyncio
import contextvars
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, TypeVar

from tessera.serve.problems import ProblemError

T = TypeVar("T")
Lane = Literal["network", "search", "files", "writing"]


class Lanes:
    """One pool of threads for each kind of work, so that a burst of one kind does not hold up the others.

    A request that has waited too long is never begun. One that was begun cannot be stopped: it keeps its thread until
    it is done, so that late answers do not pile more work on the cores.
    """

    def __init__(self, cores: int, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        # The network's runs share the cores, so more at once only adds waiting; a search is one thread's work; files
        # wait for the disk; the gallery has one writer.
        counts: dict[Lane, int] = {"network": cores, "search": cores, "files": max(2, cores), "writing": 1}
        self._pools = {
            lane: ThreadPoolExecutor(count, f"tessera-{lane}", initializer=_search_alone)
            for lane, count in counts.items()
        }

    async def run(self, lane: Lane, call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """The call's answer, or a problem (504) when the time is over."""
        loop = asyncio.get_running_loop()
        work = functools.partial(contextvars.copy_context().run, call, *args, **kwargs)  # logs know their request
        running = loop.run_in_executor(self._pools[lane], work)
        try:
            return await asyncio.wait_for(running, self.timeout_s)
        except TimeoutError:
            raise ProblemError(504, f"This took longer than {self.timeout_s:g} s.") from None

    def close(self) -> None:
        """Begin nothing more. What runs is finished by its thread."""
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)


def _search_alone() -> None:
    """One core a search: two at once that both ask for all cores spend more time waiting than searching."""
    import faiss

    faiss.omp_set_num_threads(1)
