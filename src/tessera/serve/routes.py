"""The API's addresses. Each route reads its request, calls the service in a thread, and gives the answer's schema."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar

import anyio
import anyio.to_thread
from fastapi import APIRouter, Depends, File, Form, Path, Query, Request, Response, UploadFile

from tessera.data.boxes import Box, parse_box
from tessera.errors import UsageError
from tessera.serve import schemas
from tessera.serve.access import COOKIE, matches, require_reader, require_writer
from tessera.serve.problems import ProblemError
from tessera.serve.service import GalleryService

T = TypeVar("T")

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
        503: "The gallery is loading or being written; see Retry-After.",
        504: "It took longer than the service admits.",
    }.items()
}
api = APIRouter(prefix="/api", dependencies=[Depends(require_reader)], responses=_PROBLEMS)

ImageId = Annotated[int, Path(ge=1, le=MAX_ID, description="A picture's id, from any answer.")]
BoxText = Annotated[
    str | None, Query(description="x0,y0,x1,y1 in pixels of the upright picture.", examples=["10,20,300,400"])
]
Count = Annotated[int, Query(ge=1, description="How many results.")]
Filters = Annotated[list[str] | None, Query(description="KEY=VALUE, also with !=, >=, <=, > and <; all must hold.")]
ExpandBy = Literal["aqe", "diffusion"]
RerankBy = Literal["global", "sp", "dsm", "lightglue"]
Expand = Annotated[ExpandBy | None, Query(description="Query expansion.")]
Rerank = Annotated[RerankBy | None, Query(description="Re-ranking of the best.")]


def service_of(request: Request) -> GalleryService:
    service: GalleryService = request.app.state.service
    return service


Service = Annotated[GalleryService, Depends(service_of)]


async def in_thread(request: Request, lane: str, call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Run blocking work in its lane: so many threads a kind of work, first come first served, within the time limit."""
    settings = request.app.state.settings
    with anyio.move_on_after(settings.timeout_s) as scope:
        return await anyio.to_thread.run_sync(
            functools.partial(call, *args, **kwargs), limiter=request.app.state.lanes[lane], abandon_on_cancel=True
        )
    assert scope.cancelled_caught
    raise ProblemError(504, f"This took longer than {settings.timeout_s:g} s.")


def optional_box(text: str | None) -> Box | None:
    return parse_box(text) if text else None


def checked_k(request: Request, k: int) -> int:
    most = request.app.state.settings.max_k
    if k > most:
        raise UsageError(f"k is at most {most} here, not {k}.")
    return k


async def read_upload(request: Request, file: UploadFile) -> bytes:
    content = await file.read(request.app.state.settings.max_bytes + 1)
    if len(content) > request.app.state.settings.max_bytes:
        raise ProblemError(413, "The picture is larger than the service admits. Send a smaller one.")
    if not content:
        raise ProblemError(415, "The file is empty: send a picture.")
    return content


@api.post("/search", response_model=schemas.SearchAnswer, tags=["search"], summary="Search by a picture")
async def search_by_upload(
    request: Request,
    service: Service,
    file: Annotated[UploadFile, File(description="JPEG, PNG, WebP, TIFF, GIF or BMP.")],
    k: Annotated[int, Form(ge=1)] = 10,
    box: Annotated[str | None, Form()] = None,
    where: Annotated[list[str] | None, Form()] = None,
    expand: Annotated[ExpandBy | None, Form()] = None,
    rerank: Annotated[RerankBy | None, Form()] = None,
) -> Any:
    content = await read_upload(request, file)
    options = {"k": checked_k(request, k), "box": optional_box(box), "where": where, "expand": expand, "rerank": rerank}
    return await in_thread(request, "network", service.search, content, **options)


@api.get(
    "/images/{image_id}/search",
    response_model=schemas.SearchAnswer,
    tags=["search"],
    summary="Search by a gallery picture",
)
async def search_by_image(
    request: Request,
    service: Service,
    image_id: ImageId,
    k: Count = 10,
    box: BoxText = None,
    where: Filters = None,
    expand: Expand = None,
    rerank: Rerank = None,
) -> Any:
    options = {"k": checked_k(request, k), "box": optional_box(box), "where": where, "expand": expand, "rerank": rerank}
    # Only a box needs the network; without one the stored descriptor is the query.
    lane = "network" if box or rerank else "search"
    return await in_thread(request, lane, service.search, image_id, **options)


@api.post(
    "/explain/{image_id}",
    response_model=schemas.Explanation,
    tags=["why"],
    summary="Why a gallery picture resembles yours",
)
async def explain_upload(
    request: Request, service: Service, image_id: ImageId, file: UploadFile, box: Annotated[str | None, Form()] = None
) -> Any:
    content = await read_upload(request, file)
    return await in_thread(request, "network", service.explain, content, optional_box(box), image_id)


@api.get(
    "/images/{image_id}/explain/{other_id}",
    response_model=schemas.Explanation,
    tags=["why"],
    summary="Why two gallery pictures are alike",
)
async def explain_images(
    request: Request, service: Service, image_id: ImageId, other_id: ImageId, box: BoxText = None
) -> Any:
    return await in_thread(request, "network", service.explain, image_id, optional_box(box), other_id)


@api.get("/images", response_model=schemas.ImagePage, tags=["gallery"], summary="Browse the gallery")
async def browse(
    request: Request,
    service: Service,
    after: Annotated[int, Query(ge=0, le=MAX_ID)] = 0,
    limit: Annotated[int, Query(ge=1, le=PAGE_LIMIT)] = 60,
    where: Filters = None,
) -> Any:
    return await in_thread(request, "files", service.browse, after=after, limit=limit, where=where or [])


@api.get("/images/{image_id}", response_model=schemas.Image, tags=["gallery"], summary="One picture's record")
async def image(request: Request, service: Service, image_id: ImageId) -> Any:
    return await in_thread(request, "files", service.image, image_id)


@api.get("/images/{image_id}/thumbnail", tags=["gallery"], response_class=Response, summary="A small JPEG")
async def thumbnail(request: Request, service: Service, image_id: ImageId) -> Response:
    return _picture(request, *await in_thread(request, "files", service.thumbnail, image_id))


@api.get(
    "/images/{image_id}/file",
    tags=["gallery"],
    response_class=Response,
    summary="The picture, upright, as a JPEG for the screen",
)
async def image_file(request: Request, service: Service, image_id: ImageId) -> Response:
    return _picture(request, *await in_thread(request, "files", service.display, image_id))


def _picture(request: Request, content: bytes, tag: str) -> Response:
    headers = {"ETag": f'"{tag}"', "Cache-Control": CACHE_FOREVER}
    if request.headers.get("if-none-match") == headers["ETag"]:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type="image/jpeg", headers=headers)


@api.get("/facets", response_model=schemas.Facets, tags=["gallery"], summary="Metadata to filter by")
async def facets(request: Request, service: Service) -> Any:
    return {"facets": await in_thread(request, "files", service.facets)}


@api.get("/stats", response_model=schemas.Stats, tags=["gallery"], summary="What the gallery holds")
async def stats(request: Request, service: Service) -> Any:
    return await in_thread(request, "files", service.stats)


@api.post(
    "/images", response_model=schemas.Image, status_code=201, tags=["write"], dependencies=[Depends(require_writer)]
)
async def add_image(
    request: Request,
    service: Service,
    file: UploadFile,
    metadata: Annotated[list[str] | None, Form(description="KEY=VALUE, repeated.")] = None,
) -> Any:
    """Add a picture: it is kept below the gallery and found by the next search."""
    content = await read_upload(request, file)
    pairs = [entry.partition("=") for entry in metadata or []]
    if any(not key or not equals for key, equals, _ in pairs):
        raise UsageError("metadata must be KEY=VALUE.")
    values = {key: value for key, _, value in pairs}
    return await in_thread(request, "writing", service.add, file.filename or "picture", content, values)


@api.delete("/images/{image_id}", status_code=204, tags=["write"], dependencies=[Depends(require_writer)])
async def remove_image(request: Request, service: Service, image_id: ImageId) -> Response:
    """Take a picture out of the gallery. A file that was indexed in place stays on disk."""
    await in_thread(request, "writing", service.remove, image_id)
    return Response(status_code=204)


open_routes = APIRouter(responses={503: _PROBLEMS[503]})


@open_routes.get("/health", response_model=schemas.Health, tags=["service"], summary="Is the process alive?")
async def health() -> Any:
    return {"status": "ok"}


@open_routes.get("/ready", response_model=schemas.Health, tags=["service"], summary="Can it answer searches?")
async def ready(service: Service) -> Any:
    if not service.is_ready:
        raise ProblemError(503, service.loading_note, {"Retry-After": "1"})
    return {"status": "ready"}


@open_routes.post(
    "/api/session", status_code=204, tags=["service"], responses={401: _PROBLEMS[401], 422: _PROBLEMS[422]}
)
async def open_session(request: Request, session: schemas.Session) -> Response:
    """Exchange the key for a cookie, for the page."""
    settings = request.app.state.settings
    if settings.key is not None and not (
        matches(session.key, settings.key) or matches(session.key, settings.writer_key)
    ):
        raise ProblemError(401, "That key is not accepted.", {"WWW-Authenticate": "Bearer"})
    response = Response(status_code=204)
    if session.key.isascii() and session.key.isprintable():
        response.set_cookie(COOKIE, session.key, httponly=True, samesite="strict", max_age=30 * 86400)
    return response
