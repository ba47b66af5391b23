"""What a file says of one array in it, and what all formats share."""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from imagebeam import storage
from imagebeam.transforms.elements import Reason
from imagebeam.transforms.packed import broken_content

PIECE_BYTES = 4 << 20  # of values read at once
MAX_ARRAYS = 10_000  # in one file
ONLY = "array"  # name of the array of a file that has one without a name
TEXT = "text"  # type of an array of texts without a fixed length; its values are UTF-8, each followed by a zero byte


class FoundArray(NamedTuple):
    """One array in a file."""

    name: str
    shape: tuple[int, ...]
    dtype: str  # as NumPy writes it, such as |u1 or <i8, or TEXT
    order: str = "C"  # C: the last index varies fastest; F: the first
    start: int = -1  # byte offset of the values, if they lie in the file as they are; else -1

    @property
    def num_values(self) -> int:
        """Number of values."""
        return math.prod(self.shape)


def broken(detail: str) -> broken_content.BrokenContentError:
    """Returns the error for a file that is not as its format demands; `detail` follows the file's name."""
    return broken_content.BrokenContentError(Reason.CORRUPT, detail)


def cut_short(what: str) -> broken_content.BrokenContentError:
    """Returns the error for a file that ends too early."""
    return broken_content.BrokenContentError(Reason.TRUNCATED, f"{what} was cut short; fetch it again")


@contextlib.contextmanager
def open_version(uri: str, version: int) -> Iterator[BinaryIO]:
    """Opens one version of a file, buffered and seekable.

    Raises:
        ChangedError: if the file has another version, when it is opened or when it is closed.
        OSError: if it cannot be read.
    """
    _check_version(uri, version)
    with io.BufferedReader(storage.storage_of(uri).open_read(uri), 1 << 20) as file:  # type: ignore[type-var]
        yield file
    _check_version(uri, version)


def _check_version(uri: str, version: int) -> None:
    if version and storage.storage_of(uri).stat(uri).version != version:
        raise storage.ChangedError(f"{uri} was replaced since it was listed")


def read_exactly(file: BinaryIO, num_bytes: int, what: str) -> Iterator[bytes]:
    """Yields the next bytes of a file in pieces.

    Raises:
        BrokenContentError: if the file ends before; `what` names what is read.
    """
    while num_bytes:
        piece = file.read(min(PIECE_BYTES, num_bytes))
        if not piece:
            raise cut_short(what)
        num_bytes -= len(piece)
        yield piece


def check_size(array: FoundArray, item_bytes: int, num_bytes: int, what: str) -> None:
    """Checks that the file has the bytes of an array's values, and no others.

    Args:
        array: as its header says.
        item_bytes: of one value.
        num_bytes: in the file.
        what: begins the error, such as `is a .npy file that`.

    Raises:
        BrokenContentError: if it has not.
    """
    expected = array.num_values * item_bytes
    if num_bytes < expected:
        raise cut_short(f"{what} has {num_bytes:,} bytes of values, its header says {expected:,}: it")
    if num_bytes > expected:
        raise broken(f"{what} has {num_bytes:,} bytes of values, its header says {expected:,}; save it again")
