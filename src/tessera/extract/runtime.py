"""What runs a network: ONNX Runtime, or torch or OpenVINO where asked for. All take the same normalised images."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from tessera.errors import MissingExtraError, ModelError, UsageError, unknown_name
from tessera.models.bundle import POSITION_CONTRIBUTIONS, Bundle
from tessera.models.onnx_library import import_onnxruntime

Outputs: TypeAlias = dict[str, npt.NDArray[np.float32]]
RUNTIMES = ("onnx", "torch", "openvino")
DEVICES = ("auto", "cpu", "cuda")


class Runtime(ABC):
    """An opened network: normalised images B 3 H W in, the outputs that are asked for out."""

    output_names: tuple[str, ...]
    device: str

    @abstractmethod
    def run(self, images: npt.NDArray[np.float32], outputs: Sequence[str] = ("descriptor",)) -> Outputs: ...

    def _refuse_unknown(self, outputs: Sequence[str]) -> None:
        for name in outputs:
            if name not in self.output_names:
                raise ModelError(unknown_name("output", name, self.output_names))


class OnnxRuntime(Runtime):
    """A session of ONNX Runtime. It may be called from several threads at once."""

    def __init__(self, bundle: Bundle, *, device: str = "auto", threads: int | None = None) -> None:
        onnxruntime = import_onnxruntime()

        if not bundle.onnx_path.is_file():
            raise ModelError(f"{bundle.path} has no model.onnx: the bundle is incomplete. Make it again.")
        offered = onnxruntime.get_available_providers()
        if device == "cuda" and "CUDAExecutionProvider" not in offered:
            raise UsageError(
                "--device cuda was asked for, but the installed ONNX Runtime has no CUDA. "
                "Install onnxruntime-gpu, or use --device cpu or --runtime torch."
            )
        use_cuda = device != "cpu" and "CUDAExecutionProvider" in offered
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads or default_threads()
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        # Idle workers that spin would take the cores from the decoding threads.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.enable_mem_pattern = False  # images have many shapes
        providers = (["CUDAExecutionProvider"] if use_cuda else []) + ["CPUExecutionProvider"]

        def open_session(path: Path, pid: int) -> Any:
            try:
                return onnxruntime.InferenceSession(str(path), options, providers=providers)
            except Exception as error:
                raise ModelError(f"{path} cannot be loaded: {error}. Make the bundle again.") from error

        self._bundle = bundle
        self._opened = cache(open_session)  # by process: the threads of a session do not survive a fork
        session = self._opened(bundle.onnx_path, os.getpid())
        self.device = "cuda" if "CUDAExecutionProvider" in session.get_providers() else "cpu"
        self.output_names = tuple(output.name for output in session.get_outputs())
        image = session.get_inputs()[0]
        self._input, self._one_by_one = image.name, image.shape[0] == 1  # graphs of others may take no batch
        if bundle.position_contributions_path.is_file():
            self.output_names += (POSITION_CONTRIBUTIONS,)

    def run(self, images: npt.NDArray[np.float32], outputs: Sequence[str] = ("descriptor",)) -> Outputs:
        self._refuse_unknown(outputs)
        if self._one_by_one and len(images) > 1:
            each = [self.run(images[i : i + 1], outputs) for i in range(len(images))]
            return {name: np.concatenate([found[name] for found in each]) for name in outputs}
        try:
            names = [name for name in outputs if name != POSITION_CONTRIBUTIONS]
            found: Outputs = {}
            if names:
                session = self._opened(self._bundle.onnx_path, os.getpid())
                found = dict(zip(names, session.run(names, {self._input: images}), strict=True))
            if POSITION_CONTRIBUTIONS in outputs:  # a graph apart, opened when somebody asks why
                why = self._opened(self._bundle.position_contributions_path, os.getpid())
                (found[POSITION_CONTRIBUTIONS],) = why.run([POSITION_CONTRIBUTIONS], {self._input: images})
        except Exception as error:
            shape = " x ".join(str(side) for side in images.shape)
            raise ModelError(f"the network failed on images of shape {shape}: {error}") from error
        return found


class TorchRuntime(Runtime):
    """The network of a bundle built anew in torch with its weights: for training's own checks and for GPUs."""

    def __init__(self, bundle: Bundle, *, device: str = "auto", threads: int | None = None) -> None:
        try:
            import torch
        except ImportError as error:
            raise MissingExtraError("--runtime torch", "train") from error
        from tessera.models.onnx_export import load_network

        if device == "cuda" and not torch.cuda.is_available():
            raise UsageError("--device cuda was asked for, but torch sees no CUDA device. Use --device cpu.")
        self.device = "cuda" if device != "cpu" and torch.cuda.is_available() else "cpu"
        if threads is not None and self.device == "cpu":
            torch.set_num_threads(threads)
        self._torch = torch
        self._network = load_network(bundle).to(self.device).eval()
        self.output_names = self._network.output_names
        if self._network.has_position_contributions:
            self.output_names += (POSITION_CONTRIBUTIONS,)

    def run(self, images: npt.NDArray[np.float32], outputs: Sequence[str] = ("descriptor",)) -> Outputs:
        self._refuse_unknown(outputs)
        with self._torch.inference_mode():
            batch = self._torch.from_numpy(images).to(self.device)
            values = self._network(batch) if set(outputs) != {POSITION_CONTRIBUTIONS} else {}
            if POSITION_CONTRIBUTIONS in outputs:
                values[POSITION_CONTRIBUTIONS] = self._network.position_contributions(batch)
        return {name: cast(npt.NDArray[np.float32], values[name].float().cpu().numpy()) for name in outputs}


def open_runtime(bundle: Bundle, runtime: str = "onnx", *, device: str = "auto", threads: int | None = None) -> Runtime:
    """Open a bundle's network. threads: of one run on the CPU; all cores that this process may use by default."""
    if device not in DEVICES:
        raise UsageError(unknown_name("device", device, DEVICES))
    if runtime == "onnx":
        return OnnxRuntime(bundle, device=device, threads=threads)
    if runtime == "torch":
        return TorchRuntime(bundle, device=device, threads=threads)
    if runtime == "openvino":
        from tessera.extract.openvino_runtime import OpenVinoRuntime

        return OpenVinoRuntime(bundle, device=device, threads=threads)
    raise UsageError(unknown_name("runtime", runtime, RUNTIMES))


def default_threads() -> int:
    """The cores that this process may use, which in a container are fewer than the machine has."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdigit() and int(asked) > 0:
        return int(asked)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
