"""Searches share an index; a writer has it alone and is not starved."""

from __future__ import annotations

import threading

import pytest

from tessera.index.locks import SharedLock

WAIT_S = 10


def test_readers_share_and_a_writer_is_alone_and_goes_before_later_readers() -> None:
    lock, order = SharedLock(), []
    first_in, first_may_go, second_in = threading.Event(), threading.Event(), threading.Event()

    def read_first() -> None:
        with lock.shared():
            first_in.set()
            assert first_may_go.wait(WAIT_S)
            order.append("first reader")

    def read_second() -> None:
        with lock.shared():
            second_in.set()

    def write() -> None:
        with lock.alone():
            order.append("writer")

    def read_last() -> None:
        with lock.shared():
            order.append("last reader")

    first = threading.Thread(target=read_first)
    first.start()
    assert first_in.wait(WAIT_S)
    second = threading.Thread(target=read_second)
    second.start()
    assert second_in.wait(WAIT_S)  # beside the first
    second.join(WAIT_S)
    writer = threading.Thread(target=write)
    writer.start()
    while not lock._waiting:
        pass
    last = threading.Thread(target=read_last)
    last.start()
    last.join(0.2)
    assert order == []  # the writer waits for the first reader, the last reader for the writer
    first_may_go.set()
    for thread in (first, writer, last):
        thread.join(WAIT_S)
    assert order == ["first reader", "writer", "last reader"]


def test_a_search_that_fails_lets_go() -> None:
    lock = SharedLock()
    with pytest.raises(ValueError, match="no"), lock.shared():
        raise ValueError("no")
    with lock.alone():
        pass


def test_a_writer_that_is_interrupted_while_it_waits_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    lock = SharedLock()

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(lock._condition, "wait_for", interrupted)
        with lock.alone():
            pass
    reader = threading.Thread(target=lock.enter, daemon=True)
    reader.start()
    reader.join(WAIT_S)
    assert not reader.is_alive()
