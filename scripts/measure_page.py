"""The page's first second at many photos: time to the first picture, until it can be used, and how it scrolls.

python scripts/measure_page.py -o results/serve/page.csv [--photos 10000] [--rounds 5] [--folder DIR]

Beside it, in turns, a bare static page with the same thumbnails as files, by Python's own server, in a new browser
context each time. The photos are the example photographs, each copy another file, spread over ten years; their
descriptors are drawn. --folder: where they are made, and found again by the next run.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import functools
import http.server
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from PIL import Image
from playwright.sync_api import Browser, ViewportSize, sync_playwright

from tessera.gallery.gallery import Gallery
from tessera.gallery.ingest.importing import DescribedImage

EXAMPLES = Path(__file__).parent.parent / "examples" / "photos"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
VIEW: ViewportSize = {"width": 1280, "height": 850}
SCROLL_S = 20
# From the start of the navigation: the first picture that has come, and the last moment in which a click would wait.
WATCH = """
window.measured = { first: null, busy: 0, gaps: [] };
document.addEventListener("load", ({ target }) => {
    if (target.tagName === "IMG") measured.first ??= performance.now();
}, true);
new PerformanceObserver((list) => {
    for (const { startTime, duration } of list.getEntries()) measured.busy = startTime + duration;
}).observe({ type: "longtask", buffered: true });
"""
SCROLL = """(seconds) => new Promise((done) => {
    const gaps = [], start = performance.now(), height = document.documentElement.scrollHeight - innerHeight;
    let last = start;
    const step = (now) => {
        gaps.push(now - last);
        last = now;
        const share = (now - start) / (1000 * seconds);
        if (share >= 1) return done(gaps);
        window.scrollTo(0, share * height);
        requestAnimationFrame(step);
    };
    requestAnimationFrame(step);
})"""


def make_gallery(folder: Path, photos: int) -> Path:
    """A gallery of many photos without describing them: what the page shows does not depend on descriptors."""
    path = folder / f"photos-{photos}.tessera"
    if path.exists():
        return path
    originals = [file.read_bytes() for file in sorted(EXAMPLES.rglob("*.jpg"))]
    sizes = [Image.open(file).size for file in sorted(EXAMPLES.rglob("*.jpg"))]
    random = np.random.default_rng(0)

    def images(dim: int) -> Iterator[DescribedImage]:
        for number in range(photos):
            year, month = 2015 + number * 10 // photos, 1 + number * 120 // photos % 12
            file = folder / "photos" / str(year) / f"{number:06d}.jpg"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(originals[number % len(originals)] + number.to_bytes(4, "big"))  # another content
            date = f"{year}-{month:02}-{1 + number % 28:02}T12:00:00"
            place = {"latitude": 40 + number % 7, "longitude": 10 + number % 5}
            width, height = sizes[number % len(sizes)]
            yield DescribedImage(file, random.standard_normal(dim), width, height, {"date": date, **place})

    with Gallery(path) as gallery:
        gallery.add(images(gallery.describer.dim))
    return path


@contextlib.contextmanager
def serve_gallery(path: Path) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "tessera", "serve", "-g", str(path), "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{address}/ready", timeout=5)
                break
            time.sleep(0.2)
        yield address
    finally:
        process.terminate()
        process.wait(timeout=30)


class StaticFiles(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):  # the browser goes away in the middle
            super().handle()

    def log_message(self, *_: Any) -> None:
        pass


@contextlib.contextmanager
def serve_static(address: str, folder: Path) -> Iterator[str]:
    """What the page's first screens show, as a page without a script; its address."""
    folder.mkdir(parents=True, exist_ok=True)
    with urllib.request.urlopen(f"{address}/api/images?sort=newest&limit=120", timeout=60) as answer:
        images = json.load(answer)["images"]
    for image in images:
        with urllib.request.urlopen(f"{address}/api/images/{image['id']}/thumbnail", timeout=60) as answer:
            (folder / f"{image['id']}.jpg").write_bytes(answer.read())
    tiles = "".join(f'<img src="{image["id"]}.jpg" height="170" loading="lazy">' for image in images)
    (folder / "index.html").write_text(f"<!doctype html><title>bare</title><body>{tiles}</body>")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(StaticFiles, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


def open_once(browser: Browser, address: str, ready: str) -> dict[str, float]:
    """Milliseconds until the first picture, and until nothing that was asked for at the start is outstanding."""
    context = browser.new_context(viewport=VIEW)
    page = context.new_page()
    page.set_default_timeout(120_000)
    page.add_init_script(WATCH)
    page.goto(address)
    page.wait_for_selector(ready, state="attached")
    usable = page.evaluate("performance.now()")
    while page.evaluate("measured.first === null || performance.now() - measured.busy < 1000"):
        page.wait_for_timeout(50)
    found = page.evaluate("measured")
    context.close()
    return {"first_picture_ms": found["first"], "interactive_ms": max(usable, found["busy"], found["first"])}


def scroll_through(browser: Browser, address: str) -> dict[str, float]:
    """The gaps between frames while the whole gallery goes by, and how long a jump to its end takes."""
    context = browser.new_context(viewport=VIEW)
    page = context.new_page()
    page.set_default_timeout(120_000)
    page.goto(address)
    page.wait_for_selector(".tile")
    page.locator("#rail").focus()
    started = time.perf_counter()
    page.keyboard.press("End")
    loaded = "(tile) => tile.getBoundingClientRect().top < innerHeight && tile.querySelector('img').naturalWidth > 0"
    while not page.locator(".month:last-child .tile").evaluate_all(f"(tiles) => tiles.some({loaded})"):
        pass
    jump_ms = 1000 * (time.perf_counter() - started)
    page.keyboard.press("Home")
    gaps = page.evaluate(SCROLL, SCROLL_S)
    tiles = page.locator(".tile").count()
    context.close()
    return {
        "jump_ms": jump_ms,
        "frames": len(gaps),
        "median_gap_ms": median(gaps),
        "longest_gap_ms": max(gaps),
        "tiles": tiles,
    }


def measure(folder: Path, photos: int, rounds: int) -> list[list[Any]]:
    path = make_gallery(folder, photos)
    with serve_gallery(path) as address, serve_static(address, folder / "static") as bare, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        open_once(browser, bare, "img")  # the browser's own first time
        pages, bares = [], []
        for _ in range(rounds):
            bares.append(open_once(browser, bare, "img"))
            pages.append(open_once(browser, address, "#filter-key option"))
        scrolled = scroll_through(browser, address)
        browser.close()
    rows = []
    for key, bar_ms in (("first_picture_ms", 1000), ("interactive_ms", 2000)):
        page, static = (median(one[key] for one in some) for some in (pages, bares))
        worst = max(one[key] for one in pages)
        rows.append([key, round(page), round(worst), round(static), round(page / static, 2), bar_ms])
    rows += [
        [key, round(value), "", "", "", 1000 if key == "longest_gap_ms" else ""] for key, value in scrolled.items()
    ]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--photos", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        rows = measure(folder, options.photos, options.rounds)
    with options.output.open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["what", "page", "page_worst", "bare_static_page", "ratio", "bar"])
        table.writerows(rows)
    print(options.output.read_text(), end="")


if __name__ == "__main__":
    main()
