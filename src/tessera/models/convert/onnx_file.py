"""What an ONNX file of somebody else's offers: its weights, its image input, and the output to use."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tessera.errors import MissingExtraError, ModelError, UsageError, unknown_name

_LARGEST = 2_000_000_000  # bytes: what one file of this format can hold


@dataclass(frozen=True)
class GraphInput:
    """sides: height and width where they are fixed."""

    name: str
    channels_last: bool
    half: bool
    batch: int | None
    sides: tuple[int, int] | None


def load_graph(path: Path) -> Any:
    """The model with its weights. Data in files of their own must lie in the model's folder."""
    try:
        import onnx
        from onnx.external_data_helper import _get_all_tensors, load_external_data_for_model, uses_external_data
    except ImportError as error:
        raise MissingExtraError("converting an ONNX file", "train") from error
    if not path.is_file():
        raise ModelError(f"{path} is not a file. Give the ONNX file to convert.")
    try:
        model = onnx.load(str(path), load_external_data=False)
        graph = model.graph
    except Exception as error:  # protobuf raises its own kinds
        raise ModelError(f"{path} is no ONNX file, or a truncated one. Get the file again from its source.") from error
    if not graph.node:
        raise ModelError(f"{path} holds no network: its graph is empty. Get the file again from its source.")
    total = path.stat().st_size
    for tensor in _get_all_tensors(model):
        if uses_external_data(tensor):
            total += _check_external(path, tensor)
    if total > _LARGEST:
        raise ModelError(f"{path} has {total:,} bytes of weights, and a bundle's graph holds {_LARGEST:,} at most.")
    load_external_data_for_model(model, str(path.parent))
    return model


def _check_external(path: Path, tensor: Any) -> int:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    file = (path.parent / location).resolve()
    if not location or Path(location).is_absolute() or not file.is_relative_to(path.parent.resolve()):
        raise ModelError(
            f"{path} keeps the weights of {tensor.name} in '{location}', outside its folder, and nothing is read "
            "there. Save the model with its data beside it."
        )
    for key in ("offset", "length"):
        if not entries.get(key, "0").isdecimal():
            raise ModelError(
                f"{path} keeps weights in {location} at {key} '{entries[key]}', which is no place in a file. Get both "
                "files again from their source."
            )
    needed = int(entries.get("offset", 0)) + int(entries.get("length", 0))
    if not file.is_file() or file.stat().st_size < needed:
        state = "is truncated" if file.is_file() else "is not there"
        raise ModelError(f"{path} keeps weights in {location}, which {state}. Get both files again, into one folder.")
    return int(entries.get("length", 0))


def find_image(model: Any, path: Path) -> GraphInput:
    """The one input of the graph that can be an image: B 3 H W or B H W 3 of floats."""
    from onnx import TensorProto

    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in weights]
    found = []
    for value in inputs:
        dims, kind = _dims(value), value.type.tensor_type.elem_type
        if kind not in (TensorProto.FLOAT, TensorProto.FLOAT16) or len(dims) != 4:
            continue
        for channels_last in (False, True):
            channels, sides = dims[3 if channels_last else 1], dims[1:3] if channels_last else dims[2:]
            if channels == 3 or (channels is None and not channels_last and 3 not in dims):
                height, width = sides
                fixed = None if height is None or width is None else (height, width)
                found.append(GraphInput(value.name, channels_last, kind == TensorProto.FLOAT16, dims[0], fixed))
                break
    listed = "; ".join(_spoken(value) for value in inputs) or "none"
    if not found:
        raise ModelError(
            f"{path} has no image input: a tensor of floats, batch x 3 x height x width, is needed. Its "
            f"inputs: {listed}."
        )
    if len(inputs) > 1:
        raise ModelError(f"{path} needs more than an image. Its inputs: {listed}. Export the image tower by itself.")
    if found[0].batch not in (None, 1):
        raise ModelError(f"{path} takes batches of {found[0].batch} only. Export it with a free batch, or of one.")
    return found[0]


def find_output(model: Any, path: Path, asked: str | None) -> tuple[str, int]:
    """Name and rank of the output to use: the one asked for, the only one, or the only vector."""
    ranks = {value.name: len(_dims(value)) for value in model.graph.output}
    if asked is not None:
        if asked not in ranks:
            raise UsageError(f"{path}: " + unknown_name("output", asked, ranks))
        chosen = [asked]
    else:
        vectors = [name for name, rank in ranks.items() if rank == 2]
        chosen = list(ranks) if len(ranks) == 1 else vectors
    if len(chosen) != 1:
        listed = "; ".join(_spoken(value) for value in model.graph.output)
        raise UsageError(f"{path} has several outputs: {listed}. Choose one with --tensor NAME.")
    if ranks[chosen[0]] not in (2, 3, 4):
        raise ModelError(
            f"{path}: its output {chosen[0]} has {ranks[chosen[0]]} dimensions; a vector (B x D), patches "
            "(B x S x C) or a map (B x C x H x W) is needed. Choose another with --tensor NAME."
        )
    return chosen[0], ranks[chosen[0]]


def _dims(value: Any) -> list[int | None]:
    return [dim.dim_value or None for dim in value.type.tensor_type.shape.dim]


def _spoken(value: Any) -> str:
    from onnx import TensorProto

    kind = TensorProto.DataType.Name(value.type.tensor_type.elem_type).lower()
    return f"{value.name} ({kind}, {' x '.join(str(dim or '?') for dim in _dims(value)) or 'a number'})"
