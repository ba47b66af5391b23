"""Arrays and lists in a pickled dict, as the Python version of CIFAR has them. No code in the pickle is run.

The pickle is read by an unpickler that knows the few operations of such files. Its arrays are put together by stand-ins
for NumPy's functions, which keep what they are given; any other function or class is refused.

A pickle can refer to a value again and again: 60 tuples, each twice the one before, are 2 ** 60 values to `hash`, `==`
or `str`. None of these is ever called with a container: keys and arguments are checked by type first, and errors show
the names of types.

Source: https://www.cs.toronto.edu/~kriz/cifar.html.
"""

from __future__ import annotations

import io
import math
import pickle
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO, ClassVar

import numpy as np

from imagebeam.transforms.arrays import found_array

MAX_PICKLE_BYTES = 1 << 30  # a pickle is read whole; the largest of CIFAR has 155 MB

_MAX_INTEGER_BITS = 63
_MAX_ARGUMENTS = 8  # of a function; NumPy's take 4 at most
_MAX_SIDES = 64  # NumPy's limit of dimensions
_MAX_SHOWN = 100  # characters of a name in an error
_DTYPE = re.compile(r"[<>|=]?[A-Za-z][0-9]{0,9}")

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
        if type(state) is not tuple:
            raise ValueError(f"the state of a type is a {type(state).__name__}")
        if len(state) > 1 and _text(state[1]) in ("<", ">"):
            self.code = _text(state[1]) + self.code.lstrip("<>|=")


class _Array:
    """Stand-in for numpy.ndarray."""

    def __init__(self, shape: Any = (), type: Any = None, is_fortran: Any = False, data: Any = b""):
        self.shape, self.type, self.is_fortran, self.data = shape, type, is_fortran, data

    def set_state(self, state: Any) -> None:
        """Takes version, shape, type, order and values, as numpy.ndarray.__reduce__ gives them."""
        if type(state) is not tuple:
            raise ValueError(f"the state of an array is a {type(state).__name__}")
        _, self.shape, self.type, self.is_fortran, self.data = state


class _ArrayClass:
    """Stand-in for the class itself, which is only passed on."""


def _reconstruct(*_: Any) -> _Array:
    return _Array()


def _from_buffer(data: Any, type: Any, shape: Any, order: Any) -> _Array:
    return _Array(shape, type, _text(order) == "F", data)


def _encode(text: Any, codec: Any) -> bytes:
    if _text(codec) not in ("latin1", "latin-1"):
        raise ValueError(f"a text is encoded as {_text(codec)!r}")
    return _text(text).encode("latin-1")


def _no_bytes() -> bytes:
    return b""


def _text(value: Any) -> str:
    if type(value) is bytes:
        return value.decode("latin-1")
    if type(value) is not str:
        raise ValueError(f"a value of type {type(value).__name__} stands where a text is expected")
    return value


def _check_key(key: Any) -> None:
    if type(key) is not bytes and type(key) is not str and not _is_integer(key):
        raise ValueError(f"a key of a dict is of type {type(key).__name__}, expected a text or an integer of 64 bits")


def _is_integer(value: Any) -> bool:
    return type(value) is int and value.bit_length() <= _MAX_INTEGER_BITS


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
        f"is a pickle that would call {module[:_MAX_SHOWN]}.{name[:_MAX_SHOWN]}; only dicts, lists, texts, numbers and "
        "NumPy's arrays are read, since anything else can run any code"
    )


class _Unpickler(pickle._Unpickler):  # type: ignore[name-defined, misc]
    """The one in Python, not in C: its memo grows only with the pickle."""

    dispatch: ClassVar[dict[int, Callable[..., None]]] = {
        ord(code): pickle._Unpickler.dispatch[ord(code)]  # type: ignore[attr-defined]
        for code in (getattr(pickle, name).decode("latin-1") for name in _OPERATIONS.split())
    }

    def __init__(self, file: BinaryIO):
        super().__init__(file, encoding="bytes")
        self._encoded: dict[str, bytes] = {}

    def find_class(self, module: Any, name: Any) -> Any:
        return _find(module, name)

    def _set_item(self) -> None:
        stack: list[Any] = self.stack  # type: ignore[attr-defined]
        value, key = stack.pop(), stack.pop()
        self._set(stack[-1], [key, value])

    def _set_items(self) -> None:
        items = self.pop_mark()  # type: ignore[attr-defined]
        self._set(self.stack[-1], items)  # type: ignore[attr-defined]

    def _make_dict(self) -> None:
        items = self.pop_mark()  # type: ignore[attr-defined]
        made: dict[Any, Any] = {}
        self._set(made, items)
        self.append(made)  # type: ignore[attr-defined]

    def _set(self, target: Any, items: list[Any]) -> None:
        if type(target) is not dict:
            raise ValueError(f"a value of type {type(target).__name__} has keys")
        for index in range(0, len(items), 2):
            _check_key(items[index])
            target[items[index]] = items[index + 1]

    def _reduce(self) -> None:
        stack: list[Any] = self.stack  # type: ignore[attr-defined]
        arguments = stack.pop()
        if type(arguments) is not tuple or len(arguments) > _MAX_ARGUMENTS:
            raise ValueError(f"a function has a {type(arguments).__name__} as its arguments, or too many of them")
        function = stack[-1]
        if function is not _encode:
            stack[-1] = function(*arguments)
            return
        # the same text can be given again and again: one copy of it
        text = _text(arguments[0]) if arguments else ""
        if text not in self._encoded:
            self._encoded[text] = _encode(*arguments)
        stack[-1] = self._encoded[text]

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

    dispatch[pickle.SETITEM[0]] = _set_item
    dispatch[pickle.SETITEMS[0]] = _set_items
    dispatch[pickle.DICT[0]] = _make_dict
    dispatch[pickle.REDUCE[0]] = _reduce
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
        whole = _Unpickler(io.BytesIO(data)).load()
        if not isinstance(whole, dict):
            raise ValueError(f"it holds a {type(whole).__name__}, expected a dict")
        return {
            str(name) if type(name) is int else _text(name): _as_array(value) if isinstance(value, _Array) else value
            for name, value in whole.items()
        }
    except _BROKEN as e:
        text = str(e) if not isinstance(e, KeyError) else f"operation {e} is not of such a file"
        raise found_array.broken(f"is not a complete pickle of arrays and lists ({text[:200]}); fetch it again") from e


def _as_array(given: _Array) -> np.ndarray:
    if not isinstance(given.type, _Type) or not isinstance(given.data, bytes):
        raise ValueError("an array holds Python objects")
    code, shape = given.type.code, given.shape
    if not _DTYPE.fullmatch(code) or type(shape) is not tuple or len(shape) > _MAX_SIDES:
        raise ValueError(f"an array of {code[:_MAX_SHOWN]} has a {type(shape).__name__} as its shape")
    if not all(map(_is_integer, shape)):
        raise ValueError("an array has a shape of other values than integers of 64 bits")
    dtype = np.dtype(code)
    if dtype.hasobject or any(side < 0 for side in shape):
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
        if (num_bytes := sum(map(len, value)) + len(value)) > MAX_PICKLE_BYTES:  # the same text again and again
            raise found_array.broken(f"has {num_bytes:,} bytes of texts in the list {array.name!r}, too many")
        yield b"".join(each + b"\0" for each in value)
    else:
        yield np.array(value, "<i8").tobytes()


def _is_list(value: Any) -> bool:
    if isinstance(value, list):
        kinds = {type(each) for each in value}
        return kinds == {bytes} or (kinds == {int} and max(map(int.bit_length, value)) <= _MAX_INTEGER_BITS)
    return isinstance(value, np.ndarray)


def _describe(name: str, value: Any) -> found_array.FoundArray:
    if isinstance(value, np.ndarray):
        order = "C" if value.flags.c_contiguous else "F"
        return found_array.FoundArray(name, value.shape, value.dtype.str, order)
    return found_array.FoundArray(name, (len(value),), "<i8" if isinstance(value[0], int) else found_array.TEXT)
