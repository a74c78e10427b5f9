"""Looking at the gallery over HTTP: pages of it, what it can be filtered by, and its pictures."""

from __future__ import annotations

import io
import urllib.parse
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Form, Query, Request, Response
from fastapi.responses import StreamingResponse

from tessera.errors import UsageError
from tessera.serve.access import require_own_machine, require_reader
from tessera.serve.api import schemas
from tessera.serve.api.openapi import problems
from tessera.serve.api.routes import ANY, MAX_ID, ONE, VALUES, ImageId, Serving
from tessera.serve.pictures.archive import pack, safe_name, write_table

PAGE_LIMIT = 500
CACHE = "private, max-age=60, stale-while-revalidate=604800"  # a picture may change and keep its id
FILE = {"type": "string", "format": "binary"}
PICTURE = {200: {"content": {"image/jpeg": {"schema": FILE}}}, 304: {}} | problems(410)
HERE = problems(403)

gallery_routes = APIRouter(prefix="/api", dependencies=[Depends(require_reader)], responses=ANY, tags=["gallery"])

Filters = Annotated[list[schemas.Filter] | None, Query(description=schemas.WHERE, max_length=schemas.MAX_FILTERS)]


@gallery_routes.get("/images", response_model=schemas.ImagePage, responses=VALUES, summary="Browse the gallery")
async def browse(
    request: Request,
    after: Annotated[int, Query(ge=0, le=MAX_ID, description="`next` of the page before.")] = 0,
    limit: Annotated[int, Query(ge=1, le=PAGE_LIMIT, description="Pictures a page.")] = 60,
    sort: Annotated[
        Literal["added", "newest", "oldest", "name"],
        Query(description="The order: as they were added, by date, or by name. Those without a date come last."),
    ] = "added",
    month: Annotated[
        str | None,
        Query(
            pattern=r"^(\d{4}-\d\d|undated)$", description="Only of this month (`2019-06`), or those without a date."
        ),
    ] = None,
    where: Filters = None,
) -> Any:
    """Pictures in an order, a page at a time."""
    at = Serving.of(request)
    wanted = {"after": after, "limit": limit, "where": where or [], "sort": sort}
    return await at.pools.run("files", at.service.browse, **wanted, month="" if month == "undated" else month)


@gallery_routes.get("/months", response_model=schemas.Months, responses=VALUES, summary="How many pictures a month")
async def months(request: Request, where: Filters = None) -> Any:
    """For a timeline, the last month first; those without a date apart."""
    at = Serving.of(request)
    found = await at.pools.run("files", at.service.months, where or [])
    undated = found.pop("", 0)
    return {"months": [{"month": month, "images": count} for month, count in found.items()], "undated": undated}


@gallery_routes.get("/facets", response_model=schemas.Facets, summary="What to filter by")
async def facets(request: Request) -> Any:
    """For `where`: folders, the metadata keys that pictures have with each one's most frequent values, and places."""
    at = Serving.of(request)
    return await at.pools.run("files", at.service.facets)


@gallery_routes.get("/images/{image_id}", response_model=schemas.Image, responses=ONE, summary="One picture's record")
async def image(request: Request, image_id: ImageId) -> Any:
    at = Serving.of(request)
    return await at.pools.run("files", at.service.image, image_id)


@gallery_routes.get(
    "/images/{image_id}/thumbnail", response_class=Response, responses=ONE | PICTURE, summary="A small JPEG"
)
async def thumbnail(request: Request, image_id: ImageId) -> Response:
    """At most 384 pixels a side, upright. Has an ETag."""
    at = Serving.of(request)
    return _picture(request, *await at.pools.run("files", at.service.thumbnail, image_id))


@gallery_routes.get(
    "/images/{image_id}/file", response_class=Response, responses=ONE | PICTURE, summary="A JPEG for the screen"
)
async def image_file(request: Request, image_id: ImageId) -> Response:
    """At most 1600 pixels a side, upright. Has an ETag. Boxes are in pixels of the picture itself, not of this one."""
    at = Serving.of(request)
    return _picture(request, *await at.pools.run("files", at.service.display, image_id))


def _picture(request: Request, content: bytes, tag: str) -> Response:
    headers = {"ETag": f'"{tag}"', "Cache-Control": CACHE}
    if headers["ETag"] in request.headers.get("if-none-match", ""):  # one of several, or a weak one
        return Response(status_code=304, headers=headers)
    return Response(content, media_type="image/jpeg", headers=headers)


@gallery_routes.get(
    "/images/{image_id}/original",
    response_class=Response,
    responses=ONE | problems(410, 413) | {200: {"content": {"application/octet-stream": {"schema": FILE}}}},
    summary="The file itself",
)
async def original(request: Request, image_id: ImageId) -> Response:
    """As it was indexed, byte for byte; a file that has changed since is not given."""
    at = Serving.of(request)
    content, name = await at.pools.run("files", at.service.original, image_id)
    return Response(content, media_type="application/octet-stream", headers=_attached(name))


@gallery_routes.post(
    "/archive",
    response_class=StreamingResponse,
    responses=problems(400, 404, 408, 413, 422) | {200: {"content": {"application/zip": {"schema": FILE}}}},
    summary="Several files as a zip",
)
async def archive(request: Request, ids: Annotated[str, Form(description="Ids with commas between.")]) -> Response:
    """The files of up to 500 pictures. What has gone or changed since it was indexed is named in `missing.txt`."""
    at = Serving.of(request)
    wanted = schemas.parse_ids(ids, PAGE_LIMIT)
    await at.pools.run("files", at.service.record, wanted[0])  # an unknown id is said before a download begins
    pieces = pack(at.service.original, wanted)
    return StreamingResponse(pieces, media_type="application/zip", headers=_attached("photos.zip"))


@gallery_routes.post(
    "/list",
    response_class=Response,
    responses=problems(400, 404, 408, 413, 422) | {200: {"content": {"text/csv": {"schema": {"type": "string"}}}}},
    summary="Several pictures as a CSV",
)
async def picture_list(request: Request, ids: Annotated[str, Form(description="Ids with commas between.")]) -> Response:
    """Metadata of up to 500 pictures, with their paths where the service answers this machine alone, else with names.

    A list with paths is one that `tessera index` reads.
    """
    at = Serving.of(request)
    content = await at.pools.run("files", write_table, at.service, schemas.parse_ids(ids, PAGE_LIMIT))
    return Response(content, media_type="text/csv", headers=_attached("photos.csv"))


def _attached(name: str) -> dict[str, str]:
    return {"Content-Disposition": f"attachment; filename*=UTF-8''{urllib.parse.quote(safe_name(name), safe='')}"}


@gallery_routes.get(
    "/images/{image_id}/path",
    response_model=schemas.FilePath,
    responses=ONE | HERE,
    dependencies=[Depends(require_own_machine)],
    summary="Where the file lies",
)
async def path(request: Request, image_id: ImageId) -> Any:
    """Only where the service answers this machine alone, without a key."""
    at = Serving.of(request)
    return {"path": await at.pools.run("files", at.service.path, image_id)}


@gallery_routes.post(
    "/images/{image_id}/reveal",
    status_code=204,
    responses=ONE | HERE | problems(410, 501),
    dependencies=[Depends(require_own_machine)],
    summary="Show the file in the file manager",
)
async def reveal(request: Request, image_id: ImageId) -> Response:
    """Opens a window on the machine that the service runs on; only where it answers this machine alone."""
    at = Serving.of(request)
    await at.pools.run("files", at.service.reveal, image_id)
    return Response(status_code=204)


@gallery_routes.get(
    "/code",
    response_class=Response,
    responses=VALUES | {200: {"content": {"image/svg+xml": {"schema": {"type": "string"}}}}},
    summary="A link as a QR code",
)
async def code(
    request: Request,
    text: Annotated[str, Query(min_length=1, max_length=1000, description="What the code is to say.")],
) -> Response:
    """For the page: so that a phone can open what is on the screen."""
    at = Serving.of(request)
    return Response(await at.pools.run("files", _draw_code, text), media_type="image/svg+xml")


def _draw_code(text: str) -> bytes:
    import segno

    try:
        drawn = segno.make_qr(text, error="l")
    except segno.DataOverflowError:
        raise UsageError("That is more than a QR code can say: 1,000 plain letters fit, or some 700 others.") from None
    drawing = io.BytesIO()
    drawn.save(drawing, kind="svg", scale=8, light="#fff", xmldecl=False)
    return drawing.getvalue()
