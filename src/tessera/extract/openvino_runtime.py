"""OpenVINO as a runtime, where it is installed: the bundle's own graph, in single precision."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tessera.errors import MissingExtraError, ModelError, UsageError
from tessera.extract.runtime import Outputs, Runtime, default_threads
from tessera.models.bundle import POSITION_CONTRIBUTIONS, Bundle


class OpenVinoRuntime(Runtime):
    """A compiled graph, with a request for each thread that calls it."""

    def __init__(self, bundle: Bundle, *, device: str = "auto", threads: int | None = None) -> None:
        try:
            import openvino
        except ImportError as error:
            raise MissingExtraError("--runtime openvino", "openvino", requirement="openvino") from error
        if device == "cuda":
            raise UsageError("--runtime openvino runs on the CPU here. Use --device cpu, or --runtime onnx or torch.")
        if not bundle.onnx_path.is_file():
            raise ModelError(f"{bundle.path} has no model.onnx: the bundle is incomplete. Make it again.")
        core = openvino.Core()
        # On newer processors it would choose bfloat16, and descriptors of two machines would not compare.
        settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads or default_threads()}

        def compile_graph(path: Path) -> Any:
            return core.compile_model(str(path), "CPU", settings)

        try:
            self._graphs = {"": compile_graph(bundle.onnx_path)}
            if bundle.position_contributions_path.is_file():
                self._graphs[POSITION_CONTRIBUTIONS] = compile_graph(bundle.position_contributions_path)
        except RuntimeError as error:
            raise ModelError(f"{bundle.path} cannot be loaded by OpenVINO: {error}. Use --runtime onnx.") from error
        self.device = "cpu"
        self.output_names = tuple(port.get_any_name() for graph in self._graphs.values() for port in graph.outputs)
        self._requests = threading.local()

    def run(self, images: npt.NDArray[np.float32], outputs: Sequence[str] = ("descriptor",)) -> Outputs:
        self._refuse_unknown(outputs)
        found: Outputs = {}
        try:
            for graph in {POSITION_CONTRIBUTIONS if name == POSITION_CONTRIBUTIONS else "" for name in outputs}:
                answers = self._request(graph).infer([images])
                found |= {port.get_any_name(): np.array(value) for port, value in answers.items()}
        except RuntimeError as error:
            shape = " x ".join(str(side) for side in images.shape)
            raise ModelError(f"the network failed on images of shape {shape}: {error}") from error
        return {name: found[name] for name in outputs}

    def _request(self, graph: str) -> Any:
        requests: dict[str, Any] = self._requests.__dict__.setdefault("made", {})
        if graph not in requests:
            requests[graph] = self._graphs[graph].create_infer_request()
        return requests[graph]
