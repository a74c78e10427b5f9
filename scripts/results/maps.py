"""The maps that a backbone which stands still gives for the pictures of an evaluation, computed once.

Every head then costs what the head costs. Maps are float16, some hundred pictures a file; a file appears whole, so a
run that was stopped goes on with the next.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from tessera.data.images import load_benchmark
from tessera.errors import DataError
from tessera.extract.scales import rescale
from tessera.models.backbones import Backbone
from tessera.models.preprocessing import DEFAULT_SCALES
from tessera.storage import atomic_path, write_atomically

_A_FILE = 256  # pictures
_AT_ONCE = 16  # pictures through the backbone
_POSITIONS = 4096  # of maps through a head at once

Say = Callable[[str], None]
Group = tuple[npt.NDArray[np.int64], float, npt.NDArray[np.float16]]  # rows of the list, scale, maps N C H W
Run = Callable[[npt.NDArray[np.float32]], npt.NDArray[np.float32]]  # B 3 H W to B C H W


class PictureMaps:
    """Maps of a list of pictures at the scales of the protocol.

    folder: of this list, at this size, with this backbone; other pictures need another folder.
    """

    def __init__(
        self, folder: Path, paths: Sequence[Path], size: int, scales: Sequence[float] = DEFAULT_SCALES
    ) -> None:
        self.folder, self.paths, self.size, self.scales = folder, tuple(paths), size, tuple(scales)
        order = sorted(range(len(paths)), key=lambda row: (_reduced_shape(paths[row], size), row))
        self._parts = [order[start : start + _A_FILE] for start in range(0, len(order), _A_FILE)]

    def prepare(self, backbone: Backbone, say: Say = print) -> None:
        """Compute what is not there yet."""
        self._claim()
        missing = [number for number in range(len(self._parts)) if not self._file(number).is_file()]
        run = open_graph(backbone, self.folder / "backbone.onnx") if missing else None
        for number in missing:
            rows = self._parts[number]
            if run is not None and not self._file(number).is_file():  # another process may have made it meanwhile
                arrays = self._compute(rows, backbone, run)
                with atomic_path(self._file(number)) as temporary, temporary.open("wb") as opened:
                    np.savez(opened, **arrays)  # type: ignore[arg-type]
                say(f"maps: part {number + 1} of {len(self._parts)}")

    def _claim(self) -> None:
        """Refuse a folder of another list: its maps would be taken for those of other pictures."""
        names, file = "\n".join(str(path) for path in self.paths), self.folder / "pictures.txt"
        if file.is_file() and file.read_text(encoding="utf-8") != names:
            raise DataError(f"{self.folder} holds the maps of other pictures. Remove it, or take another folder.")
        write_atomically(file, names.encode())

    def scaled_groups(self) -> Iterator[Group]:
        """The maps of all pictures, of one shape at one scale at a time."""
        for number in range(len(self._parts)):
            with np.load(self._file(number)) as arrays:
                yield from self._groups_of(arrays)

    def stream(self, backbone: Backbone) -> Iterator[Group]:
        """As `scaled_groups`, of a backbone that has learnt: computed on the way and not kept."""
        run = open_graph(backbone, self.folder / "trained.onnx")
        for rows in self._parts:
            yield from self._groups_of(self._compute(rows, backbone, run))

    def _groups_of(self, arrays: Any) -> Iterator[Group]:
        for key in arrays:
            kind, scale, _ = key.split("-")
            if kind == "maps":
                yield arrays[key.replace("maps-", "rows-")], self.scales[int(scale)], arrays[key]

    def _file(self, number: int) -> Path:
        return self.folder / f"part-{number:03d}.npz"

    def shape_of(self, row: int) -> tuple[int, int]:
        """Height and width of a picture as the network saw it at scale 1."""
        return _reduced_shape(self.paths[row], self.size)

    def _compute(self, rows: Sequence[int], backbone: Backbone, run: Run) -> dict[str, npt.NDArray[Any]]:
        found: dict[str, tuple[list[int], list[npt.NDArray[np.float16]]]] = defaultdict(lambda: ([], []))
        for batch_rows, pixels in _equal_shapes(rows, self.paths, self.size):
            batch = _normalise(pixels, backbone)
            for k, scale in enumerate(self.scales):
                maps = run(_at_least(rescale(batch, scale), backbone.stride))
                of_rows, of_maps = found[f"{k}-{maps.shape[2]}x{maps.shape[3]}"]
                of_rows += batch_rows
                of_maps.append(maps.astype(np.float16))
        arrays: dict[str, npt.NDArray[Any]] = {}
        for key, (of_rows, of_maps) in found.items():
            arrays[f"rows-{key}"] = np.array(of_rows, dtype=np.int64)
            arrays[f"maps-{key}"] = np.concatenate(of_maps)
        return arrays


def open_graph(backbone: Backbone, file: Path) -> Run:
    """The backbone in ONNX Runtime on one thread: the same numbers, half again as fast as torch."""
    file.parent.mkdir(parents=True, exist_ok=True)
    axes = {0: "batch", 2: "height", 3: "width"}
    with atomic_path(file) as temporary, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the older exporter, which is the quick one
        torch.onnx.export(
            backbone.eval(),
            (torch.zeros(1, 3, 64, 96),),
            str(temporary),
            input_names=["images"],
            output_names=["maps"],
            dynamic_axes={"images": axes, "maps": axes},
            dynamo=False,
        )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    return lambda images: session.run(["maps"], {"images": images})[0]


@torch.no_grad()
def describe_maps(head: Any, groups: Iterable[Group], count: int) -> npt.NDArray[np.float32]:
    """Descriptors N D: unit vectors of each scale, averaged, and made unit vectors again (the paper's way).

    head: gives B D of B C H W, not normalised. count: N, the pictures of the list.
    """
    descriptors = torch.zeros(count, head.dim)
    head.eval()
    for rows, _, group in groups:
        step = max(1, _POSITIONS // (group.shape[2] * group.shape[3]))
        for start in range(0, len(rows), step):
            part = torch.from_numpy(group[start : start + step].astype(np.float32))
            unit: Tensor = F.normalize(head.describe(part), dim=-1)
            descriptors[torch.from_numpy(rows[start : start + step])] += unit
    described: npt.NDArray[np.float32] = F.normalize(descriptors, dim=-1).numpy()
    return described


def _equal_shapes(
    rows: Sequence[int], paths: Sequence[Path], size: int
) -> Iterator[tuple[list[int], npt.NDArray[np.uint8]]]:
    """Pictures of one shape, some at a time; the rows come sorted by shape."""
    waiting: list[int] = []
    pixels: list[npt.NDArray[np.uint8]] = []
    for row in rows:
        picture = load_benchmark(paths[row], size=size)
        if pixels and (picture.shape != pixels[0].shape or len(pixels) == _AT_ONCE):
            yield waiting, np.stack(pixels)
            waiting, pixels = [], []
        waiting.append(row)
        pixels.append(picture)
    if pixels:
        yield waiting, np.stack(pixels)


def _reduced_shape(path: Path, size: int) -> tuple[int, int]:
    """About the shape that the loader gives, from the header alone: what is alike shall lie together."""
    with Image.open(path) as image:
        width, height = image.size
    factor = min(1.0, size / max(width, height))
    return round(height * factor), round(width * factor)


def _normalise(pixels: npt.NDArray[np.uint8], backbone: Backbone) -> npt.NDArray[np.float32]:
    values = (np.arange(256)[:, None] / 255 - np.asarray(backbone.mean)) / np.asarray(backbone.std)  # 256 3
    table = values.astype(np.float32)
    return np.stack([table[pixels[..., c], c] for c in range(3)], axis=1)


def _at_least(batch: npt.NDArray[np.float32], stride: int) -> npt.NDArray[np.float32]:
    """What became smaller than one position has its edge repeated."""
    height, width = batch.shape[-2:]
    if max(height, width) >= stride:
        return batch
    return np.pad(batch, ((0, 0), (0, 0), (0, stride - height), (0, stride - width)), mode="edge")
