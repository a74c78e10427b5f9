"""Pickles that hold data and nothing else: plain containers, strings, numbers and numpy arrays.

Ground truths and pair lists of this field come as pickles from strangers, and a pickle may call anything. Here a file
can only name what stands in `_admit`, and none of these is numpy's own code: a crafted dtype state would let numpy take
raw bytes for pointers, so arrays are rebuilt from a checked type code, shape and buffer. Files written by Python 2, by
numpy 1 (`numpy.core`) and by numpy 2 (`numpy._core`) are read alike.
"""

from __future__ import annotations

import collections
import io
import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from tessera.errors import DataError

MAX_BYTES = 2 << 30
_PLAIN_KINDS = "biufcSUO"
_BAD_PICKLE = (
    pickle.UnpicklingError,
    AttributeError,
    EOFError,
    ImportError,
    LookupError,
    MemoryError,
    OverflowError,
    RecursionError,
    TypeError,
    ValueError,
)


def load_plain_pickle(path: Path | str) -> Any:
    """The content of a pickle that is only data; anything else is a DataError, and nothing of it has been run."""
    path = Path(path)
    try:
        if path.stat().st_size > MAX_BYTES:
            raise DataError(f"{path} has more than {MAX_BYTES >> 30} GiB: it cannot be a ground truth or a pair list.")
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error
    try:
        return _PlainUnpickler(io.BytesIO(content), encoding="latin1").load()
    except _BAD_PICKLE as error:
        raise DataError(f"{path} is no pickle of plain data: {str(error) or type(error).__name__}.") from error


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        return _admit(module, name)


def _admit(module: str, name: str) -> Any:
    root, _, rest = module.partition(".")
    if root == "numpy" and rest.replace("_core", "core", 1) in ("", "core.multiarray", "core.numeric"):
        if name in _NUMPY:
            return _Admitted(_NUMPY[name])
        if name == "ndarray":
            return object()  # only ever handed back to `_reconstruct`, which does not look at it
    elif (module, name) in _PYTHON:
        return _Admitted(_PYTHON[module, name])
    raise pickle.UnpicklingError(
        f"it wants {module}.{name}, and only lists, dictionaries, strings, numbers and numpy arrays are admitted"
    )


class _Admitted:
    """A callable that a pickle can call and cannot alter: the BUILD opcode would set attributes on a bare function."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make

    def __call__(self, *arguments: Any) -> Any:
        return self._make(*arguments)

    def __setstate__(self, state: Any) -> NoReturn:
        raise pickle.UnpicklingError("it tries to alter a function")


class _TypeCode:
    """A stand-in for numpy.dtype: the code and the byte order, and no other state."""

    __slots__ = ("_code", "_order")

    def __init__(self, code: Any, *_: Any) -> None:
        if not isinstance(code, str):
            raise pickle.UnpicklingError(f"it has an array of type {code!r}")
        self._code, self._order = code, ""

    def __setstate__(self, state: Any) -> None:
        order, parts = state[1], state[2:5]
        if order not in ("<", ">", "|", "=") or any(part is not None for part in parts):
            raise pickle.UnpicklingError("it has an array of records; only plain arrays are admitted")
        self._order = "" if order in "|=" else order

    def resolve(self) -> np.dtype[Any]:
        dtype = np.dtype(self._order + self._code.lstrip("<>=|"))
        if dtype.kind not in _PLAIN_KINDS or dtype.names or dtype.subdtype:
            raise pickle.UnpicklingError(f"it has an array of type {dtype}")
        return dtype


class _RebuiltArray(np.ndarray[Any, Any]):
    """An array between `_reconstruct` and its state; every part of the state is checked before numpy sees it."""

    def __setstate__(self, state: Any, *_: Any) -> None:
        shape, code, fortran, content = state[-4:]
        shape, dtype = _check_shape(shape), _dtype_of(code)
        if isinstance(content, str):  # a byte string of Python 2
            content = content.encode("latin1")
        if dtype.hasobject:
            if not isinstance(content, list) or len(content) != math.prod(shape):
                raise pickle.UnpicklingError("it has an array of objects whose length and shape differ")
        elif not isinstance(content, bytes) or len(content) != math.prod(shape) * dtype.itemsize:
            raise pickle.UnpicklingError("it has an array whose bytes and shape differ")
        super().__setstate__((1, shape, dtype, bool(fortran), content))  # type: ignore[arg-type]


def _check_shape(shape: Any) -> tuple[int, ...]:
    if not isinstance(shape, tuple) or not all(isinstance(side, int) and side >= 0 for side in shape):
        raise pickle.UnpicklingError(f"it has an array of shape {shape!r}")
    return shape


def _dtype_of(code: Any) -> np.dtype[Any]:
    if not isinstance(code, _TypeCode):
        raise pickle.UnpicklingError("it has an array without a type")
    return code.resolve()


def _reconstruct(*_: Any) -> np.ndarray[Any, Any]:
    return _RebuiltArray((0,), dtype=np.int8)


def _scalar(code: Any, content: Any = b"") -> Any:
    dtype = _dtype_of(code)
    if isinstance(content, str):
        content = content.encode("latin1")
    if dtype.hasobject or not isinstance(content, bytes) or len(content) != dtype.itemsize:
        raise pickle.UnpicklingError("it has a number whose bytes and type differ")
    return np.frombuffer(content, dtype=dtype)[0]


def _frombuffer(content: Any, code: Any, shape: Any, order: Any) -> np.ndarray[Any, Any]:
    dtype = _dtype_of(code)
    if dtype.hasobject or not isinstance(content, bytes | bytearray) or order not in ("C", "F"):
        raise pickle.UnpicklingError("it has an array whose bytes and type differ")
    return np.frombuffer(content, dtype=dtype).reshape(_check_shape(shape), order=order)


def _encode(text: Any, encoding: Any = "latin1") -> bytes:
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError("it encodes something other than bytes")
    return text.encode("latin1")


_NUMPY: dict[str, Callable[..., Any]] = {
    "dtype": _TypeCode,
    "_reconstruct": _reconstruct,
    "scalar": _scalar,
    "_frombuffer": _frombuffer,
}
_PYTHON: dict[tuple[str, str], Callable[..., Any]] = {
    ("_codecs", "encode"): _encode,
    ("collections", "OrderedDict"): collections.OrderedDict,
    **{(module, kind.__name__): kind for module in ("builtins", "__builtin__") for kind in (set, frozenset, complex)},
    # Protocol 2 writes empty bytes as bytes(); with a number as argument this would be a memory bomb.
    **{(module, "bytes"): (lambda: b"") for module in ("builtins", "__builtin__")},
}
