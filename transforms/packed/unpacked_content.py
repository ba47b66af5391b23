"""Gives access to what is packed in files: each process unpacks it once, into an unnamed temporary file.

A reference with a `length` and an address that `is_packed` is a range of unpacked content. The address is that of a
file whose name ends in .gz, or of one part of a file whose name ends in one of `_PARTS`:

    gs://bucket/train-images-idx3-ubyte.gz
    gs://bucket/mnist.npz#x_train
    gs://bucket/train-00000-of-00010#.gz

The last one is a file whose content is gzip, whatever its name is: see `packed_file.as_gzip`.

Without `#`, the address of a file with parts is that of its plain bytes. The shard writer reads ranges:

    unpacked_content.unpack(uri, ref.version).read(ref.offset, ref.length)  # one range, from any thread

A new format is a function that yields the plain content in pieces of some megabytes, and a line in that table.
"""

from __future__ import annotations

import collections
import io
import tempfile
import threading
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from imagebeam import errors, storage
from imagebeam.storage import local
from imagebeam.transforms.packed import packed_file, parquet_content
from imagebeam.transforms.packed.packed_file import BrokenContentError


def _read_images(uri: str, version: int, part: str) -> Iterator[bytes]:
    """Yields the images of an array."""
    from imagebeam.transforms.packed import array_files  # late: NumPy takes 15 MB in a process

    return array_files.read_images(uri, version, part)


# By the end of a file's name: yields the content of a part of it, given its address, its version and the part's name.
# The errors are those of `unpack`. Packages that are large or optional are imported inside of these functions.
_PARTS: Mapping[str, Callable[[str, int, str], Iterator[bytes]]] = {
    **dict.fromkeys((*packed_file.ARRAYS, packed_file.CSV), _read_images),
    **dict.fromkeys(parquet_content.SUFFIXES, parquet_content.read_content),
}

# Limits of what a process keeps unpacked; beyond them the least recently used file is dropped. Records in random order
# come from all files in turn, so many are kept.
MAX_FILES = 64
MAX_BYTES = 8 << 30


class UnpackedFile:
    """Unpacked content. Thread-safe; the disk space is freed with the last reference to it."""

    def __init__(self, file: io.FileIO, size: int, version: int):
        self._file = file
        self.size = size  # bytes
        self.version = version  # version of the packed file

    def read(self, offset: int, length: int) -> bytes:
        """Returns `length` bytes from `offset`; fewer at the end of the content."""
        return local.read_descriptor(self._file.fileno(), offset, max(0, min(length, self.size - offset)))


def is_packed(address: str) -> bool:
    """Returns whether an address says that its content is to be unpacked."""
    return address.endswith(packed_file.GZIP_SUFFIX) or ("#" in address and split_part(address)[1] != "")


def part_of(uri: str, part: str) -> str:
    """Returns the address of the part `part`, any name, of the file at `uri`."""
    return f"{uri}#{urllib.parse.quote(part, safe='')}"


def split_part(address: str) -> tuple[str, str]:
    """Returns the address of a file and the name of the part that `address` is of; "" if it is of the whole file."""
    if address.endswith(packed_file.GZIP_MARK):
        return address.removesuffix(packed_file.GZIP_MARK), ""
    uri, _, part = address.rpartition("#")
    if not part or "/" in part or not uri.endswith(tuple(_PARTS)):
        return address, ""
    return uri, urllib.parse.unquote(part)


def unpack(address: str, version: int = 0) -> UnpackedFile:
    """Returns the content at an address that `is_packed`; unpacks it unless this process did so already.

    Args:
        address: of a file, or of a part of one.
        version: the file's version as listed; 0 takes the one that is there now.

    Raises:
        BrokenContentError: if the file is not complete and of its format; later calls raise it again without reading
            the file.
        ChangedError: if the file has another version.
        OSError: if the file cannot be read.
        ImagebeamError: if the disk has no room for the content.
    """
    if not version:
        uri = split_part(address)[0]
        version = storage.storage_of(uri).stat(uri).version
    return _UNPACKED.take(address, version)


class _UnpackedFiles:
    """Files that this process has unpacked, or found broken."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Locks of what is being unpacked, so that one thread unpacks each.
        self._locks: dict[tuple[str, int], threading.Lock] = {}
        self._kept: collections.OrderedDict[tuple[str, int], UnpackedFile | BrokenContentError]
        self._kept = collections.OrderedDict()

    def take(self, address: str, version: int) -> UnpackedFile:
        found = self._find(address, version)
        if found is None:
            with self._lock:
                lock = self._locks.setdefault((address, version), threading.Lock())
            with lock:
                found = self._find(address, version) or self._unpack(address, version)
        if isinstance(found, BrokenContentError):
            raise BrokenContentError(found.reason, found.detail)
        return found

    def _find(self, address: str, version: int) -> UnpackedFile | BrokenContentError | None:
        with self._lock:
            found = self._kept.get((address, version))
            if found is not None:
                self._kept.move_to_end((address, version))
            return found

    def _unpack(self, address: str, version: int) -> UnpackedFile | BrokenContentError:
        found: UnpackedFile | BrokenContentError
        try:
            found = _unpack_to_disk(address, version)
        except BrokenContentError as e:
            found = BrokenContentError(e.reason, e.detail)  # the traceback would keep the file and its buffers alive
        with self._lock:
            self._kept[address, version] = found
            self._locks.pop((address, version), None)
            while len(self._kept) > MAX_FILES or (len(self._kept) > 1 and self._num_bytes() > MAX_BYTES):
                self._kept.popitem(last=False)  # a thread that still reads it holds a reference
        return found

    def _num_bytes(self) -> int:
        return sum(each.size for each in self._kept.values() if isinstance(each, UnpackedFile))


_UNPACKED = _UnpackedFiles()


def _unpack_to_disk(address: str, version: int) -> UnpackedFile:
    uri, part = split_part(address)
    file: Any = tempfile.TemporaryFile(prefix="imagebeam-", buffering=0)  # noqa: SIM115 - closed with its last reference
    size = 0
    try:
        for plain in _read_part(uri, version, part) if part else packed_file.read_gzip(uri, version):
            size += len(plain)
            while plain:  # a nearly full disk writes only a part
                plain = plain[_write(file, plain, uri) :]
    except BaseException:
        file.close()  # the error keeps the frame
        raise
    return UnpackedFile(file, size, version)


def _write(file: Any, data: bytes, uri: str) -> int:
    try:
        return int(file.write(data))
    except OSError as e:
        raise errors.ImagebeamError(
            "unpack-no-room",
            f"{uri} cannot be unpacked to {tempfile.gettempdir()} ({e.strerror}); set TMPDIR to a folder with more "
            "room, or unpack the file yourself",
        ) from e


def _read_part(uri: str, version: int, part: str) -> Iterator[bytes]:
    return next(read for suffix, read in _PARTS.items() if uri.endswith(suffix))(uri, version, part)
