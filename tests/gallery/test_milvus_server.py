"""The engine on a real Milvus server: what it finds, and what becomes of a gallery whose server is down or killed.

Everything that needs the server is in this file, so that one process starts it once. Where `milvus-server` is not found
(TESSERA_MILVUS_SERVER or the path; `make milvus` fetches it), these tests are skipped.
"""

from __future__ import annotations

import importlib.util
import os
import random
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import tessera
from tessera.errors import EngineUnavailableError, GalleryError, GalleryMismatchError, UsageError
from tessera.gallery.catalog.filters import parse_where
from tessera.gallery.engines import milvus_connection
from tessera.gallery.ingest.importing import DescribedImage
from tessera.gallery.remote.remote_writer import RemoteWriter
from tessera.gallery.remote.shards import RemoteImage

pytest.importorskip("pymilvus")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore::DeprecationWarning")]
ROOT = Path(__file__).parents[2]
KILLS = int(os.environ.get("TESSERA_KILLS", "1"))  # more moments for a longer run
Painter = Callable[..., Path]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, load_module: Callable[[str], ModuleType]) -> Iterator[Any]:
    """One server for all tests here, which asks for a token."""
    helper = load_module("scripts/scale/milvus_server.py")
    launcher = helper.find_launcher() or ROOT / ".venv" / "milvus" / "bin" / "milvus-server"
    if not launcher.is_file():
        pytest.skip("no milvus-server: `make milvus` fetches it, or TESSERA_MILVUS_SERVER names one")
    made = helper.MilvusServer(launcher, tmp_path_factory.mktemp("milvus"), authorization=True)
    made.start()
    yield made
    made.kill()


@pytest.fixture
def server(running: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The server, up when a test begins and when it ends."""
    monkeypatch.setenv(milvus_connection.TOKEN_VARIABLE, "root:Milvus")
    try:
        running.wait_until_ready(30)
    except RuntimeError:  # it runs, and has lost a coordinator: another start brings it back
        running.kill()
        running.start()
    yield running
    running.start()


@pytest.fixture
def engine(server: Any) -> str:
    return f"milvus:{server.uri}"


def names(gallery: tessera.Gallery, query: Path, **options: Any) -> list[str]:
    return [Path(hit.path).name for hit in gallery.search(query, 100, by="global", **options)]


def run_cli(*words: str | Path, wait_s: float = 300) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tessera.cli.main", *map(str, words)],
        capture_output=True, text=True, check=False, timeout=600,
        env={**os.environ, milvus_connection.WAIT_VARIABLE: str(wait_s)},
    )  # fmt: skip


def test_a_server_answers_as_faiss_does_with_filters_pushed_down(
    filled: Path, photo_folder: Path, painter: Painter, engine: str
) -> None:
    table = photo_folder / "labels.csv"
    table.write_text(
        "path,label,year,taken\nphoto0.png,a,1990,2019-06-03\nphoto4.png,b,02004,2019-07-01 10:00\n"
        "photo6.png,a,x,2020\n"
    )
    filters = [
        "label=a",
        "label!=a",
        "year>=1991",
        "year<3000",
        "year=2004",
        "taken=2019",
        "taken<=2019-06",
        "taken>2019",
    ]
    filters += ["label>a", "label<=a", "width=48", "height!=36", "name=photo0.png", "bytes>0"]
    filters += ["folder=inner", "name~PHOTO"]
    query = photo_folder / "photo0.png"
    with tessera.Gallery(filled) as gallery:
        gallery.migrate(engine)
        painter(photo_folder / "new.png", 30)
        gallery.index(photo_folder, table)
        gallery.remove(photo_folder / "photo2.png")
        said = {one: gallery._store.engine._expression(parse_where(one)) for one in filters}
        found = {one: names(gallery, query, where=one) for one in filters}
        everything = gallery.search(query, 100, by="global")
        assert gallery.check().findings == []
        with pytest.raises(tessera.errors.UsageError, match="labl"):
            gallery.search(query, where="labl=a", by="global")
        gallery.migrate("faiss")
        assert found == {one: names(gallery, query, where=one) for one in filters}
        assert [one for one, expression in said.items() if expression is None] == ["folder=inner", "name~PHOTO"]
        assert all(0 < len(found[one]) < 8 for one in filters[:10])
        by_faiss = gallery.search(query, 100, by="global")
    assert [hit.id for hit in everything] == [hit.id for hit in by_faiss]
    assert [hit.score for hit in everything] == pytest.approx([hit.score for hit in by_faiss], abs=1e-5)


def test_a_server_filters_as_the_catalogue_does(engine: str, compare_filters: Callable[[str], int]) -> None:
    assert compare_filters(engine) > 500


@pytest.mark.parametrize(
    ("codec", "asked", "index_type"),
    [("ivf", "", "IVF_FLAT"), ("fast", "", "HNSW"), ("pq8", "", "IVF_PQ"), ("auto", "#IVF_PQ", "IVF_PQ")],
)
def test_an_approximate_index_is_searched_with_the_effort_that_its_recall_asks_for(
    tmp_path: Path, small_bundle: Path, engine: str, codec: str, asked: str, index_type: str
) -> None:
    generator = np.random.default_rng(4)
    rows = generator.normal(size=(2000, 16))
    with tessera.Gallery(tmp_path / "gallery", small_bundle, codec=codec) as gallery:
        gallery.add(DescribedImage(f"/p/{i}.jpg", row) for i, row in enumerate(rows))
        queries = gallery.descriptors(range(1, 401)) + 0.01 * generator.normal(size=(400, 16)).astype(np.float32)
        gallery.migrate(engine + asked)
        made = gallery.stats()["index"]
        with gallery._store.pin() as view:
            found_scores, found = view.index.search(queries, 10)
            some = np.arange(1, 2001, 7)
            among_some = view.index.search(queries, 10, allowed=some)[1]
        scores = queries @ gallery.descriptors(range(1, 2001)).T
        gallery.remove("/p/0.jpg")  # the codes of the server have it for a moment longer
        assert 1 not in [hit.id for hit in gallery.search(queries[0], 10)]
    assert (made["type"], made["effort"] > 0) == (index_type, True)
    assert made["engine"] == engine + asked
    assert (made["candidates"] > 0) == (index_type == "IVF_PQ")
    assert (made["filtered_effort"] >= made["effort"]) == (index_type == "HNSW")  # measured, too
    assert made["recall"] >= 0.99
    exact = np.argsort(-scores, axis=1)[:, :10] + 1
    assert recall(found, exact) >= 0.98
    assert recall(among_some, some[np.argsort(-scores[:, some - 1], axis=1)[:, :10]]) >= 0.98
    np.testing.assert_allclose(found_scores, np.take_along_axis(scores, found - 1, axis=1), atol=1e-5)


def recall(found: Any, exact: Any) -> float:
    return float(np.mean([len(set(a) & set(b)) / 10 for a, b in zip(found.tolist(), exact.tolist(), strict=True)]))


def test_an_index_that_the_server_does_not_have_is_refused(filled: Path, photo_folder: Path, engine: str) -> None:
    with tessera.Gallery(filled) as gallery:
        gallery.migrate(engine)
        for index_type, said in (
            ("IVF_RABITQ", r"is v2\.3.*: IVF_RABITQ came with 2\.6\. Name IVF_PQ"),
            ("DISKANN", "-lite: it was built without DISKANN"),
            ("IVF_PG", "Did you mean 'IVF_PQ'"),
        ):
            with pytest.raises(UsageError, match=said):
                gallery.migrate(f"{engine}#{index_type}")
        assert gallery.stats()["engine"] == engine
        assert len(names(gallery, photo_folder / "photo0.png")) == 8
        assert gallery.check().findings == []  # nothing was taken away


def test_a_remote_catalogue_re_scores_what_codes_have_found(
    tmp_path: Path, small_bundle: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tessera.gallery.remote.remote_collection._CANDIDATES", 1500)  # two bytes say little
    rows = np.random.default_rng(4).normal(size=(2000, 16)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    options = {"engine": f"{engine}#IVF_PQ", "catalog": "remote", "storage": str(tmp_path / "storage")}
    with tessera.Gallery(tmp_path / "gallery", small_bundle, **options) as gallery:
        store = gallery._store
        writer = RemoteWriter(store.shards, store.collection, store.settings)
        images = [
            RemoteImage(b"%d" % i, b"/p/%d.jpg" % i, 1, 1, 0, 8, 8, "{}", "{}", row.astype(np.float16), b"")
            for i, row in enumerate(rows)
        ]
        for image in images:
            writer.put(image)
        writer.flush()
        store.collection.settle()
        ids = np.array([image.id for image in images])
        exact = rows[:10] @ rows.astype(np.float16).astype(np.float32).T
        best = ids[np.argsort(-exact, axis=1)[:, :10]]

        def search() -> tuple[Any, Any]:
            with store.pin() as view:
                return view.index.search(rows[:10], 10)

        # Until what was sealed is handed over, the server searches it by an index of its own, with less recall.
        wait_for(lambda: recall(search()[1], best) >= 0.98)
        np.testing.assert_allclose(search()[0][:, 0], exact.max(axis=1), atol=1e-5)
        assert gallery.stats()["index"]["type"] == "IVF_PQ"


def test_metadata_and_paths_that_change_in_place_follow(
    filled: Path, photo_folder: Path, engine: str, ager: Painter
) -> None:
    query, table = photo_folder / "photo0.png", photo_folder / "labels.csv"
    with tessera.Gallery(filled) as gallery:
        table.write_text("path,label\nphoto0.png,old\nphoto4.png,old\n")
        gallery.index(table)
        gallery.migrate(engine)
        table.write_text("path,label\nphoto0.png,new\nphoto4.png,old\n")
        gallery.index(table)
        assert names(gallery, query, where="label=new") == ["photo0.png"]
        assert names(gallery, query, where="label=old") == ["photo4.png"]
        ager((photo_folder / "photo4.png").rename(photo_folder / "moved.png"))
        gallery.index(photo_folder, prune=True)
        assert names(gallery, query, where="name=moved.png") == ["moved.png"]
        assert gallery.check().findings == []


# Before the tests that kill the server: once it was, Ray beside it has cost it its coordinator for minutes.
_ON_RAY = """
import json, os, signal, sys
from pathlib import Path
from types import ModuleType

import tessera
from tessera.gallery.remote.unit_runner import RayUnitActor, run_on_ray
from tessera.gallery.remote.work_units import make_units
from tessera.gallery.describing.local_describer import LocalDescriber

gallery, marker, poison, *sources = sys.argv[1:]
poisoned = Path(poison).read_bytes()


class Dies(RayUnitActor):
    def __init__(self, *options):
        super().__init__(*options)
        describe = LocalDescriber.describe

        def dies(self, source, *options):
            if source == poisoned:
                os.kill(os.getpid(), signal.SIGKILL)  # as a decoder that crashes: whoever describes it
            return describe(self, source, *options)

        LocalDescriber.describe = dies

    def __call__(self, row):
        try:
            os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return super().__call__(row)
        super().__call__(row)
        os.kill(os.getpid(), signal.SIGKILL)  # once: what it has stored is done again, and not doubled


with tessera.Gallery(gallery) as opened:
    units = make_units(sources, lambda *problem: print(problem, file=sys.stderr))
    report = run_on_ray(units, opened._store, "local", actor=Dies, actors=2)
    print(json.dumps(report.to_json()))
"""


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="the extra 'ray' is not installed")
def test_workers_of_ray_write_shards_and_a_dead_ones_unit_is_done_again(
    tmp_path: Path, small_bundle: Path, painter: Painter, server: Any, request: pytest.FixtureRequest
) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    fresh = type(server)(server._launcher, tmp_path / "milvus", authorization=True)  # one that was never killed
    request.addfinalizer(fresh.kill)
    fresh.start()
    engine = f"milvus:{fresh.uri}"
    for i in range(40):
        painter(tmp_path / "photos" / f"{i}.png", i)
    (tmp_path / "photos" / "39.png").write_bytes(b"no picture")
    for start in (0, 10):
        with tarfile.open(tmp_path / f"{start:02d}.tar", "w") as tar:
            for i in range(start, start + 10):
                tar.add(tmp_path / "photos" / f"{i}.png", f"{i}.png")
    listed = [str(tmp_path / "photos" / f"{i}.png") for i in range(20, 40)]
    parquet.write_table(pa.table({"path": listed}), tmp_path / "list.parquet", row_group_size=10)
    with tessera.Gallery(
        tmp_path / "gallery", small_bundle, engine=engine, catalog="remote", storage=str(tmp_path / "storage")
    ) as opened:
        assert len(opened) == 0
    environment = {
        **os.environ,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_raylet_start_wait_time_s": "120",
        milvus_connection.WAIT_VARIABLE: "300",  # Ray and the server start on the same busy cores
    }
    poison = tmp_path / "photos" / "33.png"
    words = [tmp_path / "gallery", tmp_path / "killed", poison, tmp_path / "00.tar", tmp_path / "10.tar"]
    answer = subprocess.run(
        [sys.executable, "-c", _ON_RAY, *map(str, words), (tmp_path / "list.parquet").as_uri()],
        capture_output=True, text=True, check=False, timeout=800, env=environment,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr[-3000:]
    assert (tmp_path / "killed").exists()
    with tessera.Gallery(tmp_path / "gallery") as opened:
        assert len(opened) == 38
        failed = {Path(record.path).name: record.error for record in opened.failures()}
        assert set(failed) == {"33.png", "39.png"}
        assert "ended the process" in (failed["33.png"] or "")
        assert opened.check().ok
        again = opened.index(*map(str, words[3:]), (tmp_path / "list.parquet").as_uri())  # goes on: nothing is left
        assert (again.added, again.unchanged, again.images) == (0, 38, 38)


def test_a_server_that_is_down_is_waited_for_then_one_sentence_and_nothing_is_lost(
    filled: Path, photo_folder: Path, painter: Painter, server: Any, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tessera.Gallery(filled) as gallery:
        gallery.migrate(engine)
    server.kill()
    monkeypatch.setenv(milvus_connection.WAIT_VARIABLE, "1")
    painter(photo_folder / "new.png", 30)
    failed = run_cli("index", photo_folder, "-g", filled, wait_s=2)
    assert failed.returncode == 1
    assert "trying again" in failed.stderr
    *_, last = failed.stderr.strip().splitlines()
    assert last.startswith(f"error: Milvus at {server.uri} did not answer for")
    assert "the catalogue holds every image" in last
    assert "goroutine" not in failed.stderr
    assert "Traceback" not in failed.stderr
    with tessera.Gallery(filled) as gallery:
        assert gallery.stats()["images"] == 9  # it tries to send the ninth, and answers all the same
    waiting: list[subprocess.CompletedProcess[str]] = []
    search = ("search", photo_folder / "new.png", "-g", filled, "--by", "global", "--json")
    command = threading.Thread(target=lambda: waiting.append(run_cli(*search, wait_s=300)))
    command.start()
    server.start()
    command.join()
    assert waiting[0].returncode == 0, waiting[0].stderr
    assert "new.png" in waiting[0].stdout.split('"path"')[1]  # the search sent first what the server lacked
    with tessera.Gallery(filled) as gallery:
        assert gallery.check().findings == []


def test_a_service_takes_pictures_while_the_server_is_down_and_sends_them_later(
    filled: Path, photo_folder: Path, painter: Painter, server: Any, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(milvus_connection, "SERVICE_WAIT_S", 0.3)
    monkeypatch.setattr(milvus_connection, "_GAVE_UP_S", 0.0)
    with tessera.Gallery(filled) as gallery:
        gallery.migrate(engine)
    services = [tessera.Gallery(filled, reload="background") for _ in range(2)]
    try:
        for service in services:
            service.refresh()
            assert len(names(service, photo_folder / "photo0.png")) == 8
        server.kill()
        assert services[0].index_file(painter(photo_folder / "new.png", 30)).added == 1
        with pytest.raises(EngineUnavailableError, match="did not answer"):
            services[1].search(photo_folder / "photo0.png", by="global")
        server.start()
        for service in services:
            wait_for(lambda service=service: "new.png" in names_or_none(service, photo_folder / "photo0.png"))
        wait_for(lambda: services[1].check().findings == [])  # sent is not yet written down as sent
    finally:
        for service in services:
            service.close()


def names_or_none(service: tessera.Gallery, query: Path) -> list[str]:
    try:
        service.refresh()  # as the service does every second
        return names(service, query)
    except EngineUnavailableError:
        return []


def wait_for(condition: Callable[[], bool], timeout_s: float = 300) -> None:
    give_up = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < give_up, "it did not happen"
        time.sleep(0.1)


def stored(gallery: Path) -> int:
    try:
        with tessera.Gallery(gallery, create=False) as opened:
            return len(opened)
    except GalleryError:
        return 0


@pytest.mark.parametrize("victim", ["server", "process"])
def test_killed_at_random_moments_no_image_is_lost_and_none_doubled(
    tmp_path: Path, small_bundle: Path, painter: Painter, server: Any, engine: str, victim: str
) -> None:
    seed = int(os.environ.get("TESSERA_SEED", "5"))
    moments = random.Random(seed)
    gallery = tmp_path / "gallery"
    for turn in range(KILLS):
        folder = tmp_path / f"photos{turn}"
        for i in range(150):
            painter(folder / f"{i}.png", 1000 * turn + i)
        command = [sys.executable, "-m", "tessera.cli.main", "index", folder, "-g", gallery, "--engine", engine]
        running = subprocess.Popen(
            [*map(str, command), "--model", str(small_bundle)],
            stderr=subprocess.PIPE,
            env={**os.environ, milvus_connection.WAIT_VARIABLE: "300"},
        )
        if turn % 2 == 0:  # while it sends; else at any moment
            wait_for(
                lambda turn=turn, running=running: running.poll() is not None or stored(gallery) >= 150 * (turn + 1)
            )
        time.sleep(moments.uniform(0, 2.0 if turn % 2 == 0 else 6.0))
        if victim == "server":
            server.kill()
            server.start()
        else:
            running.send_signal(signal.SIGKILL)
        _, said = running.communicate(timeout=600)
        assert victim == "process" or running.returncode == 0, said.decode()
        again = run_cli("index", folder, "-g", gallery, "--engine", engine, "--model", small_bundle)
        assert again.returncode == 0, again.stderr
        with tessera.Gallery(gallery) as opened:
            assert len(opened) == 150 * (turn + 1)
            assert opened.check().findings == []  # compares every row, and counts them
            assert opened._store.engine._collection.count() == 150 * (turn + 1)


def test_a_collection_of_another_model_is_refused_and_filled_again(
    filled: Path, photo_folder: Path, twin_bundle: Path, engine: str, tmp_path: Path
) -> None:
    import shutil

    with tessera.Gallery(filled) as gallery:
        gallery.migrate(engine)
    shutil.copytree(filled, tmp_path / "copy")
    with tessera.Gallery(tmp_path / "copy", twin_bundle) as other:
        other.index(rebuild=True)
        assert len(names(other, photo_folder / "photo0.png")) == 8
    with tessera.Gallery(filled) as gallery:
        with pytest.raises(GalleryMismatchError, match="another model"):
            gallery.search(photo_folder / "photo0.png")
        report = gallery.check()
        assert ["another model" in finding.message for finding in report.findings] == [True]
        assert gallery.check(repair=True).ok
        assert len(names(gallery, photo_folder / "photo0.png")) == 8


def test_a_wrong_token_a_wrong_host_and_a_strange_version_are_a_sentence(
    filled: Path, photo_folder: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tessera.Gallery(filled) as gallery, pytest.raises(GalleryError, match=r"No machine is called 'no\.such"):
        gallery.migrate("milvus:http://no.such.host.invalid:19530")
    remote = {"engine": engine, "catalog": "remote", "storage": f"memory://{photo_folder.name}"}
    for token, said in (("root:wrong", "refuses the token"), ("", "refuses to answer without a token")):
        monkeypatch.setenv(milvus_connection.TOKEN_VARIABLE, token)
        with pytest.raises(GalleryError, match=said):
            tessera.Gallery(photo_folder.parent / "remote", **remote)
        with tessera.Gallery(filled) as gallery, pytest.raises(GalleryError, match=said):
            gallery.migrate(engine)
    monkeypatch.setenv(milvus_connection.TOKEN_VARIABLE, "root:Milvus")
    for version, said in (("v2.1.0", "too old"), ("unheard of", "none of Milvus")):
        monkeypatch.setattr("pymilvus.MilvusClient.get_server_version", lambda *_, version=version, **__: version)
        with tessera.Gallery(filled) as gallery, pytest.raises(GalleryError, match=f"{said}.*migrate"):
            gallery.migrate(engine)
        with pytest.raises(GalleryError, match=rf"{said}.* or later\.$"):
            tessera.Gallery(photo_folder.parent / "remote", **remote)
    assert not (photo_folder.parent / "remote").exists()
    with tessera.Gallery(filled) as gallery:  # and the gallery is searched as before
        assert gallery.stats()["engine"] == "faiss"
        assert len(names(gallery, photo_folder / "photo0.png")) == 8


def test_two_writers_of_a_remote_catalogue_one_killed_lose_no_image_and_double_none(
    tmp_path: Path, small_bundle: Path, painter: Painter, engine: str
) -> None:
    seed = int(os.environ.get("TESSERA_SEED", "7"))
    moments = random.Random(seed)
    storage, folder = tmp_path / "storage", tmp_path / "photos"
    options = ["--engine", engine, "--catalog", "remote", "--storage", storage, "--model", small_bundle]
    for turn in range(KILLS):
        for i in range(100):
            painter(folder / str(turn) / f"{i}.png", 1000 * turn + i)
        writers = [
            subprocess.Popen(
                [sys.executable, "-m", "tessera.cli.main", "index", str(folder), "-g", str(tmp_path / name)]
                + [str(option) for option in options],
                stderr=subprocess.PIPE,
            )
            for name in ("first", "second")
        ]
        wait_for(
            lambda turn=turn, writers=writers: (
                writers[0].poll() is not None or len(list(storage.glob("images/*"))) > 2 * turn
            )
        )
        time.sleep(moments.uniform(0, 1.0))
        writers[0].send_signal(signal.SIGKILL)
        said = [writer.communicate(timeout=600)[1].decode() for writer in writers]
        assert writers[1].returncode == 0, said[1]
        again = run_cli("index", folder, "-g", tmp_path / "first", *options)
        assert again.returncode == 0, again.stderr
        with tessera.Gallery(tmp_path / "second") as opened:
            assert len(opened) == 100 * (turn + 1)
            report = opened.check()
            assert report.ok, report.findings
            assert opened.check(repair=True).images == 100 * (turn + 1)
            assert opened.check(deep=True).findings == []
            query = folder / str(turn) / "7.png"
            assert opened.search(query, 3)[0].path == str(query)
            assert names(opened, query, where="name=9.png") == ["9.png"] * (turn + 1)
            found = opened.search_many([opened.describe(folder / str(turn) / f"{i}.png") for i in range(50)], 1)
            assert [Path(result[0].path).name for result in found] == [f"{i}.png" for i in range(50)]
