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
    EngineUnavailableError,
    GalleryDamagedError,
    GalleryError,
    GalleryLockedError,
    GalleryMismatchError,
    ImageError,
    ImageLimitError,
    IndexingError,
    MissingExtraError,
    StorageError,
    TesseraError,
    UsageError,
)

MEDIA_TYPE = "application/problem+json"
log = logging.getLogger("tessera.serve")

# The first match decides. Messages of these errors speak of the request alone ...
_STATUS: list[tuple[type[TesseraError], int]] = [
    (ImageLimitError, 413),
    (ImageError, 415),
    (UsageError, 422),
    (ConfigError, 422),
    (MissingExtraError, 501),
]
# ... and those of every other one name this machine's files: they stay in the log, and the client gets a sentence.
_PRIVATE: list[tuple[type[TesseraError], int, str]] = [
    (GalleryLockedError, 503, "The gallery is being written by another process. Try again in a moment."),
    (EngineUnavailableError, 503, "The server that searches does not answer. Try again in a moment."),
    (GalleryMismatchError, 503, "The gallery was made with another model. The service's log says what to do."),
    (GalleryDamagedError, 503, "The gallery cannot be read. The service's log says why."),
    (GalleryError, 409, "The gallery was changed by somebody else meanwhile. Try again."),
    (IndexingError, 503, "The gallery was described anew, and its index is being made. Try again in a moment."),
    (StorageError, 507, "The service's disk is full or cannot be written. Nothing that was stored is lost."),
    (TesseraError, 500, "The service could not answer this. Its log says why."),
]


# Where the framework only repeats the title.
_SENTENCES = {
    404: "There is nothing at this address. The schema, openapi.json, lists those there are.",
    405: "This address does not take this method; the Allow header names those it takes.",
}


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


def _what_is_wrong(fault: dict[str, Any]) -> str:
    """The framework's finding about one value, as a sentence: which value, and what it should be."""
    name = ".".join(str(part) for part in fault["loc"][1:]) or "the body"
    if fault["type"] == "json_invalid":
        return "The body is no JSON."
    if fault["type"] == "missing":
        return f"{name} is missing."
    if name == "file":
        return "file is to be a picture, sent as a file of a form (multipart form-data)."
    said = str(fault["msg"]).removeprefix("Input ")
    return f"{name} {said}." if said.startswith("should") else f"{name}: {said}."


def install(app: FastAPI) -> None:
    """Make every error of the application a problem."""

    @app.exception_handler(ProblemError)
    async def answer_problem(request: Request, error: ProblemError) -> JSONResponse:
        return problem_response(error.status, error.detail, error.headers)

    @app.exception_handler(HTTPException)
    async def answer_http(request: Request, error: HTTPException) -> JSONResponse:
        detail = _SENTENCES.get(error.status_code, str(error.detail))
        return problem_response(error.status_code, detail, dict(error.headers or {}))

    @app.exception_handler(RequestValidationError)
    async def answer_validation(request: Request, error: RequestValidationError) -> JSONResponse:
        return problem_response(422, _what_is_wrong(error.errors()[0]))

    @app.exception_handler(TesseraError)
    async def answer_tessera(request: Request, error: TesseraError) -> JSONResponse:
        for kind, status in _STATUS:
            if isinstance(error, kind):
                return problem_response(status, str(error))
        log.error("%s", error)
        status, sentence = next((status, text) for kind, status, text in _PRIVATE if isinstance(error, kind))
        return problem_response(status, sentence, {"Retry-After": "5"} if status != 500 else None)

    @app.exception_handler(ClientDisconnect)
    async def answer_nobody(request: Request, error: ClientDisconnect) -> JSONResponse:
        return problem_response(400, "The request ended before its body was complete.")
