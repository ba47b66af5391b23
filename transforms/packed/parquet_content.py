"""Reads the values of a binary column of a Parquet file, one after the other, by pyarrow.

The column is named by its path, `image.bytes` for the field `bytes` of the column `image`.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from typing import Any

from imagebeam import errors, storage
from imagebeam.transforms.elements import Reason
from imagebeam.transforms.packed import broken_content

SUFFIXES = (".parquet", ".pq")
_ROWS_AT_ONCE = 16  # images may be of any size
_PIECE_BYTES = 4 << 20


class BrokenParquetError(broken_content.BrokenContentError):
    """A file is not Parquet, is damaged, or of a kind that pyarrow does not read."""


@contextlib.contextmanager
def open_parquet(uri: str) -> Iterator[Any]:
    """Opens a Parquet file as a pyarrow.parquet.ParquetFile, which reads a column as a stream.

    Raises:
        BrokenParquetError: if it is not one, also while it is being read.
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
                raise  # of the storage: those of pyarrow have no number
            raise BrokenParquetError(Reason.CORRUPT, f"cannot be read as Parquet ({explain(e)})") from e


def explain(error: BaseException) -> str:
    """Returns the first line of an error's text."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


def binary_values(parquet: Any, column: str, row_group: int) -> Iterator[Any]:
    """Yields arrays of the values of a column in one row group, nulls included, a few rows at a time."""
    import pyarrow.compute

    rest = column.split(".")[1:]
    for batch in parquet.iter_batches(_ROWS_AT_ONCE, [row_group], [column], use_threads=False):
        values = batch.column(0)
        values = pyarrow.compute.struct_field(values, rest) if rest and values.type.num_fields else values
        yield values.cast(pyarrow.large_binary())  # views have no lengths


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
        BrokenParquetError: if the file cannot be read as Parquet.
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
