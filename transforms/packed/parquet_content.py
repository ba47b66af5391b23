"""Reads the values of a binary column of a Parquet file, one after the other, by pyarrow; and parts of Snappy data.

The column is named by its path, `image.bytes` for the field `bytes` of the column `image`.
"""

from __future__ import annotations

import contextlib
import functools
import io
from collections.abc import Iterator, Sequence
from typing import Any

from imagebeam import errors, storage
from imagebeam.transforms.packed import packed_file

SUFFIXES = (".parquet", ".pq")
_ROWS_AT_ONCE = 16  # images may be of any size
_PIECE_BYTES = 4 << 20


@contextlib.contextmanager
def open_parquet(uri: str) -> Iterator[Any]:
    """Opens a Parquet file as a pyarrow.parquet.ParquetFile, which reads a column as a stream.

    Raises:
        BrokenContentError: if it is not one, also while it is being read.
        ConfigError: if pyarrow is not installed.
        OSError: if it cannot be read.
    """
    with errors.imports_for(f"reading {uri!r}"):
        import pyarrow  # takes 90 ms, and is needed only here
        import pyarrow.parquet

    store = storage.storage_of(uri)
    with io.BufferedReader(store.open_read(uri), 1 << 20) as file:  # type: ignore[type-var]
        try:
            yield pyarrow.parquet.ParquetFile(file, buffer_size=1 << 20, pre_buffer=False)
        except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as e:  # the last: of a column's name
            if isinstance(e, storage.ChangedError) or getattr(e, "errno", None) is not None:
                raise  # an error of the storage: pyarrow's have no number
            raise packed_file.broken(f"cannot be read as Parquet ({explain(e)})") from e


def explain(error: BaseException) -> str:
    """Returns the first line of an error's text."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


def binary_values(parquet: Any, column: str, row_group: int) -> Iterator[Any]:
    """Yields arrays of the values of a column in one row group, nulls included, a few rows at a time.

    Of lists these are the values of their entries, one after the other.
    """
    for cells in _cells(parquet, column, row_group):
        yield _bytes_of(cells.flatten() if is_list(cells.type) else cells)


def _cells(parquet: Any, column: str, row_group: int) -> Iterator[Any]:
    for batch in parquet.iter_batches(_ROWS_AT_ONCE, [row_group], [column], use_threads=False):
        yield batch.column(0)


def _bytes_of(values: Any) -> Any:
    """Returns an array of bytes; of structs that of their only field."""
    import pyarrow.compute

    values = pyarrow.compute.struct_field(values, [0]) if values.type.num_fields else values
    return values.cast(pyarrow.large_binary())  # views have no lengths


def is_list(type_: Any) -> bool:
    """Returns whether a type, None for none, is that of lists."""
    return str(type_).startswith(("list<", "large_list<", "fixed_size_list<"))


def list_sizes(parquet: Any, column: str, row_group: int) -> Iterator[list[int | None]]:
    """Yields the bytes of the values of each list of a column: None for a null entry, -1 for one without bytes."""
    import pyarrow.compute

    for cells in _cells(parquet, column, row_group):
        entries = cells.flatten()
        held = pyarrow.compute.fill_null(pyarrow.compute.binary_length(_bytes_of(entries)), -1)
        sizes = pyarrow.compute.if_else(entries.is_valid(), held, None).to_pylist()
        start = 0
        for length in pyarrow.compute.list_value_length(cells).to_pylist():
            yield sizes[start : start + (length or 0)]
            start += length or 0


def value_sizes(parquet: Any, column: str, row_group: int) -> Iterator[int | None]:
    """Yields the bytes of each value of a column in one row group; None for null."""
    import pyarrow.compute

    for values in binary_values(parquet, column, row_group):
        yield from pyarrow.compute.binary_length(values).to_pylist()


def read_content(uri: str, version: int, column: str) -> Iterator[bytes]:
    """Yields the values of a column without nulls, in pieces of some megabytes.

    Args:
        uri: address of the file.
        version: the file's version as listed.
        column: path of the column.

    Raises:
        BrokenContentError: if the file cannot be read as Parquet.
        ChangedError: if the file has another version.
        OSError: if the file cannot be read.
    """
    if storage.storage_of(uri).stat(uri).version != version:
        raise storage.ChangedError(uri)
    with open_parquet(uri) as parquet:
        piece = bytearray()
        for group in range(parquet.metadata.num_row_groups):
            for values in binary_values(parquet, column, group):
                for value in values:
                    if value.is_valid:
                        piece += value.as_buffer()
                        if len(piece) >= _PIECE_BYTES:
                            yield bytes(piece)
                            piece.clear()
        yield bytes(piece)


# --- Snappy ----------------------------------------------------------------------------------------------------------
#
# Compressors cut their input into blocks of 64 KB, and no block refers to an earlier one. The format does not demand
# that, so `find_blocks` checks it. One image of a page of 100 then costs the blocks that it touches, not the page.
#
# Source: https://github.com/google/snappy/blob/main/format_description.txt; kBlockSize in snappy.h.

BLOCK_BYTES = 1 << 16  # plain bytes of a block
_LITERAL, _COPY_1, _COPY_2 = 0, 1, 2  # low bits of a tag; 3 is a copy with an offset of 4 bytes
_SHORT_LITERAL = 60  # longer literals have their length in 1 to 4 further bytes


def find_blocks(data: bytes, num_bytes: int) -> Sequence[int] | None:
    """Returns the byte offset of each block in Snappy data, and the end of the last one.

    Takes 0.5 us per tag: 14 us for the 31 tags in 110 KB of JPEG.

    Args:
        data: a whole stream, which begins with its plain length.
        num_bytes: that length.

    Returns:
        None if the stream is damaged, of another length, or a block depends on another one.
    """
    plain, at = 0, 0
    starts = []
    try:
        for shift in range(0, 35, 7):
            plain |= (data[at] & 0x7F) << shift
            at += 1
            if data[at - 1] < 0x80:
                break
        if plain != num_bytes:
            return None
        written = block_end = 0  # bytes of plain content
        while at < len(data):
            if written >= block_end:
                if written > block_end:
                    return None
                starts.append(at)
                block_end += BLOCK_BYTES
            tag = data[at]
            kind = tag & 3
            if kind == _LITERAL:
                length = (tag >> 2) + 1
                at += 1
                if length > _SHORT_LITERAL:
                    width = length - _SHORT_LITERAL
                    length = int.from_bytes(data[at : at + width], "little") + 1
                    at += width
                at += length
            elif kind == _COPY_1:
                length, offset = 4 + (tag >> 2 & 7), tag >> 5 << 8 | data[at + 1]
                at += 2
            elif kind == _COPY_2:
                length, offset = 1 + (tag >> 2), data[at + 1] | data[at + 2] << 8
                at += 3
            else:
                length, offset = 1 + (tag >> 2), int.from_bytes(data[at + 1 : at + 5], "little")
                at += 5
            if kind != _LITERAL and not 0 < offset <= written - (block_end - BLOCK_BYTES):
                return None
            written += length
    except IndexError:
        return None
    if at != len(data) or written != num_bytes or written > block_end:
        return None
    return (*starts, at)


def decode_blocks(data: bytes, num_bytes: int) -> bytes:
    """Returns the plain content of consecutive blocks.

    Args:
        data: the blocks, without the length at the beginning of the stream.
        num_bytes: length of the plain content.

    Raises:
        OSError: if the blocks are damaged, or of another length.
    """
    length, rest = bytearray(), num_bytes
    while rest > 0x7F:
        length.append(rest & 0x7F | 0x80)
        rest >>= 7
    length.append(rest)
    return decode(bytes(length) + data, num_bytes)


def decode(data: bytes, num_bytes: int) -> bytes:
    """Returns the plain content of a whole stream, of `num_bytes` bytes.

    Raises:
        OSError: if it is damaged, or of another length.
    """
    plain: bytes = _codec().decompress(data, num_bytes, asbytes=True)
    return plain


@functools.cache
def _codec() -> Any:
    with errors.imports_for("Parquet packed by Snappy"):
        import pyarrow  # takes 90 ms, and few jobs need it

    return pyarrow.Codec("snappy")
