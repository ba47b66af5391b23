"""Batches read, parsed and decoded in one call each: the decoder in C writes every image into its place in the batch.

Used where it can read all records of the split; elsewhere TensorFlow's operations do the same (tf_parse, tf_decode).
"""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from imagebeam import features
from imagebeam.reader import crops, python_calls, read_plan, record_bytes, record_reader
from imagebeam.reader import options as options_lib

try:
    from imagebeam import _native
except ImportError:  # installed without a compiler, or without libjpeg-turbo
    _native = None  # type: ignore[assignment]

_ALIGNMENT = 64  # bytes: TensorFlow uses an array aligned so without a copy, and copies any other
_NUM_SPARES = 8  # examples read at once to find one that replaces another
_FILTERS = {"bilinear": 1, "bicubic": 2}  # by the numbers of `_native.decode`
_PNG_START = b"\x89PNG\r\n\x1a\n"
_HEIGHT, _WIDTH = "image/height", "image/width"


def library() -> str | None:
    """Returns the JPEG library that the decoder in C was built with; None if it was not built."""
    return None if _native is None else _native.LIBRARY


def why_not(plan: read_plan.ReadPlan, options: options_lib.ReadOptions) -> str | None:
    """Returns the reason why the decoder in C cannot read these records with these options; None if it can."""
    if _native is None:
        return "imagebeam was installed without its decoder in C: docs/reader.md lists what is needed to build it"
    if options.crop is None:
        return "it makes images of one size: image_size and crop must be given"
    if plan.is_raw:
        return "it decodes only JPEG, and the images are stored as pixels"
    decoded = {"jpeg": "JPEG", "png": "PNG"} if _native.DECODES_PNG else {"jpeg": "JPEG"}
    if not plan.formats or not plan.formats <= decoded.keys():
        found = ", ".join(sorted(plan.formats)) or "unknown formats"
        return f"it decodes only {' and '.join(decoded.values())}, and the split holds {found}"
    if _HEIGHT not in plan.by_source or _WIDTH not in plan.by_source:
        return "it needs image/height and image/width, which the config dropped"
    return None


class Parsed(NamedTuple):
    """The parsed examples of a chunk, before their images are decoded."""

    kept: list[int]  # places in the chunk of the examples that were parsed; the fields below hold only these
    images: list[memoryview]  # encoded
    points: list[memoryview]  # entry points of each image, empty where it has none
    parts: np.ndarray  # int32 [k, 4]: top, left, height, width
    frames: np.ndarray | None  # float64 [k, 4], as `crops.frames`, if images are resized with a filter
    flips: np.ndarray  # bool [k]
    columns: list[np.ndarray]  # the label if there is one, the extra features, and the packed lists
    troubles: dict[int, record_bytes.Trouble]  # of the other examples, by their place in the chunk


class BatchReader:
    """Reads, parses and decodes a batch in one call. Thread-safe."""

    def __init__(self, plan: read_plan.ReadPlan, options: options_lib.ReadOptions, threads: int):
        """Takes the plan and options of the reader, and the number of threads that decode the images of one batch."""
        self.records = record_reader.RecordReader(plan, options)
        self._options = options
        self._threads = threads
        self._buffers = _Buffers()
        self._first_label = 0 if plan.label is None else options.label_base - plan.label_base
        self._columns = plan.columns
        self._has_label = plan.label is not None
        self._has_lists = bool(plan.lists)
        stored = [plan.by_source[name] for name in (features.ENCODED, _HEIGHT, _WIDTH)]
        points = plan.by_source.get(features.ENTRY_POINTS)
        self._has_points = points is not None
        self._keys = tuple(feature.key.encode() for feature in (*stored, *self._columns))
        self._all_keys = self._keys if points is None else (*self._keys, points.key.encode())

    def read(self, first: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, ...]:
        """Returns the examples at positions `first` to `end`.

        An example that cannot be read or decoded is an error. If it may be skipped, it is left out; if all batches must
        be full, the next example that can be read takes its place.

        Returns:
            uint8 [n, height, width, 3], RGB; int64 [n], positions; the label if there is one; the extra features; if
            there are lists, bytes [n].

        Raises:
            ShardError: if a whole shard cannot be read.
            ExampleError: if an example cannot be read or decoded, and may not be skipped.
        """
        with python_calls.calls:
            if python_calls.calls.is_closed:
                raise StopIteration
            batch = self._read(int(first), int(end))
            if self.records.replaces and len(batch[1]) < end - first:
                batch = self._fill(batch, int(first), int(end))
            return batch

    def _read(self, first: int, end: int) -> tuple[np.ndarray, ...]:
        """Returns the examples that can be read and decoded."""
        chunk = self.records.read(first, end)
        parsed = self.parse(chunk)
        images, failures = self.decode(parsed)
        troubles = dict(parsed.troubles)
        for row, failure in failures:
            record = int(chunk.records[parsed.kept[row]])
            library = "libpng" if parsed.images[row][: len(_PNG_START)] == _PNG_START else "libjpeg"
            troubles[parsed.kept[row]] = self.records.trouble(
                record, f"the image cannot be decoded, {library}: {failure}"
            )
        for index in sorted(troubles):
            self.records.lose(int(chunk.positions[index]), troubles[index])
        made = (images, chunk.positions[parsed.kept], *parsed.columns)
        lost = [row for row, _ in failures]
        return tuple(np.delete(column, lost, axis=0) for column in made) if lost else made

    def _fill(self, made: tuple[np.ndarray, ...], first: int, end: int) -> tuple[np.ndarray, ...]:
        """Returns `made` with all positions from `first` to `end`: the next readable example replaces a missing one."""
        positions, following = made[1], end
        while not len(positions) or positions[-1] < end - 1:
            if following >= end + self.records.spare:
                raise self.records.no_replacement(first)
            more = self._read(following, following + _NUM_SPARES)
            made = tuple(np.concatenate(columns) for columns in zip(made, more))
            positions, following = made[1], following + _NUM_SPARES
            if len(more[1]):
                break
        wanted = np.arange(first, end, dtype=np.int64)
        filled = [column[np.searchsorted(positions, wanted)] for column in made]
        filled[1] = wanted
        return tuple(filled)

    def parse(self, chunk: record_reader.Chunk) -> Parsed:
        """Returns the features of the examples in a chunk, and which part of each image the batch takes."""
        kept, rows, packed, troubles = [], [], [], {}
        for index, content in enumerate(chunk.contents):
            try:
                if isinstance(content, record_bytes.Trouble):
                    troubles[index] = content
                else:
                    row = self._parse_record(content)
                    if self._has_lists:
                        packed.append(self.records.pack_lists(content))
                    rows.append(row)
                    kept.append(index)
            except ValueError as e:
                troubles[index] = self.records.trouble(int(chunk.records[index]), str(e))
        images, points, heights, widths, *others = zip(*rows) if rows else ((),) * (1 + len(self._keys))
        columns = [_column(feature, values) for feature, values in zip(self._columns, others)]
        if self._has_label and columns[0].dtype == np.int64:
            columns[0] = (columns[0] + self._first_label).astype(np.int32)
        if self._has_lists:
            columns.append(np.array(packed, object))
        uniforms, sides = chunk.uniforms[kept], (np.array(heights, int), np.array(widths, int))
        parts = crops.windows(*sides, uniforms, self._options)
        frames = crops.frames(*sides, parts, self._options) if self._options.filters else None
        flips = (uniforms[:, -1] < 0.5) & self._options.flips
        return Parsed(kept, list(images), list(points), parts, frames, flips, columns, troubles)

    def decode(self, parsed: Parsed) -> tuple[np.ndarray, list[tuple[int, str]]]:
        """Returns the images, uint8 [k, height, width, 3], and the row and error of each one that cannot be decoded."""
        images = self._buffers.make((len(parsed.images), *self._options.size, 3))
        failures = _native.decode(
            parsed.images,
            parsed.parts,
            parsed.flips,
            images,
            self._threads,
            parsed.points,
            parsed.frames,
            _FILTERS[self._options.interpolation],
            self._options.antialias,
            self._options.dct == "accurate",
        )
        return images, failures

    def _parse_record(self, content: bytes) -> tuple[Any, ...]:
        """Returns the image's bytes, its entry points, its height and width, and the other features."""
        encoded, *values = _native.find_features(content, self._all_keys)
        points = values.pop() if self._has_points else None
        if encoded is None or None in values[:2]:
            missing = self._keys[[encoded, *values].index(None)].decode()
            raise ValueError(f"feature {missing!r} is missing")
        others = [content[value] if isinstance(value, slice) else value for value in values]
        view = memoryview(content)
        return (view[encoded], view[points if isinstance(points, slice) else slice(0)], *others)


def _column(feature: features.Feature, values: Sequence[Any]) -> np.ndarray:
    empty = features.EMPTY_VALUES[feature.kind]
    column: np.ndarray = np.empty(len(values), features.NUMPY_DTYPES[feature.kind])
    column[:] = [empty if value is None else value for value in values]
    return column


class _Buffers:
    """Memory for batches, reused when a batch is gone: the kernel would have to clear new memory each time."""

    def __init__(self) -> None:
        self._free: list[np.ndarray] = []  # appended to and popped from by any thread

    def make(self, shape: tuple[int, ...]) -> np.ndarray:
        """Returns a uint8 array that nobody else holds. No view of it may outlive the array itself."""
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
