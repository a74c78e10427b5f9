"""What a small gallery is made of: a bundle of one random layer, and pictures of random blocks."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from PIL import Image


def make_small_bundle(path: Path, *, seed: int, dim: int) -> Path:
    """A bundle of one random layer: descriptors in a millisecond, different for different pictures."""
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
    blocks = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(blocks).resize(size, Image.Resampling.NEAREST).save(path)
    return path


def age(path: Path, seconds: float = 1.0) -> Path:
    """Set a file's time back."""
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns - int(1e9 * seconds)))
    return path
