"""Addresses for those who run the service, and the page's way in: health, readiness, metrics, the key's cookie."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import PlainTextResponse

from tessera.serve.access import COOKIE, SESSION_S, require_reader, role_of_key
from tessera.serve.api import schemas
from tessera.serve.api.openapi import problems
from tessera.serve.observing.metrics import CONTENT_TYPE
from tessera.serve.problems import ProblemError

status_routes = APIRouter(tags=["service"])


@status_routes.get("/health", response_model=schemas.Health, summary="Is the process alive?")
async def health() -> Any:
    """Answers as long as the process does, whatever state the gallery is in."""
    return {"status": "ok"}


@status_routes.get("/ready", response_model=schemas.Health, responses=problems(503), summary="Can it answer searches?")
async def ready(request: Request) -> Any:
    """503 until the gallery is open."""
    service = request.app.state.service
    if not service.is_ready:
        raise ProblemError(503, service.loading_note, {"Retry-After": "1"})
    return {"status": "ready"}


@status_routes.get(
    "/metrics",
    response_class=PlainTextResponse,
    responses=problems(401, 504),
    dependencies=[Depends(require_reader)],
    summary="Counters for Prometheus",
)
async def metrics(request: Request) -> PlainTextResponse:
    """Requests by route and status, their durations as a histogram, and gauges, in Prometheus' text format."""
    state = request.app.state
    gauges = {"in_flight": float(state.in_flight.count), "ready": float(state.service.is_ready)}
    if state.service.is_ready:
        stats = await state.pools.run("files", state.service.stats)
        gauges["images"] = float(stats["images"])
    return PlainTextResponse(state.metrics.render(gauges), media_type=CONTENT_TYPE)


@status_routes.post(
    "/api/session",
    status_code=204,
    responses=problems(400, 401, 408, 413, 422, 429),
    summary="Exchange the key for a cookie",
)
async def open_session(request: Request, session: schemas.Session) -> Response:
    """For the page: pictures on it cannot send headers. Scripts cannot read the cookie."""
    state = request.app.state
    role = role_of_key(session.key, state.settings)
    if role is None and state.settings.key is not None:
        raise ProblemError(401, "That key is not accepted.", {"WWW-Authenticate": "Bearer"})
    response = Response(status_code=204)
    if role is not None:
        is_secure = "https" in (request.url.scheme, request.headers.get("x-forwarded-proto"))
        cookie = state.sessions.open(role)
        response.set_cookie(
            COOKIE,
            cookie,
            SESSION_S,
            path=state.settings.root_path or "/",
            httponly=True,
            samesite="strict",
            secure=is_secure,
        )
    return response
