"""Arrays in NumPy's files: .npy with one, .npz (a zip) with several. Pickled objects in them are never read.

Source: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html.
"""

from __future__ import annotations

import contextlib
import errno
import struct
import zipfile
import zlib
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from imagebeam.transforms import npy_header
from imagebeam.transforms.packed import found_array, packed_file

_LOCAL_HEADER_BYTES = 30  # before the name and the extra field of a zip's member
_ENCRYPTED = 1  # bit of a member's flags
_BROKEN_ZIP = (
    zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, OverflowError,
    struct.error,
)  # fmt: skip


def list_npy(uri: str, version: int) -> list[found_array.FoundArray]:
    """Returns the array of a .npy file.

    Raises:
        BrokenContentError: if the file is not NumPy's, or not complete.
        OSError: if it cannot be read.
    """
    with packed_file.open_version(uri, version) as file:
        found = _read_header(file, found_array.ONLY)
        _check_size(found, file.seek(0, 2) - found.start, "is a .npy file that")
        return [found]


def list_npz(uri: str, version: int) -> list[found_array.FoundArray]:
    """Returns the arrays of a .npz file; errors are those of `list_npy`."""
    found = []
    with _open_zip(uri, version) as (file, archive):
        members = [member for member in archive.infolist() if member.filename.endswith(".npy")]
        if len({member.filename for member in members}) != len(members) or len(members) > found_array.MAX_ARRAYS:
            raise packed_file.broken(f"is a .npz file of {len(members):,} arrays, or of two with one name")
        for member in members:
            name = member.filename.removesuffix(".npy")
            with _open_member(archive, member) as inside:
                header = _read_header(inside, name)
            _check_size(header, member.file_size - header.start, f"is a .npz file whose array {name!r}")
            start = -1
            if member.compress_type == zipfile.ZIP_STORED:
                start = _find_stored(file, member) + header.start
            found.append(header._replace(start=start))
    return found


def read_npy(uri: str, version: int, array: found_array.FoundArray) -> Iterator[bytes]:
    """Yields the values of the array of a .npy file in their order there; errors are those of `list_npy`."""
    with packed_file.open_version(uri, version) as file:
        file.seek(array.start)
        yield from packed_file.read_exactly(
            file, array.num_values * np.dtype(array.dtype).itemsize, "is a .npy file that"
        )


def read_npz(uri: str, version: int, array: found_array.FoundArray) -> Iterator[bytes]:
    """Yields the values of an array of a .npz file in their order there; errors are those of `list_npy`."""
    with _open_zip(uri, version) as (_, archive):
        member = archive.getinfo(f"{array.name}.npy")
        with _open_member(archive, member) as inside:
            _read_header(inside, array.name)
            num_bytes = array.num_values * np.dtype(array.dtype).itemsize
            yield from packed_file.read_exactly(inside, num_bytes, f"is a .npz file whose array {array.name!r}")
            inside.read(1)  # checks the checksum, at the end


def check_npz(uri: str, version: int, array: found_array.FoundArray) -> None:
    """Reads an array of a .npz file once, and compares its checksum; errors are those of `list_npy`."""
    for _ in read_npz(uri, version, array):
        pass


@contextlib.contextmanager
def _open_zip(uri: str, version: int) -> Iterator[tuple[BinaryIO, zipfile.ZipFile]]:
    try:
        with packed_file.open_version(uri, version) as file, zipfile.ZipFile(file) as archive:
            yield file, archive
    except _BROKEN_ZIP as e:
        raise _broken_zip(e) from e
    except OSError as e:
        if e.errno == errno.EINVAL:  # an offset before the file's beginning
            raise _broken_zip(e) from e
        raise


def _broken_zip(error: Exception) -> packed_file.BrokenContentError:
    return packed_file.broken(f"is not a complete .npz file ({error}); fetch it again")


def _open_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> BinaryIO:
    if member.flag_bits & _ENCRYPTED:
        raise packed_file.broken(f"is a .npz file whose array {member.filename!r} is encrypted; save it without")
    return archive.open(member)  # type: ignore[return-value]


def _find_stored(file: BinaryIO, member: zipfile.ZipInfo) -> int:
    """Returns the byte offset of a member that is not compressed."""
    file.seek(member.header_offset)
    name_bytes, extra_bytes = struct.unpack("<HH", file.read(_LOCAL_HEADER_BYTES)[-4:])
    return member.header_offset + _LOCAL_HEADER_BYTES + int(name_bytes) + int(extra_bytes)


def _read_header(file: BinaryIO, name: str) -> found_array.FoundArray:
    """Reads the header of an array; `start` is then where the values begin, counted from the header's first byte."""
    first = file.tell()
    try:
        shape, is_fortran, dtype = npy_header.read(file)
    except ValueError as e:
        raise packed_file.broken(f"has no valid header of the array {name!r} ({e}); save it again") from e
    if dtype.hasobject:
        raise packed_file.broken(
            f"holds Python objects as the array {name!r}; they are never read, since that can run any code: "
            "save it as an array of numbers"
        )
    order = "F" if is_fortran and len(shape) > 1 else "C"
    return found_array.FoundArray(name, shape, dtype.str, order, file.tell() - first)


def _check_size(array: found_array.FoundArray, num_bytes: int, what: str) -> None:
    found_array.check_size(array, np.dtype(array.dtype).itemsize, num_bytes, what)
