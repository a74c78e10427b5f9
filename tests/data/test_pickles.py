"""Pickles of plain data are read whatever wrote them; everything else is refused and nothing of it runs."""

from __future__ import annotations

import builtins
import collections
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tessera.data.pickles import load_plain_pickle
from tessera.errors import DataError

PLAIN = {
    "gnd": [{"easy": np.array([1, 2]), "bbx": [1.5, 2.0, 3.0, 4.0], "junk": []}],
    "imlist": ["all_souls_000013", "übung"],
    "floats": np.array([[1.5, 2.5], [3.5, -0.0]], dtype=">f4"),
    "fortran": np.asfortranarray(np.arange(6, dtype=np.uint16).reshape(2, 3)),
    "names": np.array(["a", "bcd"]),
    "objects": np.array(["a", None, 3], dtype=object),
    "bools": np.array([True, False]),
    "scalar": np.int64(7),
    "float": np.float32(0.25),
    "bytes": b"\x00\xff",
    "empty": b"",
    "set": {1, 2},
    "ordered": collections.OrderedDict(a=1),
    "tuple": (1, None, True, 2.5, 10**30),
    "none": np.empty((0, 4)),
}


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_plain_data_of_every_protocol(tmp_path: Path, protocol: int) -> None:
    loaded = load_plain_pickle(write(tmp_path / "a.pkl", pickle.dumps(PLAIN, protocol=protocol)))
    np.testing.assert_equal(loaded, PLAIN)
    for name in ("floats", "fortran", "names", "bools"):
        assert isinstance(loaded[name], np.ndarray)
        assert loaded[name].dtype.newbyteorder("=") == PLAIN[name].dtype.newbyteorder("=")  # type: ignore[attr-defined]


def test_module_paths_of_numpy_1(tmp_path: Path) -> None:
    new = pickle.dumps({"easy": np.arange(5)}, protocol=2)
    old = new.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
    assert old != new
    np.testing.assert_equal(load_plain_pickle(write(tmp_path / "a.pkl", old)), {"easy": np.arange(5)})


def test_python_2_byte_strings_hold_arrays_and_names(tmp_path: Path) -> None:
    # {'a': array([258], '<i2')} as Python 2 writes it: names and buffers are SHORT_BINSTRINGs.
    content = (
        b"\x80\x02}U\x01acnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        b"(K\x01K\x01\x85cnumpy\ndtype\nU\x02i2K\x00K\x01\x87R(K\x03U\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        b"\x89U\x02\x02\x01tbs."
    )
    np.testing.assert_equal(load_plain_pickle(write(tmp_path / "a.pkl", content)), {"a": np.array([258])})


class Calls:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self.reduction = (function, arguments)

    def __reduce__(self) -> Any:
        return self.reduction


@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_a_pickle_that_calls_something_is_refused_and_does_not_run(tmp_path: Path, protocol: int) -> None:
    trace = tmp_path / "ran"
    for bad in (Calls(os.mkdir, str(trace)), Calls(builtins.eval, f"__import__('os').mkdir({str(trace)!r})")):
        path = write(tmp_path / "bad.pkl", pickle.dumps([1, bad], protocol=protocol))
        with pytest.raises(DataError, match="only lists, dictionaries"):
            load_plain_pickle(path)
    assert not trace.exists()


@pytest.mark.parametrize(
    "function",
    [builtins.getattr, builtins.open, bytearray, np.load, np.frombuffer, np.memmap, collections.Counter],
)
def test_other_callables_are_refused(tmp_path: Path, function: Any) -> None:
    with pytest.raises(DataError):
        load_plain_pickle(write(tmp_path / "bad.pkl", pickle.dumps(Calls(function, "x"))))


OBJECT_POINTER = (  # an object dtype whose flags say that it holds none, over raw bytes: numpy would follow the pointer
    b"\x80\x02cnumpy._core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85C\x01b\x87R"
    b"(K\x01K\x01\x85cnumpy\ndtype\nX\x02\x00\x00\x00O8K\x00K\x01\x87R"
    b"(K\x03X\x01\x00\x00\x00|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89C\x08AAAAAAAAtb."
)
SHAPE_LIE = (
    b"\x80\x02cnumpy._core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85C\x01b\x87R"
    b"(K\x01J\x00\x00\x00\x40\x85cnumpy\ndtype\nX\x02\x00\x00\x00i8K\x00K\x01\x87R"
    b"(K\x03X\x01\x00\x00\x00<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89C\x08AAAAAAAAtb."
)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (OBJECT_POINTER, "length and shape differ"),
        (SHAPE_LIE, "bytes and shape differ"),
        (b"\x80\x02cnumpy._core.multiarray\n_reconstruct\n}X\x01\x00\x00\x00aK\x01sb.", "alter a function"),
        (b"\x80\x02cnumpy\nndarray\nK\x05\x85R.", "not callable"),
        (b"\x80\x02c__builtin__\nbytes\nJ\x00\x00\x00\x70\x85R.", "no pickle of plain data"),
        (b"", "no pickle of plain data"),
        (b"hello", "no pickle of plain data"),
        (pickle.dumps([1, 2, 3])[:-2], "no pickle of plain data"),
        (pickle.dumps(np.array([(1, 2)], dtype=[("a", "i4"), ("b", "i4")])), "records"),
        (pickle.dumps(np.array(["2020-01-01"], dtype="datetime64[D]")), "no pickle of plain data"),
    ],
)
def test_crafted_and_damaged_files_are_data_errors(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_plain_pickle(write(tmp_path / "bad.pkl", content))


def test_a_missing_file_is_a_data_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        load_plain_pickle(tmp_path / "none.pkl")
