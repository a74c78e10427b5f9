"""Load on a service for a while: readers, uploads and one process that indexes; errors, memory, handles, threads.

python scripts/soak.py --minutes 10 --photos FOLDER           the pictures to index, search with and upload

Prints a line every half minute and at the end: requests by kind and status, and how far memory (resident), open files
and threads of the service went after the first third, which is its warm-up. Exit code 1 for an answer that is an error.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import httpx

KEY = {"Authorization": "Bearer writer"}


def measure(pid: int) -> dict[str, int]:
    """Resident megabytes, open files and threads of a process, its decoders not included."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {
        "mb": int(status["VmRSS"].split()[0]) >> 10,
        "files": len(os.listdir(f"/proc/{pid}/fd")),  # noqa: PTH208 - of another process
        "threads": int(status["Threads"]),
    }


class Load:
    def __init__(self, address: str, gallery: Path, photos: list[Path]) -> None:
        self.address, self.gallery, self.photos = address, gallery, photos
        self.counts: Counter[str] = Counter()
        self.stopping = threading.Event()

    def count(self, kind: str, answer: httpx.Response) -> None:
        # While another process writes, an upload is put off with 503: that is an answer, not an error.
        busy = kind == "upload" and answer.status_code == 503
        self.counts[f"{kind} {'put off' if busy else answer.status_code}"] += 1

    def read(self, number: int) -> None:
        with httpx.Client(base_url=self.address, timeout=60) as client:
            turn = number
            while not self.stopping.is_set():
                turn += 1
                photo = self.photos[turn % len(self.photos)]
                files = {"file": (photo.name, photo.read_bytes())}
                self.count("search", client.post("/api/search", files=files))
                page = client.get("/api/images", params={"limit": 50})
                self.count("browse", page)
                for image in page.json()["images"][:5]:
                    self.count("thumbnail", client.get(f"/api/images/{image['id']}/thumbnail"))
                    self.count("search by id", client.get(f"/api/images/{image['id']}/search"))

    def write(self) -> None:
        with httpx.Client(base_url=self.address, timeout=60, headers=KEY) as client:
            turn = 0
            while not self.stopping.wait(0.5):
                turn += 1
                photo = self.photos[turn % len(self.photos)]
                content = photo.read_bytes() + str(turn).encode()
                answer = client.post("/api/images", files={"file": (photo.name, content)})
                self.count("upload", answer)
                if answer.status_code == 201:
                    removed = client.delete(f"/api/images/{answer.json()['id']}")
                    self.count("upload", removed)

    def index(self) -> None:
        while not self.stopping.wait(10):
            command = [
                sys.executable,
                "-m",
                "tessera.cli.main",
                "index",
                *map(str, self.photos),
                "-g",
                str(self.gallery),
            ]
            done = subprocess.run([*command, "--rebuild"], capture_output=True, text=True, check=False)
            busy = "is being written" in done.stderr
            self.counts["index put off" if busy else f"index exit {done.returncode}"] += 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--photos", type=Path, required=True)
    parser.add_argument("--readers", type=int, default=3)
    options = parser.parse_args()
    photos = sorted(options.photos.glob("*.jpg"))
    with tempfile.TemporaryDirectory(prefix="tessera-soak-") as name:
        gallery = Path(name) / "g.tessera"
        command = [sys.executable, "-m", "tessera.cli.main"]
        subprocess.run([*command, "index", *map(str, photos), "-g", str(gallery)], check=True)
        port = "8693"
        serve = [*command, "serve", "-g", str(gallery), "--port", port, "--writer-key", "writer", "--timeout", "60"]
        with subprocess.Popen(serve, stderr=subprocess.DEVNULL) as service:
            try:
                return _watch(Load(f"http://127.0.0.1:{port}", gallery, photos), service.pid, options)
            finally:
                service.send_signal(signal.SIGINT)


def _watch(load: Load, pid: int, options: argparse.Namespace) -> int:
    while True:
        try:
            if httpx.get(f"{load.address}/ready", timeout=60).status_code == 200:
                break
        except httpx.TransportError:
            time.sleep(0.5)
    threads = [threading.Thread(target=load.read, args=[i], daemon=True) for i in range(options.readers)]
    threads += [threading.Thread(target=act, daemon=True) for act in (load.write, load.index)]
    for thread in threads:
        thread.start()
    seen: list[dict[str, int]] = []
    end = time.monotonic() + 60 * options.minutes
    while time.monotonic() < end:
        time.sleep(30)
        seen.append(measure(pid))
        print(seen[-1], flush=True)
    load.stopping.set()
    for thread in threads:
        thread.join(90)
    for kind, count in sorted(load.counts.items()):
        print(f"{count:7} {kind}")
    after = seen[len(seen) // 3 :]
    for what in ("mb", "files", "threads"):
        values = [found[what] for found in after]
        print(f"{what}: {values[0]} after the warm-up, at most {max(values)}, {values[-1]} at the end")
    good = ("20", "put off", "exit 0")
    return int(any(not any(word in kind for word in good) for kind in load.counts))


if __name__ == "__main__":
    raise SystemExit(main())
