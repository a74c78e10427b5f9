"""How long a published network takes for one photo, with random weights, which decide no time.

    python scripts/time_backbones.py [NAME...]

ONNX Runtime on one core, a photo with sides of 1 and 3/4 of the network's own size. The processor's time is taken and
not the clock's, the least of some runs: others on the machine should not count. The table goes into
`tessera.models.published.known.LATENCIES`.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from safetensors.torch import save_file

from tessera.models.onnx_export import share_weights, trace_graph
from tessera.models.published.foundation import FoundationConfig, build_foundation
from tessera.models.shapes import SHAPES

REPEATS = 4
LARGEST = 400_000_000  # parameters of those that are timed when no name is given


def measure(name: str) -> float:
    """Seconds."""
    shape = SHAPES[name]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    image = np.random.default_rng(0).standard_normal((1, 3, shape.size * 3 // 4, shape.size)).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        network = build_foundation(FoundationConfig(backbone=name)).eval()
        weights_path, graph_path = Path(folder) / "weights.safetensors", Path(folder) / "model.onnx"
        state = network.state_dict()
        save_file(state, weights_path)
        trace_graph(network, graph_path, ("descriptor",))
        share_weights(graph_path, weights_path, state)
        session = onnxruntime.InferenceSession(str(graph_path), options, providers=["CPUExecutionProvider"])
    seconds = []
    for _ in range(REPEATS):
        started = time.process_time()
        session.run(None, {"images": image})
        seconds.append(time.process_time() - started)
    return min(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    torch.set_num_threads(1)
    for name in parser.parse_args().names or [name for name in SHAPES if SHAPES[name].parameters <= LARGEST]:
        print(f'    "{name}": {measure(name):.2f},', flush=True)


if __name__ == "__main__":
    main()
