"""CIFAR's two versions: pickled dicts of arrays, and records of labels and pixels. No code in a pickle is run.

In pickles, NumPy's functions are replaced by stand-ins, since its own accept states that crash the process; any other
function or class is refused.

Source: https://www.cs.toronto.edu/~kriz/cifar.html, https://docs.python.org/3/library/pickle.html#restricting-globals.
"""

from __future__ import annotations

import pickle
import posixpath
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from imagebeam.transforms.packed import found_array, packed_file

MAX_PICKLE_BYTES = 1 << 30  # a pickle is read whole; the largest of CIFAR has 155 MB

_MAX_SHOWN = 100  # characters of a name in an error
_MAX_INTEGER_BITS = 63
_BROKEN = (
    ArithmeticError, AttributeError, EOFError, LookupError, MemoryError, RecursionError, TypeError, ValueError,
    SyntaxError, pickle.UnpicklingError,
)  # fmt: skip


def _text(value: Any) -> str:
    if not isinstance(value, (bytes, str, int)):
        raise ValueError(f"a value of type {type(value).__name__} where a text is expected")
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


class _Type:
    """Stand-in for numpy.dtype."""

    def __init__(self, code: Any, *_: Any):
        self.code, self.byte_order = _text(code), "="

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.byte_order = _text(state[1])

    def to_dtype(self) -> np.dtype:
        return np.dtype(self.code).newbyteorder(self.byte_order)  # type: ignore[arg-type]


class _Array:
    """Stand-in for numpy.ndarray; the arguments are those of numpy's function for pickles of protocol 5."""

    def __init__(self, data: Any = b"", type: Any = None, shape: Any = (), order: Any = "C"):
        self.data, self.type, self.shape, self.order = data, type, shape, _text(order)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, self.shape, self.type, is_fortran, self.data = state
        self.order = "F" if is_fortran else "C"

    def to_array(self) -> np.ndarray:
        dtype = self.type.to_dtype()
        if dtype.hasobject:
            raise ValueError("an array holds Python objects")
        array: np.ndarray = np.ndarray(self.shape, dtype, bytes(self.data), order=self.order)  # type: ignore[arg-type]
        if array.nbytes != len(self.data):
            raise ValueError(f"an array of {dtype} with the shape {self.shape} has {len(self.data):,} bytes")
        return array


def _reconstruct(*_: Any) -> _Array:
    return _Array()


def _encode(text: str, codec: str) -> bytes:
    if codec not in ("latin1", "latin-1"):
        raise ValueError(f"a text is encoded as {codec[:_MAX_SHOWN]!r}")
    return text.encode("latin-1")


_MODULES = ("numpy.core.multiarray", "numpy._core.multiarray", "numpy.core.numeric", "numpy._core.numeric", "numpy")
_NUMPY: Mapping[str, Any] = {
    "_reconstruct": _reconstruct,
    "_frombuffer": _Array,
    "ndarray": "",  # an argument of _reconstruct
    "dtype": _Type,
}
_OTHERS: Mapping[tuple[str, str], Any] = {  # bytes in protocol 2
    ("_codecs", "encode"): _encode,
    ("__builtin__", "bytes"): bytes,
    ("builtins", "bytes"): bytes,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        found = _NUMPY.get(name) if module in _MODULES else _OTHERS.get((module, name))
        if found is None:
            raise packed_file.broken(
                f"is a pickle that would call {module[:_MAX_SHOWN]}.{name[:_MAX_SHOWN]}; only dicts, lists, texts, "
                "numbers and NumPy's arrays are read, since anything else can run any code"
            )
        return found


def load(uri: str, version: int) -> dict[str, Any]:
    """Returns the values of a pickled dict by their names: `np.ndarray`, or lists of numbers or texts as bytes.

    Raises:
        BrokenContentError: if the file is no such pickle.
        OSError: if it cannot be read.
    """
    with packed_file.open_version(uri, version) as file:
        if file.seek(0, 2) > MAX_PICKLE_BYTES:
            raise packed_file.broken(f"is larger than {MAX_PICKLE_BYTES:,} bytes, too much for a pickle")
        file.seek(0)
        try:
            whole = _Unpickler(file, encoding="bytes").load()
            if not isinstance(whole, dict):
                raise ValueError(f"it holds a {type(whole).__name__}, expected a dict")
            return {
                _text(name): value.to_array() if isinstance(value, _Array) else value for name, value in whole.items()
            }
        except _BROKEN as e:
            raise packed_file.broken(
                f"is not a complete pickle of arrays and lists ({str(e)[:200]}); fetch it again"
            ) from e


def list_pickled(uri: str, version: int) -> list[found_array.FoundArray]:
    """Returns the arrays of a pickled dict, and its lists of integers and texts; errors are those of `load`."""
    return [_describe(name, value) for name, value in load(uri, version).items() if _is_list(value)]


def read_pickled(uri: str, version: int, array: found_array.FoundArray) -> Iterator[bytes]:
    """Yields the values of an array or list; errors are those of `load`."""
    value = load(uri, version)[array.name]
    if isinstance(value, np.ndarray):
        values = value.ravel(order="K")
        at_once = max(1, packed_file.PIECE_BYTES // value.itemsize)
        for start in range(0, len(values), at_once):
            yield values[start : start + at_once].tobytes()
    elif array.dtype == found_array.TEXT:
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


# --- the binary version: records of one label byte (CIFAR-100: two) and 3,072 bytes of pixels ------------------------

_PIXEL_BYTES = 32 * 32 * 3  # all red, all green, all blue
_LABELS_OF_100 = ("coarse_labels", "fine_labels")
_NAMES_OF_100 = ("train.bin", "test.bin")
_DATA = "data"


def list_binary(uri: str, version: int) -> list[found_array.FoundArray]:
    """Returns pixels and labels of a file, under the names that the Python version has.

    Raises:
        BrokenContentError: if the file does not consist of whole records.
        OSError: if it cannot be read.
    """
    labels = _labels_of(uri)
    with packed_file.open_version(uri, version) as file:
        count, rest = divmod(file.seek(0, 2), len(labels) + _PIXEL_BYTES)
    if rest or not count:
        raise packed_file.broken(
            f"does not consist of records of {len(labels) + _PIXEL_BYTES:,} bytes, as CIFAR's binary files do; "
            "fetch it again"
        )
    flat = found_array.FoundArray(_DATA, (count, _PIXEL_BYTES), "|u1")
    return [flat, *(found_array.FoundArray(name, (count,), "|u1") for name in labels)]


def read_binary(uri: str, version: int, array: found_array.FoundArray) -> Iterator[bytes]:
    """Yields the values of one array; errors are those of `list_binary`."""
    labels = _labels_of(uri)
    size = len(labels) + _PIXEL_BYTES
    first, last = len(labels), size
    if array.name != _DATA:
        first = labels.index(array.name)
        last = first + 1
    at_once = packed_file.PIECE_BYTES // size
    with packed_file.open_version(uri, version) as file:
        for start in range(0, array.shape[0], at_once):
            num_bytes = size * min(at_once, array.shape[0] - start)
            records = b"".join(packed_file.read_exactly(file, num_bytes, "is a file of CIFAR that"))
            yield b"".join(records[each + first : each + last] for each in range(0, num_bytes, size))


def _labels_of(uri: str) -> tuple[str, ...]:
    return _LABELS_OF_100 if posixpath.basename(uri) in _NAMES_OF_100 else ("labels",)
