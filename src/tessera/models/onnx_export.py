"""Networks to bundles and back: `model.onnx` with a free batch, height and width, over the weights of one file.

The graph holds no weights of its own: its initialisers point into `weights.safetensors`, so a bundle has each number
once, and both runtimes read the same ones.
"""

from __future__ import annotations

import json
import os
import struct
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from tessera.config import from_mapping
from tessera.errors import ConfigError, MissingExtraError, ModelError
from tessera.models.backbones import check_keys, read_state
from tessera.models.bundle import POSITION_CONTRIBUTIONS, Bundle, ModelCard
from tessera.models.model_registry import MODELS
from tessera.models.network import Network
from tessera.models.onnx_library import import_onnxruntime
from tessera.models.preprocessing import Preprocessing
from tessera.storage import atomic_path

TOLERANCE = 1e-5  # of descriptors
OTHER_TOLERANCE = (
    1e-4  # of everything else: two float32 runs of a sharp attention differ by 2e-5 with the order of sums
)
_OPSET = 17
_TRACED_SHAPE = (2, 3, 96, 128)  # none of the shapes that are checked
_CHECKED_SHAPES = ((1, 3, 161, 97), (3, 3, 64, 200))


def make_card(network: Network, name: str, **fields: Any) -> ModelCard:
    """A card with everything the network knows of itself; `fields` (licence, training_data, ...) on top."""
    backbone = network.backbone
    card = ModelCard(
        name=name,
        kind=cast(Any, network.kind),
        architecture=network.architecture,
        dim=network.dim,
        num_tokens=network.num_tokens,
        stride=network.stride,
        preprocessing=Preprocessing(mean=tuple(backbone.mean), std=tuple(backbone.std)),
    )
    model = str(network.architecture.get("model"))
    if model in MODELS:
        card = replace(card, paper=MODELS[model].paper)
    return replace(card, **fields)


def export_bundle(network: Network, path: str | Path, card: ModelCard, half: bool = False) -> Bundle:
    """Write a bundle and make sure that its graph answers as the network does.

    Parameters that no output needs (a local branch, say) are in the weights and not in the graph.
    half: store matrices and kernels in half precision. They are turned back when the graph is loaded, so that the
    arithmetic stays single; the network itself is rounded too.
    """
    try:
        import onnx  # noqa: F401
        from safetensors.torch import save_file
    except ImportError as error:
        raise MissingExtraError("writing a bundle", "train") from error
    if not network.architecture:
        raise ModelError("this network does not know its architecture: build it with build_model, then export it.")
    folder = Path(path)
    network = network.eval().cpu().float()
    state = {key: value.detach().contiguous() for key, value in network.state_dict().items()}
    if half:
        state = {key: value.half() if _is_large(value) else value for key, value in state.items()}
        network.load_state_dict(state)
    check_keys(network, state, "the network to export")
    bundle = Bundle(folder, card)
    # An unfinished bundle must not look like one: the card comes last, and an old one goes first.
    (folder / "model.json").unlink(missing_ok=True)
    with atomic_path(bundle.weights_path) as temporary:
        save_file(state, temporary, metadata={"format": "pt"})
    for outputs, graph_path in bundle_graphs(network, bundle):
        with atomic_path(graph_path) as temporary:
            trace_graph(network, temporary, outputs)
            share_weights(temporary, bundle.weights_path, state)
        check_graph(network, graph_path, names=outputs)
    return Bundle.seal(folder, card)


def bundle_graphs(network: Network, bundle: Bundle) -> list[tuple[tuple[str, ...], Path]]:
    """The graphs of a bundle: what each gives, and its file. Only explanations need the second one."""
    graphs = [(network.output_names, bundle.onnx_path)]
    if network.has_position_contributions:
        graphs.append(((POSITION_CONTRIBUTIONS,), bundle.position_contributions_path))
    return graphs


def _is_large(weight: Tensor) -> bool:
    """Matrices and kernels; norms and biases are few, and their numbers range too far for half precision."""
    return weight.is_floating_point() and weight.ndim >= 2


def load_network(bundle: Bundle) -> Network:
    """The network of a bundle, built anew with its weights, in evaluation mode."""
    architecture = bundle.card.architecture
    if not bundle.weights_path.is_file():
        raise ModelError(f"{bundle.path} has no weights.safetensors, so torch cannot run it. Use the ONNX runtime.")
    try:
        entry = MODELS[str(architecture.get("model"))]
        config = from_mapping(type(entry.resolve()), architecture.get("config", {}))
        network = entry.build(config)
    except ConfigError as error:
        raise ModelError(f"the architecture in {bundle.path}'s model.json cannot be built: {error}") from error
    state = read_state(bundle.weights_path)
    check_keys(network, state, str(bundle.weights_path))
    network.load_state_dict(state)
    return network.eval()


class _Outputs(nn.Module):
    """The network's outputs as a tuple in the order of their names: a graph has no dictionaries."""

    def __init__(self, network: Network, names: Sequence[str]) -> None:
        super().__init__()
        self.network, self.names = network, names

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        if POSITION_CONTRIBUTIONS in self.names:
            return (self.network.position_contributions(images),)
        outputs = self.network(images)
        return tuple(outputs[name] for name in self.names)


def trace_graph(network: Network, path: Path, names: Sequence[str]) -> None:
    """Write the graph with batch, height and width free, its weights as inputs: one file holds no more than 2 GB.

    The tracing exporter takes a tenth of the other's time. Its trap is a Python number read from a shape, which freezes
    in the graph; its warning of that is an error here. Batch norms are kept apart so that weights keep their names:
    ONNX Runtime folds them when it loads.
    """
    axes = {0: "batch", 2: "height", 3: "width"}
    tracer_warning: type[Warning] = torch.jit.TracerWarning  # type: ignore[attr-defined]
    with warnings.catch_warnings(record=True) as caught, torch.no_grad():
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", tracer_warning)
        torch.onnx.export(
            _Outputs(network, names).eval(),
            (torch.zeros(_TRACED_SHAPE),),
            str(path),
            input_names=["images"],
            output_names=list(names),
            dynamic_axes={"images": axes, **_output_axes(names)},
            opset_version=_OPSET,
            training=torch.onnx.TrainingMode.PRESERVE,
            export_params=False,
            do_constant_folding=False,
            dynamo=False,
        )
    frozen = [warning for warning in caught if issubclass(warning.category, tracer_warning)]
    if frozen:
        place = f"{Path(frozen[0].filename).name}, line {frozen[0].lineno}"
        raise ModelError(
            f"the network reads a size as a Python number ({place}), which would freeze in the graph: use tensors."
        )


def _output_axes(names: Sequence[str]) -> dict[str, dict[int, str]]:
    axes: dict[str, dict[int, str]] = {name: {0: "batch"} for name in names}
    if "attention" in axes:
        axes["attention"] |= {2: "map_height", 3: "map_width"}
    if POSITION_CONTRIBUTIONS in axes:
        axes[POSITION_CONTRIBUTIONS] |= {3: "map_height", 4: "map_width"}
    for name in ("features", "strengths", "positions"):
        if name in axes:
            axes[name] |= {1: "positions_count"}
    return axes


def share_weights(graph_path: Path, weights_path: Path, state: Mapping[str, Tensor]) -> None:
    """Make every weight of the graph, an input of it so far, a span of the weights' file.

    Half precision is turned back by a Cast. The exporter merges weights that are equal (all the fresh norms of a new
    network) and copies one to the other names by Identity nodes, which ONNX Runtime refuses; those become weights of
    their own again.
    """
    import onnx

    model = onnx.load(str(graph_path))
    graph = model.graph
    spans = _tensor_spans(weights_path)
    copies = [node for node in graph.node if node.op_type == "Identity" and _weight_name(node.output[0]) in spans]
    for node in copies:
        graph.node.remove(node)
    weights = [value for value in graph.input if _weight_name(value.name) in spans]
    for value in weights:
        graph.input.remove(value)
    names = [*(value.name for value in weights), *(node.output[0] for node in copies)]
    used = {name for node in graph.node for name in node.input}
    for name in names:
        if name in used:
            weight = _weight_name(name)
            stored = f"{name}.half" if state[weight].dtype == torch.float16 else name
            graph.initializer.append(_external_tensor(stored, state[weight], weights_path.name, *spans[weight]))
            if stored != name:
                graph.node.insert(0, onnx.helper.make_node("Cast", [stored], [name], to=onnx.TensorProto.FLOAT))
    graph_path.write_bytes(model.SerializeToString())


def _weight_name(name: str) -> str:
    return name.removeprefix("network.")


def _external_tensor(name: str, weight: Tensor, file_name: str, offset: int, length: int) -> Any:
    import onnx

    kinds = {
        torch.float32: onnx.TensorProto.FLOAT,
        torch.float16: onnx.TensorProto.FLOAT16,
        torch.int64: onnx.TensorProto.INT64,
    }
    tensor = onnx.TensorProto(name=name, dims=list(weight.shape), data_type=kinds[weight.dtype])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", file_name), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def _tensor_spans(path: Path) -> dict[str, tuple[int, int]]:
    """Offset and length of each tensor in a safetensors file."""
    with path.open("rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
    return {
        name: (8 + size + entry["data_offsets"][0], entry["data_offsets"][1] - entry["data_offsets"][0])
        for name, entry in header.items()
        if name != "__metadata__"
    }


def check_graph(
    network: Network,
    onnx_path: Path,
    shapes: Sequence[tuple[int, ...]] = _CHECKED_SHAPES,
    names: Sequence[str] | None = None,
) -> dict[str, float]:
    """Compare the graph with the network on noise of several shapes; returns the largest difference of each output.

    Descriptors are compared as they are, other outputs relative to their largest value.
    """
    onnxruntime = import_onnxruntime()

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(os.fspath(onnx_path), options, providers=["CPUExecutionProvider"])
    generator = torch.Generator().manual_seed(0)
    names = network.output_names if names is None else names
    worst = dict.fromkeys(names, 0.0)
    for shape in shapes:
        images = torch.randn(shape, generator=generator)
        with torch.inference_mode():
            expected = _Outputs(network, names)(images)
        answers = session.run(list(names), {"images": images.numpy()})
        for name, answer, tensor in zip(names, answers, expected, strict=True):
            wanted = tensor.numpy()
            largest = 1.0 if name == "descriptor" else max(float(np.abs(wanted).max()), 1e-30)
            difference = float(np.abs(answer - wanted).max()) / largest if answer.shape == wanted.shape else np.inf
            if not difference <= (TOLERANCE if name == "descriptor" else OTHER_TOLERANCE):
                raise ModelError(
                    f"the exported graph does not answer as the network: {name} differs by {difference:.1e} on images "
                    f"of shape {shape}. The bundle was not finished."
                )
            worst[name] = max(worst[name], difference)
    return worst
