"""Errors as problem+json (RFC 9457): a title, a sentence, a status; never a path of this machine, never a trace."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from tessera.errors import (
    ConfigError,
    GalleryLockedError,
    ImageError,
    ImageLimitError,
    MissingExtraError,
    StorageError,
    TesseraError,
    UsageError,
)

MEDIA_TYPE = "application/problem+json"
log = logging.getLogger("tessera.serve")

# The first match decides. Messages of these errors speak of the request alone; every other one stays in the log.
_STATUS: list[tuple[type[TesseraError], int]] = [
    (ImageLimitError, 413),
    (ImageError, 415),
    (UsageError, 422),
    (ConfigError, 422),
    (MissingExtraError, 501),
    (GalleryLockedError, 503),
    (StorageError, 507),
]
_PRIVATE = (GalleryLockedError, StorageError)


class ProblemError(Exception):
    """Raised by a route to answer with a problem."""

    def __init__(self, status: int, detail: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = headers


def problem_response(status: int, detail: str, headers: dict[str, str] | None = None) -> JSONResponse:
    body: dict[str, Any] = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
    }
    return JSONResponse(body, status, headers, MEDIA_TYPE)


def install(app: FastAPI) -> None:
    """Make every error of the application a problem."""

    @app.exception_handler(ProblemError)
    async def answer_problem(request: Request, error: ProblemError) -> JSONResponse:
        return problem_response(error.status, error.detail, error.headers)

    @app.exception_handler(HTTPException)
    async def answer_http(request: Request, error: HTTPException) -> JSONResponse:
        return problem_response(error.status_code, str(error.detail), dict(error.headers or {}))

    @app.exception_handler(RequestValidationError)
    async def answer_validation(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return problem_response(422, f"{where}: {first['msg']}")

    @app.exception_handler(TesseraError)
    async def answer_tessera(request: Request, error: TesseraError) -> JSONResponse:
        for kind, status in _STATUS:
            if isinstance(error, kind):
                if kind in _PRIVATE:
                    log.error("%s", error, extra={"request_id": request.scope.get("request_id")})
                    return problem_response(status, _public_sentence(kind), {"Retry-After": "5"})
                return problem_response(status, str(error))
        log.error("%s", error, extra={"request_id": request.scope.get("request_id")})
        return problem_response(500, "The service could not answer this. Its log says why.")

    @app.exception_handler(ClientDisconnect)
    async def answer_nobody(request: Request, error: ClientDisconnect) -> JSONResponse:
        return problem_response(400, "The request ended before its body was complete.")

    @app.exception_handler(Exception)
    async def answer_fault(request: Request, error: Exception) -> JSONResponse:
        log.exception("fault", exc_info=error, extra={"request_id": request.scope.get("request_id")})
        return problem_response(500, "The service could not answer this. Its log says why.")


def _public_sentence(kind: type[TesseraError]) -> str:
    if kind is StorageError:
        return "The service's disk is full or cannot be written. Nothing that was stored is lost."
    return "The gallery is being written by another process. Try again in a moment."
