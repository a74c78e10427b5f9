"""Searching, explaining and writing over HTTP. Each route reads its request and calls the service in a thread."""

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
from tessera.refiners import all_refiners
from tessera.serve.access import require_reader, require_writer
from tessera.serve.api import schemas
from tessera.serve.api.openapi import problems
from tessera.serve.problems import ProblemError
from tessera.serve.service import GalleryService
from tessera.serve.settings import Settings
from tessera.serve.worker_pools import WorkerPools

MAX_ID = 2**63 - 1

# How an address may fail. Any may be asked without the key, too often or too early.
ANY = problems(401, 429, 503, 504)
VALUES = problems(422)
UPLOAD = problems(400, 408, 413, 415, 422)
ONE = problems(404, 422)
WRITE = problems(403, 409, 507)

api = APIRouter(prefix="/api", dependencies=[Depends(require_reader)], responses=ANY)

ImageId = Annotated[int, Path(ge=1, le=MAX_ID, description="A picture's id, from any answer.")]


@dataclass(frozen=True)
class Serving:
    """What the routes work with, from the request: as dependencies of theirs it would cost a tenth of their time."""

    request: Request
    service: GalleryService
    pools: WorkerPools
    settings: Settings

    @classmethod
    def of(cls, request: Request) -> Serving:
        state = request.app.state
        return cls(request, state.service, state.pools, state.settings)

    async def run_network(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The call's answer, in the network's pool. Whoever goes away while waiting makes room for those behind.

        The request's body must have been read: all that can still come from the client is that it has gone.
        """
        work = asyncio.ensure_future(self.pools.run("network", call, *args, **kwargs))
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
        "by": given.by,
        "min_probability": given.min_probability,
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


@api.post(
    "/search",
    response_model=schemas.SearchAnswer,
    responses=UPLOAD | problems(501),
    tags=["search"],
    summary="Search by a picture",
)
async def search_by_upload(request: Request, form: Annotated[schemas.SearchForm, File()]) -> Any:
    """Send a picture, or a picture and a box on it, as a form; get the pictures of the gallery that are most alike.

    The picture is turned upright first (EXIF), and a box is in pixels of the upright picture. A box that reaches over
    the edge is cut there; one that lies outside is refused.
    """
    at = Serving.of(request)
    options = search_options(form, at.settings)
    content = await read_upload(form.file, at.settings.max_bytes)
    return JSONResponse(await at.run_network(at.service.search, content, **options))


@api.get(
    "/images/{image_id}/search",
    response_model=schemas.SearchAnswer,
    responses=ONE | problems(410, 413, 501),
    tags=["search"],
    summary="Search by a gallery picture",
)
async def search_by_image(
    request: Request,
    image_id: ImageId,
    query: Annotated[schemas.SearchOptions, Query()],
) -> Any:
    """The same for a picture that the gallery has. `by=global` without a box or re-ranking reads nothing: quick."""
    at = Serving.of(request)
    options = search_options(query, at.settings)
    by_parts = query.by != "global" and not query.expand
    if query.box or query.rerank or by_parts:
        answer = await at.run_network(at.service.search, image_id, **options)
    elif query.expand:
        answer = await at.pools.run("search", at.service.search, image_id, **options)
    else:
        # The stored descriptor is the query, so those that wait are searched for together.
        where = tuple(query.where or ())
        answer = await at.pools.run_together("search", at.service.search_ids, image_id, k=query.k, where=where)
    # A response of its own, since checking what the service made against the schema takes as long as the search.
    return JSONResponse(answer)


@api.post(
    "/explain/{image_id}",
    response_model=schemas.Explanation,
    responses=UPLOAD | problems(404, 410),
    tags=["why"],
    summary="Why a gallery picture resembles yours",
)
async def explain_upload(request: Request, image_id: ImageId, form: Annotated[schemas.BoxedForm, File()]) -> Any:
    """Each token's share of the similarity, and the regions of both pictures that it is from.

    Send the picture, and the box, that you searched with.
    """
    at = Serving.of(request)
    content = await read_upload(form.file, at.settings.max_bytes)
    return await at.run_network(at.service.explain, content, optional_box(form.box), image_id)


@api.get(
    "/images/{image_id}/explain/{other_id}",
    response_model=schemas.Explanation,
    responses=ONE | problems(410, 413),
    tags=["why"],
    summary="Why two gallery pictures are alike",
)
async def explain_images(
    request: Request, image_id: ImageId, other_id: ImageId, query: Annotated[schemas.Boxed, Query()]
) -> Any:
    """The same for two pictures of the gallery; the box is on the first."""
    at = Serving.of(request)
    return await at.run_network(at.service.explain, image_id, optional_box(query.box), other_id)


@api.get("/refiners", response_model=schemas.Refiners, tags=["search"], summary="What may follow a search")
async def refiners(request: Request) -> Any:
    """Expansions and re-rankings, and which of them this service can do."""
    return {"refiners": [entry.to_json() for entry in all_refiners()]}


@api.get("/stats", response_model=schemas.Stats, tags=["gallery"], summary="What the gallery holds")
async def stats(request: Request) -> Any:
    at = Serving.of(request)
    return await at.pools.run("files", at.service.stats)


@api.post(
    "/images",
    response_model=schemas.Image,
    status_code=201,
    responses=UPLOAD | WRITE,
    tags=["write"],
    dependencies=[Depends(require_writer)],
    summary="Add a picture",
)
async def add_image(request: Request, form: Annotated[schemas.NewImage, File()]) -> Any:
    """It is kept below the gallery, and the next search finds it. The same content twice is the same picture."""
    at = Serving.of(request)
    content = await read_upload(form.file, at.settings.max_bytes)
    pairs = [entry.partition("=") for entry in form.metadata or []]
    if any(not key or not equals for key, equals, _ in pairs):
        raise UsageError("metadata must be KEY=VALUE.")
    values = {key: value for key, _, value in pairs}
    return await at.pools.run("writing", at.service.add, form.file.filename or "picture", content, values)


@api.delete(
    "/images/{image_id}",
    status_code=204,
    responses=ONE | WRITE,
    tags=["write"],
    dependencies=[Depends(require_writer)],
    summary="Remove a picture",
)
async def remove_image(request: Request, image_id: ImageId) -> Response:
    """Take it out of the gallery. A file that was indexed in place stays on disk; one that was added here goes."""
    at = Serving.of(request)
    await at.pools.run("writing", at.service.remove, image_id)
    return Response(status_code=204)
