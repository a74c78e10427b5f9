"""The gallery's commands through their real entry point: exit code, stdout and stderr apart, nothing lost."""

from __future__ import annotations

import ctypes
import json
import os
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from PIL import Image

import tessera
from tessera.cli.main import main

Run = Callable[..., "Answer"]
Painter = Callable[..., Path]


@dataclass(frozen=True)
class Answer:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def run(tmp_path: Path, small_bundle: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run the `tessera` entry point in an empty folder; `index` is given the small model unless another is named.

    In this process: starting an interpreter for each call would take most of the time of these tests.
    """
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str | bytes | Path) -> Answer:
        words = [os.fsdecode(argument) for argument in arguments]
        if words[0] == "index" and "--model" not in words:
            words += ["--model", str(small_bundle)]
        capfd.readouterr()
        code: object = 0
        with monkeypatch.context() as patch:
            patch.setattr(sys, "argv", ["tessera", *words])
            try:
                main()
            except SystemExit as leaving:
                code = leaving.code or 0
        assert isinstance(code, int)
        return Answer(code, *capfd.readouterr())

    return run


@pytest.fixture
def indexed(run: Run, tmp_path: Path, photo_folder: Path) -> Iterator[Path]:
    """A gallery with eight pictures; whatever a test does, they are all there afterwards."""
    answer = run("index", photo_folder)
    assert answer.returncode == 0, answer.stderr
    yield tmp_path / "gallery.tessera"
    with tessera.Gallery(tmp_path / "gallery.tessera") as gallery:
        found = {hit.path for hit in gallery.search(gallery.images()[0].id, 1000)}
        assert {str(path) for path in photo_folder.rglob("photo?.png")} <= found


def test_index_search_and_stats_speak_json(run: Run, indexed: Path, photo_folder: Path) -> None:
    again = json.loads(run("index", photo_folder, "--json").stdout)
    assert {key: again[key] for key in ("images", "added", "unchanged", "failed")} == {
        "images": 8,
        "added": 0,
        "unchanged": 8,
        "failed": 0,
    }
    answer = run("search", photo_folder / "photo2.png", "-k", "3", "--json")
    assert (answer.returncode, answer.stderr) == (0, "")
    found = json.loads(answer.stdout)
    assert set(found) == {"results", "timing_ms"}
    assert set(found["timing_ms"]) == {"embed", "search", "total"}
    assert [set(result) for result in found["results"]] == [{"rank", "id", "path", "score", "metadata"}] * 3
    assert found["results"][0]["path"] == str(photo_folder / "photo2.png")
    assert [result["rank"] for result in found["results"]] == [0, 1, 2]
    stats = json.loads(run("stats", "--json").stdout)
    assert (stats["images"], stats["dim"], stats["engine"], stats["index"]["codec"]) == (8, 16, "faiss", "flat")


def test_the_command_line_and_python_answer_the_same(run: Run, indexed: Path, photo_folder: Path) -> None:
    answer = json.loads(run("search", photo_folder / "photo4.png", "--box", "0,0,30,30", "--json").stdout)
    with tessera.Gallery(indexed) as gallery:
        result = gallery.search(photo_folder / "photo4.png", box=(0, 0, 30, 30))
    assert answer["results"] == result.to_json()["results"]


def test_tables_go_to_stdout_and_the_rest_to_stderr(run: Run, indexed: Path, photo_folder: Path) -> None:
    answer = run("search", photo_folder / "photo2.png", "-k", "2")
    lines = [line.split("\t") for line in answer.stdout.splitlines()]
    assert [len(line) for line in lines] == [3, 3]
    assert lines[0][1] == str(photo_folder / "photo2.png")
    assert answer.stderr == ""
    stats = dict(line.split("\t") for line in run("stats").stdout.splitlines())
    assert stats["images"] == "8"


def test_filters_by_metadata(run: Run, indexed: Path, photo_folder: Path) -> None:
    table = photo_folder / "labels.csv"
    table.write_text("path,label,year\nphoto0.png,a,1990\nphoto2.png,a,2000\nphoto4.png,b,2010\n")
    assert run("index", table).returncode == 0
    query = photo_folder / "photo6.png"
    answer = json.loads(run("search", query, "--where", "label=a", "--where", "year>1995", "--json").stdout)
    assert [Path(result["path"]).name for result in answer["results"]] == ["photo2.png"]
    assert answer["results"][0]["metadata"] == {"label": "a", "year": "2000"}
    nothing = run("search", query, "--where", "label=z", "--json")
    assert (nothing.returncode, json.loads(nothing.stdout)["results"]) == (0, [])
    wrong = run("search", query, "--where", "label")
    assert wrong.returncode == 2
    assert "KEY=VALUE" in wrong.stderr


def test_remove_check_and_migrate(run: Run, indexed: Path, photo_folder: Path, painter: Painter) -> None:
    extra = painter(photo_folder / "extra.png", 99)
    assert run("index", extra).returncode == 0
    assert json.loads(run("remove", extra, "--json").stdout) == {"removed": 1, "images": 8}
    gone = run("remove", extra)
    assert gone.returncode == 1
    assert "Nothing was removed" in gone.stderr
    assert run("check").stdout == "gallery.tessera is sound: 8 images\n"
    (indexed / "index" / "manifest.json").unlink()
    damaged = run("check", "--json")
    assert damaged.returncode == 1
    assert json.loads(damaged.stdout)["ok"] is False
    repaired = run("check", "--repair", "--json")
    assert repaired.returncode == 0
    assert [finding["repaired"] for finding in json.loads(repaired.stdout)["findings"]] == [True]
    assert run("check").returncode == 0
    unknown = run("migrate", "--engine", "faisss")
    assert unknown.returncode == 2
    assert "Did you mean 'faiss'" in unknown.stderr
    assert json.loads(run("migrate", "--engine", "faiss", "--json").stdout) == {"engine": "faiss", "images": 8}


def test_the_gallery_may_be_named_by_the_environment(
    run: Run, indexed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert run("stats").returncode == 1
    monkeypatch.setenv("TESSERA_GALLERY", str(indexed))
    assert json.loads(run("stats", "--json").stdout)["images"] == 8


# -- bad input -------------------------------------------------------------------------------------------------------


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
            subprocess.run(
                [sys.executable, "-m", "tessera.cli.main", "index", source, "--model", small_bundle],
                capture_output=True,
                text=True,
                check=False,
                cwd=tmp_path,
                preexec_fn=give_up_privileges,
            )
            for source in (tmp_path / "photos", closed)
        ]
    finally:
        closed.chmod(0o755)
    for answer, code in zip(answers, (0, 1), strict=True):
        assert answer.returncode == code, answer.stderr
        assert "this folder could not be looked through: it may not be read" in answer.stderr
    assert "1 added" in answers[0].stdout


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
        assert (answer.returncode, json.loads(answer.stdout)["results"]) == (0, [])
    for condition in ("nokey", "=5", 'a"b=1', "a\\b=1"):
        assert run("search", photo_folder / "photo0.png", "--where", condition).returncode == 2


def test_a_row_of_a_csv_without_its_file_is_no_loss(run: Run, indexed: Path, photo_folder: Path) -> None:
    (photo_folder / "labels.csv").write_text("path,label\nphoto0.png,a\nmissing.png,b\n")
    first = run("index", photo_folder / "labels.csv")
    assert (first.returncode, "missing.png: there is no such file" in first.stderr) == (0, True)
    again = run("index", photo_folder)
    assert (again.returncode, "files are gone" in again.stderr) == (0, False)


def test_another_model_is_refused_with_the_way_out(
    run: Run, indexed: Path, photo_folder: Path, other_bundle: Path
) -> None:
    refused = run("index", photo_folder, "--model", other_bundle)
    assert refused.returncode == 1
    assert "tessera index --rebuild" in refused.stderr
    done = run("index", "--rebuild", "--json", "--model", other_bundle)
    assert (done.returncode, json.loads(done.stdout)["images"]) == (0, 8)
    assert json.loads(run("stats", "--json").stdout)["dim"] == 24
