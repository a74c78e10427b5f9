"""Keys: one that everybody gives when the service is not on loopback, and one for those who write."""

from __future__ import annotations

import hmac

from fastapi import Request

from tessera.serve.problems import ProblemError
from tessera.serve.settings import Settings

COOKIE = "tessera_key"


def matches(given: str | None, expected: str | None) -> bool:
    """Compare without telling by time how much was right."""
    return bool(given and expected) and hmac.compare_digest(str(given).encode(), str(expected).encode())


def given_key(request: Request) -> str | None:
    """From `Authorization: Bearer`, or the page's cookie (pictures on a page cannot send headers)."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token:
        return token
    return request.cookies.get(COOKIE)


async def require_reader(request: Request) -> None:
    settings: Settings = request.app.state.settings
    key = given_key(request)
    if settings.key is None or matches(key, settings.key) or matches(key, settings.writer_key):
        return
    raise ProblemError(401, "This service asks for a key: send it as `Authorization: Bearer KEY`.", _CHALLENGE)


async def require_writer(request: Request) -> None:
    settings: Settings = request.app.state.settings
    if settings.writer_key is None:
        raise ProblemError(403, "This service was started without a writer's key, so nothing can be added or removed.")
    if not matches(given_key(request), settings.writer_key):
        raise ProblemError(401, "Adding and removing need the writer's key.", _CHALLENGE)


_CHALLENGE = {"WWW-Authenticate": "Bearer"}
