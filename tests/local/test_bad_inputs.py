"""Bad inputs as a user meets them, from the command line: an error that says what to do, or a note and a result."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from tessera.bench import planar_scenes as planar
from tessera.cli.main import app
from tessera.errors import DataError, IndexingError, UsageError

SIZE = (160, 120)


@pytest.fixture
def photos(tmp_path):
    """Two places with two views each, and a black picture among them."""
    for seed, place in enumerate(("tower", "bridge")):
        (tmp_path / "photos" / place).mkdir(parents=True)
        for view in range(2):
            picture = planar.warp(planar.paint_scene(seed, SIZE), planar.draw_homography(view, SIZE), view)
            Image.fromarray(picture).save(tmp_path / "photos" / place / f"{view}.png")
    blacken(tmp_path / "photos" / "tower" / "black.png")
    return tmp_path / "photos"


def blacken(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.zeros((90, 120, 3), np.uint8)).save(path)
    return path


def run(*words: object):
    return CliRunner().invoke(app, [str(word) for word in words])


def build(photos, output, *words):
    return run("system", "build", photos, "-o", output, "--extractor", "sift", "--count", 60, "--size", 160, *words)


def test_fewer_features_than_words(photos, tmp_path):
    answer = build(photos, tmp_path / "asmk", "--words", 5000)
    assert isinstance(answer.exception, IndexingError)
    assert "Ask for fewer words or give more images" in str(answer.exception)
    assert not (tmp_path / "asmk" / "system.json").exists()


def test_black_pictures_alone_give_no_words_and_no_ranking(photos, tmp_path):
    blacken(tmp_path / "night" / "sky" / "a.png")
    blacken(tmp_path / "night" / "sky" / "b.png")
    answer = build(tmp_path / "night", tmp_path / "none", "--words", 4)
    assert isinstance(answer.exception, IndexingError)
    assert "there are 0" in str(answer.exception)
    assert build(photos, tmp_path / "asmk", "--words", 16).exit_code == 0
    command = ("evaluate", "folder", "--data", tmp_path / "night", "--model", tmp_path / "asmk")
    answer = run(*command, "--cache", tmp_path / "cache")
    assert isinstance(answer.exception, DataError)
    assert "has a local feature" in str(answer.exception)


def test_a_black_picture_among_others_is_ranked_last(photos, tmp_path):
    assert build(photos, tmp_path / "asmk", "--words", 16).exit_code == 0
    command = ("evaluate", "folder", "--data", photos, "--model", tmp_path / "asmk", "--cache", tmp_path / "cache")
    answer = run(*command, "--json")
    assert answer.exit_code == 0, answer.output
    assert json.loads(answer.stdout)["protocols"]["all"]["map"] > 0


def test_a_codebook_of_another_dimension(photos, tmp_path):
    assert build(photos, tmp_path / "asmk", "--words", 16).exit_code == 0
    np.save(tmp_path / "asmk" / "codebook.npy", np.zeros((16, 64), np.float32))
    answer = run("evaluate", "folder", "--data", photos, "--model", tmp_path / "asmk", "--cache", tmp_path / "cache")
    assert isinstance(answer.exception, IndexingError)
    assert "dimension 64, its extractor 'sift' gives 128. Build the system again." in str(answer.exception)


def test_a_gallery_without_local_features_and_a_black_query_say_so(photos, small_bundle, tmp_path):
    gallery = tmp_path / "g.tessera"
    assert run("index", photos, "-g", gallery, "--model", small_bundle).exit_code == 0
    answer = run("search", photos / "tower" / "0.png", "-g", gallery, "--rerank", "sp")
    assert answer.exit_code == 0, answer.output
    assert (
        "were made for this search and kept for the next; `tessera index --local sift` makes them for all"
        in answer.stderr
    )
    assert "1 images have no local features and keep their global scores" in answer.stderr
    answer = run("search", blacken(tmp_path / "query.png"), "-g", gallery, "--rerank", "sp")
    assert answer.exit_code == 0, answer.output
    assert "no local features were found in the query, so the global scores decide" in answer.stderr


def test_local_features_that_do_not_exist_are_refused(photos, small_bundle, tmp_path):
    answer = run("index", photos, "-g", tmp_path / "g.tessera", "--model", small_bundle, "--local", "sifft")
    assert isinstance(answer.exception, UsageError)
    assert "Did you mean 'sift'" in str(answer.exception)
