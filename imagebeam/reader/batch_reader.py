"""Batches of decoded pictures, made outside of TensorFlow: the decoder in C writes them where they are wanted."""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from imagebeam import features
from imagebeam.reader import crops, record_bytes, record_reader
from imagebeam.reader import options as options_lib

try:
    from imagebeam import _native
except ImportError:  # was built without a compiler, or without libjpeg-turbo
    _native = None  # type: ignore[assignment]

_ALIGNMENT = 64  # bytes: TensorFlow takes such an array as it is, and copies any other
_NUM_SPARES = 8  # examples read at once to find one that replaces another
_EMPTY: dict[str, Any] = {features.BYTES: b"", features.INT64: 0, features.FLOAT: 0.0}
_NUMPY_TYPES: dict[str, type] = {features.BYTES: object, features.INT64: np.int64, features.FLOAT: np.float32}
_HEIGHT, _WIDTH = "image/height", "image/width"


def library() -> str | None:
    """What the decoder in C was built with; None where it was not built."""
    return None if _native is None else _native.LIBRARY


def why_not(records: record_reader.Records, options: options_lib.ReadOptions) -> str | None:
    """Why the decoder in C cannot read these records so; None if it can."""
    if _native is None:
        return "imagebeam was installed without its decoder in C: docs/reader.md tells what it needs to be built"
    if options.crop is None or options.batch_size is None:
        return "it makes batches of pictures of one size: batch_size, image_size and crop must be given"
    if records.is_raw:
        return "it decodes JPEG alone, and the images are stored as pixels"
    if records.formats != {"jpeg"}:
        return f"it decodes JPEG alone, and the split holds {', '.join(sorted(records.formats)) or 'what nobody knows'}"
    if _HEIGHT not in records.by_source or _WIDTH not in records.by_source:
        return "it needs image/height and image/width, which the config dropped"
    return None


class Parsed(NamedTuple):
    """What is known of the examples of a chunk before their pictures are decoded."""

    kept: list[int]  # the places in the chunk of those that could be parsed; the rest is of them alone
    images: list[memoryview]  # encoded
    parts: np.ndarray  # int32 [k, 4]: top, left, height, width
    flips: np.ndarray  # bool [k]
    columns: list[np.ndarray]  # the label where there is one, the extra features, and the packed lists
    troubles: dict[int, record_bytes.Trouble]  # of the others, by their place in the chunk


class BatchReader:
    """Reads, parses and decodes a batch in one call. Thread-safe."""

    def __init__(self, records: record_reader.Records, options: options_lib.ReadOptions, threads: int):
        """`threads` decode the pictures of one batch."""
        self._reader = record_reader.RecordReader(records, options)
        self._options = options
        self._threads = threads
        self._buffers = _Buffers()
        self._first_label = 0 if records.label is None else options.label_base - records.label_base
        self._columns = records.columns
        self._has_label = records.label is not None
        self._has_lists = bool(records.lists)
        stored = [records.by_source[name] for name in (features.ENCODED, _HEIGHT, _WIDTH)]
        self._keys = tuple(feature.key.encode() for feature in (*stored, *self._columns))

    def read(self, first: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, ...]:
        """The examples at positions `first` to `end`.

        What cannot be read or decoded is an error. If it may be skipped, it is left out; where batches are to be full,
        the next example that can be read stands in its place too.

        Returns:
            uint8 [n, height, width, 3], RGB; int64 [n], positions; the label where there is one; the extra features;
            where there are lists, bytes [n].

        Raises:
            ShardError: if a whole shard cannot be read.
            ExampleError: if an example cannot be read or decoded, and may not be skipped.
        """
        with record_reader.calls:
            if record_reader.calls.are_over:
                raise StopIteration
            made = self._read(int(first), int(end))
            if self._reader.replaces and len(made[1]) < end - first:
                made = self._fill(made, int(first), int(end))
            return made

    def _read(self, first: int, end: int) -> tuple[np.ndarray, ...]:
        """The examples that can be read and decoded."""
        chunk = self.fetch(first, end)
        parsed = self.parse(chunk)
        images, failures = self.decode(parsed)
        troubles = dict(parsed.troubles)
        for row, failure in failures:
            record = int(chunk.records[parsed.kept[row]])
            troubles[parsed.kept[row]] = self._reader.trouble(
                record, f"the image cannot be decoded, libjpeg: {failure}"
            )
        for index in sorted(troubles):
            self._reader.lose(int(chunk.positions[index]), troubles[index])
        made = (images, chunk.positions[parsed.kept], *parsed.columns)
        lost = [row for row, _ in failures]
        return tuple(np.delete(column, lost, axis=0) for column in made) if lost else made

    def _fill(self, made: tuple[np.ndarray, ...], first: int, end: int) -> tuple[np.ndarray, ...]:
        """All positions from `first` to `end`, with the next example that can be read where one is missing."""
        positions, following = made[1], end
        while not len(positions) or positions[-1] < end - 1:
            if following >= end + self._reader.spare:
                raise self._reader.no_replacement(first)
            more = self._read(following, following + _NUM_SPARES)
            made = tuple(np.concatenate(columns) for columns in zip(made, more))
            positions, following = made[1], following + _NUM_SPARES
            if len(more[1]):
                break
        wanted = np.arange(first, end, dtype=np.int64)
        filled = [column[np.searchsorted(positions, wanted)] for column in made]
        filled[1] = wanted
        return tuple(filled)

    def fetch(self, first: int, end: int) -> record_reader.Chunk:
        """The records at positions `first` to `end`."""
        return self._reader.read(first, end)

    def parse(self, chunk: record_reader.Chunk) -> Parsed:
        """Their features, and which part of each picture is wanted."""
        kept, rows, packed, troubles = [], [], [], {}
        for index, content in enumerate(chunk.contents):
            try:
                if isinstance(content, record_bytes.Trouble):
                    troubles[index] = content
                else:
                    row = self._parse_record(content)
                    if self._has_lists:
                        packed.append(self._reader.pack_lists(content))
                    rows.append(row)
                    kept.append(index)
            except ValueError as e:
                troubles[index] = self._reader.trouble(int(chunk.records[index]), str(e))
        images, heights, widths, *others = zip(*rows) if rows else ((),) * len(self._keys)
        columns = [_column(feature, values) for feature, values in zip(self._columns, others)]
        if self._has_label and columns[0].dtype == np.int64:
            columns[0] = (columns[0] + self._first_label).astype(np.int32)
        if self._has_lists:
            columns.append(np.array(packed, object))
        uniforms = chunk.uniforms[kept]
        parts = crops.windows(np.array(heights, int), np.array(widths, int), uniforms, self._options)
        flips = (uniforms[:, -1] < 0.5) & self._options.flips
        return Parsed(kept, list(images), parts, flips, columns, troubles)

    def decode(self, parsed: Parsed) -> tuple[np.ndarray, list[tuple[int, str]]]:
        """Pictures, uint8 [k, height, width, 3], and which of them could not be decoded, and why."""
        images = self._buffers.make((len(parsed.images), *self._options.size, 3))
        return images, _native.decode(parsed.images, parsed.parts, parsed.flips, images, self._threads)

    def _parse_record(self, content: bytes) -> tuple[Any, ...]:
        """The image's bytes, its height and width, and the other features."""
        encoded, *values = _native.find_features(content, self._keys)
        if encoded is None or None in values[:2]:
            missing = self._keys[[encoded, *values].index(None)].decode()
            raise ValueError(f"feature {missing!r} is missing")
        others = [content[value] if isinstance(value, slice) else value for value in values]
        return (memoryview(content)[encoded], *others)


def _column(feature: features.Feature, values: Sequence[Any]) -> np.ndarray:
    empty = _EMPTY[feature.kind]
    column: np.ndarray = np.empty(len(values), _NUMPY_TYPES[feature.kind])
    column[:] = [empty if value is None else value for value in values]
    return column


class _Buffers:
    """Memory for batches, used again when a batch is gone: the kernel would have to clear new memory each time."""

    def __init__(self) -> None:
        self._free: list[np.ndarray] = []  # appended to and popped from by any thread

    def make(self, shape: tuple[int, ...]) -> np.ndarray:
        """An array of uint8 that nobody else holds; nobody may hold a view of it for longer than itself."""
        size = math.prod(shape)
        memory = None
        with contextlib.suppress(IndexError):
            memory = self._free.pop()
        if memory is None or memory.nbytes < size + _ALIGNMENT:
            memory = np.empty(size + _ALIGNMENT, np.uint8)
        start = -memory.ctypes.data % _ALIGNMENT
        made = memory[start : start + size].reshape(shape)
        weakref.finalize(made, self._free.append, memory).atexit = False
        return made
