"""Fixtures shared by every room."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="session")
def golden_dir() -> Path:
    """Numbers of the field's own codes, copied in."""
    return Path(__file__).parent / "golden"


@pytest.fixture(scope="session")
def photos_dir() -> Path:
    """The landmark photos (gldv2-50); they may not be redistributed, so most machines do not have them."""
    given = os.environ.get("TESSERA_PHOTOS")
    folder = Path(given) if given else ROOT.parent / "shared" / "data" / "gldv2-50"
    if not (folder / "train.csv").is_file():
        pytest.skip("the landmark photos are not here: set TESSERA_PHOTOS to a gldv2-50 folder")
    return folder


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


def make_small_bundle(path: Path, *, seed: int, dim: int) -> Path:
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper, save

    from tessera.models.bundle import Bundle, ModelCard
    from tessera.models.preprocessing import Preprocessing

    weights = np.random.default_rng(seed).normal(size=(dim, 3, 9, 9)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["images", "weights"], ["maps"], strides=[4, 4], pads=[4, 4, 4, 4]),
        helper.make_node("Relu", ["maps"], ["positive"]),
        helper.make_node("ReduceMean", ["positive"], ["raw"], axes=[2, 3], keepdims=0),
        helper.make_node("LpNormalization", ["raw"], ["descriptor"], axis=1, p=2),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["B", 3, "H", "W"])],
        [helper.make_tensor_value_info("descriptor", TensorProto.FLOAT, ["B", dim])],
        [numpy_helper.from_array(weights, "weights")],
    )
    path.mkdir(parents=True)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), str(path / "model.onnx"))
    card = ModelCard(
        name=path.name,
        kind="global",
        architecture={"model": "small", "config": {}},
        dim=dim,
        preprocessing=Preprocessing(size=64, scales=(1.0,)),
    )
    return Bundle.seal(path, card).path


def paint(path: Path, seed: int, *, size: tuple[int, int] = (48, 36)) -> Path:
    """Save a picture of random blocks; the same seed gives the same bytes."""
    import numpy as np
    from PIL import Image

    blocks = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(blocks).resize(size, Image.Resampling.NEAREST).save(path)
    return path


@pytest.fixture
def painter() -> Callable[..., Path]:
    return paint


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


def age(path: Path, seconds: float = 1.0) -> Path:
    """Set a file's time back."""
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns - int(1e9 * seconds)))
    return path


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
