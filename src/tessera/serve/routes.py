"""The API's addresses. Each route reads its request, calls the service in a thread, and gives the answer's schema."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, File, Path, Query, Request, Response, UploadFile
from fastapi.responses import JSONResponse
from starlette.requests import ClientDisconnect

from tessera.data.boxes import Box, parse_box
from tessera.errors import UsageError
from tessera.serve import schemas
from tessera.serve.access import COOKIE, matches, require_reader, require_writer
from tessera.serve.lanes import Lanes
from tessera.serve.problems import ProblemError
from tessera.serve.service import GalleryService
from tessera.serve.settings import Settings

MAX_ID = 2**63 - 1
PAGE_LIMIT = 500
CACHE_FOREVER = "private, max-age=31536000, immutable"

_PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": schemas.Problem, "content": {"application/problem+json": {}}, "description": text}
    for status, text in {
        400: "The request ended before its body was complete, or its body is no form.",
        401: "A key is needed, or the one given is not accepted.",
        403: "Writing is not enabled on this service.",
        404: "No such picture.",
        408: "The body did not arrive in time.",
        410: "The picture's file is gone.",
        413: "More bytes or pixels than the service admits.",
        415: "Not a picture that can be read.",
        422: "A value that cannot be meant; `detail` names it.",
        429: "Too many requests at once; see Retry-After.",
        501: "Needs an optional part that this service was installed without.",
        409: "The gallery was changed by somebody else meanwhile.",
        503: "The gallery is loading, being written or out of order; see Retry-After.",
        504: "It took longer than the service admits.",
    }.items()
}
api = APIRouter(prefix="/api", dependencies=[Depends(require_reader)], responses=_PROBLEMS)

ImageId = Annotated[int, Path(ge=1, le=MAX_ID, description="A picture's id, from any answer.")]


@dataclass(frozen=True)
class Serving:
    """What the routes work with, from the request: as dependencies of theirs it would cost a tenth of their time."""

    request: Request
    service: GalleryService
    lanes: Lanes
    settings: Settings

    @classmethod
    def of(cls, request: Request) -> Serving:
        state = request.app.state
        return cls(request, state.service, state.lanes, state.settings)

    async def run_network(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The call's answer, in the network's lane. Whoever goes away while waiting makes room for those behind.

        The request's body must have been read: all that can still come from the client is that it has gone.
        """
        work = asyncio.ensure_future(self.lanes.run("network", call, *args, **kwargs))
        gone = asyncio.ensure_future(_disconnected(self.request))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                work.cancel()
                await asyncio.wait({work})  # until it has left the queue
                raise ClientDisconnect
            return work.result()
        finally:
            work.cancel()
            gone.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def optional_box(text: str | None) -> Box | None:
    return parse_box(text) if text else None


def search_options(given: schemas.SearchOptions, settings: Settings) -> dict[str, Any]:
    """What the service is to search with. Re-ranking may take half of the request's time, waiting included."""
    if given.k > settings.max_k:
        raise UsageError(f"k is at most {settings.max_k} here, not {given.k}.")
    return {
        "k": given.k,
        "box": optional_box(given.box),
        "where": given.where,
        "expand": given.expand,
        "rerank": given.rerank,
        "rerank_until": time.monotonic() + settings.timeout_s / 2,
    }


async def read_upload(file: UploadFile, max_bytes: int) -> bytes:
    content = await file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ProblemError(413, "The picture is larger than the service admits. Send a smaller one.")
    if not content:
        raise ProblemError(415, "The file is empty: send a picture.")
    return content


@api.post("/search", response_model=schemas.SearchAnswer, tags=["search"], summary="Search by a picture")
async def search_by_upload(request: Request, form: Annotated[schemas.SearchForm, File()]) -> Any:
    at = Serving.of(request)
    options = search_options(form, at.settings)
    content = await read_upload(form.file, at.settings.max_bytes)
    return JSONResponse(await at.run_network(at.service.search, content, **options))


@api.get(
    "/images/{image_id}/search",
    response_model=schemas.SearchAnswer,
    tags=["search"],
    summary="Search by a gallery picture",
)
async def search_by_image(
    request: Request,
    image_id: ImageId,
    query: Annotated[schemas.SearchOptions, Query()],
) -> Any:
    at = Serving.of(request)
    options = search_options(query, at.settings)
    if query.box or query.rerank:
        answer = await at.run_network(at.service.search, image_id, **options)
    elif query.expand:
        answer = await at.lanes.run("search", at.service.search, image_id, **options)
    else:
        # Most are of this kind. The stored descriptor is the query, so those that wait are searched for together.
        where = tuple(query.where or ())
        answer = await at.lanes.run_together("search", at.service.search_ids, image_id, k=query.k, where=where)
    # A response of its own, since checking what the service made against the schema takes as long as the search.
    return JSONResponse(answer)


@api.post(
    "/explain/{image_id}",
    response_model=schemas.Explanation,
    tags=["why"],
    summary="Why a gallery picture resembles yours",
)
async def explain_upload(request: Request, image_id: ImageId, form: Annotated[schemas.BoxedForm, File()]) -> Any:
    at = Serving.of(request)
    content = await read_upload(form.file, at.settings.max_bytes)
    return await at.run_network(at.service.explain, content, optional_box(form.box), image_id)


@api.get(
    "/images/{image_id}/explain/{other_id}",
    response_model=schemas.Explanation,
    tags=["why"],
    summary="Why two gallery pictures are alike",
)
async def explain_images(
    request: Request, image_id: ImageId, other_id: ImageId, query: Annotated[schemas.Boxed, Query()]
) -> Any:
    at = Serving.of(request)
    return await at.run_network(at.service.explain, image_id, optional_box(query.box), other_id)


@api.get("/images", response_model=schemas.ImagePage, tags=["gallery"], summary="Browse the gallery")
async def browse(
    request: Request,
    after: Annotated[int, Query(ge=0, le=MAX_ID)] = 0,
    limit: Annotated[int, Query(ge=1, le=PAGE_LIMIT)] = 60,
    where: Annotated[list[str] | None, Query(description=schemas.WHERE)] = None,
) -> Any:
    at = Serving.of(request)
    return await at.lanes.run("files", at.service.browse, after=after, limit=limit, where=where or [])


@api.get("/images/{image_id}", response_model=schemas.Image, tags=["gallery"], summary="One picture's record")
async def image(request: Request, image_id: ImageId) -> Any:
    at = Serving.of(request)
    return await at.lanes.run("files", at.service.image, image_id)


@api.get("/images/{image_id}/thumbnail", tags=["gallery"], response_class=Response, summary="A small JPEG")
async def thumbnail(request: Request, image_id: ImageId) -> Response:
    at = Serving.of(request)
    return _picture(request, *await at.lanes.run("files", at.service.thumbnail, image_id))


@api.get(
    "/images/{image_id}/file",
    tags=["gallery"],
    response_class=Response,
    summary="The picture, upright, as a JPEG for the screen",
)
async def image_file(request: Request, image_id: ImageId) -> Response:
    at = Serving.of(request)
    return _picture(request, *await at.lanes.run("files", at.service.display, image_id))


def _picture(request: Request, content: bytes, tag: str) -> Response:
    headers = {"ETag": f'"{tag}"', "Cache-Control": CACHE_FOREVER}
    if request.headers.get("if-none-match") == headers["ETag"]:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type="image/jpeg", headers=headers)


@api.get("/facets", response_model=schemas.Facets, tags=["gallery"], summary="Metadata to filter by")
async def facets(request: Request) -> Any:
    at = Serving.of(request)
    return {"facets": await at.lanes.run("files", at.service.facets)}


@api.get("/stats", response_model=schemas.Stats, tags=["gallery"], summary="What the gallery holds")
async def stats(request: Request) -> Any:
    at = Serving.of(request)
    return await at.lanes.run("files", at.service.stats)


@api.post(
    "/images", response_model=schemas.Image, status_code=201, tags=["write"], dependencies=[Depends(require_writer)]
)
async def add_image(request: Request, form: Annotated[schemas.NewImage, File()]) -> Any:
    """Add a picture: it is kept below the gallery and found by the next search."""
    at = Serving.of(request)
    content = await read_upload(form.file, at.settings.max_bytes)
    pairs = [entry.partition("=") for entry in form.metadata or []]
    if any(not key or not equals for key, equals, _ in pairs):
        raise UsageError("metadata must be KEY=VALUE.")
    values = {key: value for key, _, value in pairs}
    return await at.lanes.run("writing", at.service.add, form.file.filename or "picture", content, values)


@api.delete("/images/{image_id}", status_code=204, tags=["write"], dependencies=[Depends(require_writer)])
async def remove_image(request: Request, image_id: ImageId) -> Response:
    """Take a picture out of the gallery. A file that was indexed in place stays on disk."""
    at = Serving.of(request)
    await at.lanes.run("writing", at.service.remove, image_id)
    return Response(status_code=204)


open_routes = APIRouter(responses={503: _PROBLEMS[503]})


@open_routes.get("/health", response_model=schemas.Health, tags=["service"], summary="Is the process alive?")
async def health() -> Any:
    return {"status": "ok"}


@open_routes.get("/ready", response_model=schemas.Health, tags=["service"], summary="Can it answer searches?")
async def ready(request: Request) -> Any:
    at = Serving.of(request)
    if not at.service.is_ready:
        raise ProblemError(503, at.service.loading_note, {"Retry-After": "1"})
    return {"status": "ready"}


@open_routes.post(
    "/api/session", status_code=204, tags=["service"], responses={401: _PROBLEMS[401], 422: _PROBLEMS[422]}
)
async def open_session(request: Request, session: schemas.Session) -> Response:
    """Exchange the key for a cookie, for the page."""
    at = Serving.of(request)
    if at.settings.key is not None and not (
        matches(session.key, at.settings.key) or matches(session.key, at.settings.writer_key)
    ):
        raise ProblemError(401, "That key is not accepted.", {"WWW-Authenticate": "Bearer"})
    response = Response(status_code=204)
    if session.key.isascii() and session.key.isprintable():
        response.set_cookie(COOKIE, session.key, httponly=True, samesite="strict", max_age=30 * 86400)
    return response
