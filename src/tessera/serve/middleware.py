"""What surrounds every request: an id, a log line, metrics, security headers, and limits on bodies and on their number.

Plain ASGI: streaming answers and cancelled clients pass through without buffering.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import random
import re
import time

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tessera.serve.observing import logs
from tessera.serve.observing.metrics import Metrics
from tessera.serve.problems import problem_response

log = logging.getLogger("tessera.serve.access")
faults = logging.getLogger("tessera.serve")

_SANE_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_BODILESS = {"GET", "HEAD", "OPTIONS", "DELETE"}
_METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
SECURITY_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' blob: data:; style-src 'self'; script-src 'self'; "
        "object-src 'none'; base-uri 'none'; frame-ancestors 'none'; form-action 'self'"
    ),
}


class AnswerHead:
    """Answer HEAD as GET without the body: what looks whether the service lives asks that way."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            return await self.app(scope, receive, send)

        async def send_head(message: Message) -> None:
            await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

        return await self.app({**scope, "method": "GET"}, receive, send_head)


class UnderPrefix:
    """Serve the same addresses under a prefix, whether a proxy has taken it off a request's path or left it."""

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self.app = app
        self.prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.prefix and scope["type"] == "http":
            kept = f"{scope['path']}/".startswith(f"{self.prefix}/")
            scope = {**scope, "root_path": self.prefix, "path": scope["path"] if kept else self.prefix + scope["path"]}
        await self.app(scope, receive, send)


class Observe:
    """Give each request an id, write one structured line about it, count it."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _SANE_ID.fullmatch(given) else f"{random.getrandbits(64):016x}"
        logs.request_id.set(request_id)
        started, status = time.perf_counter(), 0

        async def send_marked(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Request-ID"] = request_id
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            await self.app(scope, receive, send_marked)
        except Exception as error:  # here and not outside, so that this answer, too, has its id and its headers
            faults.error("fault", exc_info=error)
            if status:
                raise
            await problem_response(500, "The service could not answer this. Its log says why.")(
                scope, receive, send_marked
            )
        finally:
            seconds = time.perf_counter() - started
            # The route's pattern and a known method, never what was sent: ten thousand wrong addresses must not become
            # ten thousand series.
            route = getattr(scope.get("route"), "path", "unmatched")
            method = scope["method"] if scope["method"] in _METHODS else "other"
            self.metrics.observe(method, route, status, seconds)
            fields = {"method": method, "route": route, "status": status, "ms": round(seconds * 1000, 2)}
            log.info("answered" if status else "not answered", extra={"fields": fields})


class RefuseHosts:
    """Answer 421 to a foreign name in the Host header, where no key is asked.

    A page on the internet may let its own name point to this machine (DNS rebinding), and would then read the gallery
    through its visitor's browser. It cannot do that with an address in numbers or a name without a dot.
    """

    def __init__(self, app: ASGIApp, own: str) -> None:
        self.app = app
        self.own = own.lower()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._is_own(Headers(scope=scope).get("host", "")):
            detail = "Without a key, this service answers to this machine's own names only. Start it with --key."
            return await problem_response(421, detail)(scope, receive, send)
        return await self.app(scope, receive, send)

    def _is_own(self, host: str) -> bool:
        name = re.sub(r":\d*$", "", host).strip("[].").lower()
        if "." not in name or name == self.own or name.endswith(".localhost"):
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


class InFlight:
    """How many requests are being answered; shared with the metrics. Those with a body are counted by themselves."""

    def __init__(self) -> None:
        self.counts = {"with a body": 0, "without": 0}

    @property
    def count(self) -> int:
        return sum(self.counts.values())


class LimitInFlight:
    """Answer 429 beyond so many requests at once, rather than let all of them become slow.

    Those with a body have a count of their own: uploads that hang must not keep others from looking and searching.
    Health, readiness and the page's own files are let through: they cost nothing and must answer under load.
    """

    def __init__(self, app: ASGIApp, gauge: InFlight, limit: int, prefix: str = "/api/") -> None:
        self.app = app
        self.gauge = gauge
        self.limit = limit
        self.prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not _path_below_root(scope).startswith(self.prefix):
            return await self.app(scope, receive, send)
        counts, kind = self.gauge.counts, "without" if scope["method"] in _BODILESS else "with a body"
        if counts[kind] >= self.limit:
            response = problem_response(
                429,
                f"The service is answering {self.limit} requests already. Try again in a second.",
                {"Retry-After": "1"},
            )
            return await response(scope, receive, send)
        counts[kind] += 1
        holding = True

        def give_back() -> None:
            nonlocal holding
            if holding:
                holding = False
                counts[kind] -= 1

        async def send_counted(message: Message) -> None:
            # Before the last piece goes out: a client that has its whole answer may ask again at once.
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                give_back()
            await send(message)

        try:
            await self.app(scope, receive, send_counted)
        finally:
            give_back()


def _path_below_root(scope: Scope) -> str:
    """The address as the routes know it, without the prefix of `UnderPrefix`."""
    return str(scope["path"]).removeprefix(scope.get("root_path", ""))


class _BodyRefusedError(Exception):
    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


class LimitBody:
    """Refuse a body that is too large (413) or that does not arrive in time (408)."""

    def __init__(self, app: ASGIApp, max_bytes: int, timeout_s: float) -> None:
        self.app = app
        # A multipart body is a little larger than the file it carries.
        self.max_bytes = max_bytes + 64 * 1024
        self.timeout_s = timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD", "OPTIONS"):
            return await self.app(scope, receive, send)
        too_large = f"The body is larger than {self.max_bytes >> 20} MiB. Send a smaller picture."
        length = Headers(scope=scope).get("content-length", "")
        if length.isdecimal() and int(length) > self.max_bytes:
            return await self._refuse(_BodyRefusedError(413, too_large), scope, receive, send)
        deadline = time.monotonic() + self.timeout_s
        received, complete, started = 0, False, False
        refusal: _BodyRefusedError | None = None

        async def receive_limited() -> Message:
            nonlocal received, complete, refusal
            if complete:
                return await receive()  # only a disconnect can follow; it may take its time
            try:
                message = await asyncio.wait_for(receive(), max(0.0, deadline - time.monotonic()))
            except TimeoutError:
                refusal = _BodyRefusedError(408, f"The body did not arrive within {self.timeout_s:g} s.")
                raise refusal from None
            if message["type"] == "http.request":
                received += len(message.get("body", b""))
                complete = not message.get("more_body", False)
                if received > self.max_bytes:
                    refusal = _BodyRefusedError(413, too_large)
                    raise refusal
            return message

        async def send_noted(message: Message) -> None:
            nonlocal started
            if refusal is not None and not started:
                return  # whatever a body parser made of the refusal, the client gets the refusal itself
            started = True
            await send(message)

        with contextlib.suppress(_BodyRefusedError):
            await self.app(scope, receive_limited, send_noted)
        if refusal is not None and not started:
            await self._refuse(refusal, scope, receive, send)
        return None

    async def _refuse(self, refusal: _BodyRefusedError, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer when the client has sent the rest, for a while: most read no answer before they have sent all.

        One that asks first (`Expect: 100-continue`) is told at once: reading on would invite it to send.
        """
        if refusal.status == 413 and "expect" not in Headers(scope=scope):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(_discard_body(receive, most=4 * self.max_bytes), self.timeout_s)
        await problem_response(refusal.status, refusal.detail, {"Connection": "close"})(scope, receive, send)


async def _discard_body(receive: Receive, most: int) -> None:
    while most > 0:
        message = await receive()
        if message["type"] != "http.request" or not message.get("more_body", False):
            return
        most -= len(message.get("body", b""))
