"""`tessera embed` through its real entry point."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tessera import Extractor
from tessera.data.images import load_photo


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    root = tmp_path_factory.mktemp("embed")
    generator = np.random.default_rng(2)
    paths = []
    for i, shape in enumerate([(60, 80), (80, 60), (27, 384)]):
        paths.append(str(root / f"{i}.png"))
        Image.fromarray(generator.integers(0, 256, (*shape, 3), dtype=np.uint8)).save(paths[-1])
    return paths


def run(*arguments: str | bytes) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "tessera.cli.main", "embed", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, check=False, env=environment, timeout=120)


def test_embed_writes_paths_and_unit_descriptors_in_order(pictures: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out.npz"
    answer = run(*pictures, "-o", str(out), "--size", "64", "--scales", "1/sqrt2,1", "--json")
    assert answer.returncode == 0, answer.stderr
    said = json.loads(answer.stdout)
    assert said["scales"] == [1 / math.sqrt(2), 1.0]
    assert (said["count"], said["size"], said["dim"]) == (3, 64, 1024)
    written = np.load(out)
    assert list(written["paths"]) == pictures
    extractor = Extractor(size=64, scales=[1 / math.sqrt(2), 1.0], threads=1)
    expected = extractor.describe_batch([load_photo(path, size=64) for path in pictures])
    np.testing.assert_allclose(written["descriptors"], expected, atol=1e-5)
    assert written["descriptors"].dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(written["descriptors"], axis=1), 1, atol=1e-5)
    assert answer.stderr == b""


def test_embed_sees_the_images_own_pixels(pictures: list[str], tmp_path: Path) -> None:
    """With a size above the image's and scale 1 the network gets the pixels as they are."""
    out = tmp_path / "out.npz"
    assert run(pictures[0], "-o", str(out), "--size", "4096", "--scales", "1").returncode == 0
    extractor = Extractor(threads=1)
    with Image.open(pictures[0]) as image:
        raw = extractor.outputs(np.asarray(image), ["descriptor"])[1]["descriptor"]  # scales are 1/sqrt2, 1, sqrt2
    np.testing.assert_allclose(np.load(out)["descriptors"], raw, atol=1e-5)


def test_embed_refuses_to_write_less_than_was_asked(pictures: list[str], tmp_path: Path) -> None:
    bad = tmp_path / "text.jpg"
    bad.write_text("not a picture")
    out = tmp_path / "out.npz"
    answer = run(pictures[0], str(bad), str(tmp_path / "none.jpg"), "-o", str(out))
    assert answer.returncode == 1
    assert answer.stdout == b""
    assert b"text.jpg is not an image" in answer.stderr
    assert b"none.jpg does not exist" in answer.stderr
    assert b"Traceback" not in answer.stderr
    assert not out.exists()


def test_embed_reads_a_name_that_is_no_utf8(pictures: list[str], tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/caf\xe9.png"
    try:
        Path(os.fsdecode(name)).write_bytes(Path(pictures[0]).read_bytes())
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    out = tmp_path / "out.npz"
    answer = run(name, "-o", str(out), "--scales", "1")
    assert answer.returncode == 0, answer.stderr
    assert os.fsencode(str(np.load(out)["paths"][0])) == name


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--scales", "two"], 2, b"is not a scale"),
        (["--size", "0"], 2, b"at least 1 pixel"),
        (["--runtime", "tensorflow"], 2, b"runtime 'tensorflow' is not known"),
        (["--model", "lit"], 1, b"Did you mean 'lite'?"),
    ],
)
def test_embed_explains_wrong_options(
    options: list[str], code: int, message: bytes, pictures: list[str], tmp_path: Path
) -> None:
    answer = run(pictures[0], "-o", str(tmp_path / "out.npz"), *options)
    assert answer.returncode == code
    assert message in answer.stderr
    assert b"Traceback" not in answer.stderr


def test_embed_says_when_the_output_cannot_be_written(pictures: list[str], tmp_path: Path) -> None:
    answer = run(pictures[0], "-o", str(tmp_path))
    assert answer.returncode == 2
    assert b"is a folder" in answer.stderr
    (tmp_path / "file").write_text("x")
    answer = run(pictures[0], "-o", str(tmp_path / "file" / "out.npz"), "--scales", "1")
    assert answer.returncode == 1
    assert b"Traceback" not in answer.stderr


def test_embed_takes_folders(pictures: list[str], tmp_path: Path) -> None:
    output = tmp_path / "out.npz"
    folder = Path(pictures[0]).parent
    result = run(str(folder), pictures[0], "-o", str(output), "--size", "64", "--json")
    assert result.returncode == 0, result.stderr
    paths = np.load(output)["paths"].tolist()
    assert paths == [*sorted(pictures), pictures[0]]
    (tmp_path / "none").mkdir()
    assert run(str(tmp_path / "none"), "-o", str(output)).returncode == 2
