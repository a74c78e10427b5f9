"""What people get wrong, and what is wrong with their files: one sentence, the right exit code, nothing lost."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import json
import os
import shutil
import signal
import socket
import sqlite3
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

Run = Callable[..., Any]
Painter = Callable[..., Path]


def giant_png() -> bytes:
    """A PNG that claims 50,000 x 50,000 pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 50_000, 50_000, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b"\0" * 1000))
        + chunk(b"IEND", b"")
    )


def truncated_jpeg(folder: Path) -> bytes:
    path = folder / "whole.jpg"
    Image.effect_noise((200, 150), 50).save(path)
    content = path.read_bytes()
    path.unlink()
    return content[: len(content) // 2]


BAD_PICTURES = {
    "text.jpg": (lambda _: b"this is a text file", "is not an image"),
    "truncated.jpg": (truncated_jpeg, "damaged or cut short"),
    "empty.png": (lambda _: b"", "is empty (0 bytes)"),
    "giant.png": (lambda _: giant_png(), "50000 x 50000 pixels, more than the limit"),
}


@pytest.mark.parametrize("name", BAD_PICTURES)
def test_a_bad_picture_is_a_sentence(run: Run, indexed: Path, photo_folder: Path, tmp_path: Path, name: str) -> None:
    make, sentence = BAD_PICTURES[name]
    bad = photo_folder / name
    bad.write_bytes(make(tmp_path))
    asked = run("search", bad)
    assert asked.returncode == 1
    assert sentence in asked.stderr
    assert (asked.stdout, "Traceback" in asked.stderr) == ("", False)
    alone = run("index", bad)
    assert alone.returncode == 1  # nothing of what was named could be used
    assert f"{bad}: " in alone.stderr
    assert sentence in alone.stderr
    os.utime(bad, (1, 1))
    among = run("index", photo_folder, "--json")
    assert among.returncode == 0  # the run goes on
    assert json.loads(among.stdout)["failed"] == 1
    assert sentence in among.stderr
    listed = json.loads(run("stats", "--failed", "--json").stdout)["failed"]
    assert [Path(failure["path"]).name for failure in listed] == [name]
    again = json.loads(run("index", photo_folder, "--json").stdout)
    assert (again["failed"], again["failed_before"]) == (0, 1)


def test_a_directory_that_cannot_be_read(tmp_path: Path, small_bundle: Path, painter: Painter) -> None:
    for name in ("photos/a.png", "photos/closed/b.png"):
        painter(tmp_path / name, 1)
    closed = tmp_path / "photos" / "closed"
    closed.chmod(0)
    try:
        answers = [
            run_without_privileges(tmp_path, "index", source, "--model", small_bundle)
            for source in (tmp_path / "photos", closed)
        ]
    finally:
        closed.chmod(0o755)
    for answer, code in zip(answers, (0, 1), strict=True):
        assert answer.returncode == code, answer.stderr
        assert "this folder could not be looked through: it may not be read" in answer.stderr
    assert "1 added" in answers[0].stdout


def run_without_privileges(folder: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tessera.cli.main", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        preexec_fn=give_up_privileges,
    )


def give_up_privileges() -> None:
    """Let permissions hold for root too: CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH are gone after the next exec."""
    libc = ctypes.CDLL(None)
    for capability in (1, 2):
        libc.prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP


def test_links_in_a_circle(run: Run, indexed: Path, photo_folder: Path) -> None:
    (photo_folder / "inner" / "up").symlink_to(photo_folder)
    (photo_folder / "self.jpg").symlink_to(photo_folder / "self.jpg")
    answer = run("index", photo_folder, "--json")
    assert answer.returncode == 0
    assert json.loads(answer.stdout)["unchanged"] == 8
    assert "leads to a folder that was already looked through" in answer.stderr
    assert "leads back to itself" in answer.stderr
    alone = run("index", photo_folder / "self.jpg")
    assert alone.returncode == 1


def test_a_name_that_is_no_utf8(run: Run, indexed: Path, photo_folder: Path, painter: Painter) -> None:
    plain = painter(photo_folder / "plain.png", 70)
    odd = os.fsencode(photo_folder) + b"/caf\xe9\x1b[2J.png"
    plain.rename(os.fsdecode(odd))
    added = run("index", photo_folder)
    assert added.returncode == 0, added.stderr
    assert "1 added" in added.stdout
    found = run("search", odd, "-k", "1")
    assert found.returncode == 0
    assert r"caf\xe9\x1b[2J.png" in found.stdout
    answer = json.loads(run("search", odd, "-k", "1", "--json").stdout)
    assert os.fsencode(answer["results"][0]["path"]) == odd
    assert run("remove", odd).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--box", "500,500,600,600"], "lies wholly outside the image"),
        (["--box", "30,30,10,10"], "inside out"),
        (["--box", "1,2,3"], "is not a box"),
        (["-k", "0"], "k must be a whole number of at least 1"),
        (["-k", "-3"], "k must be a whole number of at least 1"),
    ],
)
def test_what_cannot_be_meant_exits_with_2(
    run: Run, indexed: Path, photo_folder: Path, arguments: list[str], sentence: str
) -> None:
    answer = run("search", photo_folder / "photo0.png", *arguments)
    assert (answer.returncode, answer.stdout) == (2, "")
    assert sentence in answer.stderr


def test_k_above_the_gallerys_size_gives_all(run: Run, indexed: Path, photo_folder: Path) -> None:
    answer = run("search", photo_folder / "photo0.png", "-k", "1000", "--json")
    assert (answer.returncode, len(json.loads(answer.stdout)["results"])) == (0, 8)


def test_no_gallery_an_empty_one_and_a_file(run: Run, tmp_path: Path, painter: Painter) -> None:
    picture = painter(tmp_path / "a.png", 1)
    for command in (["search", picture], ["stats"], ["check"], ["remove", picture], ["migrate", "--engine", "faiss"]):
        answer = run(*command)
        assert answer.returncode == 1
        assert "There is no gallery at gallery.tessera" in answer.stderr
    assert not (tmp_path / "gallery.tessera").exists()
    (tmp_path / "empty").mkdir()
    nothing = run("index", tmp_path / "empty")
    assert nothing.returncode == 1
    assert "no pictures were found" in nothing.stderr
    answer = run("search", picture)
    assert answer.returncode == 1
    assert "is empty" in answer.stderr
    assert "tessera index" in answer.stderr
    (tmp_path / "file").write_text("mine")
    for command in (["index", picture], ["search", picture], ["stats"], ["check", "--repair"]):
        answer = run(*command, "-g", tmp_path / "file")
        assert answer.returncode == 1
        assert "is a file, not a gallery" in answer.stderr
    assert (tmp_path / "file").read_text() == "mine"


def test_a_source_that_is_not_there(run: Run, indexed: Path) -> None:
    answer = run("index", "nothing/here")
    assert answer.returncode == 2
    assert "There is nothing at" in answer.stderr


def test_a_mistyped_source_makes_no_gallery(run: Run, tmp_path: Path) -> None:
    answer = run("index", "nothing/here", "-g", "new.tessera")
    assert answer.returncode == 2
    assert not (tmp_path / "new.tessera").exists()


@pytest.mark.parametrize("option", ["--codec", "--engine"])
def test_a_mistyped_codec_or_engine_leaves_the_gallery_as_it_was(
    run: Run, indexed: Path, photo_folder: Path, option: str
) -> None:
    answer = run("index", photo_folder, option, "nope")
    assert answer.returncode == 2
    assert "'nope' is not known" in answer.stderr
    assert run("search", photo_folder / "photo0.png").returncode == 0


def test_filters_cannot_reach_into_the_catalogue(run: Run, indexed: Path, photo_folder: Path) -> None:
    for condition in ("x'); DROP TABLE images; --=1", "label=1' OR '1'='1", "path=x", "id>=0"):
        answer = run("search", photo_folder / "photo0.png", "--where", condition, "--json")
        assert (answer.returncode, answer.stdout) == (2, "")
        assert "is not known" in answer.stderr
    for condition in ("nokey", "=5", 'a"b=1', "a\\b=1"):
        assert run("search", photo_folder / "photo0.png", "--where", condition).returncode == 2


def test_a_row_of_a_csv_without_its_file_is_no_loss(run: Run, indexed: Path, photo_folder: Path) -> None:
    (photo_folder / "labels.csv").write_text("path,label\nphoto0.png,a\nmissing.png,b\n")
    first = run("index", photo_folder / "labels.csv")
    assert (first.returncode, "missing.png: there is no such file" in first.stderr) == (0, True)
    again = run("index", photo_folder)
    assert (again.returncode, "without a file" in again.stderr) == (0, False)


def test_another_model_is_refused_with_the_way_out(
    run: Run, indexed: Path, photo_folder: Path, other_bundle: Path
) -> None:
    refused = run("index", photo_folder, "--model", other_bundle)
    assert refused.returncode == 1
    assert "tessera index --rebuild" in refused.stderr
    done = run("index", "--rebuild", "--json", "--model", other_bundle)
    assert (done.returncode, json.loads(done.stdout)["images"]) == (0, 8)
    assert json.loads(run("stats", "--json").stdout)["dim"] == 24


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--model", "lit"], "model 'lit' is not known. Did you mean 'lite'?"),
        (["--model", "token-r50"], "'token-r50' is a network, and no weights of it are packaged"),
        (["--model", "bundles/gone"], "There is no bundle at bundles/gone"),
        (["--engine", "milvus:http://localhost:19530"], "[milvus]'"),
    ],
)
def test_what_a_new_gallery_cannot_have_does_not_become_its_own(
    run: Run, photo_folder: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], sentence: str
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        "tessera.gallery.engines.milvus_engine.find_spec", lambda name: None if name == "pymilvus" else find_spec(name)
    )
    refused = run("index", photo_folder, *options)
    assert refused.returncode == 1 and sentence in refused.stderr
    assert run("index", photo_folder).returncode == 0


def test_a_bundle_that_was_moved_is_named_once(
    run: Run, photo_folder: Path, tmp_path: Path, small_bundle: Path
) -> None:
    shutil.copytree(small_bundle, tmp_path / "bundle")
    assert run("index", photo_folder, "--model", "bundle").returncode == 0
    (tmp_path / "bundle").rename(tmp_path / "moved")
    lost = run("search", photo_folder / "photo2.png")
    assert lost.returncode == 1
    assert "There is no bundle at" in lost.stderr and "--model BUNDLE` says where it is now" in lost.stderr
    assert run("index", photo_folder, "--model", "moved").returncode == 0
    assert run("search", photo_folder / "photo2.png").returncode == 0


def test_describing_anew_is_told(run: Run, indexed: Path, other_bundle: Path) -> None:
    answer = run("index", "--rebuild", "--model", other_bundle)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "8 described anew" in answer.stdout


def test_a_mistyped_key_of_a_filter_is_named(run: Run, indexed: Path, photo_folder: Path) -> None:
    query = photo_folder / "photo2.png"
    none = run("search", query, "--where", "city=Pisa", "--json")
    assert (none.returncode, none.stdout) == (2, "")
    assert "metadata key 'city' is not known" in none.stderr
    (photo_folder / "places.csv").write_text("path,city\nphoto2.png,Pisa\n")
    assert run("index", photo_folder / "places.csv").returncode == 0
    assert "Did you mean 'city'?" in run("search", query, "--where", "ciyt=Pisa").stderr
    empty = run("search", query, "--where", "city=Rome", "--json")
    assert (empty.returncode, json.loads(empty.stdout)["results"]) == (0, [])
    assert "meets the conditions" in empty.stderr


def test_a_gallery_where_nothing_may_be_written_is_searched(
    tmp_path: Path, run: Run, indexed: Path, photo_folder: Path
) -> None:
    for item in (*indexed.rglob("*"), indexed):
        item.chmod(0o555 if item.is_dir() else 0o444)
    query = photo_folder / "photo2.png"
    try:
        searched, checked, indexing = (
            run_without_privileges(tmp_path, *words)
            for words in (("search", query, "-k", "1"), ("check",), ("index", photo_folder))
        )
    finally:
        for item in (indexed, *indexed.rglob("*")):
            item.chmod(0o755)
    assert searched.returncode == 0, searched.stderr
    assert os.path.relpath(query, tmp_path) in searched.stdout
    assert checked.returncode == 0 and "is sound: 8 images" in checked.stdout
    assert indexing.returncode == 1 and "Permission denied" in indexing.stderr


def test_a_place_out_of_reach_is_a_sentence(tmp_path: Path, run: Run, indexed: Path, photo_folder: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    answer = run_without_privileges(tmp_path, "embed", photo_folder / "photo2.png", "-o", closed / "out.npz")
    assert answer.returncode == 1
    assert "error: " in answer.stderr and "Permission denied" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_ctrl_c_is_said_and_keeps_what_was_stored(
    tmp_path: Path, small_bundle: Path, many_pictures: Callable[[Path, int], Path]
) -> None:
    many_pictures(tmp_path / "photos", 160)
    command = [sys.executable, "-m", "tessera.cli.main", "index", "photos", "--model", str(small_bundle)]
    # A run in the background of a script ignores interrupts, and its children would inherit that.
    heeding = (
        "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
    )
    command = [sys.executable, "-c", heeding, *command]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None and not _stored(tmp_path):
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate()
    assert process.returncode == 130, said
    assert "what was stored stays" in said and "interrupted" in said
    assert 0 < _stored(tmp_path) < 160


def _stored(folder: Path) -> int:
    """How many images the catalogue holds. Opening the gallery would take so long that the run could end meanwhile."""
    catalog = folder / "gallery.tessera" / "catalog.sqlite"
    try:
        with contextlib.closing(sqlite3.connect(f"file:{catalog}?mode=ro", uri=True)) as connection:
            return int(connection.execute("SELECT count(*) FROM images").fetchone()[0])
    except sqlite3.OperationalError:  # not there yet, or without its tables
        return 0


def test_a_run_that_fails_makes_no_gallery(
    run: Run, tmp_path: Path, photo_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tessera.gallery.engines.milvus_engine.find_spec", lambda _: None)
    monkeypatch.setitem(sys.modules, "ray", None)
    (tmp_path / "bad.csv").write_text("a,b\n1,2\n")
    for words in (["--engine", "milvus:x.db", photo_folder], ["--ray", "local", photo_folder], [tmp_path / "bad.csv"]):
        answer = run("index", *words)
        assert answer.returncode == 1, words
        assert not (tmp_path / "gallery.tessera").exists(), words


def test_a_failed_run_keeps_the_gallery_that_was_there(run: Run, indexed: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.csv").write_text("a,b\n1,2\n")
    assert run("index", tmp_path / "bad.csv").returncode == 1
    assert indexed.is_dir()


def test_a_port_that_is_taken_makes_no_gallery(run: Run, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        answer = run("serve", "-g", "typo", "--port", str(taken.getsockname()[1]))
    assert answer.returncode != 0
    assert not (tmp_path / "typo").exists()


def test_check_speaks_only_of_what_can_be_found(run: Run, tmp_path: Path, photo_folder: Path) -> None:
    (photo_folder / "text.jpg").write_bytes(b"this is a text file")
    run("index", photo_folder)
    (photo_folder / "text.jpg").unlink()
    answer = run("check", "--json")
    assert json.loads(answer.stdout)["missing_files"] == 0
    assert "found" not in answer.stdout.replace("findings", "")
    (photo_folder / "photo0.png").unlink()
    assert json.loads(run("check", "--json").stdout)["missing_files"] == 1


def test_what_was_removed_is_said_and_shown(run: Run, indexed: Path, photo_folder: Path) -> None:
    assert run("remove", photo_folder / "photo0.png").returncode == 0
    answer = run("index", photo_folder)
    assert "1 were removed before and stay away" in answer.stderr
    assert json.loads(run("stats", "--json").stdout)["ignored"] == 1
    assert "removed, kept away\t1" in run("stats").stdout
    assert run("index", photo_folder / "photo0.png").returncode == 0


def test_nonsense_in_exif_is_a_sentence_and_the_picture_stays(run: Run, tmp_path: Path) -> None:
    block = Image.Exif()
    block[0x0132] = "0000:00:00 00:00:00"
    (tmp_path / "old").mkdir()
    Image.new("RGB", (20, 20)).save(tmp_path / "old" / "a.jpg", exif=block.tobytes())
    block[0x0132] = "2019:06:14 12:00:00"
    Image.new("RGB", (20, 20), "red").save(tmp_path / "old" / "b.jpg", exif=block.tobytes())
    answer = run("index", tmp_path / "old")
    assert "its date '0000:00:00 00:00:00' is no date and was left out" in answer.stderr
    assert "2 added; with metadata: 1 in their files" in answer.stdout


def test_files_beside_the_pictures_are_counted(run: Run, photo_folder: Path) -> None:
    for name in ("a.CR2", "b.cr2", "inner/c.dng", "film.mov", "notes.doc", ".hidden.mov"):
        (photo_folder / name).write_bytes(b"x")
    answer = run("index", photo_folder)
    assert answer.returncode == 0
    assert "passed over 3 files (.cr2, .dng): they are not read" in answer.stderr
    assert "passed over 1 video (.mov): --video takes" in answer.stderr
    assert json.loads(run("index", photo_folder, "--json").stdout)["others"] == {".cr2": 2, ".dng": 1, ".mov": 1}
