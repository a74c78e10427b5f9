"""Keys: one that everybody gives when the service is not on loopback, and one for those who write.

A page cannot send a header with a picture, so it exchanges its key for a cookie once. The cookie is a session's, signed
by this process and valid for twelve hours: a stolen cookie is not the key.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from typing import Literal

from fastapi import Request

from tessera.serve.problems import ProblemError
from tessera.serve.settings import Settings

COOKIE = "tessera_session"
SESSION_S = 12 * 3600
Role = Literal["reader", "writer"]


def matches(given: str | None, expected: str | None) -> bool:
    """Compare without telling by time how much was right."""
    return bool(given and expected) and hmac.compare_digest(str(given).encode(), str(expected).encode())


class Sessions:
    """Cookies of this process: a role, when it ends, and a signature."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)

    def open(self, role: Role) -> str:
        content = f"{role}.{int(time.time()) + SESSION_S}"
        return f"{content}.{self._sign(content)}"

    def role_of(self, cookie: str) -> Role | None:
        content, _, signature = cookie.rpartition(".")
        role, _, end = content.partition(".")
        if not matches(signature, self._sign(content)) or int(end) < time.time():
            return None
        return "writer" if role == "writer" else "reader"

    def _sign(self, content: str) -> str:
        return hmac.new(self._secret, content.encode(errors="replace"), hashlib.sha256).hexdigest()


def role_of_key(key: str | None, settings: Settings) -> Role | None:
    if matches(key, settings.writer_key):
        return "writer"
    return "reader" if matches(key, settings.key) else None


def _role(request: Request) -> Role | None:
    """Whom the request is from, by `Authorization: Bearer` or by the page's cookie."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token:
        return role_of_key(token, request.app.state.settings)
    sessions: Sessions = request.app.state.sessions
    role = sessions.role_of(request.cookies.get(COOKIE, ""))
    if role is not None and request.method not in ("GET", "HEAD"):
        _refuse_other_origins(request)
    return role


def _refuse_other_origins(request: Request) -> None:
    """A browser sends the cookie along from a page on another port of this machine, too: for it, that is one site."""
    origin = request.headers.get("origin")
    if origin is not None and origin.partition("://")[2] != request.headers.get("host"):
        raise ProblemError(403, "A page of another origin asked for this. Use the service's own page, or send the key.")


async def require_reader(request: Request) -> None:
    settings: Settings = request.app.state.settings
    if settings.key is None or _role(request) is not None:
        return
    raise ProblemError(401, "This service asks for a key: send it as `Authorization: Bearer KEY`.", _CHALLENGE)


async def require_own_machine(request: Request) -> None:
    """For routes that only clients on this machine may use, and no page of another origin."""
    settings: Settings = request.app.state.settings
    if not settings.is_own_machine:
        raise ProblemError(403, "This is for the machine that the service runs on, where it answers that one alone.")
    _refuse_other_origins(request)


async def require_organiser(request: Request) -> None:
    """For finding groups and copies, and taking them apart: the writer, or a client on this machine."""
    settings: Settings = request.app.state.settings
    await (require_own_machine if settings.is_own_machine else require_writer)(request)


async def require_writer(request: Request) -> None:
    settings: Settings = request.app.state.settings
    if settings.writer_key is None:
        raise ProblemError(403, "This service was started without a writer's key, so nothing can be changed.")
    if _role(request) != "writer":
        raise ProblemError(401, "Adding, removing and sorting need the writer's key.", _CHALLENGE)


_CHALLENGE = {"WWW-Authenticate": "Bearer"}
