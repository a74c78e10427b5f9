"""Any ONNX file: wrapped, probed, served; refused with a sentence where it cannot serve."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from typer.testing import CliRunner

from tessera.cli.main import app
from tessera.errors import ModelError, UsageError
from tessera.extract.extractor import Extractor
from tessera.models.bundle import Bundle
from tessera.models.convert.onnx_graph import convert_onnx

FREE = ("batch", 3, "height", "width")
RANDOM = np.random.default_rng(0)
WEIGHT = RANDOM.standard_normal((8, 3, 4, 4)).astype(np.float32)


def save(
    path: Path, nodes: Sequence[Any], outputs: dict[str, Sequence[Any]], shape: Sequence[Any] = FREE, **more: Any
) -> Path:
    """A graph with the input `pixels` and a 4x4 convolution of stride 4, `map`, before the nodes."""
    kind = more.get("kind", TensorProto.FLOAT)
    weight = WEIGHT.astype(np.float16) if kind == TensorProto.FLOAT16 else WEIGHT
    conv = helper.make_node("Conv", [more.get("first", "pixels"), "weight"], ["map"], strides=[4, 4])
    graph = helper.make_graph(
        [*more.get("before", ()), conv, *nodes],
        "net",
        [helper.make_tensor_value_info("pixels", kind, shape), *more.get("inputs", ())],
        [helper.make_tensor_value_info(name, kind, dims) for name, dims in outputs.items()],
        [numpy_helper.from_array(weight, "weight"), *more.get("weights", ())],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", more.get("opset", 17))], ir_version=8)
    onnx.save(model, str(path))
    return path


POOL = (helper.make_node("GlobalAveragePool", ["map"], ["mean"]), helper.make_node("Flatten", ["mean"], ["vector"]))


def vector(image: np.ndarray, bundle: Bundle) -> np.ndarray:
    """The mean of the convolution's map, of unit norm: a slow second writing of the graph above."""
    pixels = (image / 255 - np.array(bundle.card.preprocessing.mean)) / np.array(bundle.card.preprocessing.std)
    height, width = (side // 4 * 4 for side in image.shape[:2])
    patches = pixels[:height, :width].reshape(height // 4, 4, width // 4, 4, 3)
    answer = np.einsum("hawbc,ocab->hwo", patches, WEIGHT).mean(axis=(0, 1))
    return answer / np.linalg.norm(answer)


@pytest.fixture
def image() -> np.ndarray:
    return RANDOM.integers(0, 256, (44, 60, 3), dtype=np.uint8)


def test_a_vector_is_served_at_any_size(image: np.ndarray, tmp_path: Path) -> None:
    path = save(tmp_path / "net.onnx", POOL, {"vector": ["batch", 8]})
    bundle = convert_onnx(path, tmp_path / "bundle", mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4), size=100)
    assert (bundle.card.dim, bundle.card.num_tokens, bundle.card.preprocessing.size) == (8, 0, 100)
    Bundle.open(bundle.path).verify()
    answers = Extractor(bundle).describe_batch([image, image[:40, :32], image])
    np.testing.assert_allclose(answers[0], vector(image, bundle), atol=1e-5)
    np.testing.assert_allclose(answers[1], vector(image[:40, :32], bundle), atol=1e-5)


def test_a_map_is_pooled_by_gem(image: np.ndarray, tmp_path: Path) -> None:
    bundle = convert_onnx(save(tmp_path / "net.onnx", (), {"map": ["batch", 8, "h", "w"]}), tmp_path / "bundle")
    import onnxruntime

    features = onnxruntime.InferenceSession(str(tmp_path / "net.onnx")).run(
        None, {"pixels": Extractor(bundle).normalise([image])}
    )[0]
    means = (np.sign(features) * np.abs(features) ** 3).mean(axis=(2, 3))[0]
    expected = np.sign(means) * np.abs(means) ** (1 / 3)
    np.testing.assert_allclose(Extractor(bundle).describe(image), expected / np.linalg.norm(expected), atol=1e-5)


@pytest.mark.parametrize("pooling", [None, "cls", "gem"])
def test_patches_are_pooled(pooling: str | None, tmp_path: Path, image: np.ndarray) -> None:
    nodes = (
        helper.make_node("Reshape", ["map", "shape"], ["rows"]),
        helper.make_node("Transpose", ["rows"], ["patches"], perm=[0, 2, 1]),
    )
    shape = numpy_helper.from_array(np.array([0, 8, -1], dtype=np.int64), "shape")
    path = save(tmp_path / "net.onnx", nodes, {"patches": ["batch", "s", 8]}, weights=[shape])
    bundle = convert_onnx(path, tmp_path / "bundle", pooling=pooling)
    assert bundle.card.architecture["config"]["pooling"] == (pooling or "cls")
    assert np.linalg.norm(Extractor(bundle).describe(image)) == pytest.approx(1)


def test_one_size_and_no_batch_are_served_too(image: np.ndarray, tmp_path: Path) -> None:
    path = save(tmp_path / "net.onnx", POOL, {"vector": [1, 8]}, (1, 3, 32, 32))
    bundle = convert_onnx(path, tmp_path / "bundle")
    assert list(bundle.card.architecture["config"]["sides"]) == [32, 32]
    assert bundle.card.preprocessing.size == 32
    square = RANDOM.integers(0, 256, (32, 32, 3), dtype=np.uint8)
    answers = Extractor(Bundle.open(bundle.path)).describe_batch([square, 255 - square, image])
    np.testing.assert_allclose(answers[0], vector(square, bundle), atol=1e-5)
    np.testing.assert_allclose(answers[1], vector(255 - square, bundle), atol=1e-5)


def test_a_graph_that_takes_some_sizes_only_needs_one_of_its_own(tmp_path: Path) -> None:
    """A reshape that a trace froze: 8 x 8 positions and no others."""
    nodes = (
        helper.make_node("Reshape", ["map", "shape"], ["flat"]),
        helper.make_node("ReduceMean", ["flat"], ["vector"], axes=[2], keepdims=0),
    )
    shape = numpy_helper.from_array(np.array([-1, 8, 64], dtype=np.int64), "shape")
    path = save(tmp_path / "net.onnx", nodes, {"vector": ["batch", 8]}, weights=[shape])
    with pytest.raises(ModelError, match=r"does not take every size of picture, though it says so .* --size N"):
        convert_onnx(path, tmp_path / "bundle")
    bundle = convert_onnx(path, tmp_path / "bundle", size=32)
    square = RANDOM.integers(0, 256, (32, 32, 3), dtype=np.uint8)
    np.testing.assert_allclose(Extractor(bundle).describe(square), vector(square, bundle), atol=1e-5)


def test_channels_last_and_half_precision(image: np.ndarray, tmp_path: Path) -> None:
    turn = helper.make_node("Transpose", ["pixels"], ["turned"], perm=[0, 3, 1, 2])
    path = save(
        tmp_path / "net.onnx",
        POOL,
        {"vector": ["batch", 8]},
        ("batch", "height", "width", 3),
        before=[turn],
        first="turned",
        kind=TensorProto.FLOAT16,
    )
    bundle = convert_onnx(path, tmp_path / "bundle")
    np.testing.assert_allclose(Extractor(bundle).describe(image), vector(image, bundle), atol=5e-3)


def test_of_several_outputs_the_vector_is_taken_or_one_is_asked_for(tmp_path: Path) -> None:
    outputs: dict[str, Sequence[Any]] = {"map": ["batch", 8, "h", "w"], "vector": ["batch", 8]}
    path = save(tmp_path / "net.onnx", POOL, outputs)
    assert convert_onnx(path, tmp_path / "bundle").card.architecture["config"]["output"] == "vector"
    assert convert_onnx(path, tmp_path / "bundle", tensor="map").card.architecture["config"]["output"] == "map"
    with pytest.raises(UsageError, match=r"output 'mapp' is not known\. Did you mean 'map'"):
        convert_onnx(path, tmp_path / "bundle", tensor="mapp")
    twice = save(tmp_path / "twice.onnx", POOL, {"map": ["batch", 8, "h", "w"], "mean": ["batch", 8, 1, 1]})
    with pytest.raises(UsageError, match=r"several outputs: map .* mean .* --tensor NAME"):
        convert_onnx(twice, tmp_path / "bundle")
    with pytest.raises(UsageError, match="--pooling cls does not fit: the graph gives a map"):
        convert_onnx(path, tmp_path / "bundle", tensor="map", pooling="cls")


def test_a_model_without_an_image_input_is_refused(tmp_path: Path) -> None:
    words = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "length"])
    node = helper.make_node("Cast", ["input_ids"], ["vector"], to=TensorProto.FLOAT)
    answer = helper.make_tensor_value_info("vector", TensorProto.FLOAT, ["batch", "length"])
    onnx.save(helper.make_model(helper.make_graph([node], "text", [words], [answer])), str(tmp_path / "text.onnx"))
    with pytest.raises(ModelError, match=r"no image input: .* Its inputs: input_ids \(int64, \? x \?\)"):
        convert_onnx(tmp_path / "text.onnx", tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


def test_a_model_that_needs_words_too_is_refused(tmp_path: Path) -> None:
    words = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "length"])
    path = save(tmp_path / "both.onnx", POOL, {"vector": ["batch", 8]}, inputs=[words])
    with pytest.raises(ModelError, match=r"needs more than an image.*Export the image tower by itself"):
        convert_onnx(path, tmp_path / "bundle")


def test_a_batch_of_four_only_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "four.onnx", POOL, {"vector": [4, 8]}, (4, 3, 32, 32))
    with pytest.raises(ModelError, match="takes batches of 4 only"):
        convert_onnx(path, tmp_path / "bundle")


def test_a_network_that_mixes_its_batch_is_refused(tmp_path: Path) -> None:
    nodes = (
        *POOL,
        helper.make_node("ReduceMean", ["vector"], ["all"], axes=[0]),
        helper.make_node("Add", ["vector", "all"], ["mixed"]),
    )
    with pytest.raises(ModelError, match="mixes the pictures of a batch"):
        convert_onnx(save(tmp_path / "net.onnx", nodes, {"mixed": ["batch", 8]}), tmp_path / "bundle")


def external(path: Path, location: str) -> Path:
    """The file saved again with its weights in another file, and said to lie at `location`."""
    model = onnx.load(str(path))
    onnx.save(model, str(path), save_as_external_data=True, location="net.data", size_threshold=0)
    model = onnx.load(str(path), load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = location
    path.write_bytes(model.SerializeToString())
    return path


def test_data_beside_the_file_is_taken_in_and_data_elsewhere_is_never_read(image: np.ndarray, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    path = external(save(folder / "net.onnx", POOL, {"vector": ["batch", 8]}), "net.data")
    bundle = convert_onnx(path, tmp_path / "bundle")
    np.testing.assert_allclose(Extractor(bundle).describe(image), vector(image, bundle), atol=1e-5)
    (folder / "net.data").rename(tmp_path / "outside.data")
    with pytest.raises(ModelError, match=r"net\.data, which is not there"):
        convert_onnx(path, tmp_path / "bundle")
    for location in ("../outside.data", str(tmp_path / "outside.data")):
        outside = external(save(folder / "net.onnx", POOL, {"vector": ["batch", 8]}), location)
        with pytest.raises(ModelError, match="outside its folder, and nothing is read there"):
            convert_onnx(outside, tmp_path / "bundle")
    (folder / "link.data").symlink_to(tmp_path / "outside.data")
    linked = external(save(folder / "net.onnx", POOL, {"vector": ["batch", 8]}), "link.data")
    with pytest.raises(ModelError, match="outside its folder"):
        convert_onnx(linked, tmp_path / "bundle")


@pytest.mark.parametrize(("key", "value"), [("offset", "far"), ("offset", "-8"), ("length", "-1")])
def test_data_whose_place_is_no_place_is_refused(key: str, value: str, tmp_path: Path) -> None:
    path = external(save(tmp_path / "net.onnx", POOL, {"vector": ["batch", 8]}), "net.data")
    model = onnx.load(str(path), load_external_data=False)
    entries = model.graph.initializer[0].external_data
    kept = [entry for entry in entries if entry.key != key]
    del entries[:]
    entries.extend(kept)
    entries.add(key=key, value=value)
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match=rf"keeps weights in net\.data at {key} '{value}', which is no place"):
        convert_onnx(path, tmp_path / "bundle")


def test_a_graph_without_any_input_is_refused(tmp_path: Path) -> None:
    node = helper.make_node("Constant", [], ["vector"], value=numpy_helper.from_array(np.zeros((1, 8), np.float32)))
    answer = helper.make_tensor_value_info("vector", TensorProto.FLOAT, [1, 8])
    onnx.save(helper.make_model(helper.make_graph([node], "none", [], [answer])), str(tmp_path / "none.onnx"))
    with pytest.raises(ModelError, match=r"no image input: .* Its inputs: none\."):
        convert_onnx(tmp_path / "none.onnx", tmp_path / "bundle")


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "net.onnx", POOL, {"vector": ["batch", 8]})
    path.write_bytes(path.read_bytes()[:-300])
    with pytest.raises(ModelError, match="no ONNX file, or a truncated one"):
        convert_onnx(path, tmp_path / "bundle")


def test_from_the_command_line(image: np.ndarray, tmp_path: Path) -> None:
    save(tmp_path / "net.onnx", POOL, {"vector": [1, 8]}, (1, 3, 32, 32))
    Image.fromarray(image).save(tmp_path / "photo.png")
    words = [
        "convert",
        tmp_path / "net.onnx",
        "-o",
        tmp_path / "bundle",
        "--name",
        "mine",
        "--mean",
        "0.5",
        "--std",
        "0.5",
    ]
    answer = CliRunner().invoke(app, list(map(str, words)), catch_exceptions=False)
    assert answer.exit_code == 0 and "every picture is stretched to 32 x 32" in answer.stderr
    card = Bundle.open(tmp_path / "bundle").card
    assert card.name == "mine" and card.preprocessing.mean == (0.5, 0.5, 0.5)
    words = ["embed", tmp_path / "photo.png", "-o", tmp_path / "out.npz", "--model", tmp_path / "bundle", "--json"]
    told = CliRunner().invoke(app, list(map(str, words)), catch_exceptions=False)
    assert json.loads(told.stdout)["dim"] == 8
    with pytest.raises(UsageError, match=r"--mean needs one number or three"):
        CliRunner().invoke(
            app, ["convert", str(tmp_path / "net.onnx"), "-o", "x", "--mean", "a"], catch_exceptions=False
        )
