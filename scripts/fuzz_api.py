"""Throw schemathesis at the service: no request, however odd, may end in a 5xx.

    python scripts/fuzz_api.py --examples 1000 --seeds 1,2,3     the service as it is: exits 0 when nothing fails
    python scripts/fuzz_api.py --examples 1000 --planted         with a planted fault: exits 0 when it is found

The gallery is a small one, on the packaged model or on the bundle given, so that most time goes into requests.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from tessera.gallery.gallery import Gallery
from tessera.serve.server import listen, make_server
from tessera.serve.settings import Settings

PHOTOS = Path(__file__).parent.parent / "examples" / "photos"
KEY = "fuzz"
PLANTED = "/api/planted"
TIMEOUT_S = 600.0  # a busy machine is not what is looked for here; that late answers are a 504 has tests of its own


def plant(app: FastAPI) -> None:
    """A fault of the kind that hides: one parameter, above one value, on one route."""

    @app.get(PLANTED, summary="A route with a fault")
    async def planted(number: int = 0) -> dict[str, int]:
        return {"number": 1 // (0 if number > 1_000_000 else 1)}


def start(gallery_path: Path, port: int, *, planted: bool) -> uvicorn.Server:
    settings = Settings(gallery_path, port=port, writer_key=KEY, threads=1, max_in_flight=256, timeout_s=TIMEOUT_S)
    server = make_server(settings)
    if planted:
        plant(server.config.app)  # type: ignore[arg-type]
    threading.Thread(target=server.run, args=([listen(settings)],), daemon=True).start()
    for _ in range(3000):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=60)
            return server
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise SystemExit("the service did not start")


def fuzz(port: int, examples: int, seed: int) -> str:
    """The server errors that were found, as schemathesis tells them; anything else that goes wrong ends the script."""
    command = [
        str(Path(sys.executable).parent / "schemathesis"), "run", f"http://127.0.0.1:{port}/openapi.json",
        "--checks", "not_a_server_error", "--max-examples", str(examples), "--seed", str(seed),
        "--phases", "examples,coverage,fuzzing", "--header", f"Authorization: Bearer {KEY}", "--no-color",
        "--suppress-health-check", "all", "--request-timeout", str(2 * TIMEOUT_S), "--generation-database", "none",
        "--warnings", "off", "--max-failures", "1",
    ]  # fmt: skip
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    print(done.stdout, done.stderr, sep="\n")
    failures = done.stdout.partition("= FAILURES =")[2]
    if done.returncode and "Server error" not in failures:
        raise SystemExit("schemathesis could not finish: see above")
    return failures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=1000)
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--planted", action="store_true")
    parser.add_argument("--model", default="lite")
    parser.add_argument("--port", type=int, default=18643)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fuzz.tessera"
        with Gallery(path, model=options.model) as gallery:
            gallery.index(*sorted(PHOTOS.glob("*.jpg"))[:6])
        server = start(path, options.port, planted=options.planted)
        found = [fuzz(options.port, options.examples, int(seed)) for seed in options.seeds.split(",")]
        server.should_exit = True
    well = any(PLANTED in failures for failures in found) if options.planted else not any(found)
    raise SystemExit(0 if well else 1)


if __name__ == "__main__":
    main()
