"""Reads one version of a file, and gzip files; has the error for a broken one.

As with gzip(1) and TensorFlow, a gzip file may be several ones joined end to end.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import io
import zlib
from collections.abc import Iterator
from typing import BinaryIO

from imagebeam import storage
from imagebeam.transforms.elements import Reason

PIECE_BYTES = 4 << 20  # read at once of what is taken in pieces


class BrokenContentError(OSError):
    """A file is not of its format or is cut short, so nothing in it can be relied on.

    Attributes:
        reason: CORRUPT or TRUNCATED.
        detail: follows the file's name in an error, such as `is gzip that was cut short; fetch it again`.
    """

    def __init__(self, reason: Reason, detail: str):
        super().__init__(errno.EILSEQ, detail)
        self.reason = reason
        self.detail = detail


def broken(detail: str) -> BrokenContentError:
    """Returns the error for a file that is not as its format demands; `detail` follows the file's name."""
    return BrokenContentError(Reason.CORRUPT, detail)


def cut_short(what: str) -> BrokenContentError:
    """Returns the error for a file that ends too early."""
    return BrokenContentError(Reason.TRUNCATED, f"{what} was cut short; fetch it again")


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


# --- gzip ------------------------------------------------------------------------------------------------------------

GZIP_SUFFIX = ".gz"
GZIP_MAGIC = b"\x1f\x8b"  # first bytes of a gzip file
GZIP_MARK = f"#{GZIP_SUFFIX}"  # at the end of an address: the file is gzip, whatever its name is


def has_gzip_name(uri: str) -> bool:
    """Returns whether the name of a file says that it is gzip."""
    return uri.endswith(GZIP_SUFFIX)


def as_gzip(uri: str) -> str:
    """Returns the address of the unpacked content of a gzip file."""
    return uri if has_gzip_name(uri) else uri + GZIP_MARK


def read_gzip(uri: str, version: int) -> Iterator[bytes]:
    """Yields the content of a gzip file in pieces of at most 4 MB.

    Args:
        uri: address of the file.
        version: the file's version as listed.

    Raises:
        BrokenContentError: if the file is not a complete gzip file.
        ChangedError: if the file has another version.
        OSError: if the file cannot be read.
    """
    num_bytes = 0
    try:
        with open_version(uri, version) as packed, gzip.GzipFile(fileobj=packed) as file:
            while piece := file.read(PIECE_BYTES):
                num_bytes += len(piece)
                yield piece
            is_empty = not num_bytes and not packed.tell()
    except (gzip.BadGzipFile, zlib.error) as e:
        raise broken(f"is broken gzip ({e}); fetch it again") from e
    except EOFError as e:
        raise cut_short("is gzip that") from e
    if is_empty:
        raise cut_short("is gzip that")
