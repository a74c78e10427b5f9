"""Any ONNX file that gives a vector, a map or patches, as a bundle: its graph with our input and output around it.

In front: the layout and the type that the graph wants, and its size where it has but one. Behind: pooling where it
gives more than a vector, and unit norm. Then it is run, alone and in batches, at several sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tessera.errors import ModelError, UsageError
from tessera.models.bundle import Bundle, ModelCard
from tessera.models.convert.onnx_file import GraphInput, find_image, find_output, load_graph
from tessera.models.onnx_library import import_onnxruntime
from tessera.models.preprocessing import IMAGENET_MEAN, IMAGENET_STD, Preprocessing
from tessera.storage import hash_file, write_atomically

POWER = 3.0
TOLERANCE = 1e-4  # between an image alone and in a batch
_RESIZING_OPSET = 18  # the first that resizes without aliasing
_DEFAULT_SIZE = 512
_ODD_SHAPES = ((161, 97), (64, 200))
_STRIDE = 32
_INPUT = "images"


def convert_onnx(
    path: str | Path,
    output: str | Path,
    *,
    name: str | None = None,
    mean: Sequence[float] = IMAGENET_MEAN,
    std: Sequence[float] = IMAGENET_STD,
    size: int | None = None,
    tensor: str | None = None,
    pooling: str | None = None,
) -> Bundle:
    """Wrap a graph, run it, and write a bundle that ONNX Runtime serves; torch cannot, having only the graph.

    size: longer side of a picture; of a graph that takes some sizes only, the one size it is always given, which
    stretches a picture to a square. tensor: which output, where there are several. pooling: of a map or patches, `gem`
    or (patches only) `cls`, the first of them.
    """
    source, folder = Path(path), Path(output)
    if len(mean) != 3 or len(std) != 3 or min(std) <= 0:
        raise UsageError("mean and std need three numbers each, those of std above zero: 0.485,0.456,0.406.")
    model = load_graph(source)
    image = find_image(model, source)
    result, rank = find_output(model, source, tensor)
    wrapped, fixed = _serve(model, source, image, result, rank, pooling, size)
    dim = probe(wrapped, source, [fixed] if fixed else list(_ODD_SHAPES), batch=image.batch is None)
    config = {"file": source.name, "output": result, "pooling": _pooling(rank, pooling), "sides": fixed}
    card = ModelCard(
        name=name or folder.name,
        kind="global",
        architecture={"model": "onnx", "config": config},
        dim=dim,
        stride=_STRIDE,
        preprocessing=Preprocessing(tuple(mean), tuple(std), size or max(fixed or (_DEFAULT_SIZE,)), (1.0,)),
        provenance={
            "command": "tessera convert",
            "format": "ONNX",
            "file": source.name,
            "sha256": hash_file(source),
        },
    )
    folder.mkdir(parents=True, exist_ok=True)
    bundle = Bundle(folder, card)
    (folder / "model.json").unlink(missing_ok=True)
    for stale in (bundle.weights_path, bundle.position_contributions_path):
        stale.unlink(missing_ok=True)
    write_atomically(bundle.onnx_path, wrapped.SerializeToString())
    return Bundle.seal(folder, card)


def _serve(
    model: Any, path: Path, image: GraphInput, result: str, rank: int, pooling: str | None, size: int | None
) -> tuple[Any, tuple[int, int] | None]:
    """The wrapped graph, and the size it is always given, None where it takes any."""
    if image.sides is not None:
        return _wrap(model, path, image, result, rank, pooling, image.sides), image.sides
    free = _wrap(model, path, image, result, rank, pooling, None)
    try:
        probe(free, path, _ODD_SHAPES, batch=False)
    except ModelError as error:
        if size is None:
            raise ModelError(
                f"{path} does not take every size of picture, though it says so ({error}). Give it one size of its own "
                "with --size N: pictures are stretched to N x N then."
            ) from error
        return _wrap(model, path, image, result, rank, pooling, (size, size)), (size, size)
    return free, None


def _pooling(rank: int, asked: str | None) -> str | None:
    known = {2: (), 3: ("cls", "gem"), 4: ("gem",)}[rank]
    if asked is not None and asked not in known:
        what = {2: "a vector, which is not pooled", 3: "patches: cls or gem", 4: "a map: gem"}[rank]
        raise UsageError(f"--pooling {asked} does not fit: the graph gives {what}.")
    return asked or (known[0] if known else None)


def _wrap(
    model: Any,
    path: Path,
    image: GraphInput,
    result: str,
    rank: int,
    pooling: str | None,
    sides: tuple[int, int] | None,
) -> Any:
    """The model between an input `images` and an output `descriptor`."""
    import onnx
    from onnx import TensorProto, compose, helper, version_converter

    version = next(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
    if sides is not None and version < _RESIZING_OPSET:
        try:
            model = version_converter.convert_version(model, _RESIZING_OPSET)
        except Exception as error:  # it is C++ underneath, and says so
            raise ModelError(
                f"{path} has one size, and opset {version}, which cannot be brought to {_RESIZING_OPSET} to resize "
                "pictures inside it. Export it with a newer opset, or with free sizes."
            ) from error
    wrapped = compose.add_prefix(model, "net/")
    graph = wrapped.graph
    before: list[Any] = []
    after: list[Any] = []
    last = _INPUT

    def add(nodes: list[Any], kind: str, *inputs: str, **attributes: Any) -> str:
        output = f"around/{kind}{len(before)}_{len(after)}"
        nodes.append(helper.make_node(kind, list(inputs), [output], **attributes))
        return output

    def constant(values: npt.NDArray[Any], label: str) -> str:
        graph.initializer.append(onnx.numpy_helper.from_array(values, f"around/{label}"))
        return f"around/{label}"

    if sides is not None:
        whole = add(before, "Shape", last, start=0, end=2)
        target = add(before, "Concat", whole, constant(np.array(sides, dtype=np.int64), "sides"), axis=0)
        last = add(before, "Resize", last, "", "", target, mode="linear", antialias=1)
    if image.channels_last:
        last = add(before, "Transpose", last, perm=[0, 2, 3, 1])
    if image.half:
        last = add(before, "Cast", last, to=TensorProto.FLOAT16)
    before.append(helper.make_node("Identity", [last], [f"net/{image.name}"]))

    last = add(after, "Cast", f"net/{result}", to=TensorProto.FLOAT)
    pooled = _pooling(rank, pooling)
    if pooled == "cls":
        last = add(after, "Gather", last, constant(np.array(0, dtype=np.int64), "first"), axis=1)
    elif pooled == "gem":
        if rank == 3:
            last = add(after, "Transpose", last, perm=[0, 2, 1])
        signed = add(after, "Sign", last)
        power = add(after, "Pow", add(after, "Abs", last), constant(np.array(POWER, dtype=np.float32), "power"))
        mean = add(after, "GlobalAveragePool", add(after, "Mul", power, signed))
        signed = add(after, "Sign", mean)
        root = add(after, "Pow", add(after, "Abs", mean), constant(np.array(1 / POWER, dtype=np.float32), "root"))
        last = add(after, "Flatten", add(after, "Mul", root, signed), axis=1)
    after.append(helper.make_node("LpNormalization", [last], ["descriptor"], axis=-1, p=2))

    body = list(graph.node)
    del graph.node[:], graph.input[:], graph.output[:]
    graph.node.extend([*before, *body, *after])
    batch = "batch" if image.batch is None else 1
    shape = [batch, 3, "height", "width"]
    graph.input.append(helper.make_tensor_value_info(_INPUT, TensorProto.FLOAT, shape))
    graph.output.append(helper.make_tensor_value_info("descriptor", TensorProto.FLOAT, [batch, None]))
    return wrapped


def probe(wrapped: Any, path: Path, shapes: Sequence[tuple[int, int]], *, batch: bool) -> int:
    """Run the wrapped graph on noise, alone and in a batch of two; returns D."""
    onnxruntime = import_onnxruntime()

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    dims = set()
    try:
        session = onnxruntime.InferenceSession(wrapped.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise ModelError(f"{path} cannot be loaded: {_first_line(error)}") from error
    random = np.random.default_rng(0)
    for height, width in shapes:
        images = random.standard_normal((2, 3, height, width)).astype(np.float32)
        try:
            alone = [session.run(None, {_INPUT: images[i : i + 1]})[0] for i in range(2)]
            together = session.run(None, {_INPUT: images})[0] if batch else None
        except Exception as error:
            raise ModelError(f"{path} fails on pictures of {width} x {height}: {_first_line(error)}") from error
        for one in alone:
            if one.ndim != 2 or len(one) != 1 or not np.isfinite(one).all():
                raise ModelError(f"{path} gives {one.shape} for one picture, or no numbers, where 1 x D is needed.")
            dims.add(one.shape[1])
        if together is not None and (
            together.shape[0] != 2 or np.abs(together - np.concatenate(alone)).max() > TOLERANCE
        ):
            raise ModelError(f"{path} mixes the pictures of a batch: its descriptors differ from those of each alone.")
    if len(dims) != 1:
        raise ModelError(f"{path} gives descriptors of {', '.join(map(str, sorted(dims)))} numbers with the size.")
    return int(dims.pop())


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0].rstrip(".") + "." if str(error) else type(error).__name__
