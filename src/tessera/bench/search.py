"""`tessera bench search`: every codec and what a user would pick instead, on the same descriptors in the same run."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tessera.bench.peers import CODEC_NAMES, PEERS, extra_of, is_missing, make_competitor
from tessera.bench.synthesis import Synthesis, load_fit
from tessera.bench.views import read_views
from tessera.bench.worker import K, saved_path
from tessera.errors import TesseraError, UsageError, unknown_name
from tessera.index.codecs.block_scan import scan_blocks
from tessera.index.descriptor_file import DescriptorStore, Float16s, Float32s
from tessera.storage import write_atomically

_EXTRA = 1001
_NO_NEWS: Callable[[str], None] = lambda _: None  # noqa: E731


def measure_search(
    *,
    count: int,
    dim: int,
    queries: int,
    seed: int = 0,
    only: Sequence[str] = (),
    peers: bool = True,
    graph_count: int = 50_000,
    gallery: Path | None = None,
    views: Path | None = None,
    groups: bool = False,
    folder: Path | None = None,
    keep: bool = False,
    say: Callable[[str], None] = _NO_NEWS,
) -> dict[str, Any]:
    """Make the descriptors (or take them from a gallery or from `bench.views`), find the exact answers, let each run.

    only: names of competitors; all by default, or without peers all of our codecs.
    graph_count: graphs are built on at most so many.
    folder: where the files go while it runs (count * dim * 2 bytes and each competitor's own); by default a temporary
    one. keep: they stay there, and a later run does not make again what it finds.
    say: is told each row of the table as soon as it is there.
    """
    names = check_names(only, peers)
    asked = {"count": count, "dim": dim, "queries": queries, "seed": seed, "graph_count": graph_count}
    with working_folder(folder, keep) as work:
        copies = [copies_of(name) for name in names]
        room = sum(copies) if keep else max(copies, default=0)
        setting = prepare(work, asked, room=room, gallery=gallery, views=views, groups=groups, say=say)
        rows = {}
        for competitor in names:
            say(competitor)
            rows[competitor] = _run(work, competitor, keep=keep)
            say(_row(competitor, rows[competitor], setting["count"]))
    report = {"machine": platform.processor() or platform.machine(), "load": list(os.getloadavg()), **setting}
    return report | {"k": K, "competitors": rows, "ratios": _ratios(rows)}


@contextlib.contextmanager
def working_folder(folder: Path | None, keep: bool) -> Iterator[Path]:
    if keep:
        if folder is None:
            raise UsageError("What is kept needs a place: give --folder.")
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="tessera-bench-", dir=folder) as name:
        yield Path(name)


def prepare(
    work: Path,
    asked: dict[str, Any],
    *,
    room: int,
    gallery: Path | None = None,
    views: Path | None = None,
    groups: bool = False,
    say: Callable[[str], None] = _NO_NEWS,
) -> dict[str, Any]:
    """The descriptors with their exact answers, made unless a run before has left them; what is known of them.

    room: how many copies of them competitors will write at once.
    """
    path = work / "setting.json"
    fitted = None if gallery is not None or views is not None else load_fit().fingerprint
    asked = asked | {"gallery": str(gallery) if gallery else None, "fitted": fitted}
    asked |= ({"views": str(views)} if views else {}) | ({"groups": True} if groups else {})
    if path.exists():
        setting: dict[str, Any] = json.loads(path.read_text())
        if setting["asked"] != asked:
            raise UsageError(f"{work} was made with {setting['asked']}, not with {asked}. Give another --folder.")
        return setting
    check_enough_disk(work, asked["count"], asked["dim"], room)
    say("making descriptors")
    made = {key: asked[key] for key in ("count", "dim", "queries", "seed")}
    setting = _write_descriptors(work, **made, gallery=gallery, views=views, groups=groups)
    setting |= {"graph_count": min(asked["graph_count"], setting["count"]), "threads": os.cpu_count() or 1}
    say("finding the exact answers")
    _write_truth(work, setting)
    setting["asked"] = asked
    path.write_text(json.dumps(setting))
    return setting


def check_names(only: Sequence[str], peers: bool) -> list[str]:
    known = [*CODEC_NAMES, *PEERS] if peers or only else list(CODEC_NAMES)
    for name in only:
        if name not in known:
            raise UsageError(unknown_name("competitor", name, known))
    return [name for name in known if not only or name in only]


def _write_descriptors(
    work: Path,
    *,
    count: int,
    dim: int,
    queries: int,
    seed: int,
    gallery: Path | None,
    views: Path | None,
    groups: bool,
) -> dict[str, Any]:
    """Write the gallery, the queries (not in it) and some descriptors to add later."""
    if gallery is not None:
        return _prepare_from_gallery(work, gallery, queries, seed)
    if views is not None:
        return _prepare_from_views(work, views, count, queries, seed)
    synthesis = Synthesis(count, dim, seed=seed, groups=groups)
    synthesis.write(work / "gallery.f16")
    asked = synthesis.queries(queries + _EXTRA)
    np.save(work / "queries.npy", asked[:queries])
    np.save(work / "extra.npy", asked[queries:])
    kind = "synthetic in groups" if groups else "synthetic"
    source = f"{kind}, fitted to {synthesis.fit.model} ({synthesis.fit.fingerprint})"
    return {"count": count, "dim": dim, "queries": queries, "seed": seed, "source": source}


def _prepare_from_gallery(work: Path, path: Path, queries: int, seed: int) -> dict[str, Any]:
    from tessera.gallery.gallery import Gallery

    with Gallery(path) as gallery:
        found: list[int] = []
        while page := gallery.images(after_id=found[-1] if found else 0, limit=1000):
            found.extend(record.id for record in page)
        ids = np.asarray(found)
        if len(ids) < 2 * queries + _EXTRA:
            raise UsageError(f"{path} has {len(ids)} images; measuring on it takes {2 * queries + _EXTRA} or more.")
        order = np.random.default_rng(seed).permutation(len(ids))
        held_out, kept = ids[order[: queries + _EXTRA]], np.sort(ids[order[queries + _EXTRA :]])
        asked = np.asarray(gallery.descriptors(held_out), np.float32)
        rows = np.asarray(gallery.descriptors(kept), np.float16)
    rows.tofile(work / "gallery.f16")
    np.save(work / "queries.npy", asked[:queries])
    np.save(work / "extra.npy", asked[queries:])
    count, dim = rows.shape
    return {"count": count, "dim": dim, "queries": queries, "seed": seed, "source": str(path)}


def _prepare_from_views(work: Path, folder: Path, count: int, queries: int, seed: int) -> dict[str, Any]:
    rows, _ = read_views(folder)
    held_out = queries + _EXTRA
    if len(rows) < count + held_out:
        raise UsageError(f"{folder} has {len(rows)} descriptors; measuring {count} takes {count + held_out}.")
    order = np.random.default_rng(seed).permutation(len(rows))
    rows[np.sort(order[held_out : held_out + count])].tofile(work / "gallery.f16")
    asked = rows[order[:held_out]].astype(np.float32)
    np.save(work / "queries.npy", asked[:queries])
    np.save(work / "extra.npy", asked[queries:])
    dim = rows.shape[1]
    return {"count": count, "dim": dim, "queries": queries, "seed": seed, "source": "views of photos"}


def _write_truth(work: Path, setting: dict[str, Any]) -> None:
    shape = (setting["count"], setting["dim"])
    rows = np.memmap(work / "gallery.f16", np.float16, "r", shape=shape)
    asked: Float32s = np.load(work / "queries.npy")
    truth = exact_rows(rows, asked)
    np.save(work / "truth.npy", truth)
    few = setting["graph_count"] < setting["count"]
    np.save(work / "truth-graph.npy", exact_rows(rows[: setting["graph_count"]], asked) if few else truth)


def exact_rows(rows: Float16s, queries: Float32s) -> npt.NDArray[np.int64]:
    """The K nearest rows of each query, best first."""
    scores, found = scan_blocks(queries, DescriptorStore.of(rows).blocks(4096), min(K, len(rows)), None)
    order = np.argsort(-scores, axis=1, kind="stable")
    return np.take_along_axis(found, order, axis=1)


def _run(work: Path, name: str, *, keep: bool) -> dict[str, Any]:
    """Every phase of one competitor; a failure is reported in its place, not raised: the others still count."""
    if is_missing(made := make_competitor(name)):
        return {"missing": f"{made.needs} is not installed (extra '{extra_of(made)}')"}
    result: dict[str, Any] = {}
    for phase in ("build", "batch", "answer"):
        result |= run_phase(work, name, phase)
        if "failed" in result:
            return result
    if not keep:
        for path in work.glob("saved*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return result


def run_phase(work: Path, name: str, phase: str) -> dict[str, Any]:
    """One phase of a competitor in a process of its own; what is built is built once."""
    built = saved_path(work, name).with_suffix(".json")  # last, and at once: what it says is there
    if phase == "build" and built.exists():
        return dict(json.loads(built.read_text()))
    one = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    extra = one if phase in ("answer", "curve") else {}
    command = [sys.executable, "-m", "tessera.bench.worker", str(work), name, phase]
    done = subprocess.run(command, env=os.environ | extra, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return {"failed": f"{phase}: exit {done.returncode}: {last}"}
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    if phase == "build":
        write_atomically(built, json.dumps(result).encode())
    return result


def _ratios(rows: dict[str, dict[str, Any]]) -> dict[str, dict[str, float]]:
    """How many times faster than flat and than FAISS IndexPQ each codec answers one query, by processor time.

    Processor time, because another process on the machine lengthens the wall time of whoever happens to run then.
    """
    ratios: dict[str, dict[str, float]] = {}
    for base in ("flat", "faiss IndexPQ"):
        if "cpu_ms" in rows.get(base, {}):
            ratios[base] = {
                name: rows[base]["cpu_ms"] / row["cpu_ms"]
                for name, row in rows.items()
                if row.get("cpu_ms") and row["count"] == rows[base]["count"]
            }
    return ratios


_COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("ms, median", "median_ms", ".2f"),
    ("p95", "p95_ms", ".2f"),
    ("CPU ms", "cpu_ms", ".2f"),
    ("queries/s, batched", "batch_qps", ".0f"),
    ("bytes in memory", "memory_bytes", ".0f"),
    ("codes on disk", "code_bytes", ".0f"),
    ("all on disk", "disk_bytes", ".0f"),
    ("build s", "build_s", ".1f"),
    ("load s", "load_s", ".2f"),
    ("first answer s", "first_answer_s", ".2f"),
    ("add 1,000 ms", "add_1000_ms", ".1f"),
    ("add one ms", "add_one_ms", ".2f"),
    ("delete one ms", "delete_one_ms", ".2f"),
)


def to_markdown(report: dict[str, Any]) -> str:
    """The table that people read; the JSON has every number."""
    head = (
        f"{report['count']:,} descriptors of {report['dim']} ({report['source']}), {report['queries']} queries, "
        f"k = {report['k']}, seed {report['seed']}; one thread a query, batches of 64 on {report['threads']} cores; "
        f"load {report['load'][0]:.1f}"
    )
    titles = ["", *(title for title, _, _ in _COLUMNS), "recall@1", "@10", "@100"]
    lines = [head, "", "| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    notes = []
    for name, row in report["competitors"].items():
        if "missing" in row or "failed" in row:
            notes.append(_row(name, row, report["count"]))
            continue
        lines.append(_row(name, row, report["count"]))
        if row["settings"]:
            notes.append(f"{name}: {json.dumps(row['settings'])}")
        if row.get("refined_ms"):
            times = ", ".join(f"{way} {value:.1f}" for way, value in row["refined_ms"].items())
            notes.append(f"{name}, ms a query with: {times}")
    for base, ratios in report["ratios"].items():
        notes.append(f"times faster than {base}: " + ", ".join(f"{name} {value:.1f}" for name, value in ratios.items()))
    return "\n".join([*lines, "", *(f"- {note}" for note in notes)])


def _row(name: str, row: dict[str, Any], count: int) -> str:
    """One competitor's line of the table, or why it has none."""
    if "missing" in row or "failed" in row:
        return f"{name}: {row.get('missing') or row['failed']}"
    label = name if row["count"] == count else f"{name} (on {row['count']:,})"
    cells = [format(row[key], form) if row.get(key) is not None else "–" for _, key, form in _COLUMNS]
    cells += [f"{row['recall'][k]:.3f}" for k in ("1", "10", "100")]
    return "| " + " | ".join([label, *cells]) + " |"


def copies_of(name: str) -> int:
    """How many times the descriptors' own size a competitor writes: some keep them in single precision."""
    return 1 if name in CODEC_NAMES else 2


def check_enough_disk(folder: Path, count: int, dim: int, room: int) -> None:
    """Ten million and one codec take 41 gigabytes while they run: better said before than after."""
    needed = (1 + room) * count * dim * 2
    if shutil.disk_usage(folder).free < needed:
        raise TesseraError(f"{folder} has less than the {needed / 1e9:.0f} GB that this needs. Give another --folder.")
