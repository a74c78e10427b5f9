"""Networks that ship in the package as ONNX graphs."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

from tessera.errors import ModelError
from tessera.models.onnx_library import import_onnxruntime

SYSTEMS_DIR = Path(__file__).parent.parent / "systems"


def open_graph(path: Path) -> Any:
    """A session of the graph, one a process: it may run in several threads, each call on one core."""
    return _open(path, os.getpid())


@cache
def _open(path: Path, pid: int) -> Any:
    onnxruntime = import_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.enable_mem_pattern = False  # inputs have many shapes
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise ModelError(f"{path} cannot be loaded: {error}. Install the package again.") from error
