"""Fixtures shared by every room."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from PIL import Image

ROOT = Path(__file__).parent.parent
# A busy machine takes its time, and every run tries the same examples: what fails, fails again.
settings.register_profile("tessera", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tessera")


def load_module(path: str) -> ModuleType:
    """A file of this repository that is in no package, as a module: a script that is tested, or shared with."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(module.__name__, module)  # dataclasses look there
    spec.loader.exec_module(module)
    return module


# The bundles and pictures that the fault injection indexes, too.
SMALL = load_module("scripts/faults/small_gallery.py")
make_small_bundle, paint, age = SMALL.make_small_bundle, SMALL.paint, SMALL.age


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests first: a worker that meets one last is waited for by all the others."""
    slow_files = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow_files)  # which keeps the order among equals


@pytest.fixture(scope="session", name="load_module")
def load_module_fixture() -> Callable[[str], ModuleType]:
    return load_module


@pytest.fixture(scope="session")
def golden_dir() -> Path:
    """Numbers of the field's own codes, copied in."""
    return Path(__file__).parent / "golden"


@pytest.fixture(scope="session")
def fill() -> ModuleType:
    """The module that makes the weights and inputs which the golden numbers were made with."""
    return load_module("tests/golden/fill.py")


@pytest.fixture(scope="session")
def photos_dir() -> Path:
    """The landmark photos (gldv2-50); they may not be redistributed, so most machines do not have them."""
    given = os.environ.get("TESSERA_PHOTOS")
    if given is None or not Path(given, "train.csv").is_file():
        pytest.skip("the landmark photos are not here: set TESSERA_PHOTOS to a gldv2-50 folder")
    return Path(given)


@pytest.fixture(scope="session")
def small_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of one random layer: descriptors in a millisecond, different for different pictures."""
    return make_small_bundle(tmp_path_factory.mktemp("bundles") / "small", seed=0, dim=16)


@pytest.fixture(scope="session")
def other_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another such bundle, with other weights and another dimension."""
    return make_small_bundle(tmp_path_factory.mktemp("bundles") / "other", seed=1, dim=24)


@pytest.fixture(scope="session")
def twin_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Such a bundle with other weights and the dimension of the first: nothing but its numbers tells them apart."""
    return make_small_bundle(tmp_path_factory.mktemp("bundles") / "twin", seed=3, dim=16)


@pytest.fixture(scope="session")
def wide_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Such a bundle with descriptors as long as the paper's."""
    return make_small_bundle(tmp_path_factory.mktemp("bundles") / "wide", seed=2, dim=1024)


@pytest.fixture
def painter() -> Callable[..., Path]:
    return paint


@pytest.fixture
def many_pictures() -> Callable[[Path, int], Path]:
    """`many_pictures(folder, count)`: made in a moment, indexed in a tenth of a second of processor time each."""
    return write_many


def write_many(folder: Path, count: int) -> Path:
    """Pictures that take a moment to decode; what follows a JPEG's end makes each content another."""
    folder.mkdir()
    Image.effect_noise((640, 480), 60).convert("RGB").save(folder / "base.jpg", quality=80)
    content = (folder / "base.jpg").read_bytes()
    for i in range(count):
        path = folder / f"{i:04}.jpg"
        path.write_bytes(content + str(i).encode())
        os.utime(path, (1, 1))
    (folder / "base.jpg").unlink()
    return folder


@pytest.fixture
def ager() -> Callable[..., Path]:
    return age


@pytest.fixture
def photo_folder(tmp_path: Path) -> Path:
    """Eight different pictures in two folders, a second old: younger files prove nothing by their times."""
    folder = tmp_path / "photos"
    for seed in range(8):
        path = paint(folder / ("inner" if seed % 2 else ".") / f"photo{seed}.png", seed)
        age(path)
    return folder


@pytest.fixture(scope="session")
def token_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The paper's network on a tiny backbone, exported: four tokens, maps and shares, milliseconds a picture."""
    torch = pytest.importorskip("torch")
    from tessera.models.model_registry import build_model
    from tessera.models.onnx_export import export_bundle, make_card
    from tessera.models.preprocessing import Preprocessing

    torch.manual_seed(0)
    network = build_model("token", backbone="tiny", channels=16, heads=2, dim=24)
    folder = tmp_path_factory.mktemp("bundles") / "token-tiny"
    card = make_card(network, "token-tiny", preprocessing=Preprocessing(size=128, scales=(2**-0.5, 1.0)))
    export_bundle(network, folder, card)
    return folder


@pytest.fixture(scope="session")
def scenes_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve small pictures, no two alike, and a list of them with metadata."""
    folder = tmp_path_factory.mktemp("scenes")
    random = np.random.default_rng(7)
    lines = ["path,place,year"]
    for index in range(12):
        coarse = random.integers(0, 256, (6, 8, 3), dtype=np.uint8)
        size = (160, 120) if index % 3 else (120, 160)
        Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC).save(folder / f"scene{index:02}.jpg", quality=92)
        lines.append(f"scene{index:02}.jpg,{'north' if index < 5 else 'south'},{2000 + index}")
    (folder / "scenes.csv").write_text("\n".join(lines) + "\n")
    return folder
