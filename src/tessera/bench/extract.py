"""How fast pictures become descriptors here, and what is lost between decoding and the network.

Everything is measured side by side in one run, and compared as ratios: a busy or slow machine moves both sides.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from tessera.bench.pictures import LARGE, SMALL, make_pictures
from tessera.data.images import Pixels, read_photo
from tessera.errors import TesseraError
from tessera.extract.extractor import Extractor

# What the figures are held against: nothing lost between the parts, memory that a collection does not move.
LEAST_RATIO = 0.9
MOST_GROWTH = 1.1
MOST_RESCAN_S = 2.0

_COLLECTIONS = (1_000, 10_000)
_TINY = (96, 72)


def measure_extraction(
    *, model: str, photos: int, large: int, repeats: int, memory: bool, table: bool, side: int = 512
) -> dict[str, Any]:
    """Run the whole benchmark; see `to_markdown` for what the report says."""
    extractor = Extractor(model)
    report: dict[str, Any] = {
        "model": extractor.bundle.card.name,
        "threads": extractor.threads,
        "machine": platform.processor() or platform.machine(),
        "load": [round(value, 1) for value in os.getloadavg()],
        "rates": {},
    }
    with tempfile.TemporaryDirectory(prefix="tessera-bench-") as name:
        folder = Path(name)
        for label, count, size in (("small", photos, SMALL), ("12-megapixel", large, LARGE)):
            paths = make_pictures(folder / label, count, size)
            spare = make_pictures(folder / f"{label}-spare", extractor.threads, size, seed=2)
            report["rates"][label] = measure_rate(extractor, paths, spare, repeats, folder)
        if memory:
            report["memory"] = measure_memory(model, folder)
    if table:
        from tessera.bench.networks import measure_networks

        report["networks"] = measure_networks(side=side, repeats=repeats)
    return report


def measure_rate(
    extractor: Extractor, paths: Sequence[Path], spare: Sequence[Path], repeats: int, folder: Path
) -> dict[str, Any]:
    """Decoding alone, the network alone, and indexing with both: milliseconds an image, round by round.

    ratio: the rate of indexing over 1 / (network + decoding). Each part alone has all cores; the network alone runs in
    the faster of its two ways, workers or one network on all cores. work_ratio: the same of the cores' own seconds: it
    counts work that was added, not cores that stood idle, and can be read while others use the machine. spare: what
    opens and warms the gallery's own network, as those of the parts are.
    """
    decode = partial(read_photo, size=extractor.size)
    pixels = [decode(path).pixels for path in paths]
    extractor.describe(pixels[0])
    list(extractor.extract(paths[:2]))  # both networks are open and warm
    rounds: list[dict[str, StageCost]] = []
    for i in range(repeats):
        workers = _cost(lambda: _in_workers(extractor, pixels))
        whole = _cost(lambda: [extractor.describe(image) for image in pixels])
        rounds.append(
            {
                "network": min(workers, whole, key=lambda cost: cost.wall_s),
                "decode": _cost(lambda: _in_threads(decode, paths, extractor.threads)),
                "extract": _cost(lambda: list(extractor.extract(paths))),
                "index": _index(folder / f"{paths[0].parent.name}-{i}.tessera", paths, spare, extractor),
            }
        )
    walls = [{key: cost.wall_s for key, cost in one.items()} for one in rounds]
    works = [{key: cost.work_s for key, cost in one.items()} for one in rounds]
    middle = {key: statistics.median(one[key] for one in walls) * 1e3 / len(paths) for key in walls[0]}
    ratios = [_ratio(one) for one in walls]
    return {
        "images": len(paths),
        **{f"{key}_ms": round(value, 3) for key, value in middle.items()},
        "images_per_s": round(1e3 / middle["index"], 2),
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
        "work_ratio": round(statistics.median(_ratio(one) for one in works), 3),
        "bar": LEAST_RATIO,
    }


class StageCost(NamedTuple):
    """Seconds that passed, and seconds that the cores worked for this process: the second bears a busy machine."""

    wall_s: float
    work_s: float


def _ratio(seconds: dict[str, float]) -> float:
    return (seconds["network"] + seconds["decode"]) / seconds["index"]


def _cost(run: Callable[[], object]) -> StageCost:
    wall, work = time.perf_counter(), time.process_time()
    run()
    return StageCost(time.perf_counter() - wall, time.process_time() - work)


def _in_threads(run: Callable[[Path], object], paths: Sequence[Path], threads: int) -> None:
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(lambda path: bool(run(path)), paths):
            pass


def _in_workers(extractor: Extractor, images: Sequence[Pixels]) -> None:
    describe, workers = extractor.workers()
    with ThreadPoolExecutor(workers) as pool:
        for _ in pool.map(lambda image: describe([image]), images):
            pass


def _index(gallery_path: Path, paths: Sequence[Path], spare: Sequence[Path], extractor: Extractor) -> StageCost:
    from tessera.gallery.gallery import Gallery

    with Gallery(gallery_path, model=str(extractor.bundle.path), threads=extractor.threads) as gallery:
        gallery.index(spare[0].parent)
        cost = _cost(lambda: gallery.index(paths[0].parent))
        if len(gallery) != len(spare) + len(paths):
            raise TesseraError(f"the benchmark indexed {len(gallery)} of {len(spare) + len(paths)} pictures")
    return cost


def measure_memory(model: str, folder: Path) -> dict[str, Any]:
    """Peak memory of indexing 1,000 and 10,000 small pictures, each in a process of its own, and a second run.

    The second run finds everything unchanged; it must read no file's content, so it is quick.
    """
    paths = make_pictures(folder / "many", _COLLECTIONS[-1], _TINY, seed=1)
    peaks = []
    for count in _COLLECTIONS:
        part = folder / f"part-{count}"
        part.mkdir()
        for path in paths[:count]:
            (part / path.name).hardlink_to(path)
        gallery = folder / f"many-{count}.tessera"
        peaks.append(_child(model, gallery, part)["peak_mb"])
    again = _child(model, gallery, part)
    return {
        "images": list(_COLLECTIONS),
        "peak_mb": [round(peak, 1) for peak in peaks],
        "growth": round(peaks[-1] / peaks[0], 3),
        "bar": MOST_GROWTH,
        "rescan_s": round(again["seconds"], 2),
        "rescan_bar_s": MOST_RESCAN_S,
    }


_CHILD = """
import json, resource, sys, time
from tessera import Gallery
gallery = Gallery(sys.argv[2], model=sys.argv[1])
started = time.perf_counter()
report = gallery.index(sys.argv[3])
seconds = time.perf_counter() - started
try:  # on Linux `ru_maxrss` begins with the parent's
    status = open("/proc/self/status").read()
    peak = int(status.split("VmHWM:")[1].split()[0]) / 1e3
except OSError:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)
print(json.dumps({"peak_mb": peak, "seconds": seconds, "images": report.images}))
"""


def _child(model: str, gallery: Path, folder: Path) -> dict[str, Any]:
    command = [sys.executable, "-c", _CHILD, model, str(gallery), str(folder)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        raise TesseraError(f"the process that measures memory failed: {answer.stderr.strip()[-500:]}")
    measured: dict[str, Any] = json.loads(answer.stdout)
    return measured


def to_markdown(report: dict[str, Any]) -> str:
    """The report as tables, each with what it is held against."""
    lines = [
        f"Model {report['model']}, {report['threads']} threads, {report['machine']}, load {report['load'][0]}.",
        "",
        "| photographs | decoding ms | network ms | both in one ms | indexing ms | images/s | ratio | of work | bar |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for label, rate in report["rates"].items():
        lines.append(
            f"| {label} ({rate['images']}) | {rate['decode_ms']:.1f} | {rate['network_ms']:.1f} "
            f"| {rate['extract_ms']:.1f} | {rate['index_ms']:.1f} | {rate['images_per_s']:.1f} "
            f"| {rate['ratio']:.2f} | {rate['work_ratio']:.2f} | >= {rate['bar']} |"
        )
    lines += [
        "",
        "ratio: the rate of indexing over 1 / (network + decoding), each measured alone on all cores; of work: the",
        "same of processor seconds, which a busy machine does not move.",
    ]
    if "memory" in report:
        memory = report["memory"]
        lines += [
            "",
            "| indexing | peak memory MB |",
            "|---|---:|",
            *(f"| {n:,} images | {mb:.0f} |" for n, mb in zip(memory["images"], memory["peak_mb"], strict=True)),
            "",
            f"Growth {memory['growth']:.2f} (bar <= {memory['bar']}). A second run over {memory['images'][-1]:,} "
            f"unchanged files: {memory['rescan_s']:.2f} s (bar <= {memory['rescan_bar_s']:.0f} s).",
        ]
    if "networks" in report:
        from tessera.bench.networks import networks_markdown

        lines += ["", networks_markdown(report["networks"])]
    return "\n".join(lines)
