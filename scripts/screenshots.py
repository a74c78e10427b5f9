"""Make the screenshots under docs/: the page's views, on the example photographs.

python scripts/screenshots.py [--folder docs/images]

The example photographs say no dates, so the timeline gets some: a month for each thing.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import shutil
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from tessera.gallery.gallery import Gallery
from tessera.serve.server import listen, make_server
from tessera.serve.settings import Settings

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
QUALITY = 80
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
MONTHS = {"barcelona": "2025-09", "leuven": "2025-06", "thun": "2025-06", "street": "2024-10", "table": "2024-03"}
IN_VIEW = """() => [...document.querySelectorAll(".tile img, .pick img, dialog[open] img[src], #query-image[src]")]
    .filter((image) => image.checkVisibility())
    .filter((image) => image.getBoundingClientRect().top < innerHeight && image.getBoundingClientRect().bottom > 0)
    .every((image) => image.complete && image.naturalWidth)"""


def index_examples(folder: Path) -> Path:
    """A gallery of the example photographs, with dates, and the groups that are in it."""
    table, path = folder / "examples.csv", folder / "examples.tessera"
    with table.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["path", "date"])
        for number, photo in enumerate(sorted((EXAMPLES / "photos").rglob("*.jpg"))):
            month = MONTHS.get(photo.parent.name, ("2023-08", "2022-05")[number % 2])
            rows.writerow([photo, f"{month}-{1 + number % 28:02}"])
    with Gallery(path) as gallery:
        gallery.index(table)
        gallery.groups()
        gallery.duplicates()
    return path


@contextlib.contextmanager
def serving(path: Path) -> Iterator[str]:
    settings = Settings(path, port=0)
    server, listener = make_server(settings), listen(settings)
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    for _ in range(300):
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"{address}/ready", timeout=2)
            break
        time.sleep(0.2)
    else:
        raise SystemExit("the service did not start")
    yield address
    server.should_exit = True
    thread.join(timeout=30)


def take(page: Page, file: Path) -> None:
    """A picture of the page when everything in view has arrived."""
    page.wait_for_function(IN_VIEW)
    page.screenshot(path=file, type="jpeg", quality=QUALITY)


def draw_box(page: Page, x0: float, y0: float, x1: float, y1: float) -> None:
    frame: Any = page.locator("#stage").bounding_box()
    page.mouse.move(frame["x"] + x0 * frame["width"], frame["y"] + y0 * frame["height"])
    page.mouse.down()
    page.mouse.move(frame["x"] + x1 * frame["width"], frame["y"] + y1 * frame["height"], steps=4)
    with page.expect_response(lambda answer: "search" in answer.url and answer.status == 200):
        page.mouse.up()
    page.wait_for_selector("body:not(.busy)")


def search(page: Page, address: str) -> None:
    page.goto(address)
    page.wait_for_selector(".tile")
    page.set_input_files("#file", EXAMPLES / "queries" / "cookie-box.jpg")
    page.wait_for_selector(".tile .score")


def take_all(browser: Browser, address: str, folder: Path) -> None:
    def open_page(**options: Any) -> Page:
        view: dict[str, Any] = {
            "viewport": {"width": 1280, "height": 820},
            "reduced_motion": "reduce",
            "bypass_csp": True,
        }
        view |= options
        page = browser.new_context(**view).new_page()
        page.set_default_timeout(120_000)
        return page

    page = open_page()
    page.goto(address)
    page.wait_for_selector(".tile")
    take(page, folder / "page-gallery.jpg")
    page.route("**/api/images/*/path", lambda route: route.fulfill(json={"path": "/home/ada/photos/thun/station.jpg"}))
    page.locator('.tile[data-name="station-1.jpg"]').click()
    page.wait_for_selector("#large-others button")
    take(page, folder / "page-large.jpg")
    for view in ("groups", "duplicates"):
        page.goto(f"{address}/?view={view}")
        page.wait_for_selector(".set")
        take(page, folder / f"page-{view}.jpg")
    search(page, address)
    take(page, folder / "page-search.jpg")
    page.locator(".tile").first.click()
    page.wait_for_selector("#why-tokens button")
    page.wait_for_selector(".lines line")
    take(page, folder / "page-why.jpg")
    page.context.close()
    page = open_page(color_scheme="dark")
    search(page, address)
    draw_box(page, 0.35, 0.2, 0.8, 0.7)
    take(page, folder / "page-box-dark.jpg")
    page.context.close()
    page = open_page(viewport={"width": 390, "height": 780}, has_touch=True, is_mobile=True)
    page.goto(address)
    page.wait_for_selector(".tile")
    take(page, folder / "page-phone.jpg")
    page.context.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=ROOT / "docs" / "images")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as made,
        serving(index_examples(Path(made))) as address,
        sync_playwright() as driver,
    ):
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        take_all(browser, address, options.folder)
        browser.close()


if __name__ == "__main__":
    main()
