"""Put the service together: routes, limits, the page."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from fastapi import FastAPI, HTTPException
from fastapi.responses import FileResponse

from tessera import __version__
from tessera.extract.runtime import default_threads
from tessera.serve import openapi, problems
from tessera.serve.lanes import Lanes
from tessera.serve.metrics import Metrics
from tessera.serve.middleware import InFlight, LimitBody, LimitInFlight, Observe
from tessera.serve.routes import api
from tessera.serve.service import GalleryService
from tessera.serve.settings import Settings
from tessera.serve.status import status_routes

PAGE_FILES = {path.name: path for path in (Path(__file__).parent / "page").iterdir()}


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
        title="Tessera",
        version=__version__,
        description=openapi.DESCRIPTION,
        openapi_tags=openapi.TAGS,
        generate_unique_id_function=openapi.name_operation,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )
    app.state.settings = settings
    app.state.service = service
    app.state.metrics = metrics = Metrics()
    app.state.in_flight = in_flight = InFlight()

    problems.install(app)
    openapi.install(app)
    app.include_router(status_routes)
    app.include_router(api)

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
