"""TFRecord files: their names, framing, checksums, byte-offset index and sizes of images.

A record is `uint64 length, uint32 masked crc32c(length), bytes, uint32 masked crc32c(bytes)`, little-endian.
Source: tensorflow/core/lib/io/record_writer.h; apache_beam/io/tfrecordio.py writes the same bytes (a test compares).
"""

from __future__ import annotations

import array
import contextlib
import dataclasses
import io
import itertools
import os
import re
import struct
import sys
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple, Protocol

import google_crc32c

from imagebeam import errors

HEADER_BYTES = 12
FOOTER_BYTES = 4

_LENGTH_AND_CRC = struct.Struct("<QI")
_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")
_MASK_DELTA = 0xA282EAD8
_MAX_PENDING_BYTES = 1 << 20
_MAX_PENDING_BUFFERS = 1000  # IOV_MAX of Linux and macOS is 1024
_READ_BYTES = 1 << 20
_GZIP_LEVEL = 6
_GZIP_WINDOW = 31  # zlib: the largest window, in gzip's wrapping

SPLIT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")  # the names that a split may have
_SHARD_NAME = re.compile(r"(?P<split>.+)-(?P<shard>\d{5,})-of-(?P<num>\d{5,})(?P<suffix>\.\S+)?")
_TFRECORD_SUFFIX = re.compile(r"(\.(tfrecords?|tfrec|records?))?(\.(gz|gzip|zlib|zst))?", re.IGNORECASE)

_MAX_SIDE = 65_535  # pixels
_CRC_BYTES = 1 << 20  # fits into the cache of a core: three times as fast as 8 MiB

extend_crc = google_crc32c.extend

# (buffer, position, prefix, payload, crc32c of the file so far) -> the same with the record; None where the C extension
# was not built.
_put_record: Callable[[Any, int, bytes, bytes, int], int] | None = None
# See its docstring; None likewise.
_put_jpeg: Callable[..., tuple[int, bytes | None, int, int, int, int, int] | None] | None = None
with contextlib.suppress(ImportError):
    from imagebeam._writer import put_jpeg as _put_jpeg
    from imagebeam._writer import put_record as _put_record


def require_fast_crc32c() -> None:
    """Refuses the pure-Python checksum, which is some 3,000 times slower than the C one.

    Raises:
        ConfigError: if google-crc32c has no C extension here.
    """
    if google_crc32c.implementation != "c":
        raise errors.ConfigError(
            "crc32c-slow",
            f"google-crc32c runs its {google_crc32c.implementation!r} implementation, the C one is needed: "
            "reinstall it from a binary wheel (pip install --force-reinstall --only-binary :all: google-crc32c)",
        )


def checksum_file(file: BinaryIO) -> tuple[int, int]:
    """Returns the size in bytes and the crc32c of an open file, from its position to its end."""
    num_bytes = crc = 0
    while chunk := file.read(_CRC_BYTES):
        num_bytes += len(chunk)
        crc = extend_crc(crc, chunk)
    return num_bytes, crc


def mask_crc(crc: int) -> int:
    """Returns the masked form in which TFRecord stores a crc32c."""
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


def frame_header(length: int) -> bytes:
    """Returns the 12 bytes before a record of `length` bytes."""
    packed = _LENGTH.pack(length)
    return packed + _CRC.pack(mask_crc(extend_crc(0, packed)))


def begins_with_record(head: bytes) -> bool:
    """Returns whether these can be the first 12 bytes of a TFRecord file: a length, and the length's checksum."""
    return len(head) >= HEADER_BYTES and head[8:HEADER_BYTES] == frame_header(_LENGTH.unpack_from(head)[0])[8:]


class OutputFile(Protocol):
    """A file that takes bytes: all files of Python do."""

    def write(self, data: Any, /) -> int | None: ...


class OutputBuffer(OutputFile, Protocol):
    """A file whose bytes may also be put straight into its memory."""

    def reserve(self, num_bytes: int) -> tuple[Any, int] | None:
        """Returns a buffer and the position in it for the next bytes; None if they must be written."""


class RecordWriter:
    """Writes records to an open binary file.

    Payloads are not copied on their way to an unbuffered file, and once on their way to an `OutputBuffer`. Counts what
    it writes: `num_records`, `num_bytes` and `crc32c` of the file, `offsets` of the records (in the uncompressed
    stream). The checksums are of the bytes that were given, before any copy. Not thread-safe. The caller syncs and
    closes the file.
    """

    def __init__(self, file: OutputFile | OutputBuffer, compression: str = "none"):
        self._file = file
        self._gzip = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP_WINDOW) if compression == "gzip" else None
        self._descriptor = _descriptor(file) if self._gzip is None else None
        self._reserve = getattr(file, "reserve", None) if self._gzip is None and _put_record is not None else None
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._position = 0
        self.offsets = array.array("Q")
        self.num_bytes = 0
        self.crc32c = 0

    @property
    def num_records(self) -> int:
        return len(self.offsets)

    def write(self, prefix: bytes, payload: bytes = b"") -> None:
        """Appends one record: the bytes of `prefix`, then the bytes of `payload`."""
        length = len(prefix) + len(payload)
        framed = length + HEADER_BYTES + FOOTER_BYTES
        self.offsets.append(self._position)
        self._position += framed
        if self._reserve is not None and (room := self._reserve(framed)) is not None:
            assert _put_record is not None
            buffer, position = room
            self.crc32c = _put_record(buffer, position, prefix, payload, self.crc32c)
            self.num_bytes += framed
            return
        head = frame_header(length) + prefix
        crc = extend_crc(0, prefix)
        crc = extend_crc(crc, payload) if payload else crc
        self._pending += (head, payload, _CRC.pack(mask_crc(crc)))
        self._pending_bytes += length
        is_full = self._pending_bytes >= _MAX_PENDING_BYTES or len(self._pending) >= _MAX_PENDING_BUFFERS - 3
        if is_full or self._reserve is not None:  # the next record may not be put before this one
            self.flush()

    def write_jpeg(
        self, path: str, size: int, version: int, layout: tuple[list[Any], bytes, int], values: dict[str, Any]
    ) -> tuple[int, bytes | None, int, int, int] | None:
        """Reads a JPEG and appends its example, in one call of C, if all is as usual.

        Args:
            path: of the file.
            size: of the file in bytes, as listed.
            version: of the file, in ns since the epoch, as listed; 0 allows any.
            layout: of an ExampleEncoder.
            values: of the example's features by their sources, but for what the JPEG says. It may be changed.

        Returns:
            How many ns it took to read the file, None, and height, width and number of channels. If nothing was
            appended: the ns, the bytes of the file and zeros; None if the file is not as listed, or without C.
        """
        if self._reserve is None or _put_jpeg is None:
            return None
        buffer, position = self._reserve(0)
        found = _put_jpeg(path, size, version, buffer, position, self.crc32c, *layout, values)
        if found is None:
            return None
        read_nsec, data, height, width, channels, framed, crc = found
        if data is None:
            self._reserve(framed)
            self.offsets.append(self._position)
            self._position += framed
            self.num_bytes += framed
            self.crc32c = crc
        return read_nsec, data, height, width, channels

    def flush(self) -> None:
        """Writes all pending bytes to the file."""
        buffers, self._pending, self._pending_bytes = self._pending, [], 0
        if self._gzip is not None:
            buffers = [self._gzip.compress(b"".join(buffers))]
        self._put(buffers)

    def finish(self) -> None:
        """Writes all pending bytes and the end of the compressed stream. No record may follow."""
        self.flush()
        if self._gzip is not None:
            self._put([self._gzip.flush()])

    def _put(self, buffers: Sequence[bytes]) -> None:
        crc = self.crc32c
        for buffer in buffers:
            crc = extend_crc(crc, buffer)
        self.crc32c = crc
        total = sum(map(len, buffers))
        self.num_bytes += total
        if not total:
            return
        written = os.writev(self._descriptor, buffers) if self._descriptor is not None else 0
        if written != total:  # no descriptor, a signal, 2 GiB at once or a nearly full disk
            _write_all(self._file, b"".join(buffers)[written:])


def _descriptor(file: OutputFile) -> int | None:
    """Returns the descriptor of an unbuffered file, or None for any other file."""
    return file.fileno() if isinstance(file, io.FileIO) and hasattr(os, "writev") else None


def _write_all(file: OutputFile, data: bytes) -> None:
    """Writes all of `data`. An unbuffered file may take a part at a time; it raises when it takes no more."""
    rest = memoryview(data)
    while rest:
        written = file.write(rest)
        rest = rest[len(rest) if written is None else written :]  # None: a file-like object that returns no count


class Record(NamedTuple):
    """One record and where it starts, in bytes of the uncompressed stream."""

    offset: int
    data: bytes


def read_records(file: BinaryIO, compression: str = "none") -> Iterator[Record]:
    """Yields every record of an open file after checking both of its checksums.

    Raises:
        RecordError: at the first broken record, with the byte offset where it starts.
    """
    for found in scan_records(file, compression):
        if isinstance(found, errors.RecordError):
            raise found
        yield found


def scan_records(file: BinaryIO, compression: str = "none") -> Iterator[Record | errors.RecordError]:
    """Yields every record like `read_records`, and a RecordError in place of a record whose bytes alone are broken.

    Raises:
        RecordError: if a length is broken or the file is cut short: the start of the next record is unknown.
    """
    stream = _Stream(file, gzip=compression == "gzip")
    offset = 0
    while True:
        header = stream.read(HEADER_BYTES, offset)
        if not header:
            return
        if len(header) < HEADER_BYTES:
            raise errors.RecordError(offset, f"a record's header is cut short after {len(header)} of 12 bytes")
        length, length_crc = _LENGTH_AND_CRC.unpack(header)
        if mask_crc(extend_crc(0, header[:8])) != length_crc:
            raise errors.RecordError(offset, "the checksum of a record's length does not match")
        data = stream.read(length, offset)
        footer = stream.read(FOOTER_BYTES, offset)
        if len(data) < length or len(footer) < FOOTER_BYTES:
            raise errors.RecordError(offset, f"a record of {length} bytes is cut short")
        if mask_crc(extend_crc(0, data)) != _CRC.unpack(footer)[0]:
            yield errors.RecordError(offset, f"the checksum of a record of {length} bytes does not match", data)
        else:
            yield Record(offset, data)
        offset += HEADER_BYTES + length + FOOTER_BYTES


class _Stream:
    """Reads exactly n bytes at a time, fewer only at the end, from a plain or a gzip file."""

    def __init__(self, file: BinaryIO, gzip: bool):
        self._file = file
        self._gzip = zlib.decompressobj(_GZIP_WINDOW) if gzip else None
        self._chunk = b""
        self._used = 0

    def read(self, num_bytes: int, offset: int) -> bytes:
        """`offset` is where the record starts, for the error's text."""
        if len(self._chunk) - self._used < num_bytes:
            self._fill(num_bytes, offset)
        start, self._used = self._used, min(self._used + num_bytes, len(self._chunk))
        return self._chunk[start : self._used]

    def _fill(self, num_bytes: int, offset: int) -> None:
        parts = [self._chunk[self._used :]]
        missing = num_bytes - len(parts[0])
        while missing > 0 and (more := self._next(offset)):
            parts.append(more)
            missing -= len(more)
        self._chunk, self._used = b"".join(parts), 0

    def _next(self, offset: int) -> bytes:
        if self._gzip is None:
            return self._file.read(_READ_BYTES)
        try:
            while raw := self._gzip.unused_data or self._gzip.unconsumed_tail or self._file.read(_READ_BYTES):
                if self._gzip.eof:  # gzip files may be concatenated; TensorFlow reads on, too
                    self._gzip = zlib.decompressobj(_GZIP_WINDOW)
                if plain := self._gzip.decompress(raw, _READ_BYTES):
                    return plain
            plain = self._gzip.flush()
        except zlib.error as e:
            raise errors.RecordError(offset, f"the gzip stream is broken ({e})") from e
        if not plain and not self._gzip.eof:
            raise errors.RecordError(offset, "the gzip stream is cut short")
        return plain


def encode_index(offsets: Sequence[int], end: int) -> bytes:
    """Returns the byte-offset index of a shard: each record's offset, then the end, as little-endian uint64."""
    index = array.array("Q", offsets)
    index.append(end)
    if sys.byteorder == "big":
        index.byteswap()
    return index.tobytes()


def decode_index(data: bytes) -> array.array[int]:
    """Returns the offsets of the records and, last, the size of the shard: the inverse of `encode_index`.

    Raises:
        ValueError: if `data` is not a whole number of uint64.
    """
    if not data or len(data) % 8:
        raise ValueError(f"an index of {len(data)} bytes is not a whole number of 8-byte offsets")
    index = array.array("Q", data)
    if sys.byteorder == "big":
        index.byteswap()
    return index


def encode_sizes(sides: Iterable[tuple[int, int]]) -> bytes:
    """Returns the heights and widths of the images of a shard as pairs of little-endian uint16.

    Both are 0 where one of them is beyond 65,535: it is not known there.
    """
    fitting = (pair if 0 < min(pair) <= max(pair) <= _MAX_SIDE else (0, 0) for pair in sides)
    sizes = array.array("H", itertools.chain.from_iterable(fitting))
    if sys.byteorder == "big":
        sizes.byteswap()
    return sizes.tobytes()


def num_digits(num_shards: int) -> int:
    """Returns the number of digits of a shard's index in its name."""
    return max(5, len(str(num_shards)))


@dataclasses.dataclass(frozen=True, order=True)
class ShardName:
    """Shard `shard_index` of `num_shards` of a split. Five digits, more when needed, as TFDS and the TPU models do."""

    split: str
    shard_index: int
    num_shards: int
    suffix: str = ".tfrecord"

    def __post_init__(self) -> None:
        if not 0 <= self.shard_index < self.num_shards:
            raise ValueError(f"shard index {self.shard_index} is outside 0..{self.num_shards - 1}")

    def __str__(self) -> str:
        digits = num_digits(self.num_shards)
        return f"{self.split}-{self.shard_index:0{digits}d}-of-{self.num_shards:0{digits}d}{self.suffix}"

    @classmethod
    def parse(cls, name: str) -> ShardName:
        """Parses a shard's name: the inverse of `str`.

        Raises:
            ValueError: if `name` is not a shard's name.
        """
        match = _SHARD_NAME.fullmatch(name)
        parsed = match and cls(match["split"], int(match["shard"]), int(match["num"]), match["suffix"] or "")
        if not parsed or str(parsed) != name:  # with other leading zeros it is another file
            raise ValueError(f"{name!r} is not the name of a shard; expected for example train-00000-of-00016.tfrecord")
        return parsed


def suffix_of(name: str) -> str:
    """Returns the part of a shard's name after the numbers; "" for any other name."""
    try:
        return ShardName.parse(name).suffix
    except ValueError:
        return ""


def is_shard_name(name: str, suffixes: Collection[str] = ()) -> bool:
    """Returns whether a reader that lists the folder would take the file for a TFRecord shard.

    Args:
        name: of the file, without its folder.
        suffixes: accepted beside the usual suffixes of TFRecord files.
    """
    try:
        found = ShardName.parse(name).suffix
    except ValueError:
        return False
    return found in suffixes or _TFRECORD_SUFFIX.fullmatch(found) is not None
