"""Put the service together: routes, limits, the page."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import FileResponse, PlainTextResponse

from tessera import __version__
from tessera.extract.runtime import default_threads
from tessera.serve import problems
from tessera.serve.access import require_reader
from tessera.serve.lanes import Lanes
from tessera.serve.metrics import CONTENT_TYPE, Metrics
from tessera.serve.middleware import InFlight, LimitBody, LimitInFlight, Observe
from tessera.serve.routes import api, open_routes
from tessera.serve.service import GalleryService
from tessera.serve.settings import Settings

PAGE_FILES = {path.name: path for path in (Path(__file__).parent / "page").iterdir()}
DESCRIPTION = """
Find the same place or object in one gallery of pictures, and see why.

Search with a picture (`POST /api/search`) or with one of the gallery (`GET /api/images/{id}/search`), with a box on
either. Pictures are known by ids; no address of this API takes or gives a path. Errors are `application/problem+json`.
Where the service was started with a key, send it as `Authorization: Bearer KEY`.
"""


def create_app(settings: Settings) -> FastAPI:
    """The application for one gallery; `tessera serve` runs it with uvicorn, tests with a client."""
    service = GalleryService(settings)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.lanes = lanes = Lanes(settings.threads or default_threads(), settings.timeout_s)
        service.start()
        yield
        lanes.close()
        service.stop()

    app = FastAPI(
        title="Tessera", version=__version__, description=DESCRIPTION, lifespan=lifespan, docs_url=None, redoc_url=None
    )
    app.state.settings = settings
    app.state.service = service
    metrics = Metrics()
    in_flight = InFlight()

    problems.install(app)
    app.include_router(open_routes)
    app.include_router(api)

    @app.get("/metrics", tags=["service"], response_class=PlainTextResponse, dependencies=[Depends(require_reader)])
    async def prometheus(request: Request) -> PlainTextResponse:
        """Counters for Prometheus."""
        gauges = {"in_flight": float(in_flight.count), "ready": float(service.is_ready)}
        if service.is_ready:
            stats = await request.app.state.lanes.run("files", service.stats)
            gauges["images"] = float(stats["images"])
        return PlainTextResponse(metrics.render(gauges), media_type=CONTENT_TYPE)

    @app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    @app.api_route("/{name}", methods=["GET", "HEAD"], include_in_schema=False)
    async def page(name: str = "index.html") -> FileResponse:
        if name not in PAGE_FILES:
            raise HTTPException(404)
        return FileResponse(PAGE_FILES[name], headers={"Cache-Control": "no-cache"})

    app.add_middleware(LimitBody, max_bytes=settings.max_bytes, timeout_s=settings.body_timeout_s)
    app.add_middleware(LimitInFlight, gauge=in_flight, limit=settings.max_in_flight)
    app.add_middleware(Observe, metrics=metrics)
    return app
