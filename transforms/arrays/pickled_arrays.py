"""Arrays and lists in a pickled dict, as the Python version of CIFAR has them. No code in the pickle is run.

The pickle is read by an unpickler that knows the few operations of such files. Its arrays are put together by stand-ins
for NumPy's functions, which keep what they are given; any other function or class is refused.

Source: https://www.cs.toronto.edu/~kriz/cifar.html.
"""

from __future__ import annotations

import io
import math
import pickle
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from imagebeam.transforms.arrays import found_array

MAX_PICKLE_BYTES = 1 << 30  # a pickle is read whole; the largest of CIFAR has 155 MB

_OPERATIONS = (  # names in the module pickle
    "PROTO FRAME STOP MARK NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG1 BINFLOAT STRING BINSTRING "
    "SHORT_BINSTRING BINBYTES SHORT_BINBYTES BINBYTES8 BINUNICODE SHORT_BINUNICODE UNICODE EMPTY_TUPLE TUPLE TUPLE1 "
    "TUPLE2 TUPLE3 EMPTY_LIST LIST APPEND APPENDS EMPTY_DICT DICT SETITEM SETITEMS GLOBAL STACK_GLOBAL REDUCE BUILD "
    "GET BINGET LONG_BINGET PUT BINPUT LONG_BINPUT MEMOIZE POP POP_MARK"
)
_BROKEN = (
    ArithmeticError, AttributeError, EOFError, LookupError, MemoryError, RecursionError, TypeError, ValueError,
    pickle.UnpicklingError, struct.error,
)  # fmt: skip


class _Type:
    """Stand-in for numpy.dtype."""

    def __init__(self, code: Any, *_: Any):
        self.code = _text(code)

    def set_state(self, state: Any) -> None:
        """Takes the byte order."""
        if len(state) > 1 and _text(state[1]) in ("<", ">"):
            self.code = _text(state[1]) + self.code.lstrip("<>|=")


class _Array:
    """Stand-in for numpy.ndarray."""

    def __init__(self, shape: Any = (), type: Any = None, is_fortran: Any = False, data: Any = b""):
        self.shape, self.type, self.is_fortran, self.data = shape, type, is_fortran, data

    def set_state(self, state: Any) -> None:
        """Takes version, shape, type, order and values, as numpy.ndarray.__reduce__ gives them."""
        _, self.shape, self.type, self.is_fortran, self.data = state


class _ArrayClass:
    """Stand-in for the class itself, which is only passed on."""


def _reconstruct(*_: Any) -> _Array:
    return _Array()


def _from_buffer(data: Any, type: Any, shape: Any, order: Any) -> _Array:
    return _Array(shape, type, _text(order) == "F", data)


def _encode(text: Any, codec: Any) -> bytes:
    if _text(codec) not in ("latin1", "latin-1"):
        raise ValueError(f"a text is encoded as {codec!r}")
    return str(text).encode("latin-1")


def _no_bytes() -> bytes:
    return b""


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


_MODULES = ("numpy.core.multiarray", "numpy._core.multiarray", "numpy.core.numeric", "numpy._core.numeric", "numpy")
_STAND_INS: Mapping[str, Any] = {
    "_reconstruct": _reconstruct,
    "_frombuffer": _from_buffer,
    "ndarray": _ArrayClass(),
    "dtype": _Type,
}


def _find(module: Any, name: Any) -> Any:
    module, name = _text(module), _text(name)
    if module in _MODULES and name in _STAND_INS:
        return _STAND_INS[name]
    if (module, name) == ("_codecs", "encode"):
        return _encode
    if (module, name) in (("__builtin__", "bytes"), ("builtins", "bytes")):  # b"" in protocol 2
        return _no_bytes
    raise found_array.broken(
        f"is a pickle that would call {module}.{name}; only dicts, lists, texts, numbers and NumPy's arrays are "
        "read, since anything else can run any code"
    )


class _Unpickler(pickle._Unpickler):  # type: ignore[name-defined, misc]
    """The one in Python, not in C: its memo grows only with the pickle."""

    dispatch: ClassVar[dict[int, Callable[..., None]]] = {
        ord(code): pickle._Unpickler.dispatch[ord(code)]  # type: ignore[attr-defined]
        for code in (getattr(pickle, name).decode("latin-1") for name in _OPERATIONS.split())
    }

    def find_class(self, module: Any, name: Any) -> Any:
        return _find(module, name)

    def _build(self) -> None:
        stack: list[Any] = self.stack  # type: ignore[attr-defined]
        state = stack.pop()
        if not isinstance(stack[-1], (_Array, _Type)):
            raise ValueError(f"a {type(stack[-1]).__name__} has a state")
        stack[-1].set_state(state)

    def _load_bytes(self) -> None:  # pickle's own takes memory for as many bytes as the file says
        num_bytes = int.from_bytes(self.read(8), "little")  # type: ignore[attr-defined]
        data: bytes = self.read(min(num_bytes, MAX_PICKLE_BYTES))  # type: ignore[attr-defined]
        if len(data) != num_bytes:
            raise EOFError(f"it says {num_bytes:,} bytes")
        self.append(data)  # type: ignore[attr-defined]

    dispatch[pickle.BUILD[0]] = _build
    dispatch[pickle.BYTEARRAY8[0]] = _load_bytes


def load(uri: str, version: int) -> dict[str, Any]:
    """Returns the values of a pickled dict by their names: `np.ndarray`, or lists of numbers or texts as bytes.

    Raises:
        BrokenContentError: if the file is no such pickle.
        OSError: if it cannot be read.
    """
    with found_array.open_version(uri, version) as file:
        if file.seek(0, 2) > MAX_PICKLE_BYTES:
            raise found_array.broken(f"is larger than {MAX_PICKLE_BYTES:,} bytes, too much for a pickle")
        file.seek(0)
        data = file.read()
    try:
        whole = _Unpickler(io.BytesIO(data), encoding="bytes").load()
        if not isinstance(whole, dict):
            raise ValueError(f"it holds a {type(whole).__name__}, expected a dict")
        return {_text(name): _as_array(value) if isinstance(value, _Array) else value for name, value in whole.items()}
    except _BROKEN as e:
        text = str(e) if not isinstance(e, KeyError) else f"operation {e} is not of such a file"
        raise found_array.broken(f"is not a complete pickle of arrays and lists ({text[:200]}); fetch it again") from e


def _as_array(given: _Array) -> np.ndarray:
    if not isinstance(given.type, _Type) or not isinstance(given.data, bytes):
        raise ValueError("an array holds Python objects")
    dtype, shape = np.dtype(given.type.code), tuple(given.shape)
    if dtype.hasobject or any(type(side) is not int or side < 0 for side in shape):
        raise ValueError(f"an array of {dtype} has the shape {shape}")
    if math.prod(shape) * dtype.itemsize != len(given.data):
        raise ValueError(f"an array of {dtype} with the shape {shape} has {len(given.data):,} bytes")
    return np.frombuffer(given.data, dtype).reshape(shape, order="F" if given.is_fortran else "C")


def list_arrays(uri: str, version: int) -> list[found_array.FoundArray]:
    """Returns the arrays of a pickled dict, and its lists of integers and texts; errors are those of `load`."""
    return [_describe(name, value) for name, value in load(uri, version).items() if _is_list(value)]


def read_values(uri: str, version: int, array: found_array.FoundArray) -> Iterator[bytes]:
    """Yields the values of an array or list; errors are those of `load`."""
    value = load(uri, version)[array.name]
    if isinstance(value, np.ndarray):
        values = value.ravel(order="K")
        at_once = max(1, found_array.PIECE_BYTES // value.itemsize)
        for start in range(0, len(values), at_once):
            yield values[start : start + at_once].tobytes()
    elif array.dtype == found_array.TEXT:
        yield b"".join(each + b"\0" for each in value)
    else:
        yield np.array(value, "<i8").tobytes()


def _is_list(value: Any) -> bool:
    if isinstance(value, list):
        kinds = {type(each) for each in value}
        return kinds == {bytes} or (kinds == {int} and max(map(abs, value)) < 2**63)
    return isinstance(value, np.ndarray)


def _describe(name: str, value: Any) -> found_array.FoundArray:
    if isinstance(value, np.ndarray):
        order = "C" if value.flags.c_contiguous else "F"
        return found_array.FoundArray(name, value.shape, value.dtype.str, order)
    return found_array.FoundArray(name, (len(value),), "<i8" if isinstance(value[0], int) else found_array.TEXT)
