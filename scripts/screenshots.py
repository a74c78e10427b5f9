"""Make the screenshots under docs/: the page's main states, on the example photographs.

python scripts/screenshots.py [--gallery GALLERY]
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

from tessera.gallery.gallery import Gallery
from tessera.serve.server import listen, make_server
from tessera.serve.settings import Settings

ROOT = Path(__file__).parent.parent
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def wait_for(address: str) -> None:
    for _ in range(300):
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"{address}/ready", timeout=2)
            return
        time.sleep(0.2)
    raise SystemExit("the service did not start")


def settle(page: Page) -> None:
    """Every visible picture has arrived."""
    page.wait_for_function(
        "[...document.images].filter(i => i.getBoundingClientRect().top < innerHeight).every(i => i.complete)"
    )
    page.wait_for_timeout(400)


def draw_box(page: Page, x0: float, y0: float, x1: float, y1: float) -> None:
    frame: Any = page.locator("#stage").bounding_box()
    page.mouse.move(frame["x"] + x0 * frame["width"], frame["y"] + y0 * frame["height"])
    page.mouse.down()
    page.mouse.move(frame["x"] + x1 * frame["width"], frame["y"] + y1 * frame["height"], steps=4)
    with page.expect_response(lambda answer: "search" in answer.url and answer.status == 200):
        page.mouse.up()


def take(browser: Any, address: str, folder: Path) -> None:
    for scheme in ("light", "dark"):
        context = browser.new_context(viewport={"width": 1280, "height": 820}, color_scheme=scheme, bypass_csp=True)
        page = context.new_page()
        page.set_default_timeout(120_000)
        page.goto(address)
        page.wait_for_selector(".tile")
        settle(page)
        if scheme == "light":
            page.screenshot(path=folder / "page-gallery.png")
        page.locator(".tile").nth(2).click()
        page.wait_for_selector(".tile .score")
        draw_box(page, 0.2, 0.15, 0.75, 0.8)
        settle(page)
        page.screenshot(path=folder / f"page-search-{scheme}.png")
        if scheme == "light":
            page.locator(".tile").first.click()
            page.wait_for_selector("#why-tokens button")
            page.locator("#why-tokens button").first.hover()
            settle(page)
            page.screenshot(path=folder / "page-why.png")
        context.close()
    context = browser.new_context(
        viewport={"width": 390, "height": 780}, has_touch=True, is_mobile=True, bypass_csp=True
    )
    page = context.new_page()
    page.set_default_timeout(120_000)
    page.goto(address)
    page.wait_for_selector(".tile")
    page.locator(".tile").nth(2).tap()
    page.wait_for_selector(".tile .score")
    settle(page)
    page.screenshot(path=folder / "page-phone.png")
    context.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gallery", type=Path, help="Photograph this gallery instead of the example photos.")
    options = parser.parse_args()
    folder = ROOT / "docs" / "images"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as made:
        path = options.gallery or Path(made) / "examples.tessera"
        if options.gallery is None:
            with Gallery(path) as gallery:
                gallery.index(ROOT / "examples" / "photos")
        settings = Settings(path, port=0)
        server, listener = make_server(settings), listen(settings)
        threading.Thread(target=server.run, args=([listener],), daemon=True).start()
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        wait_for(address)
        with sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
            take(browser, address, folder)
            browser.close()
        server.should_exit = True


if __name__ == "__main__":
    main()
