"""The `tessera` entry point, run in this process, and a gallery to run it on."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import tessera
from tessera.cli.main import main

Run = Callable[..., "Answer"]


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
