from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import httpx
import pytest

from tessera.gallery.gallery import Gallery
from tessera.serve.settings import Settings

T = TypeVar("T")
CHROMIUM_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    """Debian's Chromium, driven by Playwright. A busy machine may take its time: what is tested is what happens."""
    playwright = pytest.importorskip("playwright.sync_api")
    playwright.expect.set_options(timeout=120_000)
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=CHROMIUM_FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def check_axe():  # type: ignore[no-untyped-def]
    """That axe finds nothing wrong with a view: `check_axe(page, "gallery")`. Skips the test where axe is not here."""
    given = os.environ.get("TESSERA_AXE")
    axe = Path(given) if given else Path(__file__).parents[2] / ".venv" / "axe" / "package" / "axe.min.js"
    if not axe.is_file():
        pytest.skip("axe-core is not here: make axe")

    def check(page, view: str) -> None:  # type: ignore[no-untyped-def]
        # Not as a script of the page: its policy admits none from elsewhere.
        page.context.new_cdp_session(page).send("Runtime.evaluate", {"expression": axe.read_text()})
        found = page.evaluate(
            "axe.run().then(({ violations }) => violations.map(({ id, nodes }) => [id, nodes[0].html]))"
        )
        assert found == [], view

    return check


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
    from tessera.serve.server import listen, make_server

    server, listener = make_server(settings), listen(replace(settings, port=0))
    address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    try:
        if wait:
            eventually(lambda: is_ready(address))
        yield address
    finally:
        server.should_exit = True
        thread.join(timeout=60)
        listener.close()


def is_ready(address: str) -> bool:
    try:
        return httpx.get(f"{address}/ready", timeout=60).status_code == 200
    except httpx.TransportError:
        return False


def eventually(check: Callable[[], T], within_s: float = 120) -> T:
    """What `check` gives as soon as it is true; a busy machine may take its time."""
    deadline = time.monotonic() + within_s
    while not (found := check()):
        assert time.monotonic() < deadline, f"{check} stayed false for {within_s} s"
        time.sleep(0.02)
    return found


@pytest.fixture(name="eventually", scope="session")
def eventually_fixture():  # type: ignore[no-untyped-def]
    return eventually


@pytest.fixture(scope="session")
def check_problem():  # type: ignore[no-untyped-def]
    """That an answer is a problem of this status which gives nothing away; returns its sentence."""

    def check(answer: httpx.Response, status: int) -> str:
        assert answer.status_code == status, answer.text
        assert answer.headers["content-type"].startswith("application/problem+json")
        body = answer.json()
        assert body["status"] == status
        assert body["title"]
        assert body["detail"]
        assert "/" not in body["detail"]
        assert "Traceback" not in answer.text
        return str(body["detail"])

    return check


@pytest.fixture(scope="session")
def picture(scenes_dir: Path):  # type: ignore[no-untyped-def]
    """A scene as a form's file: `client.post(..., files=picture())`."""
    return lambda name="scene03.jpg": {"file": (name, (scenes_dir / name).read_bytes(), "image/jpeg")}


@pytest.fixture(scope="session")
def address(served_gallery: Path) -> Iterator[str]:
    with run_service(Settings(served_gallery, threads=1, timeout_s=280)) as url:
        yield url


@pytest.fixture
def client(address: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=address, timeout=280) as session:
        yield session
