"""Unpacks gzip files.

Source: RFC 1952. As with gzip(1) and TensorFlow, a file may be several gzip files joined end to end.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator

from imagebeam import storage
from imagebeam.transforms.elements import Reason
from imagebeam.transforms.packed import broken_content

SUFFIX = ".gz"
MAGIC = b"\x1f\x8b"  # first bytes of a gzip file
MARK = f"#{SUFFIX}"  # at the end of an address: the file is gzip, whatever its name is

_READ_BYTES = 8 << 20  # read from the .gz file at once
_FEED_BYTES = 64 << 10  # given to zlib at once: it copies the unused rest at the end of each joined file
_PLAIN_BYTES = 4 << 20  # taken from zlib at once: a few bytes of gzip may hold gigabytes of zeros
_GZIP_WINDOW = 31  # wbits of zlib for a gzip header and trailer


def has_gzip_name(uri: str) -> bool:
    """Returns whether the name of a file says that it is gzip."""
    return uri.endswith(SUFFIX)


def as_gzip(uri: str) -> str:
    """Returns the address of the unpacked content of a gzip file."""
    return uri if has_gzip_name(uri) else uri + MARK


def read_content(uri: str, version: int) -> Iterator[bytes]:
    """Yields the content of a gzip file in pieces of at most 4 MB.

    Args:
        uri: address of the file.
        version: the file's version as listed.

    Raises:
        BrokenContentError: if the file is not a complete gzip file.
        ChangedError: if the file has another version.
        OSError: if the file cannot be read.
    """
    store = storage.storage_of(uri)
    num_bytes = store.stat(uri).size
    pieces = (
        store.read(uri, offset, min(_READ_BYTES, num_bytes - offset), version=version)
        for offset in range(0, num_bytes, _READ_BYTES)
    )
    return _unpack_pieces(pieces)


def _unpack_pieces(pieces: Iterable[bytes]) -> Iterator[bytes]:
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
                    detail = f"is broken gzip ({_cause(e)}); fetch it again"
                    raise broken_content.BrokenContentError(Reason.CORRUPT, detail) from e
                rest = stream.unused_data if stream.eof else stream.unconsumed_tail
                stream = None if stream.eof else stream
    if stream is not None:
        yield stream.flush()
    if not was_there or (stream is not None and not stream.eof):
        raise broken_content.BrokenContentError(Reason.TRUNCATED, "is gzip that was cut short; fetch it again")


def _cause(error: zlib.error) -> str:
    """Returns `incorrect header check` for `Error -3 while decompressing data: incorrect header check`."""
    return str(error).rpartition(": ")[2]
