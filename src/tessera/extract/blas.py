"""numpy's products on one thread, where they are small and every core has work already.

OpenBLAS starts a thread a core for each of them, which wait for one another: it took a fifth of indexing and a third of
a search.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

_ASKED_FOR = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


class _Limit:
    """On all of numpy's libraries, as long as anybody is inside."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._before: list[tuple[Any, int]] = []

    def enter(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._before = [(library, library.num_threads) for library in _libraries()]
                for library, _ in self._before:
                    library.set_num_threads(1)
            self._inside += 1

    def leave(self) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                for library, threads in self._before:
                    library.set_num_threads(threads)


_LIMIT = _Limit()


@contextlib.contextmanager
def one_blas_thread() -> Iterator[None]:
    """Inside the block, in all threads; what the environment asks for stands. Blocks of several threads may overlap."""
    if any(os.environ.get(name) for name in _ASKED_FOR):
        yield
        return
    _LIMIT.enter()
    try:
        yield
    finally:
        _LIMIT.leave()


@cache
def _libraries() -> list[Any]:
    """The BLAS that came with numpy; FAISS has another, whose products are large."""
    import numpy as np
    from threadpoolctl import ThreadpoolController

    home = str(Path(np.__file__).parent)  # its libraries lie in it, or beside it in numpy.libs
    return [
        library
        for library in ThreadpoolController().lib_controllers
        if library.user_api == "blas" and str(library.filepath).startswith((home + os.sep, home + ".libs"))
    ]
