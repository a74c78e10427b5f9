"""Which answers of Milvus are waited out and which are said at once. The errors are those that a server 2.3.5 gave."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tessera.errors import EngineUnavailableError, GalleryError, StorageError, UsageError
from tessera.gallery.engines import milvus_connection
from tessera.gallery.engines.milvus_connection import WAIT_VARIABLE, MilvusConnection

exceptions = pytest.importorskip("pymilvus.exceptions")
grpc = pytest.importorskip("grpc")

URI = "http://127.0.0.1:19530"
DOWN = (2, "Fail connecting to server on 127.0.0.1:19530, illegal connection params or server unavailable")
RECOVERING = (
    901,
    "failed to search: node not found[node=2]: stack trace: /go/pkg/tracer/stack_trace.go:51\nmain.go:3",
)
NOT_LOADED = (101, "failed to search: collection not loaded[collection=470548517576507550]")
UNRECOVERABLE = (65535, "unrecoverable error")  # of one that had recovered a second later
FULL = (9, "quota exceeded[reason=disk quota exceeded, please allocate more resources]")
WRONG = (65535, "failed to create query plan: cannot parse expression: year >, error: line 1:6 mismatched input")


@pytest.fixture
def connection() -> MilvusConnection:
    made = MilvusConnection(URI, wait_s=0.6)
    made._client = _Client()  # never asked for anything but to load
    return made


class _Client:
    loaded = 0

    def load_collection(self, *_: Any, **__: Any) -> None:
        self.loaded += 1


def failing(times: int, code: int, message: str) -> tuple[Callable[[Any], str], list[int]]:
    tries: list[int] = []

    def act(_: Any) -> str:
        tries.append(len(tries))
        if len(tries) <= times:
            raise exceptions.MilvusException(code, message)
        return "done"

    return act, tries


@pytest.mark.parametrize("error", [DOWN, RECOVERING, NOT_LOADED, UNRECOVERABLE])
def test_what_passes_is_tried_again(connection: MilvusConnection, error: tuple[int, str]) -> None:
    act, tries = failing(2, *error)
    assert connection.call(act, collection="photos") == "done"
    assert len(tries) == 3
    assert connection._client.loaded == (2 if error is NOT_LOADED else 0)


def test_what_does_not_pass_is_one_sentence_in_the_end(
    connection: MilvusConnection, caplog: pytest.LogCaptureFixture
) -> None:
    act, tries = failing(10**6, *RECOVERING)
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(EngineUnavailableError, match=r"did not answer for .* nothing is lost") as said,
    ):
        connection.call(act)
    assert 2 <= len(tries) < 10  # with pauses between
    assert "stack" not in str(said.value)
    assert "\n" not in str(said.value)
    assert ["trying again for up to" in record.message for record in caplog.records] == [True]
    again, tried = failing(10**6, *DOWN)
    with pytest.raises(EngineUnavailableError):
        connection.call(again)
    assert len(tried) == 1  # nobody is made to wait twice


@pytest.mark.parametrize(
    ("error", "kind", "sentence"),
    [(FULL, StorageError, r"has no room left \(quota"), (WRONG, GalleryError, "refused: failed to create query plan")],
)
def test_what_waiting_does_not_help_is_said_at_once(
    connection: MilvusConnection, error: tuple[int, str], kind: type[Exception], sentence: str
) -> None:
    act, tries = failing(1, *error)
    with pytest.raises(kind, match=sentence):
        connection.call(act)
    assert len(tries) == 1


class _GoneAway(grpc.RpcError):
    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return "Too many pings"


def test_a_file_whose_own_server_has_ended_an_idle_connection_is_asked_again(tmp_path: Path) -> None:
    """Milvus Lite answers the client's pings with "too many pings"; nothing else of a file passes."""
    file = MilvusConnection(str(tmp_path / "photos.db"), wait_s=0.6)
    file._client = _Client()
    tries: list[int] = []

    def act(_: Any) -> str:
        tries.append(len(tries))
        if len(tries) == 1:
            raise exceptions.MilvusException(*DOWN) from _GoneAway("Too many pings")
        return "done"

    assert file.call(act) == "done"
    assert milvus_connection._reason(_GoneAway("<an RPC that terminated with:")) == "Too many pings"
    with pytest.raises(GalleryError, match="refused: Fail connecting"):
        file.call(failing(1, *DOWN)[0])


def test_what_milvus_has_not_said_is_not_translated(connection: MilvusConnection) -> None:
    def act(_: Any) -> None:
        raise TypeError("a mistake in the program")

    with pytest.raises(TypeError, match="a mistake"):
        connection.call(act)
    with pytest.raises(GalleryError, match="refused: no such address"):
        connection.call(lambda _: _refuse())


def _refuse() -> None:
    raise exceptions.ConnectionConfigException(message="no such address")


def test_a_wait_that_is_no_number_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WAIT_VARIABLE, "soon")
    with pytest.raises(UsageError, match="'soon', which is no number"):
        MilvusConnection(URI, wait_s=1)
