"""Batches read, parsed and decoded in one call each: the decoder in C writes every image into its place in the batch.

Used where it can read all records of the split; elsewhere TensorFlow's operations do the same (tf_parse, tf_decode).
"""

from __future__ import annotations

import contextlib
import math
import weakref
from typing import NamedTuple

import numpy as np

from imagebeam import features
from imagebeam.reader import crops, python_calls, read_plan, record_bytes, record_reader
from imagebeam.reader import options as options_lib

try:
    from imagebeam import _native
except ImportError:  # installed without a compiler, or without libjpeg-turbo
    _native = None  # type: ignore[assignment]

_ALIGNMENT = 64  # bytes: TensorFlow uses an array aligned so without a copy, and copies any other
_MAX_FREE = 4  # buffers that wait for a batch; a reader in motion has one or two
_NUM_SPARES = 8  # examples read at once to find one that replaces another
_FILTERS = {"bilinear": 1, "bicubic": 2}  # by the numbers of `_native.decode`
_PNG_START = b"\x89PNG\r\n\x1a\n"
_HEIGHT, _WIDTH = "image/height", "image/width"
_NUM_NEEDED = 3  # of the features: the image, its height and its width


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

    def __init__(
        self,
        plan: read_plan.ReadPlan,
        options: options_lib.ReadOptions,
        threads: int,
        values: np.ndarray | None = None,
    ):
        """Opens nothing yet.

        Args:
            plan: plan of the reader.
            options: options of the reader.
            threads: number of threads that decode the images of one batch.
            values: [3, 256], what each level of each channel becomes, of the type of the images; None: uint8 as it is.
        """
        self.records = record_reader.RecordReader(plan, options)
        self._options = options
        self._threads = threads
        self._dtype = np.dtype(np.uint8) if values is None else values.dtype
        # By the number of their bytes: NumPy passes no bfloat16 on to C.
        self._values = None if values is None else values.view(f"u{values.itemsize}")
        self._buffers = _Buffers()
        self._first_label = 0 if plan.label is None else options.label_base - plan.label_base
        self._columns = plan.columns
        self._has_label = plan.label is not None
        self._has_lists = bool(plan.lists)
        stored = [plan.by_source[name] for name in (features.ENCODED, _HEIGHT, _WIDTH)]
        points = plan.by_source.get(features.ENTRY_POINTS)
        self._has_points = points is not None
        wanted = [*stored, *self._columns, *([] if points is None else [points])]
        self._keys = tuple(feature.key.encode() for feature in wanted)
        self._kinds = [feature.kind for feature in wanted]

    def read(self, first: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, ...]:
        """Returns the examples at positions `first` to `end`.

        An example that cannot be read or decoded is an error. If it may be skipped, it is left out; if all batches must
        be full, the next example that can be read takes its place.

        Returns:
            images [n, height, width, 3], RGB; int64 [n], positions; the label if there is one; the extra features; if
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
        kept, contents, troubles = [], [], {}
        for index, content in enumerate(chunk.contents):
            if isinstance(content, record_bytes.Trouble):
                troubles[index] = content
            else:
                kept.append(index)
                contents.append(content)
        values, failures = self._find_features(contents)
        packed: list[bytes] = []
        if self._has_lists:
            packed, more = self._pack_lists(contents)
            failures = {**more, **failures}
        if failures:
            for row, failure in failures.items():
                troubles[kept[row]] = self.records.trouble(int(chunk.records[kept[row]]), failure)
            rows = [row for row in range(len(kept)) if row not in failures]
            kept, contents = [kept[row] for row in rows], [contents[row] for row in rows]
            values = [each[rows] for each in values]
            packed = [packed[row] for row in rows] if packed else []
        spans, heights, widths, *others = values
        images = _slices(contents, spans)
        points = [memoryview(b"")] * len(images)
        if self._has_points:
            points = _slices(contents, others.pop())
        columns = [_column(feature, contents, value) for feature, value in zip(self._columns, others)]
        if self._has_label and columns[0].dtype == np.int64:
            columns[0] = (columns[0] + self._first_label).astype(np.int32)
        if self._has_lists:
            columns.append(np.array(packed, object))
        uniforms, sides = chunk.uniforms[kept], (heights, widths)
        parts = crops.windows(*sides, uniforms, self._options)
        frames = crops.frames(*sides, parts, self._options) if self._options.filters else None
        flips = (uniforms[:, -1] < 0.5) & self._options.flips
        return Parsed(kept, images, points, parts, frames, flips, columns, troubles)

    def decode(self, parsed: Parsed) -> tuple[np.ndarray, list[tuple[int, str]]]:
        """Returns the images, [k, height, width, 3], and the row and error of each one that cannot be decoded."""
        images = self._buffers.make((len(parsed.images), *self._options.size, 3), self._dtype)
        failures = _native.decode(
            parsed.images,
            parsed.parts,
            parsed.flips,
            images.view(f"u{self._dtype.itemsize}"),
            self._threads,
            parsed.points,
            parsed.frames,
            _FILTERS[self._options.interpolation],
            self._options.antialias,
            self._options.dct == "accurate",
            self._values,
        )
        return images, failures

    def _find_features(self, contents: list[bytes]) -> tuple[list[np.ndarray], dict[int, str]]:
        """Returns the values of `_keys` in each record, and by its row why one cannot be used.

        Returns:
            For each key int64 [n], float32 [n], or for bytes int64 [n, 2]: where they begin and end in their record.
            Zeros for what a record lacks. The failures.
        """
        found = np.zeros((len(contents), len(self._keys)), np.bool_)
        values = []
        for kind in self._kinds:
            is_bytes = kind == features.BYTES
            shape, dtype = (
                ((len(contents), 2), "int64") if is_bytes else ((len(contents),), features.NUMPY_DTYPES[kind])
            )
            values.append(np.zeros(shape, dtype))
        failures = dict(_native.find_features(contents, self._keys, tuple(values), found))
        for index in np.flatnonzero(~found.all(axis=0)).tolist():
            values[index][~found[:, index]] = (
                0  # of a key that is there twice, the last one empty, the first was written
            )
        needed = found[:, :_NUM_NEEDED]
        for row in np.flatnonzero(~needed.all(axis=1)).tolist():
            missing = self._keys[int(np.argmin(needed[row]))].decode()
            failures.setdefault(row, f"feature {missing!r} is missing")
        return values, failures

    def _pack_lists(self, contents: list[bytes]) -> tuple[list[bytes], dict[int, str]]:
        """Returns the packed lists of each record, and by its row why it cannot be read."""
        packed, failures = [], {}
        for row, content in enumerate(contents):
            try:
                packed.append(self.records.pack_lists(content))
            except ValueError as e:
                packed.append(b"")
                failures[row] = str(e)
        return packed, failures


def _slices(contents: list[bytes], spans: np.ndarray) -> list[memoryview]:
    return [memoryview(content)[start:stop] for content, (start, stop) in zip(contents, spans.tolist())]


def _column(feature: features.Feature, contents: list[bytes], values: np.ndarray) -> np.ndarray:
    """Returns the values of a feature: numbers as they are, bytes out of their spans in the records."""
    if feature.kind != features.BYTES:
        return values
    column: np.ndarray = np.empty(len(contents), object)
    column[:] = [content[start:stop] for content, (start, stop) in zip(contents, values.tolist())]
    return column


class _Buffers:
    """Memory for batches, reused when a batch is gone: the kernel would have to clear new memory each time."""

    def __init__(self) -> None:
        self._free: list[np.ndarray] = []  # appended to and popped from by any thread

    def make(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Returns an array that nobody else holds. No view of it may outlive the array itself."""
        size = math.prod(shape) * dtype.itemsize
        memory = None
        with contextlib.suppress(IndexError):
            memory = self._free.pop()
        if memory is None or memory.nbytes < size + _ALIGNMENT:
            memory = np.empty(size + _ALIGNMENT, np.uint8)
        start = -memory.ctypes.data % _ALIGNMENT
        made = memory[start : start + size].view(dtype).reshape(shape)
        weakref.finalize(made, self._take_back, memory).atexit = False
        return made

    def _take_back(self, memory: np.ndarray) -> None:
        if len(self._free) < _MAX_FREE:  # of more batches that a user held, the memory goes
            self._free.append(memory)
