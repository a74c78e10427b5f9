"""Groups and copies over HTTP: what is known, finding more, and what does not belong together."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response

from tessera.serve.access import require_organiser, require_reader
from tessera.serve.api import schemas
from tessera.serve.api.openapi import problems
from tessera.serve.api.routes import ANY, ONE, VALUES, WRITE, ImageId, Serving

MOST_GROUPS = 200

organising_routes = APIRouter(prefix="/api", dependencies=[Depends(require_reader)], responses=ANY, tags=["organise"])

Start = Annotated[int, Query(ge=0, le=10**9, description="How many groups to pass over.")]
Limit = Annotated[int, Query(ge=1, le=MOST_GROUPS, description="Groups a page.")]
ORGANISER = [Depends(require_organiser)]


@organising_routes.get("/groups", response_model=schemas.Groups, responses=VALUES, summary="Photos of one thing")
async def groups(request: Request, start: Start = 0, limit: Limit = 50) -> Any:
    """As they were found last, the largest first, each with its cover first."""
    at = Serving.of(request)
    return await at.pools.run("files", at.service.organiser.groups, start=start, limit=limit)


@organising_routes.get(
    "/duplicates", response_model=schemas.Duplicates, responses=VALUES, summary="Exact and near copies"
)
async def duplicates(request: Request, start: Start = 0, limit: Limit = 50) -> Any:
    """As they were found last: which picture to keep, why, and its copies."""
    at = Serving.of(request)
    return await at.pools.run("files", at.service.organiser.duplicates, start=start, limit=limit)


@organising_routes.get("/organising", response_model=schemas.Organising, summary="What is being found")
async def organising(request: Request) -> Any:
    return Serving.of(request).service.organiser.status()


@organising_routes.post(
    "/groups/find",
    response_model=schemas.Organising,
    status_code=202,
    responses=WRITE,
    dependencies=ORGANISER,
    summary="Find groups",
)
async def find_groups(request: Request) -> Any:
    """Begins, and answers at once; `GET /api/organising` says how far it is. Only what is new is compared."""
    return Serving.of(request).service.organiser.find("groups")


@organising_routes.post(
    "/duplicates/find",
    response_model=schemas.Organising,
    status_code=202,
    responses=WRITE,
    dependencies=ORGANISER,
    summary="Find copies",
)
async def find_duplicates(request: Request) -> Any:
    """Begins, and answers at once; `GET /api/organising` says how far it is. Nothing is moved or removed."""
    return Serving.of(request).service.organiser.find("duplicates")


@organising_routes.post(
    "/duplicates/apart",
    status_code=204,
    responses=problems(400, 408, 413, 422) | WRITE,
    dependencies=ORGANISER,
    summary="These are no copies",
)
async def take_apart(request: Request, given: schemas.ImageIds) -> Response:
    """They are not joined again. Their files and records stay as they are."""
    at = Serving.of(request)
    await at.pools.run("writing", at.service.organiser.take_apart, given.ids)
    return Response(status_code=204)


@organising_routes.get(
    "/images/{image_id}/group", response_model=schemas.GroupOf, responses=ONE, summary="Photos of the same thing"
)
async def group_of(request: Request, image_id: ImageId) -> Any:
    """The group that the picture is in, as groups were found last."""
    at = Serving.of(request)
    return await at.pools.run("files", at.service.organiser.group_of, image_id)


@organising_routes.post(
    "/images/{image_id}/leave-group",
    status_code=204,
    responses=ONE | WRITE,
    dependencies=ORGANISER,
    summary="Not what its group shows",
)
async def leave_group(request: Request, image_id: ImageId) -> Response:
    """The picture leaves its group, and is not joined with it again."""
    at = Serving.of(request)
    await at.pools.run("writing", at.service.organiser.leave_group, image_id)
    return Response(status_code=204)
