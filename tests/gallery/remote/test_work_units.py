"""Units of work: tars, lists and folders behind URLs, what is poisoned, and what was begun before."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tessera
from tessera.data.photos.decoding import Limits
from tessera.errors import DataError, UsageError
from tessera.gallery.remote.remote_gallery import RemoteGallery
from tessera.gallery.remote.shards import TRIALS
from tessera.gallery.remote.unit_runner import POISON, UnitRunner
from tessera.gallery.remote.work_units import make_units, read_unit

pytest.importorskip("milvus_lite")
pa = pytest.importorskip("pyarrow")
fsspec = pytest.importorskip("fsspec")
pytestmark = [pytest.mark.filterwarnings("ignore::DeprecationWarning")]
Painter = Callable[..., Path]


@pytest.fixture
def gallery(tmp_path: Path, small_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteGallery]:
    lite = tmp_path_factory.getbasetemp() / "units.db"  # one for all: opening one takes seconds
    options = {"engine": f"milvus:{lite}", "catalog": "remote", "storage": str(tmp_path / "storage")}
    with tessera.Gallery(tmp_path / "gallery", small_bundle, **options) as made:
        assert isinstance(made, RemoteGallery)
        yield made


def write_tar(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def in_memory(url: str, content: bytes) -> str:
    files, path = fsspec.core.url_to_fs(url)
    files.makedirs(path.rpartition("/")[0], exist_ok=True)
    files.pipe_file(path, content)
    return url


def report_none(path: bytes, reason: str) -> None:
    raise AssertionError((path, reason))


def test_tars_lists_and_folders_behind_urls(gallery: RemoteGallery, photo_folder: Path, tmp_path: Path) -> None:
    contents = [path.read_bytes() for path in sorted(photo_folder.rglob("*.png"))]
    members = {"a/0.png": contents[0], "a/0.json": b'{"label": "x"}', "a/1.png": contents[1], "a/1.cls": b"7"}
    tar = write_tar(tmp_path / "00.tar", {**members, "a/2.png": b"no picture"})
    base = f"memory:///{tmp_path.name}"
    plain = [in_memory(f"{base}/folder/{i}.png", contents[i]) for i in (2, 3)]
    in_memory(f"{base}/folder/notes.txt", b"x")
    far = in_memory(f"{base}/far/4.png", contents[4])
    table = pa.table({"path": [far, "5.png", f"{base}/far/lost.png"], "label": ["y", None, "z"]})
    in_memory(f"{base}/far/5.png", contents[5])
    buffer = io.BytesIO()
    pa.parquet.write_table(table, buffer)
    listed = in_memory(f"{base}/far/list.parquet", buffer.getvalue())
    report = gallery.index(str(tar), f"{base}/folder", listed)
    assert (report.added, report.failed, report.images) == (6, 2, 6)
    (hit,) = gallery.search(contents[0], 1, where="label=x")
    assert (hit.path, hit.metadata["label"]) == (f"{tar.as_uri()}/a/0.png", "x")
    assert gallery.search(contents[2], 1)[0].path == plain[0]
    assert gallery.search(contents[4], 1)[0].metadata["label"] == "y"
    failed = {record.path: record.error for record in gallery.failures()}
    assert "not an image" in (failed[f"{tar.as_uri()}/a/2.png"] or "")
    assert failed[f"{base}/far/lost.png"] == "there is no such file"
    again = gallery.index(str(tar), f"{base}/folder", listed)
    assert (again.added, again.unchanged) == (0, report.added)
    assert gallery.remove(f"{base}/folder") == 2
    assert gallery.check(deep=True).findings[0].kind == "note"  # what was removed lies in the shards yet


def test_a_tar_that_ends_too_early_gives_what_it_holds(
    gallery: RemoteGallery, photo_folder: Path, tmp_path: Path
) -> None:
    contents = {f"{i}.png": path.read_bytes() for i, path in enumerate(sorted(photo_folder.rglob("*.png")))}
    tar = write_tar(tmp_path / "cut.tar", contents)
    cut = 1024 + len(contents["0.png"]) // 512 * 512 + 600
    tar.write_bytes(tar.read_bytes()[:cut])
    report = gallery.index(str(tar))
    assert (report.passed_over, report.problems[0].path) == (1, tar.as_uri())
    assert report.added >= 1
    with pytest.raises(UsageError, match="nothing at"):
        gallery.index(f"memory://{tmp_path.name}/nowhere.tar")
    bad = in_memory(f"memory://{tmp_path.name}/bad.parquet", b"no table")
    with pytest.raises(DataError, match="not a Parquet file"):
        gallery.index(bad)


def test_what_ends_its_worker_is_written_down_and_passed(
    gallery: RemoteGallery, photo_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (unit,) = make_units([photo_folder], report_none)
    victim = photo_folder / "photo4.png"
    describe = type(gallery._store.local_describer).describe

    def dies(self: Any, source: bytes, *options: Any) -> bytes:
        if source == victim.read_bytes():
            raise SystemExit  # as a decoder that crashes would, for whoever has this unit
        return describe(self, source, *options)

    monkeypatch.setattr(type(gallery._store.local_describer), "describe", dies)
    for _ in range(2):
        with pytest.raises(SystemExit):
            UnitRunner(gallery._store).run(unit)
    report = UnitRunner(gallery._store).run(unit)
    assert (report.added + report.unchanged, report.failed) == (7, 1)
    assert [(record.path, record.error) for record in gallery.failures()] == [(str(victim), POISON)]
    assert gallery._store.shards.names(TRIALS) == []
    assert len(gallery) == 7
    assert gallery.check().ok


def test_units_are_small_and_named(tmp_path: Path, painter: Painter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tessera.gallery.remote.work_units.UNIT_FILES", 3)
    for i in range(7):
        painter(tmp_path / "photos" / f"{i}.png", i)
    units = list(make_units([tmp_path / "photos"], report_none))
    assert [len(unit.files) for unit in units] == [3, 3, 1]
    assert len({unit.name for unit in units}) == 3
    assert units == list(make_units([tmp_path / "photos"], report_none))
    (batch,) = read_unit(units[2])
    assert [os.fsdecode(file.path) for file, _ in batch] == [str(tmp_path / "photos" / "6.png")]


def test_a_strangers_tar_and_list_cost_no_more_than_their_pictures(
    gallery: RemoteGallery, photo_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Absurd times, JSON that is nested or long, a member without end, numbers that are none: no run ends by them."""
    monkeypatch.setattr("tessera.gallery.remote.work_units.DEFAULT_LIMITS", Limits(max_bytes=100_000))
    contents = [path.read_bytes() for path in sorted(photo_folder.rglob("*.png"))]
    path = tmp_path / "strange.tar"
    said = {"0.json": b"[" * 200_000, "1.json": b'{"a": "' + b"x" * 3_000_000 + b'"}', "2.json": b'{"a": NaN}'}
    members = {"0.png": contents[0], "1.png": contents[1], "2.png": contents[2], "3.png": b"\0" * 5_000_000, **said}
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for name in sorted(members):
            member = tarfile.TarInfo(name)
            member.size = len(members[name])
            member.pax_headers = {"mtime": "inf" if name == "1.png" else "nan" if name == "0.png" else "1e300"}
            tar.addfile(member, io.BytesIO(members[name]))
        link = tarfile.TarInfo("4.png")
        link.type, link.linkname = tarfile.SYMTYPE, str(photo_folder / "photo4.png")
        tar.addfile(link)
    table = pa.table({"path": [str(photo_folder / "photo4.png")], "year": [float("nan")], "text": ["x" * 20_000]})
    buffer = io.BytesIO()
    pa.parquet.write_table(table, buffer)
    listed = in_memory(f"memory:///{tmp_path.name}/strange.parquet", buffer.getvalue())
    report = gallery.index(str(path), listed)
    assert (report.added, report.failed, report.passed_over) == (4, 1, 0)
    largest = max(len(fetch()) for batch in read_unit(next(make_units([path], report_none))) for _, fetch in batch)
    assert largest == 100_001


def test_a_served_remote_gallery_names_no_folder(gallery: RemoteGallery, photo_folder: Path) -> None:
    gallery.index(photo_folder)
    for refused in (gallery.facets, gallery.groups, gallery.duplicates, gallery.months, gallery.images):
        with pytest.raises(UsageError) as error:
            refused()
        assert "/" not in str(error.value)


def test_two_at_work_on_one_unit_end_both(gallery: RemoteGallery, photo_folder: Path) -> None:
    """The first to come to its end takes the note away that the other is about to."""
    (unit,) = make_units([photo_folder], lambda *_: None)
    runner = UnitRunner(gallery._store)
    shards = gallery._store.shards
    original = type(shards).delete_note

    def deleted_meanwhile(self: Any, name: str) -> None:
        original(self, name)
        original(self, name)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(type(shards), "delete_note", deleted_meanwhile)
        assert runner.run(unit).added == 8
    for note in (b"[]", b"{}", b"7", b"{"):
        shards._put("trials", unit.name, note)
        assert runner.run(unit).unchanged == 8
