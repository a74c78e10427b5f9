"""numpy on one thread: within the block alone, in all threads, and not where the environment says otherwise."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

SEEN = """
import numpy
from tessera.extract import blas
before = [library.num_threads for library in blas._libraries()]
with blas.one_blas_thread():
    with blas.one_blas_thread():
        pass
    inside = [library.num_threads for library in blas._libraries()]
print(before, inside, [library.num_threads for library in blas._libraries()])
"""


def run(**asked: str) -> str:
    names = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
    environment = {name: value for name, value in os.environ.items() if name not in names} | asked
    return subprocess.run(
        [sys.executable, "-c", SEEN], capture_output=True, text=True, check=True, env=environment
    ).stdout.strip()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core: numpy uses one thread anyway")
def test_numpy_uses_one_thread_inside_and_what_it_had_outside() -> None:
    before, inside, after = (part.strip("[]") for part in run().split("] ["))
    assert inside == "1"
    assert before == after and int(before) > 1


def test_what_the_environment_asks_for_stands() -> None:
    assert run(OPENBLAS_NUM_THREADS="2") == "[2] [2] [2]"


def test_blocks_of_several_threads_may_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    from tessera.extract import blas

    class Library:
        num_threads = 7

        def set_num_threads(self, number: int) -> None:
            self.num_threads = number

    library = Library()
    for name in blas._ASKED_FOR:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(blas, "_libraries", lambda: [library])
    entered, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with blas.one_blas_thread():
            entered.set()
            leave.wait(10)

    first = threading.Thread(target=hold)
    first.start()
    assert entered.wait(10)
    with blas.one_blas_thread():
        leave.set()
        first.join()
        assert library.num_threads == 1  # the first has left, this one has not
    assert library.num_threads == 7
