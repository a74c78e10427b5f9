from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tessera.gallery.gallery import Gallery
from tessera.serve.settings import Settings

uvicorn = pytest.importorskip("uvicorn")


@pytest.fixture(scope="session")
def served_gallery(tmp_path_factory: pytest.TempPathFactory, token_bundle: Path, scenes_dir: Path) -> Path:
    path = tmp_path_factory.mktemp("served") / "scenes.tessera"
    with Gallery(path, model=str(token_bundle), threads=1) as gallery:
        assert gallery.index(scenes_dir / "scenes.csv").added == 12
    return path


@pytest.fixture(name="running", scope="session")
def running_fixture():  # type: ignore[no-untyped-def]
    """Start a service: `with running(settings) as address`."""
    return run_service


@contextlib.contextmanager
def run_service(settings: Settings, *, wait: bool = True) -> Iterator[str]:
    """The real server, on a free port, in a thread; yields its address."""
    from tessera.serve.app import create_app

    config = uvicorn.Config(
        create_app(settings), host="127.0.0.1", port=0, log_level="error", access_log=False, timeout_graceful_shutdown=3
    )
    server = uvicorn.Server(config)
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        deadline = time.monotonic() + 60
        while wait and time.monotonic() < deadline:
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{address}/ready", timeout=5).status_code == 200:
                    break
            time.sleep(0.05)
        yield address
    finally:
        server.should_exit = True
        thread.join(timeout=20)
        listener.close()


@pytest.fixture(scope="session")
def address(served_gallery: Path) -> Iterator[str]:
    with run_service(Settings(served_gallery, threads=1, timeout_s=60)) as url:
        yield url


@pytest.fixture
def client(address: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=address, timeout=60) as session:
        yield session
