"""A bundle in eight bits: the matrices of a transformer as integers, a quarter of the bytes. A model of its own.

Its descriptors are near those of the bundle it came from and not the same, so it is another bundle with another
fingerprint, and not a way to run the first. Weights are rounded channel by channel, activations as they come.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tessera.errors import MissingExtraError, ModelError
from tessera.models.bundle import Bundle
from tessera.models.onnx_library import import_onnxruntime
from tessera.storage import write_atomically

_SHAPES = ((224, 224), (160, 240))


def quantise_bundle(bundle: Bundle, output: Path, *, name: str | None = None) -> Bundle:
    """Write the quantised bundle; the card's figures give the cosine of its descriptors with the first's, on noise."""
    try:
        import onnx
        from onnxruntime.quantization import QuantType, quantize_dynamic
    except ImportError as error:
        raise MissingExtraError("quantising a bundle", "train") from error
    if not any(node.op_type == "MatMul" for node in _graph(bundle.onnx_path).node):
        raise ModelError(f"{bundle.card.name} has no matrices to quantise: eight bits are for transformers.")
    with tempfile.TemporaryDirectory(prefix="tessera-") as folder:
        whole, folded, target = (Path(folder) / f"{stage}.onnx" for stage in ("whole", "folded", "model"))
        onnx.save(onnx.load(str(bundle.onnx_path)), str(whole))  # with its weights inside
        _fold_constants(whole, folded)
        quantize_dynamic(
            str(folded),
            str(target),
            op_types_to_quantize=["MatMul"],
            per_channel=True,
            weight_type=QuantType.QInt8,
            extra_options={"MatMulConstBOnly": True},
        )
        content = onnx.load(str(target)).SerializeToString()
    output.mkdir(parents=True, exist_ok=True)
    for stale in ("model.json", "weights.safetensors", "places.onnx"):
        (output / stale).unlink(missing_ok=True)
    card = replace(
        bundle.card,
        name=name or output.name,
        figures={},
        provenance={
            "command": "tessera convert --int8",
            "format": "a bundle in eight bits",
            "base": {"name": bundle.card.name, "fingerprint": bundle.card.fingerprint},
        },
    )
    quantised = Bundle(output, card)
    write_atomically(quantised.onnx_path, content)
    cosine = min(_cosines(bundle.onnx_path, quantised.onnx_path))
    return Bundle.seal(output, replace(card, figures={"least cosine with the float descriptors, on noise": cosine}))


def _fold_constants(path: Path, folded: Path) -> None:
    """Weights are turned inside the graph, which hides them from the quantiser: let ONNX Runtime do it once."""
    onnxruntime = import_onnxruntime()

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(folded)
    onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _graph(path: Path) -> Any:
    import onnx

    return onnx.load(str(path), load_external_data=False).graph


def _cosines(first: Path, second: Path) -> list[float]:
    onnxruntime = import_onnxruntime()

    sessions = [onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]) for path in (first, second)]
    random = np.random.default_rng(0)
    found = []
    for height, width in _SHAPES:
        image = random.standard_normal((1, 3, height, width)).astype(np.float32)
        one, other = (session.run(["descriptor"], {"images": image})[0][0] for session in sessions)
        found.append(float(one @ other / (np.linalg.norm(one) * np.linalg.norm(other))))
    return found
