"""A bundle that needs no trained network: its graph is written by hand, node by node."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tessera.models.bundle import Bundle, ModelCard
from tessera.models.preprocessing import Preprocessing

onnx = pytest.importorskip("onnx")


def write_tiny_graph(path: Path) -> None:
    """images B 3 H W -> mean of each channel and of its square, B 6, divided by its length."""
    from onnx import TensorProto, helper, numpy_helper

    nodes = [
        helper.make_node("Mul", ["images", "images"], ["squares"]),
        helper.make_node("ReduceMean", ["images"], ["first"], axes=[2, 3], keepdims=0),
        helper.make_node("ReduceMean", ["squares"], ["second"], axes=[2, 3], keepdims=0),
        helper.make_node("Concat", ["first", "second"], ["raw"], axis=1),
        helper.make_node("ReduceL2", ["raw"], ["length"], axes=[1], keepdims=1),
        helper.make_node("Max", ["length", "eps"], ["safe"]),
        helper.make_node("Div", ["raw", "safe"], ["descriptor"]),
    ]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["B", 3, "H", "W"])],
        [helper.make_tensor_value_info("descriptor", TensorProto.FLOAT, ["B", 6])],
        [numpy_helper.from_array(np.array(1e-12, np.float32), "eps")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.checker.check_model(model)
    onnx.save(model, str(path))


@pytest.fixture(scope="session")
def tiny_bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    path = tmp_path_factory.mktemp("bundles") / "tiny"
    path.mkdir()
    write_tiny_graph(path / "model.onnx")
    card = ModelCard(
        name="tiny",
        kind="global",
        architecture={"model": "tiny", "config": {}},
        dim=6,
        preprocessing=Preprocessing(size=64),
    )
    return Bundle.seal(path, card)


@pytest.fixture
def picture() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (40, 52, 3), dtype=np.uint8)
