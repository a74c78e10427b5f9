"""Put the service together: routes, limits, the page."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from fastapi import FastAPI, HTTPException, Response

from tessera import __version__
from tessera.extract.runtime import default_threads
from tessera.serve import problems
from tessera.serve.access import Sessions
from tessera.serve.api import openapi
from tessera.serve.api.gallery_routes import gallery_routes
from tessera.serve.api.organising_routes import organising_routes
from tessera.serve.api.routes import api
from tessera.serve.api.status import status_routes
from tessera.serve.middleware import AnswerHead, InFlight, LimitBody, LimitInFlight, Observe, RefuseHosts, UnderPrefix
from tessera.serve.observing.metrics import Metrics
from tessera.serve.service import GalleryService
from tessera.serve.settings import Settings
from tessera.serve.worker_pools import WorkerPools

# Not by `mimetypes`: some machines know scripts as plain text, and no browser runs that.
PAGE_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
PAGE_FILES = {path.name: path for path in (Path(__file__).parent / "page").iterdir()}


def create_app(settings: Settings) -> FastAPI:
    """The application for one gallery; `tessera serve` runs it with uvicorn, tests with a client."""
    service = GalleryService(settings)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.pools = pools = WorkerPools(settings.threads or default_threads(), settings.timeout_s)
        service.start()
        yield
        pools.close()
        service.stop()

    app = FastAPI(
        title="Tessera",
        version=__version__,
        description=openapi.DESCRIPTION,
        openapi_tags=openapi.TAGS,
        generate_unique_id_function=openapi.name_operation,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # the framework would send clients to whatever name the Host header gave
    )
    app.state.settings = settings
    app.state.service = service
    app.state.sessions = Sessions()
    app.state.metrics = metrics = Metrics()
    app.state.in_flight = in_flight = InFlight()

    problems.install(app)
    openapi.install(app)
    app.include_router(status_routes)
    for routes in (api, gallery_routes, organising_routes):
        app.include_router(routes)

    @app.get("/", include_in_schema=False)
    @app.get("/{name}", include_in_schema=False)
    async def page(name: str = "index.html") -> Response:
        name = "docs.html" if name == "docs" else name
        if name not in PAGE_FILES:
            raise HTTPException(404)
        file = PAGE_FILES[name]
        return Response(file.read_bytes(), media_type=PAGE_TYPES[file.suffix], headers={"Cache-Control": "no-cache"})

    app.add_middleware(LimitBody, max_bytes=settings.max_bytes, timeout_s=settings.body_timeout_s)
    app.add_middleware(LimitInFlight, gauge=in_flight, limit=settings.max_in_flight)
    if settings.key is None:
        app.add_middleware(RefuseHosts, own=settings.host)
    app.add_middleware(Observe, metrics=metrics)
    app.add_middleware(AnswerHead)
    app.add_middleware(UnderPrefix, prefix=settings.root_path)
    return app
