"""The OpenAPI schema: what FastAPI makes of the routes, with keys, groups, and problems under their own media type."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute

from tessera.serve.access import COOKIE
from tessera.serve.api import schemas
from tessera.serve.problems import MEDIA_TYPE

DESCRIPTION = """
Find the same place or object in one gallery of pictures, and see why.

Search with a picture (`POST /api/search`) or with one of the gallery (`GET /api/images/{image_id}/search`), with a box
on either; then ask why a hit was found (`POST /api/explain/{image_id}`). Pictures are known by ids; no address of this
API takes a path, and one gives it, to the service's own machine.

**Keys.** Where the service was started with a key, every address but `/health` and `/ready` asks for it, as
`Authorization: Bearer KEY`. Adding and removing ask for the writer's key.

**Errors** are `application/problem+json` (RFC 9457); `detail` says what was wrong and what to do. Each answer carries
`X-Request-ID`, the client's own if it sent one of letters, digits, `-` and `_`; the service's log has the same id.
"""
TAGS = [
    {"name": "search", "description": "Find pictures of the same place or object."},
    {"name": "why", "description": "What made two pictures similar, token by token; it adds up to the score."},
    {"name": "gallery", "description": "Look at what the gallery holds."},
    {"name": "organise", "description": "Groups of photos of one thing, and copies; nothing is moved or removed."},
    {"name": "write", "description": "Add and remove, with the writer's key."},
    {"name": "service", "description": "For those who run the service."},
]
KEYS = {
    "key": {"type": "http", "scheme": "bearer", "description": "The service's key, if it was started with one."},
    "cookie": {"type": "apiKey", "in": "cookie", "name": COOKIE, "description": "A session, as the page keeps it."},
    "writer_key": {"type": "http", "scheme": "bearer", "description": "The key of those who add and remove."},
}
OPEN = {"/health", "/ready", "/api/session"}
_READ: list[dict[str, list[str]]] = [{}, {"key": []}, {"cookie": []}]
_WRITE: list[dict[str, list[str]]] = [{"writer_key": []}]

_PROBLEMS = {
    400: "The body is no form, or ended before it was complete.",
    401: "A key is needed, or the one given is not accepted.",
    403: "The service was started without a writer's key, so nobody can write; or asked from elsewhere.",
    404: "There is no such picture.",
    408: "The body did not arrive in time.",
    409: "The gallery was changed by somebody else meanwhile. Try again.",
    410: "The picture's file has gone or changed since it was indexed.",
    413: "More bytes or pixels than the service admits.",
    415: "Not a picture that can be read.",
    422: "A value that cannot be meant; `detail` names it.",
    429: "Too many requests at once.",
    501: "Needs an optional part that this service was installed without.",
    503: "The gallery is being opened, is written by another process, or is out of order.",
    504: "It took longer than the service admits.",
    507: "The service's disk is full.",
}
_RETRY = {"Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer", "examples": [1]}}}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """How a route may fail, for its `responses`."""
    return {
        status: {"model": schemas.Problem, "description": _PROBLEMS[status]}
        | ({"headers": _RETRY} if status in (429, 503) else {})
        for status in statuses
    }


def name_operation(route: APIRoute) -> str:
    """The function's name: what a client made from the schema calls its method."""
    return route.name


def install(app: FastAPI) -> None:
    """Let the application give the finished schema at /openapi.json."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            _finish(FastAPI.openapi(app))  # which keeps what it made
        return FastAPI.openapi(app)

    app.openapi = openapi  # type: ignore[method-assign]


def _finish(schema: dict[str, Any]) -> None:
    schema["components"]["securitySchemes"] = KEYS
    for path, operations in schema["paths"].items():
        for operation in operations.values():
            if path not in OPEN:
                operation["security"] = _WRITE if "write" in operation.get("tags", ()) else _READ
            for status, response in operation["responses"].items():
                if status >= "400":
                    response["content"] = {MEDIA_TYPE: next(iter(response["content"].values()))}
