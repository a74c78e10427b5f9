"""A worker of a remote catalogue: takes a unit of work, describes it, and writes its shards itself.

A unit whose worker died is given out again, and what is stored already is not described again. What kills workers is
found out: the second time the worker writes down which picture it is at, one by one, and whoever comes after it passes
over that picture, with the reason in the catalogue.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

from tessera.data.photos.decoding import DEFAULT_LIMITS
from tessera.errors import DataError, TesseraError, UsageError
from tessera.gallery.ingest.reading import ReadFile, read_file, with_facts
from tessera.gallery.ingest.sources import FoundFile
from tessera.gallery.remote.remote_run import RemoteRun
from tessera.gallery.remote.remote_store import MARKER_NAME, RemoteStore
from tessera.gallery.remote.shards import Shards
from tessera.gallery.remote.work_units import Fetch, WorkUnit, read_unit
from tessera.gallery.results import IndexReport, Problem

POISON = "it ended the process that described it, twice"
_UNITS_AT_ONCE = 4096  # that one dataset holds


class UnitRunner:
    """Runs units one after the other, in a process of its own or in the caller's."""

    def __init__(self, store: RemoteStore, *, metadata: str | None = None) -> None:
        self._store, self._metadata = store, metadata
        self._run = RemoteRun(store)
        self._run.begin()

    def run(self, unit: WorkUnit) -> IndexReport:
        run = self._run
        run.report = IndexReport()
        trial = _Trial(self._store.shards, unit.name)
        if trial.is_repeated:
            run.begin()  # whoever had it may have left a shard that nobody has sent
        try:
            for batch in read_unit(unit):
                fetchers = {file.path: fetch for file, fetch in batch}
                wanted = run.plan((file for file, _ in batch), self._metadata)
                reads = (_read(file, fetchers[file.path]) for file in wanted)
                for part in trial.parts(reads, run.fail):
                    run.describe(part)
        except DataError as error:
            run.pass_over(unit.url.encode(), str(error))
        finally:
            run.finish()
        trial.end()
        return run.report


class RayUnitActor:
    """A `UnitRunner` in a worker of Ray; rows of units to rows of reports."""

    def __init__(self, settings: dict[str, Any], model: str, metadata: str | None) -> None:
        folder = Path(tempfile.mkdtemp(prefix="tessera-"))
        (folder / MARKER_NAME).write_text(json.dumps(settings))
        store = RemoteStore(
            folder, storage=None, model=model, codec=None, engine=None, device="auto", runtime="onnx", threads=1,
            create=False, reload="inline",
        )  # fmt: skip
        self._runner = UnitRunner(store, metadata=metadata)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        report = self._runner.run(pickle.loads(row["unit"]))
        return {"report": json.dumps(asdict(report)).encode()}


def run_on_ray(
    units: Iterator[WorkUnit],
    store: RemoteStore,
    address: str,
    *,
    metadata: str | None = None,
    told: Callable[[IndexReport], None] = lambda _: None,
    actor: type[RayUnitActor] = RayUnitActor,
    actors: int | None = None,
) -> IndexReport:
    """Hand units out to the actors of a cluster; Ray gives a dead one's unit to another."""
    from tessera.extract.ray import connect_ray

    if store.collection.connection.is_file:
        raise UsageError("--ray needs a Milvus server: Milvus Lite lets one process at a time use its file.")
    ray = connect_ray(address)
    total = IndexReport()
    cores = max(1, int(ray.cluster_resources().get("CPU", 1)))
    while rows := [{"unit": pickle.dumps(unit)} for unit in islice(units, _UNITS_AT_ONCE)]:
        described = ray.data.from_items(rows, override_num_blocks=len(rows)).map(
            actor,
            fn_constructor_args=(store.settings, str(store.describer.bundle.path), metadata),
            compute=ray.data.ActorPoolStrategy(size=min(actors or cores, len(rows))),
            num_cpus=1,
            max_restarts=-1,
            max_task_retries=-1,
        )
        for row in described.iter_rows():
            add_report(total, json.loads(row["report"]))
            told(total)
    return total


def add_report(total: IndexReport, part: dict[str, Any]) -> None:
    for key, value in part.items():
        if isinstance(value, int) and not isinstance(value, bool):
            setattr(total, key, getattr(total, key) + value)
    for problem in part["problems"]:
        total.add_problem(Problem(**problem).path, problem["reason"])


class _Trial:
    """How often a unit was begun, and at which picture the last one died that was watched."""

    def __init__(self, shards: Shards, unit: str) -> None:
        self._shards, self._unit = shards, unit
        self._said: dict[str, Any] = {"tries": 0, "at": None, "poison": [], **(shards.read_note(unit) or {})}
        if self._said["at"] is not None:
            self._said["poison"].append(self._said["at"])
        self._said |= {"tries": self._said["tries"] + 1, "at": None}
        shards.write_note(unit, self._said)

    @property
    def is_repeated(self) -> bool:
        return bool(self._said["tries"] > 1)

    def parts(self, reads: Iterator[ReadFile], fail: Callable[[ReadFile, str], None]) -> Iterator[list[ReadFile]]:
        """Pictures in pieces that may be described together: one by one, where someone has died over them."""
        if not self.is_repeated:
            yield list(reads)
            return
        for read in reads:
            name = hashlib.sha256(read.found.path).hexdigest()
            if name in self._said["poison"]:
                fail(read, POISON)
                continue
            self._said["at"] = name
            self._shards.write_note(self._unit, self._said)
            yield [read]
        self._said["at"] = None
        self._shards.write_note(self._unit, self._said)

    def end(self) -> None:
        self._shards.delete_note(self._unit)


def _read(file: FoundFile, fetch: Fetch) -> ReadFile:
    if fetch is None:
        return read_file(file, max_bytes=DEFAULT_LIMITS.max_bytes)
    try:
        content = fetch()
    except (OSError, TesseraError) as error:
        reason = "there is no such file" if isinstance(error, FileNotFoundError) else str(error)
        return ReadFile(file, file.size, file.mtime_ns, error=reason)
    if len(content) > DEFAULT_LIMITS.max_bytes:
        return ReadFile(file, len(content), file.mtime_ns, error=f"it has more than {DEFAULT_LIMITS.max_bytes:,} bytes")
    return with_facts(ReadFile(file, len(content), file.mtime_ns, content))
