"""The same network through ONNX Runtime, torch and OpenVINO, and as one would write it plainly, side by side.

"Plain" is eager torch as the authors' code runs: channels first, batch norms unfolded, and keys and values projected
for every position. All take the same images at the same scales, in turn, and must give the same descriptors.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tessera.bench.networks import GLOBAL_SCALES
from tessera.errors import MissingExtraError

if TYPE_CHECKING:
    from torch import nn

Float32s = npt.NDArray[np.float32]
Forward = Callable[[Float32s], Float32s]

BAR = 0.75
TOLERANCE = 1e-4


def measure_runtimes(*, model: str, side: int, repeats: int) -> dict[str, Any]:
    """Time one image of `side` x 3/4 `side` at three scales.

    model: a bundle, or a registered network, which then has random weights: they do not move speed.

    ratio: the time over that of the plain network, the median over rounds in which each had its turn. difference: the
    greatest of a descriptor's numbers from the plain one.
    """
    try:
        import torch
    except ImportError as error:
        raise MissingExtraError("bench extract --plain", "train") from error
    from tessera.models.bundle import Bundle
    from tessera.models.model_registry import MODELS, build_model
    from tessera.models.onnx_export import export_bundle, load_network, make_card
    from tessera.models.parts.attention import MultiHeadAttention

    torch.manual_seed(0)
    with tempfile.TemporaryDirectory(prefix="tessera-bench-") as name:
        if model in MODELS:
            built = build_model(model)
            bundle = export_bundle(built, Path(name), make_card(built, model))
        else:
            bundle = Bundle.open(model)
        network = load_network(bundle)
        for module in network.modules():
            if isinstance(module, MultiHeadAttention):
                module.by_association = False
        runs = {"plain torch": _torch(network), **_runtimes(bundle)}
        rng = np.random.default_rng(0)
        images = [
            rng.standard_normal((1, 3, int(side * 3 / 4 * scale), int(side * scale)), dtype=np.float32)
            for scale in GLOBAL_SCALES
        ]
        rows = _measure(runs, images, repeats)
    return {"model": model, "side": side, "threads": torch.get_num_threads(), "bar": BAR, "rows": rows}


def _torch(network: nn.Module) -> Forward:
    import torch

    def run(image: Float32s) -> Float32s:
        with torch.inference_mode():
            found: Float32s = network(torch.from_numpy(image))["descriptor"].numpy()
            return found

    return run


def _runtimes(bundle: Any) -> dict[str, Forward]:
    """What runs the bundle here; OpenVINO only where it is installed."""
    from tessera.extract.runtime import open_runtime

    def through(name: str) -> Forward:
        opened = open_runtime(bundle, name, device="cpu")
        return lambda image: opened.run(image)["descriptor"]

    found = {"onnx": through("onnx"), "torch": through("torch")}
    try:
        import openvino
    except ImportError:
        return found
    compiled = openvino.Core().compile_model(str(bundle.onnx_path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return found | {"openvino": lambda image: compiled([image])["descriptor"]}


def _measure(runs: dict[str, Forward], images: list[Float32s], repeats: int) -> list[dict[str, Any]]:
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    expected = [runs["plain torch"](image) for image in images]
    differences = {}
    for name, run in runs.items():  # which warms them up, too
        found = [run(image) for image in images]
        differences[name] = max(float(np.abs(a - b).max()) for a, b in zip(found, expected, strict=True))
    for _ in range(repeats):
        for name, run in runs.items():
            started = time.perf_counter()
            for image in images:
                run(image)
            seconds[name].append(time.perf_counter() - started)
    plain = seconds["plain torch"]
    return [
        {
            "name": name,
            "latency_ms": round(1e3 * statistics.median(mine), 1),
            "ratio": round(statistics.median(a / b for a, b in zip(mine, plain, strict=True)), 3),
            "difference": differences[name],
        }
        for name, mine in seconds.items()
    ]


def runtimes_markdown(report: dict[str, Any]) -> str:
    lines = [
        f"{report['model']}, one image of {report['side']} x {report['side'] * 3 // 4} at {len(GLOBAL_SCALES)} scales, "
        f"{report['threads']} threads; bar {report['bar']} of plain torch, descriptors the same to {TOLERANCE:g}.",
        "",
        "| runtime | ms | of plain | greatest difference |",
        "|---|---:|---:|---:|",
    ]
    for row in report["rows"]:
        lines.append(f"| {row['name']} | {row['latency_ms']:.0f} | {row['ratio']:.2f} | {row['difference']:.1e} |")
    return "\n".join(lines)
