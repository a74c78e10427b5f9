"""The application on a socket: uvicorn, with timeouts for clients that never finish a request."""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from tessera.errors import UsageError
from tessera.serve.app import create_app
from tessera.serve.problems import problem_response
from tessera.serve.settings import Settings

GRACE_S = 10  # a stopping service lets requests finish for so long
LEAST_TAKEN = 64 << 10  # bytes of an answer, in `stall_timeout_s`


def _connections_at_most() -> int:
    """Half of the files that the process may open: the other half is for pictures and the catalogue."""
    try:
        import resource
    except ImportError:  # Windows
        return 1000
    return max(32, min(10_000, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2))


class PatientProtocol(H11Protocol):
    """Closes a connection whose request's head does not arrive in time, or that takes nothing of an answer.

    uvicorn itself waits for ever, so that a few thousand half-open connections would use up the process's files, and a
    hundred that read nothing its memory. Bodies of requests have a limit of their own.
    """

    head_timeout_s = 10.0
    stall_timeout_s = 30.0
    _stall: asyncio.TimerHandle | None = None
    max_connections = _connections_at_most()
    _watch: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch_head()
        if len(self.connections) > self.max_connections:
            self._make_room()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_head()

    def eof_received(self) -> None:
        """Nothing more will come. Who still listens is told that the body was not complete."""
        if self.conn.their_state is h11.SEND_BODY and self.conn.our_state is h11.SEND_RESPONSE:
            self.send_400_response("The request ended before its body was complete.")

    def send_400_response(self, msg: str) -> None:
        """To what is no HTTP at all: a problem, as every other error."""
        answer = problem_response(400, msg, {"Connection": "close"})
        with contextlib.suppress(h11.LocalProtocolError):  # an answer has begun: only the end can be told
            for event in (
                h11.Response(status_code=400, headers=answer.raw_headers, reason=b"Bad Request"),
                h11.Data(data=bytes(answer.body)),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stall is not None:
            self._stall.cancel()

    def _watch_reader(self, unsent: float = math.inf) -> None:
        """Look whether the client takes what waits for it. unsent: how many bytes there were at the last look."""
        waiting = self.transport.get_write_buffer_size()
        if unsent - waiting < LEAST_TAKEN:
            self.transport.abort()
        else:
            self._stall = self.loop.call_later(self.stall_timeout_s, self._watch_reader, waiting)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_watching()
        if self._stall is not None:
            self._stall.cancel()
        super().connection_lost(exc)

    def _watch_head(self) -> None:
        if self.conn.their_state is not h11.IDLE:
            self._stop_watching()
        elif self._watch is None:
            self._watch = self.loop.call_later(self.head_timeout_s, self.transport.close)

    def _make_room(self) -> None:
        """Close the connection that has waited longest for its request's head: itself, if no other waits."""
        waiting = [
            (other._watch.when(), id(other), other.transport)
            for other in self.connections
            if isinstance(other, PatientProtocol) and other._watch and not other.transport.is_closing()
        ]
        min(waiting)[2].close()

    def _stop_watching(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None


def listen(settings: Settings) -> socket.socket:
    """A socket at the address of the settings; port 0 takes a free one."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return socket.create_server((settings.host, settings.port), family=family, backlog=2048)
    except OSError as error:
        raise UsageError(
            f"The service cannot listen on {settings.host}, port {settings.port}: {error.strerror or error}. "
            "Choose another with --host or --port."
        ) from error


def make_server(settings: Settings) -> uvicorn.Server:
    """A server for the socket from `listen`: `make_server(settings).run([listen(settings)])`."""
    return uvicorn.Server(
        uvicorn.Config(
            create_app(settings),
            http=PatientProtocol,
            ws="none",
            access_log=False,
            log_config=None,  # ours: uvicorn's own would write lines that are no JSON
            log_level="warning",
            timeout_graceful_shutdown=GRACE_S,
        )
    )
