"""`tessera search` as people use it: many queries, frames, addresses, sheets, and answers that can be copied."""

from __future__ import annotations

import csv
import http.server
import io
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image

import tessera

Run = Callable[..., Any]
Painter = Callable[..., Path]


@pytest.fixture
def film(tmp_path: Path, photo_folder: Path) -> Path:
    """Two seconds of photo0, then two of photo3."""
    path = tmp_path / "film.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), 10, (48, 36))
    for name in ("photo0.png", "inner/photo3.png"):
        frame = np.asarray(Image.open(photo_folder / name).convert("RGB"))[:, :, ::-1]
        for _ in range(20):
            writer.write(np.ascontiguousarray(frame))
    writer.release()
    return path


def first_of(answer: Any) -> str:
    return Path(answer["results"][0]["path"]).name


def test_many_queries_in_one_run(run: Run, indexed: Path, photo_folder: Path, tmp_path: Path) -> None:
    one = photo_folder / "photo0.png"
    answer = run("search", one, photo_folder / "inner", "-k", "2", "--json", "--csv", tmp_path / "out.csv")
    assert answer.returncode == 0, answer.stderr
    documents = json.loads(answer.stdout)
    assert [Path(document["query"]).name for document in documents] == [f"photo{n}.png" for n in (0, 1, 3, 5, 7)]
    assert [first_of(document) for document in documents] == [f"photo{n}.png" for n in (0, 1, 3, 5, 7)]
    alone = json.loads(run("search", one, "-k", "2", "--json").stdout)
    assert [hit["id"] for hit in alone["results"]] == [hit["id"] for hit in documents[0]["results"]]
    assert alone["results"][1]["score"] == pytest.approx(documents[0]["results"][1]["score"], abs=1e-5)
    with (tmp_path / "out.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 10
    assert [row["rank"] for row in rows[:2]] == ["1", "2"]
    assert rows[0]["path"] == str(one)


def test_one_query_that_cannot_be_read_does_not_stop_the_others(
    run: Run, indexed: Path, photo_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "text.jpg").write_text("no picture")
    names = [photo_folder / "photo0.png", tmp_path / "text.jpg", tmp_path / "nothing.png", photo_folder / "photo2.png"]
    answer = run("search", *names, "-k", "1", "--json")
    assert answer.returncode == 1
    assert "text.jpg is not an image" in answer.stderr
    assert "nothing.png does not exist" in answer.stderr
    assert [first_of(document) for document in json.loads(answer.stdout)] == ["photo0.png", "photo2.png"]


def test_ranks_start_at_one_and_the_path_is_last_and_relative(run: Run, indexed: Path, photo_folder: Path) -> None:
    answer = run("search", photo_folder / "photo0.png", "-k", "2")
    first = answer.stdout.splitlines()[0].split("\t")
    assert first[0] == "1"
    assert first[-1] == "photos/photo0.png"
    assert float(first[1]) <= 1.0
    hits = json.loads(run("search", photo_folder / "photo0.png", "--json").stdout)["results"]
    assert hits[0]["rank"] == 0
    assert max(hit["score"] for hit in hits) <= 1.0


def test_standard_input(run: Run, indexed: Path, photo_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Input:
        buffer = io.BytesIO((photo_folder / "photo2.png").read_bytes())

    monkeypatch.setattr("sys.stdin", Input())
    assert first_of(json.loads(run("search", "-", "--json").stdout)) == "photo2.png"
    assert run("search", "-", "-").returncode == 2


def test_addresses_only_if_allowed(run: Run, indexed: Path, photo_folder: Path) -> None:
    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args, directory=str(photo_folder))

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/photo2.png"
        refused = run("search", address)
        found = run("search", address, "--allow-url", "--json")
        missing = run("search", address + "x", "--allow-url")
        server.shutdown()
    assert refused.returncode == 2
    assert "--allow-url" in refused.stderr
    assert first_of(json.loads(found.stdout)) == "photo2.png"
    assert missing.returncode == 1
    assert "could not be fetched" in missing.stderr


def test_frames_of_a_video(run: Run, indexed: Path, film: Path) -> None:
    assert first_of(json.loads(run("search", f"{film}@0.5", "--json").stdout)) == "photo0.png"
    assert first_of(json.loads(run("search", f"{film}@3.2", "--json").stdout)) == "photo3.png"
    scenes = json.loads(run("search", f"{film}@scene", "--json").stdout)
    assert [(document["query"], first_of(document)) for document in scenes] == [
        (f"{film}@0", "photo0.png"),
        (f"{film}@2", "photo3.png"),
    ]


def test_a_video_that_cannot_be_decoded_is_a_sentence(run: Run, indexed: Path, film: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.mp4").write_bytes(b"no video" * 100)
    for moment in ("1", "scene"):
        answer = run("search", f"{tmp_path / 'bad.mp4'}@{moment}")
        assert answer.returncode == 1
        assert "could not be decoded as a video" in answer.stderr
    assert "has 4.0 seconds" in run("search", f"{film}@99").stderr
    assert "name a moment" in run("search", film).stderr
    assert "does not exist" in run("search", tmp_path / "none.mp4@1").stderr


def test_a_sheet_and_a_page(
    run: Run, indexed: Path, photo_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    answer = run("search", photo_folder / "photo0.png", "-k", "3", "--sheet", tmp_path / "hits.jpg", "--open")
    assert answer.returncode == 0, answer.stderr
    with Image.open(tmp_path / "hits.jpg") as sheet:
        assert sheet.width > 4 * 192
        assert sheet.height > 192
    page = Path(opened[0].removeprefix("file://"))
    assert page.read_text().count("<img") == 4
    page.unlink()
    wrong = run("search", photo_folder / "photo0.png", "--sheet", tmp_path / "hits.txt")
    assert wrong.returncode == 2


def test_a_box_beyond_the_picture_is_said(run: Run, indexed: Path, photo_folder: Path) -> None:
    answer = run("search", photo_folder / "photo0.png", "--box", "10,10,400,30")
    assert "the box reaches beyond the picture, which is 48 x 36 pixels" in answer.stderr
    assert "beyond" not in run("search", photo_folder / "photo0.png", "--box", "10,10,48,36").stderr
    assert run("search", photo_folder, "--box", "1,1,9,9").returncode == 2


def test_an_unknown_key_of_a_filter_is_an_error(run: Run, indexed: Path, photo_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text(f"path,label\n{photo_folder / 'photo0.png'},tower\n")
    assert run("index", tmp_path / "labels.csv").returncode == 0
    answer = run("search", photo_folder / "photo0.png", "--where", "lable=tower")
    assert answer.returncode == 2
    assert "Did you mean 'label'?" in answer.stderr
    empty = run("search", photo_folder / "photo0.png", "--where", "label=bridge", "--json")
    assert empty.returncode == 0
    assert json.loads(empty.stdout)["results"] == []
    nowhere = run("search", photo_folder / "photo0.png", "--near", "41.89,12.49,2km")
    assert nowhere.returncode == 2
    assert "where it was taken" in nowhere.stderr


def test_dates_places_and_folders_without_a_csv(run: Run, tmp_path: Path) -> None:
    for number, (name, date, latitude) in enumerate(
        [("Rome/a", "2019:06:30 12:00:00", 41.89), ("Rome/b", "2018:01:01 12:00:00", 41.9), ("Pisa/c", None, 43.72)]
    ):
        block = Image.Exif()
        if date:
            block[0x0132] = date
        block.get_ifd(0x8825).update({1: "N", 2: (latitude, 0.0, 0.0), 3: "E", 4: (12.49, 0.0, 0.0)})
        path = tmp_path / "trip" / f"{name}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        noise = np.random.default_rng(number).integers(0, 255, (40, 40, 3), dtype=np.uint8)
        Image.fromarray(noise).save(path, exif=block.tobytes())
    assert "with metadata: 3 in their files" in run("index", tmp_path / "trip").stdout
    query = tmp_path / "trip" / "Rome" / "a.jpg"

    def names(*words: str) -> list[str]:
        answer = run("search", query, "--json", *words)
        assert answer.returncode == 0, answer.stderr
        return [Path(hit["path"]).stem for hit in json.loads(answer.stdout)["results"]]

    assert names("--where", "date>=2019-06", "--where", "folder=Rome") == ["a"]
    assert sorted(names("--where", "folder=Rome")) == ["a", "b"]
    assert sorted(names("--near", "41.89,12.49,2km")) == ["a", "b"]
    assert names("--sort", "date") == ["b", "a", "c"]
    assert sorted(names("--where", "width>=40")) == ["a", "b", "c"]


def test_results_show_themselves_in_a_notebook(indexed: Path, photo_folder: Path) -> None:
    with tessera.Gallery(indexed) as gallery:
        strip = gallery.search(photo_folder / "photo0.png", 3)._repr_html_()
    assert strip.count("<img") == 3
    assert "photo0.png" in strip


def test_videos_are_indexed_by_scene_and_hits_carry_the_time(
    run: Run, tmp_path: Path, photo_folder: Path, film: Path
) -> None:
    folder = tmp_path / "films"
    folder.mkdir()
    film.rename(folder / "film.avi")
    (folder / "bad.mp4").write_bytes(b"no video" * 100)
    answer = run("index", folder, "--video", "--json")
    report = json.loads(answer.stdout)
    assert (report["added"], report["passed_over"]) == (2, 1)
    assert answer.stderr.count("bad.mp4") == 1
    assert "bad.mp4: could not be decoded as a video" in answer.stderr
    hit = json.loads(run("search", photo_folder / "inner" / "photo3.png", "--json").stdout)["results"][0]
    assert hit["metadata"] == {"video": str(folder / "film.avi"), "time": "2"}
    again = json.loads(run("index", folder, "--video", "--json").stdout)
    assert (again["added"], again["unchanged"]) == (0, 2)
    assert json.loads(run("search", photo_folder / "photo0.png", "--where", "time<1", "--json").stdout)["results"]


def test_a_terminal_says_where_doubt_begins(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tessera.cli.output import print_rows

    header, rows = ["rank", "inliers", "metadata", "path"], [["1", "40", "", "a.jpg"], ["2", "0", "", "b.jpg"]]
    print_rows(header, rows, after=(1, "less certain:"))
    assert capsys.readouterr().out == "1\t40\t\ta.jpg\n2\t0\t\tb.jpg\n"  # a pipe has every column, and rows alone
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    print_rows(header, rows, after=(1, "less certain:"))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines] == [
        ["rank", "inliers", "path"],
        ["1", "40", "a.jpg"],
        ["less", "certain:"],
        ["2", "0", "b.jpg"],
    ]


@pytest.mark.parametrize("command", ["search", "duplicates", "group"])
def test_a_table_stands_for_the_list(run: Run, indexed: Path, photo_folder: Path, tmp_path: Path, command: str) -> None:
    words = [photo_folder / "photo0.png"] if command == "search" else []
    in_a_file = run(command, *words, "--csv", tmp_path / "out.csv")
    assert (in_a_file.returncode, in_a_file.stdout) == (0, "")
    assert "out.csv written" in in_a_file.stderr
    piped = run(command, *words, "--csv", "-")
    assert piped.stdout == (tmp_path / "out.csv").read_text()


def test_an_order_that_nothing_can_be_put_into_is_said(run: Run, indexed: Path, photo_folder: Path) -> None:
    assert "no date is known" in run("search", photo_folder / "photo0.png", "--sort", "date").stderr
