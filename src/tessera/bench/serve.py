"""The service under load: many clients at once on a large gallery, with wrk as the generator.

The gallery's descriptors are synthetic and its pictures are copies of one, so that 100,000 are made in a minute; a
search does not know the difference. Uploads are real JPEGs through the real network.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tessera.bench.synthesis import Synthesis
from tessera.errors import TesseraError
from tessera.gallery.gallery import Gallery
from tessera.gallery.ingest.importing import DescribedImage

BOUNDARY = "tesserabench"
GALLERY_PICTURE, UPLOAD = KINDS = ("gallery_picture", "upload")


def measure_service(
    *,
    images: int,
    clients: int,
    seconds: int,
    photo: Path | None,
    folder: Path | None,
    kinds: Sequence[str] = KINDS,
) -> dict[str, Any]:
    """Gallery-picture queries and uploads, each for `seconds`; latency, throughput, errors and memory of the server.

    folder: where the gallery is made, and found again by the next run.
    """
    if shutil.which("wrk") is None:
        raise TesseraError("The load generator wrk is not installed. Install it with: apt-get install wrk")
    with contextlib.ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        kept = folder or work
        kept.mkdir(parents=True, exist_ok=True)
        picture = photo or _make_photo(kept / "photo.jpg")
        gallery_path = kept / f"bench-{images}.tessera"
        if not gallery_path.exists():
            make_gallery(gallery_path, picture, images)
        report: dict[str, Any] = {"images": images, "clients": clients, "seconds": seconds}
        if UPLOAD in kinds:
            report["alone"] = _alone(gallery_path, picture)
        scripts = {GALLERY_PICTURE: _ids_script(images), UPLOAD: _upload_script(work, picture)}
        address, process = stack.enter_context(_server(gallery_path))
        for kind in kinds:
            _run_wrk(address, clients, 5, work, scripts[kind])  # what is made on first use is no growth
            before = _memory_mb(process.pid)
            report[kind] = _run_wrk(address, clients, seconds, work, scripts[kind])
            report[kind]["memory_mb"] = [before, _memory_mb(process.pid)]
    if UPLOAD in kinds:
        report["upload_ratio"] = report[UPLOAD]["requests_a_second"] / report["alone"]["uploads_a_second"]
    return report


def make_gallery(path: Path, picture: Path, images: int) -> None:
    """A gallery of descriptors as hard to tell apart as real ones, every one with the same picture behind it."""
    with Image.open(picture) as opened:
        width, height = opened.size
    with Gallery(path) as gallery:
        dim = gallery.describer.dim
        gallery.index(picture)
        descriptors = itertools.chain.from_iterable(Synthesis(images - 1, dim).blocks())
        gallery.add(
            DescribedImage(picture.parent / f"copy{row}.jpg", descriptor, width, height)
            for row, descriptor in enumerate(descriptors)
        )


def _alone(gallery_path: Path, picture: Path, repeats: int = 12) -> dict[str, float]:
    """The network's time and the decoder's for one upload, each by itself on all cores."""
    from concurrent.futures import ThreadPoolExecutor

    from tessera.data.images import load_photo

    with Gallery(gallery_path) as gallery:
        extractor = gallery.describer.extractor
        content = picture.read_bytes()
        pixels = load_photo(content, size=extractor.size)
        extractor.describe(pixels)
        started = time.perf_counter()
        for _ in range(repeats):
            extractor.describe(pixels)
        network_s = (time.perf_counter() - started) / repeats
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            started = time.perf_counter()
            list(pool.map(lambda _: load_photo(content, size=extractor.size), range(4 * repeats)))
            decoding_s = (time.perf_counter() - started) / (4 * repeats)
    rate = 1 / (network_s + decoding_s)
    return {"network_s": network_s, "decoding_s": decoding_s, "uploads_a_second": rate}


@contextlib.contextmanager
def _server(gallery_path: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    port = 18642
    command = [sys.executable, "-m", "tessera.cli.main", "serve", "-g", str(gallery_path), "--port", str(port)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            if process.poll() is not None:
                raise TesseraError(f"The service ended at once with exit code {process.returncode}.")
            with contextlib.suppress(urllib.error.URLError, OSError):
                urllib.request.urlopen(f"{address}/ready", timeout=5)
                break
            time.sleep(0.2)
        yield address, process
    finally:
        process.terminate()
        process.wait(timeout=30)


def _ids_script(images: int) -> str:
    return f"""
request = function()
  return wrk.format("GET", "/api/images/" .. math.random(1, {images}) .. "/search?k=20")
end
"""


def _upload_script(work: Path, picture: Path) -> str:
    body = work / "body.bin"
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="a.jpg"\r\n\r\n'
    body.write_bytes(head.encode() + picture.read_bytes() + f"\r\n--{BOUNDARY}--\r\n".encode())
    return f"""
local file = io.open("{body}", "rb")
wrk.body = file:read("*a")
wrk.method = "POST"
wrk.path = "/api/search"
wrk.headers["Content-Type"] = "multipart/form-data; boundary={BOUNDARY}"
"""


_REPORT = """
done = function(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format("REPORT [%d, %d, %d, %d, %d, %d]\\n", summary.requests, summary.duration,
    latency:percentile(50), latency:percentile(95), latency:percentile(99),
    errors.connect + errors.read + errors.write + errors.status + errors.timeout))
end
"""


def _run_wrk(address: str, clients: int, seconds: int, work: Path, script: str) -> dict[str, Any]:
    path = work / "load.lua"
    path.write_text(script + _REPORT)
    command = ["wrk", "-t1", f"-c{clients}", f"-d{seconds}s", "--timeout", "60s", "-s", str(path), address]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"REPORT (\[.*\])", printed)
    if found is None:
        raise TesseraError(f"wrk gave no report: {printed.strip()}")
    requests, duration_us, p50_us, p95_us, p99_us, errors = json.loads(found.group(1))
    return {
        "requests_a_second": requests / (duration_us / 1e6),
        "p50_ms": p50_us / 1e3,
        "p95_ms": p95_us / 1e3,
        "p99_ms": p99_us / 1e3,
        "p99_over_p50": p99_us / max(p50_us, 1),
        "errors": errors,
    }


def _memory_mb(pid: int) -> float:
    """What the process itself holds. Not pages of mapped files: each search maps in a few more of the descriptors'."""
    status = Path(f"/proc/{pid}/status")
    found = re.search(r"RssAnon:\s+(\d+)", status.read_text()) if status.is_file() else None
    return int(found.group(1)) / 1024 if found else float("nan")


def _make_photo(path: Path) -> Path:
    """A 1024 x 768 JPEG of coloured noise at several scales: decodes like a photograph."""
    random = np.random.default_rng(0)
    layers = [
        np.asarray(
            Image.fromarray(random.integers(0, 256, (768 // cell, 1024 // cell, 3), dtype=np.uint8)).resize(
                (1024, 768)
            ),
            dtype=np.float32,
        )
        for cell in (128, 32, 8)
    ]
    Image.fromarray(np.mean(layers, axis=0).astype(np.uint8)).save(path, quality=88)
    return path


def to_markdown(report: dict[str, Any]) -> str:
    rows = [
        f"{report['images']:,} images, {report['clients']} clients, {report['seconds']} s of each kind of query.",
        "",
        "| query | requests a second | p50 ms | p95 ms | p99 ms | p99 / p50 | errors | memory before, after (MB) |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, kind in (("a picture of the gallery", GALLERY_PICTURE), ("an upload", UPLOAD)):
        if kind in report:
            row = report[kind]
            rows.append(
                f"| {name} | {row['requests_a_second']:.1f} | {row['p50_ms']:.1f} | {row['p95_ms']:.1f} "
                f"| {row['p99_ms']:.1f} | {row['p99_over_p50']:.2f} | {row['errors']} "
                f"| {row['memory_mb'][0]:.0f}, {row['memory_mb'][1]:.0f} |"
            )
    if UPLOAD in report:
        rows += [
            "",
            f"Uploads reach {report['upload_ratio']:.2f} of 1 / (network + decoding), which is "
            f"{report['alone']['uploads_a_second']:.1f} a second.",
        ]
    return "\n".join(rows)
