"""`tessera index --ray [ADDRESS]`: how it is read, and one real run."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from tessera.cli.main import app
from tessera.gallery.gallery import Gallery
from tessera.gallery.results import IndexReport


@pytest.mark.parametrize(
    ("words", "sources", "ray"),
    [
        (["photos"], ("photos",), None),
        (["photos", "--ray"], ("photos",), "local"),
        (["--ray", "photos"], ("photos",), "local"),
        (["--ray", "auto", "photos"], ("photos",), "auto"),
        (["--ray", "head:6379", "photos"], ("photos",), "head:6379"),
        (["photos", "--ray=ray://head:10001"], ("photos",), "ray://head:10001"),
        (["photos", "--ray", "ray://head:10001"], ("photos",), "ray://head:10001"),
        (["--ray", "--prune", "photos"], ("photos",), "local"),
    ],
)
def test_an_address_may_follow_ray_or_not(
    words: list[str], sources: tuple[str, ...], ray: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, object] = {}

    def index(self: Gallery, *given: str, **options: object) -> IndexReport:
        seen.update(options, sources=given)
        return IndexReport(added=1)

    monkeypatch.setattr(Gallery, "index", index)
    monkeypatch.chdir(tmp_path)
    Path("photos").mkdir()
    answer = CliRunner().invoke(app, ["index", *words, "-g", str(tmp_path / "g.tessera")])
    assert answer.exit_code == 0, answer.output
    assert (seen["sources"], seen["ray"]) == (sources, ray)


@pytest.mark.slow
@pytest.mark.timeout(1500)  # starts a Ray cluster: minutes on a machine that is busy
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="the extra 'ray' is not installed")
def test_a_folder_is_indexed_on_ray(tmp_path: Path) -> None:
    folder = tmp_path / "pictures"
    folder.mkdir()
    generator = np.random.default_rng(9)
    for i in range(5):
        Image.fromarray(generator.integers(0, 256, (40, 48, 3), dtype=np.uint8)).save(folder / f"{i}.png")
    (folder / "bad.jpg").write_text("no picture")
    gallery = tmp_path / "g.tessera"
    command = [sys.executable, "-m", "tessera.cli.main", "index", str(folder), "-g", str(gallery), "--json", "--ray"]
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_raylet_start_wait_time_s": "120"}
    answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1400, env=environment)
    assert answer.returncode == 0, answer.stderr[-3000:]
    report = json.loads(answer.stdout)
    assert (report["added"], report["failed"]) == (5, 1)
    with Gallery(gallery, create=False) as opened:
        assert opened.search(folder / "3.png", k=1)[0].path.endswith("3.png")


def test_opencv_is_imported_before_ray() -> None:
    """Its import sets sys.path back, which in another thread takes away the folder that Ray has just added."""
    script = """
import sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "ray":
            print("cv2" in sys.modules)
            raise ModuleNotFoundError("No module named 'ray'", name="ray")

sys.meta_path.insert(0, Finder())
from tessera.errors import MissingExtraError
from tessera.extract.ray import connect_ray
try:
    connect_ray("local")
except MissingExtraError:
    print("missing")
"""
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert answer.stdout.split() == ["True", "missing"]
