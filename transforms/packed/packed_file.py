"""Reads one version of a file, gzip files and members of zip archives; has the error for a broken one."""

from __future__ import annotations

import contextlib
import errno
import gzip
import io
import re
import struct
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


# --- files with arrays -----------------------------------------------------------------------------------------------

# Ends of their names. CIFAR's Python version gives its files no extension.
NPY, NPZ, MATLAB, HDF5, BINARY = ".npy", ".npz", ".mat", (".h5", ".hdf5"), ".bin"
IDX = tuple(f"idx{number}-ubyte{packed}" for number in (1, 3, 4) for packed in ("", ".gz"))
PICKLED = tuple(f"/{name}" for name in (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch", "train", "test"))
ARRAYS = (NPY, NPZ, *HDF5, MATLAB, BINARY, *IDX, *PICKLED)
CSV = ".csv"  # with pixels

# --- gzip ------------------------------------------------------------------------------------------------------------
#
# As with gzip(1) and TensorFlow, a gzip file may be several ones joined end to end.

GZIP_SUFFIX = ".gz"
GZIP_MAGIC = b"\x1f\x8b"  # first bytes of a gzip file
GZIP_MARK = f"#{GZIP_SUFFIX}"  # at the end of an address: the file is gzip, whatever its name is


def as_gzip(uri: str) -> str:
    """Returns the address of the unpacked content of a gzip file."""
    return uri if uri.endswith(GZIP_SUFFIX) else uri + GZIP_MARK


@contextlib.contextmanager
def open_gzip(uri: str, version: int) -> Iterator[BinaryIO]:
    """Opens the content of a gzip file.

    Args:
        uri: address of the file.
        version: the file's version as listed.

    Raises:
        BrokenContentError: if the file is not a complete gzip file, also while it is being read.
        ChangedError: if the file has another version.
        OSError: if the file cannot be read.
    """
    try:
        with open_version(uri, version) as packed, gzip.GzipFile(fileobj=packed) as file:
            if not packed.peek(1):  # type: ignore[attr-defined]
                raise EOFError
            yield file  # type: ignore[misc]
    except (gzip.BadGzipFile, zlib.error) as e:
        raise broken(f"is broken gzip ({e}); fetch it again") from e
    except EOFError as e:
        raise cut_short("is gzip that") from e


def read_gzip(uri: str, version: int) -> Iterator[bytes]:
    """Yields the content of a gzip file in pieces of at most 4 MB; errors are those of `open_gzip`."""
    with open_gzip(uri, version) as file:
        while piece := file.read(PIECE_BYTES):
            yield piece


# --- members of zip archives -----------------------------------------------------------------------------------------
#
# A reference to `archive.zip!/train/cat/x.jpg` is a range of `archive.zip`: from the header of the member to the next
# one. The header is read with the content, so that a listing needs the central directory alone.
#
# Source: PKWARE APPNOTE.TXT 6.3.10, sections 4.3.7 to 4.3.9.

ZIP_MARK = "!/"  # between the address of an archive and the path of a member
ZIP_STORED, ZIP_DEFLATED = 0, 8  # methods of compression
_HAS_DESCRIPTOR = 0x08  # flag: checksum and sizes follow the content
LOCAL_HEADER = struct.Struct("<4s5H3I2H")
_LOCAL_SIGNATURE = b"PK\x03\x04"
ZIP_MAX_RATIO = 1032  # deflate packs no better: more is a lie, or a bomb; https://zlib.net/zlib_tech.html

_DESCRIPTOR_SIGNATURE = b"PK\x07\x08"
_IN_ARCHIVE = re.compile(r"(.+?\.zip)!/(.+)", re.IGNORECASE | re.DOTALL)


# Images that a pipeline brings as bytes are members of archives in a folder of this name, each with its key as path.
# Which archive, and where in it, differs from run to run: the key and the SHA-256 of the bytes stand for the image.
SPILL_PREFIX = "spill-"
_SPILLED = re.compile(rf".*/\.imagebeam/{SPILL_PREFIX}\w+/\w+\.zip!/(.*)", re.DOTALL)


def spilled_key(address: str) -> str | None:
    """Returns the key of an image that a pipeline brought as bytes; None for any other address."""
    if ZIP_MARK not in address:
        return None
    match = _SPILLED.fullmatch(address)
    return match[1] if match else None


def shown(address: str) -> str:
    """Returns an address for users: an image that a pipeline brought as bytes has none, and its key stands there."""
    return spilled_key(address) or address


def member_address(archive: str, member: str) -> str:
    """Returns the address of a member."""
    return f"{archive}{ZIP_MARK}{member}"


def archive_of(address: str) -> str | None:
    """Returns the archive that an address is in; None for any other address."""
    if ZIP_MARK not in address:
        return None
    match = _IN_ARCHIVE.fullmatch(address)
    return match[1] if match else None


def pack_member(content: bytes) -> bytes:
    """Returns a header to write before a member that is stored as it is; `unpack_member` takes both."""
    sizes = len(content), len(content)
    return LOCAL_HEADER.pack(_LOCAL_SIGNATURE, 20, 0, ZIP_STORED, 0, 0, zlib.crc32(content), *sizes, 0, 0)


def unpack_member(data: bytes, size: int) -> bytes:
    """Returns the content of a member.

    Args:
        data: bytes of the archive, from the header of the member to the next one.
        size: of the content, as the central directory says; no more is unpacked.

    Raises:
        BrokenContentError: if the range holds no such member, or its checksum does not match.
    """
    if len(data) < LOCAL_HEADER.size or not data.startswith(_LOCAL_SIGNATURE):
        raise _broken_member("has no header of a member where its directory says so")
    header = LOCAL_HEADER.unpack_from(data)
    flags, method, crc, name_bytes, extra_bytes = header[2], header[3], header[6], header[9], header[10]
    start = LOCAL_HEADER.size + name_bytes + extra_bytes
    if method == ZIP_STORED:
        content, rest = data[start : start + size], data[start + size : start + size + 8]
        if len(content) < size:
            raise BrokenContentError(Reason.TRUNCATED, f"ends after {len(content):,} of {size:,} bytes")
    else:
        content, rest = _inflate(memoryview(data)[start:], size)
    if flags & _HAS_DESCRIPTOR:
        rest = rest.removeprefix(_DESCRIPTOR_SIGNATURE)[:4] if rest.startswith(_DESCRIPTOR_SIGNATURE) else rest[:4]
        crc = int.from_bytes(rest, "little")
    if zlib.crc32(content) != crc:
        raise _broken_member("has another checksum than the archive says")
    return content


def _inflate(data: memoryview, size: int) -> tuple[bytes, bytes]:
    """Returns the content of `size` bytes, and some bytes after the compressed ones."""
    stream = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        content = stream.decompress(data, size + 1)
    except zlib.error as e:
        raise _broken_member(f"is broken ({str(e).rpartition(': ')[2]})") from e
    if not stream.eof and len(content) <= size:  # the end of the stream may follow the last byte
        content += stream.decompress(stream.unconsumed_tail, 1)
    if len(content) != size or not stream.eof:
        more = "more" if len(content) > size else f"{len(content):,}"
        raise _broken_member(f"unpacks to {more} bytes, the archive says {size:,}")
    return content, bytes(stream.unused_data[:8])


def _broken_member(detail: str) -> BrokenContentError:
    return BrokenContentError(Reason.CORRUPT, f"{detail}; fetch the archive again")
