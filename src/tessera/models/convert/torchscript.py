"""The weights in a TorchScript archive, as OpenAI gave CLIP: its tensors are read, its program is not even unpacked.

An archive is a zip: `data.pkl` has the tree of modules and says where each tensor lies, `data/N` has the numbers,
`code/` the program. torch would run what it loads; here only tensors, plain values and names of modules come out of
the pickle.
"""

from __future__ import annotations

import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

_STORAGES = {
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "FloatStorage": torch.float32,
    "DoubleStorage": torch.float64,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}
_LISTS = ("build_intlist", "build_doublelist", "build_boollist", "build_tensorlist")
_MODULES = "__torch__."


def is_torchscript(path: Path) -> bool:
    """By the constants that only these archives have."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(name.endswith("/constants.pkl") for name in archive.namelist())


def read_torchscript(path: Path) -> dict[str, Tensor]:
    """Parameters and buffers by their names, as `state_dict` would give them."""
    with zipfile.ZipFile(path) as archive:
        tree = next((name for name in archive.namelist() if name.endswith("/data.pkl")), None)
        if tree is None:
            raise pickle.UnpicklingError("a TorchScript archive without its tree of modules.")
        with archive.open(tree) as file:
            module = _Reader(file, archive, tree.removesuffix("data.pkl")).load()
    return dict(_tensors(module, ""))


class _Module:
    """What stands in a module's place: its attributes, nothing of its kind."""

    attributes: Mapping[str, Any]

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.attributes = state if isinstance(state, Mapping) else {}


class _Reader(pickle.Unpickler):
    """Admits modules by name, tensors, lists and ordered dictionaries; anything else is refused."""

    def __init__(self, file: Any, archive: zipfile.ZipFile, folder: str) -> None:
        super().__init__(file)
        self.archive, self.folder = archive, folder
        self.storages: dict[str, Tensor] = {}

    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.".startswith(_MODULES):
            return _Module
        if module == "torch" and name in _STORAGES:
            return _STORAGES[name]
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _rebuild
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if module == "torch.jit._pickle" and name in _LISTS:
            return list
        raise pickle.UnpicklingError(f"GLOBAL {module}.{name}")

    def persistent_load(self, pid: Any) -> Tensor:
        """pid: 'storage', kind, key, device, length. Returns the flat numbers."""
        word, dtype, key = pid[:3]
        if word != "storage" or not isinstance(dtype, torch.dtype):
            raise pickle.UnpicklingError(f"a reference to {word} instead of numbers.")
        if key not in self.storages:
            entry = self.archive.getinfo(f"{self.folder}data/{key}")
            if entry.compress_type != zipfile.ZIP_STORED:  # torch compresses nothing; a small file stays small
                raise pickle.UnpicklingError(f"{entry.filename} is compressed.")
            content = bytearray(self.archive.read(entry))
            self.storages[key] = torch.frombuffer(content, dtype=dtype) if content else torch.empty(0, dtype=dtype)
        return self.storages[key]


def _rebuild(storage: Tensor, offset: int, size: tuple[int, ...], stride: tuple[int, ...], *_: Any) -> Tensor:
    """torch itself refuses a view that reaches beyond its storage."""
    return torch.as_strided(storage, size, stride, offset).clone()


def _tensors(module: Any, prefix: str) -> Iterator[tuple[str, Tensor]]:
    for name, value in getattr(module, "attributes", {}).items():
        if isinstance(value, Tensor):
            yield prefix + name, value
        elif isinstance(value, _Module):
            yield from _tensors(value, f"{prefix}{name}.")
