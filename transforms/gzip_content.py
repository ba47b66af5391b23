"""Gives access to the content of .gz files: each process unpacks a file once, into an unnamed temporary file.

A reference with a `length` into a file that `has_gzip_name` addresses a range of the unpacked content. Sources read it
as the shard writer does:

    with gzip_content.open_unpacked("gs://bucket/train-images-idx3-ubyte.gz") as file:  # seekable
        head = file.read(16)
    gzip_content.unpack(uri, ref.version).read(ref.offset, ref.length)  # one range, from any thread

Source: RFC 1952. As with gzip(1) and TensorFlow, a file may be several gzip files joined end to end.
"""

from __future__ import annotations

import collections
import errno
import io
import tempfile
import threading
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

from imagebeam import errors, storage
from imagebeam.storage import local, ranges
from imagebeam.transforms.elements import Reason

SUFFIX = ".gz"
MAGIC = b"\x1f\x8b"  # first bytes of a gzip file

# Limits of what a process keeps unpacked; beyond them the least recently used file is dropped. Records in random order
# come from all files in turn, so many are kept.
MAX_FILES = 64
MAX_BYTES = 8 << 30
_READ_BYTES = 8 << 20  # read from the .gz file at once
_FEED_BYTES = 64 << 10  # given to zlib at once: it copies the unused rest at the end of each joined file
_PLAIN_BYTES = 4 << 20  # taken from zlib at once: a few bytes of gzip may hold gigabytes of zeros
_GZIP_WINDOW = 31  # wbits of zlib for a gzip header and trailer


class BrokenGzipError(OSError):
    """A file is not gzip or is cut short, so nothing in it can be relied on."""

    def __init__(self, reason: Reason, detail: str):
        super().__init__(errno.EILSEQ, detail)
        self.reason = reason  # CORRUPT or TRUNCATED
        self.detail = detail


class UnpackedFile:
    """The unpacked content of a .gz file. Thread-safe; the disk space is freed with the last reference to it."""

    def __init__(self, file: io.FileIO, size: int, version: int):
        self._file = file
        self.size = size  # bytes
        self.version = version  # of the .gz file that was unpacked

    def read(self, offset: int, length: int) -> bytes:
        """Returns `length` bytes from `offset`; fewer at the end of the content."""
        return local.read_descriptor(self._file.fileno(), offset, max(0, min(length, self.size - offset)))


def has_gzip_name(uri: str) -> bool:
    """Returns whether the name of a file says that it is gzip."""
    return uri.endswith(SUFFIX)


def unpack(uri: str, version: int = 0) -> UnpackedFile:
    """Returns the content of a .gz file; unpacks it unless this process did so already.

    Args:
        uri: address of the file.
        version: the file's version as listed; 0 takes the one that is there now.

    Raises:
        BrokenGzipError: if the file is not a complete gzip file; later calls raise it again without reading the file.
        ChangedError: if the file has another version.
        OSError: if the file cannot be read.
        ImagebeamError: if the disk has no room for the content.
    """
    if not version:
        version = storage.storage_of(uri).stat(uri).version
    return _UNPACKED.take(uri, version)


def open_unpacked(uri: str, version: int = 0) -> BinaryIO:
    """Opens the content of a .gz file as a buffered, seekable file; arguments and errors are those of `unpack`."""
    return io.BufferedReader(_UnpackedReader(unpack(uri, version)), 1 << 20)


def open_content(uri: str) -> BinaryIO:
    """Opens a file, buffered and seekable; of a .gz file the unpacked content."""
    if has_gzip_name(uri):
        return open_unpacked(uri)
    return io.BufferedReader(storage.storage_of(uri).open_read(uri), 1 << 20)  # type: ignore[type-var]


class _UnpackedFiles:
    """The files that this process has unpacked, or found broken."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Locks of the files being unpacked, so that one thread unpacks each.
        self._locks: dict[tuple[str, int], threading.Lock] = {}
        self._kept: collections.OrderedDict[tuple[str, int], UnpackedFile | BrokenGzipError] = collections.OrderedDict()

    def take(self, uri: str, version: int) -> UnpackedFile:
        found = self._find(uri, version)
        if found is None:
            with self._lock:
                lock = self._locks.setdefault((uri, version), threading.Lock())
            with lock:
                found = self._find(uri, version) or self._unpack(uri, version)
        if isinstance(found, BrokenGzipError):
            raise BrokenGzipError(found.reason, found.detail)
        return found

    def _find(self, uri: str, version: int) -> UnpackedFile | BrokenGzipError | None:
        with self._lock:
            found = self._kept.get((uri, version))
            if found is not None:
                self._kept.move_to_end((uri, version))
            return found

    def _unpack(self, uri: str, version: int) -> UnpackedFile | BrokenGzipError:
        found: UnpackedFile | BrokenGzipError
        try:
            found = _unpack_to_disk(uri, version)
        except BrokenGzipError as e:
            found = e.with_traceback(None)  # the traceback would keep the buffers of its frames alive
        with self._lock:
            self._kept[uri, version] = found
            self._locks.pop((uri, version), None)
            while len(self._kept) > MAX_FILES or (len(self._kept) > 1 and self._num_bytes() > MAX_BYTES):
                self._kept.popitem(last=False)  # a thread that still reads it holds a reference
        return found

    def _num_bytes(self) -> int:
        return sum(each.size for each in self._kept.values() if isinstance(each, UnpackedFile))


_UNPACKED = _UnpackedFiles()


def _unpack_to_disk(uri: str, version: int) -> UnpackedFile:
    store = storage.storage_of(uri)
    num_bytes = store.stat(uri).size
    pieces = (
        store.read(uri, offset, min(_READ_BYTES, num_bytes - offset), version=version)
        for offset in range(0, num_bytes, _READ_BYTES)
    )
    file: Any = tempfile.TemporaryFile(prefix="imagebeam-", buffering=0)  # noqa: SIM115 - closed with its last reference
    size = 0
    for plain in _unpack_pieces(pieces):
        size += len(plain)
        try:
            while plain:  # a nearly full disk writes only a part
                plain = plain[file.write(plain) :]
        except OSError as e:
            raise errors.ImagebeamError(
                f"{uri} cannot be unpacked to {tempfile.gettempdir()} ({e.strerror}); set TMPDIR to a "
                "folder with more room, or unpack the file yourself"
            ) from e
    return UnpackedFile(file, size, version)


def _unpack_pieces(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Unpacks the pieces of a gzip file; yields pieces of at most `_PLAIN_BYTES` bytes."""
    stream, was_there = None, False
    for piece in pieces:
        for start in range(0, len(piece), _FEED_BYTES):
            rest = piece[start : start + _FEED_BYTES]
            while rest:
                if stream is None:
                    rest = rest.lstrip(b"\0") if was_there else rest  # zeros may pad the file to whole blocks
                    if not rest:
                        break
                    stream, was_there = zlib.decompressobj(_GZIP_WINDOW), True
                try:
                    yield stream.decompress(rest, _PLAIN_BYTES)
                except zlib.error as e:
                    raise BrokenGzipError(Reason.CORRUPT, f"is broken gzip ({_cause(e)}); fetch it again") from e
                rest = stream.unused_data if stream.eof else stream.unconsumed_tail
                stream = None if stream.eof else stream
    if stream is not None:
        yield stream.flush()
    if not was_there or (stream is not None and not stream.eof):
        raise BrokenGzipError(Reason.TRUNCATED, "is gzip that was cut short; fetch it again")


def _cause(error: zlib.error) -> str:
    """Returns `incorrect header check` for `Error -3 while decompressing data: incorrect header check`."""
    return str(error).rpartition(": ")[2]


class _UnpackedReader(ranges.SeekableReader):
    """A reader of the content of a .gz file, with its own position."""

    def __init__(self, unpacked: UnpackedFile):
        super().__init__(unpacked.size)
        self._unpacked = unpacked

    def _read_at(self, position: int, length: int) -> bytes:
        return self._unpacked.read(position, length)
