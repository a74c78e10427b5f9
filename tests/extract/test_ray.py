"""Bulk extraction on Ray, in a process of its own: Ray leaves threads, warnings and children behind."""

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

from tessera.errors import MissingExtraError
from tessera.extract.extractor import Extractor
from tessera.extract.ray import RayExtractor, chunked
from tessera.models.bundle import Bundle

KILLS = int(os.environ.get("TESSERA_KILLS", "1"))  # more for a longer run

_SCRIPT = """
import json, os, random, signal, sys, time
from pathlib import Path

from tessera.extract.ray import RayActor, RayExtractor

bundle, folder, marker, out, kills = sys.argv[1:]
paths = sorted(Path(folder).iterdir())


class Dies(RayActor):
    def __call__(self, batch):
        done = sum(Path(f"{marker}{number}").exists() for number in range(int(kills)))
        if done < int(kills) and (done == 0 or random.random() < 0.5):
            try:
                os.close(os.open(f"{marker}{done}", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return super().__call__(batch)
            time.sleep(random.uniform(0, 0.2))
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(batch)


sources = [path.read_bytes() if i % 2 else path for i, path in enumerate(paths)]
answers = []
for e in RayExtractor(bundle, actors=2, actor=Dies).extract(sources):
    answers.append([e.width, e.height, type(e.error).__name__, str(e.error or ""),
                    None if e.descriptor is None else e.descriptor.tolist()])
Path(out).write_text(json.dumps(answers))
"""


@pytest.mark.slow
@pytest.mark.timeout(1500)  # starts a Ray cluster: minutes on a machine that is busy
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="the extra 'ray' is not installed")
def test_ray_gives_the_extractors_descriptors_though_a_worker_is_killed(tiny_bundle: Bundle, tmp_path: Path) -> None:
    folder = tmp_path / "pictures"
    folder.mkdir()
    generator = np.random.default_rng(7)
    for i in range(30 * KILLS):
        Image.fromarray(generator.integers(0, 256, (40 + i % 30, 50, 3), dtype=np.uint8)).save(folder / f"{i:03d}.png")
    (folder / "011.png").write_bytes(b"no picture")
    marker, out = tmp_path / "killed", tmp_path / "out.json"
    environment = {
        **os.environ,
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_raylet_start_wait_time_s": "120",
    }
    answer = subprocess.run(
        [sys.executable, "-c", _SCRIPT, str(tiny_bundle.path), str(folder), str(marker), str(out), str(KILLS)],
        capture_output=True, text=True, check=False, timeout=1400, env=environment,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr[-3000:]
    assert len(list(tmp_path.glob("killed*"))) == KILLS, "too few workers were killed: the test would show nothing"
    rows = json.loads(out.read_text())
    expected = list(Extractor(tiny_bundle, threads=1).extract(sorted(folder.iterdir())))
    assert len(rows) == len(expected) == 30 * KILLS
    for (width, height, kind, message, descriptor), wanted in zip(rows, expected, strict=True):
        assert (width, height) == (wanted.width, wanted.height)
        if wanted.descriptor is None:
            assert kind == "ImageError"
            assert "not an image" in message
        else:
            np.testing.assert_allclose(descriptor, wanted.descriptor, atol=1e-6)


def test_the_fingerprint_is_the_extractors(tiny_bundle: Bundle) -> None:
    assert RayExtractor(tiny_bundle).fingerprint == Extractor(tiny_bundle).fingerprint
    assert RayExtractor(tiny_bundle, size=32, scales=[1.0]).dim == 6


def test_sources_are_cut_by_number_and_by_bytes() -> None:
    chunks = list(chunked(["a"] * 5, most=2))
    assert [len(chunk) for chunk in chunks] == [2, 2, 1]
    chunks = list(chunked([b"12345", b"1", b"12345678", "path", b"1"], most=10, most_bytes=6))
    assert chunks == [[b"12345", b"1"], [b"12345678"], ["path", b"1"]]
    assert list(chunked([])) == []


def test_without_ray_the_extra_is_named(tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"\[ray\]"):
        list(RayExtractor(tiny_bundle).extract(["a.jpg"]))
