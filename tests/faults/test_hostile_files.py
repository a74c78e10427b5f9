"""Files that were made to do harm: none of them runs, reaches outside, or takes the memory."""

from __future__ import annotations

import json
import pickle
import resource
import shutil
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import tessera
from tessera.data.ground_truth import read_ground_truth
from tessera.errors import ConfigError, TesseraError
from tessera.models.bundle import Bundle


@contextmanager
def little_memory(more: int = 1 << 30) -> Iterator[None]:
    """Within the block no more than so many bytes can be asked for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


class Harm:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return (Path.touch, (self.target,))


def test_a_pickle_runs_nothing(tmp_path: Path) -> None:
    (tmp_path / "gnd.pkl").write_bytes(pickle.dumps({"gnd": Harm(tmp_path / "harmed")}))
    with pytest.raises(TesseraError):
        read_ground_truth(tmp_path / "gnd.pkl")
    assert not (tmp_path / "harmed").exists()


def test_a_checkpoint_runs_nothing(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from tessera.train.records.checkpoint import load_checkpoint

    torch.save({"format": 1, "state": Harm(tmp_path / "harmed")}, tmp_path / "last.pt")
    with pytest.raises(TesseraError):
        load_checkpoint(tmp_path / "last.pt")
    assert not (tmp_path / "harmed").exists()


def test_a_graph_reads_no_file_outside_its_bundle(tmp_path: Path, small_bundle: Path) -> None:
    import onnx
    from onnx.external_data_helper import set_external_data

    from tessera.extract.extractor import Extractor

    secret = tmp_path / "secret"
    secret.write_bytes(np.random.default_rng(0).normal(size=(16, 3, 9, 9)).astype(np.float32).tobytes())
    bundle = Path(shutil.copytree(small_bundle, tmp_path / "bundle"))
    graph = onnx.load(str(bundle / "model.onnx"))
    (tensor,) = graph.graph.initializer
    set_external_data(tensor, location="../secret")
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    (bundle / "model.onnx").write_bytes(graph.SerializeToString())
    sealed = Bundle.seal(bundle, Bundle(bundle, Bundle.open(small_bundle).card).card)
    with pytest.raises(TesseraError, match="cannot be loaded"):
        Extractor(sealed).describe(np.zeros((32, 32, 3), np.uint8))


@pytest.mark.parametrize("length", [2**63 - 1, 2**40, 0])
def test_safetensors_with_an_absurd_head_are_refused(tmp_path: Path, length: int) -> None:
    pytest.importorskip("torch")
    from tessera.models.backbones import read_state

    path = tmp_path / "weights.safetensors"
    path.write_bytes(struct.pack("<Q", length) + b'{"a":{"dtype":"F32","shape":[1000000000000],"data_offsets":[0,4]}}')
    with little_memory(), pytest.raises(TesseraError):
        read_state(path)


def test_an_index_with_absurd_sizes_is_made_anew(filled_gallery: Path, tmp_path: Path) -> None:
    import hashlib

    path = filled_gallery / "index" / "manifest.json"
    sealed = json.loads(path.read_text())
    for entry in sealed["index"]["files"].values():
        entry["shape"] = [2**40, *entry["shape"][1:]]
    body = json.dumps(sealed["index"], sort_keys=True)
    sealed["sha256"] = hashlib.sha256(body.encode()).hexdigest()
    path.write_text(json.dumps(sealed))
    with tessera.Gallery(filled_gallery) as gallery, little_memory():
        assert len(gallery.search(1)) == 8
        assert gallery.check(repair=True).ok


@pytest.fixture
def filled_gallery(tmp_path: Path, small_bundle: Path, photo_folder: Path) -> Path:
    with tessera.Gallery(tmp_path / "gallery", small_bundle) as gallery:
        gallery.index(photo_folder)
    return tmp_path / "gallery"


def test_settings_recipes_and_systems_that_are_nested_too_deeply_are_a_sentence(tmp_path: Path) -> None:
    from tessera.cli.settings import read_settings
    from tessera.local.system import System
    from tessera.train.recipe import load_recipe

    path = tmp_path / "deep.toml"
    path.write_text("a = " + "[" * 100_000)
    with pytest.raises(ConfigError, match="nested too deeply"):
        read_settings(None, path)
    with pytest.raises(ConfigError, match="nested too deeply"):
        load_recipe(path, [])
    with pytest.raises(ConfigError, match="nested too deeply"):
        System.open(path)
