"""Batches read, parsed and decoded in one call each, by the decoder in C or by TensorFlow's (`tf_decode`).

The decoder in C writes every image into its place in the batch. It is used where it can read all records of the split.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import math
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from imagebeam import concurrency, errors, example, features, plural
from imagebeam.reader import (
    bare_pixels,
    crops,
    extra_images,
    image_lists,
    read_plan,
    record_order,
    shard_files,
    skipped_examples,
)
from imagebeam.reader import options as options_lib

try:
    from imagebeam import _native
except ImportError:  # installed without a compiler, or without libjpeg-turbo
    _native = None  # type: ignore[assignment]

_LOGGER = logging.getLogger("imagebeam.dataset")
# The wait at exit for calls from TensorFlow's threads.
_CHECK_SEC, _QUIET_CHECKS, _MAX_WAIT_SEC = 0.005, 6, 5.0
_ALIGNMENT = 64  # bytes: TensorFlow uses an array aligned so without a copy, and copies any other
_MAX_FREE = 4  # buffers that wait for a batch; a reader in motion has one or two
_NUM_SPARES = 8  # examples read at once to find one that replaces another
_FILTERS = {"bilinear": 1, "bicubic": 2}  # the numbers that `_native.decode` takes
_PNG_START = b"\x89PNG\r\n\x1a\n"
_HEIGHT, _WIDTH, _CHANNELS = bare_pixels.SHAPE


class Calls(concurrency.RebuiltAfterFork):
    """Counts calls from TensorFlow's threads, and waits for them at exit. Use it as a context manager in each call.

    A thread that is running Python code at interpreter shutdown dies there, and the interpreter would then wait
    forever for an iterator that waits for the thread.
    """

    def __init__(self) -> None:
        super().__init__()
        self.is_closed = False  # the interpreter is shutting down: pipelines end at their next call
        atexit.register(self._end)

    def rebuild(self) -> None:
        self._lock = threading.Lock()
        self._begun = self._ended = 0

    def __enter__(self) -> None:
        with self._lock:
            self._begun += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._ended += 1

    def _end(self) -> None:
        self.is_closed = True
        seen, quiet, deadline = -1, 0, time.monotonic() + _MAX_WAIT_SEC
        while quiet < _QUIET_CHECKS and time.monotonic() < deadline:
            time.sleep(_CHECK_SEC)
            quiet = quiet + 1 if seen == self._begun == self._ended else 0
            seen = self._begun


calls = Calls()


def library() -> str | None:
    """Returns the JPEG library that the decoder in C was built with; None if it was not built."""
    return None if _native is None else _native.LIBRARY


def why_not(plan: read_plan.ReadPlan, options: options_lib.ReadOptions) -> str | None:
    """Returns the reason why the decoder in C cannot read these records with these options; None if it can."""
    if _native is None:
        return "imagebeam was installed without its decoder in C: docs/reader.md lists what is needed to build it"
    if options.crop is None:
        return "it makes images of one size: image_size and crop must be given"
    if not plan.form.is_usual:
        stored = plural.count(plan.form.channels, "channel")
        return f"it makes RGB of 8 bits, and the images have {stored} of {plan.form.dtype}"
    if plan.is_raw:
        return "it decodes only JPEG, and the images are stored as pixels"
    decoded = {"jpeg": "JPEG", "png": "PNG"} if _native.DECODES_PNG else {"jpeg": "JPEG"}
    if not plan.formats or not plan.formats <= decoded.keys():
        found = ", ".join(sorted(plan.formats)) or "unknown formats"
        return f"it decodes only {' and '.join(decoded.values())}, and the split holds {found}"
    if _HEIGHT not in plan.by_source or _WIDTH not in plan.by_source:
        return "it needs image/height and image/width, which the config dropped"
    return None


class Chunk(NamedTuple):
    """The records at consecutive positions."""

    contents: list[bytes | shard_files.RecordFault]
    positions: np.ndarray  # int64 [n]
    records: np.ndarray  # int64 [n], numbers of the records in the split
    uniforms: np.ndarray  # float32 [n, crops.NUM_UNIFORMS], random numbers in [0, 1)


class Parsed(NamedTuple):
    """The parsed examples of a chunk, before their images are decoded."""

    kept: list[int]  # places in the chunk of the examples that were parsed; the fields below hold only these
    owners: np.ndarray | None  # index in `kept` of the example of each image; None if each has one
    images: list[bytes | memoryview]  # encoded, or bare pixels
    points: list[bytes | memoryview]  # entry points of each image, empty where it has none
    sizes: np.ndarray | None  # int32 [k, 2]: height and width of each image, as its record says; None if unknown
    shapes: np.ndarray | None  # int64 [k, 3] of bare pixels: height, width, channels
    parts: np.ndarray | None  # int32 [k, 4]: top, left, height, width; None for whole images
    frames: np.ndarray | None  # float64 [k, 4], as `crops.frames`, if images are resized with a filter
    flips: np.ndarray  # bool [k]
    columns: list[np.ndarray]  # the label if there is one, the extra features, arrays last, and the packed lists
    extra: list[Any]  # for each extra image a Parsed of it, with the places and flips of the first
    faults: dict[int, shard_files.RecordFault]  # by their place in the chunk, the faults of the other examples


Failures: TypeAlias = list[tuple[int, str]]  # the row of each image that cannot be decoded, and why
# Returns the images, [k, height, width, 3], and the failures.
Decode: TypeAlias = Callable[[Parsed], tuple[np.ndarray, Failures]]
# Returns height and width of each image, int64 [n], and the failures.
Measure: TypeAlias = Callable[[Sequence[bytes | memoryview]], tuple[np.ndarray, np.ndarray, Failures]]


class BatchReader:
    """Reads, parses and decodes a batch in one call. Thread-safe."""

    def __init__(
        self,
        plan: read_plan.ReadPlan,
        options: options_lib.ReadOptions,
        threads: int,
        values: np.ndarray | None = None,
        by_tensorflow: tuple[Decode, Measure] | None = None,
        decode_numbers: Mapping[bare_pixels.PixelForm, Decode] | None = None,
    ):
        """Opens nothing yet.

        Args:
            plan: plan of the reader.
            options: options of the reader.
            threads: number of threads that decode the images of one batch.
            values: [3, 256], what each level of each channel becomes, of the type of the images; None: uint8 as it is.
            by_tensorflow: decodes images, and finds their sizes where records have none; None: the decoder in C.
            decode_numbers: decodes the extra images of each form that are masks or other numbers.
        """
        self._fetcher = plan.fetcher
        self._schedule = plan.schedule
        self._options = options
        self._random_key = record_order.make_key("pixels", options.seed)
        self._skipped = skipped_examples.SkippedExamples(options, plan.schedule.begin)
        self._threads = threads
        self.values = values
        self._dtype = np.dtype(np.uint8) if values is None else values.dtype
        self._by_tensorflow = by_tensorflow
        self._decode_numbers = decode_numbers or {}
        self._buffers = _Buffers()
        self._first_label = 0 if plan.label is None else options.label_base - plan.label_base
        self._columns = tuple(plan.columns.values())
        self._arrays = tuple(plan.arrays.values())
        self._has_label = plan.label is not None
        self._list_keys = frozenset(feature.key for feature in plan.lists)
        self._is_raw, self._form = plan.is_raw, plan.form
        sizes = [plan.by_source.get(name) for name in (_HEIGHT, _WIDTH, *([_CHANNELS] if plan.is_raw else []))]
        self._sizes = [feature for feature in sizes if feature is not None] if None not in sizes else []
        points = plan.by_source.get(features.ENTRY_POINTS) if by_tensorflow is None else None
        self._has_points = points is not None
        self._image = plan.by_source[features.ENCODED]
        self._extra = plan.images
        needed = [self._image, *self._sizes, *(feature for each in plan.images for feature in each.stored)]
        self._lists = (needed[0].key, *(each.key for each in self._sizes)) if plan.has_lists_of_images else ()
        if self._lists:
            needed = []
        self._max_images = options.max_images or 0
        self._needed = len(needed)
        self._wanted = [*needed, *self._columns, *([] if points is None else [points])]
        self._keys = tuple(feature.key.encode() for feature in self._wanted)

    def read(self, first: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, ...]:
        """Returns the examples at positions `first` to `end`.

        An example that cannot be read or decoded is an error. If it may be skipped, it is left out; if all batches must
        be full, the next example that can be read takes its place.

        Returns:
            images [n, height, width, channels] in the plan's form, or cast, or of lists [n, max_images, height, ...];
            int64 [n], positions; the label if there is one; the extra features; if there are lists, bytes [n]; the
            number of images, if there are lists of them, int64 [n]; the extra images, as images or of their own form.

        Raises:
            ShardError: if a whole shard cannot be read.
            ExampleError: if an example cannot be read or decoded, and may not be skipped.
        """
        with calls:
            if calls.is_closed:
                raise StopIteration
            options, batch = self._options, self._read(int(first), int(end))
            is_full = options.batch_size is not None and options.drops_remainder
            return self._fill(batch, int(first), int(end)) if is_full and len(batch[1]) < end - first else batch

    def read_chunk(self, first: int, end: int) -> Chunk:
        """Returns the records at positions `first` to `end`.

        Raises:
            ShardError: if a whole shard cannot be read.
        """
        positions = np.arange(first, end, dtype=np.int64)
        records, epochs = self._schedule.order.locate(positions)
        contents = list(self._fetcher.fetch(records, epochs))
        uniforms = record_order.uniforms(records, epochs, self._random_key, crops.NUM_UNIFORMS)
        return Chunk(contents, positions, records, uniforms)

    def _read(self, first: int, end: int) -> tuple[np.ndarray, ...]:
        """Returns the examples that can be read and decoded."""
        chunk = self.read_chunk(first, end)
        parsed = self.parse(chunk)
        images, failures = self.decode(parsed)
        faults = dict(parsed.faults)
        for number, failure in failures:
            row, what = number, "the image"
            if parsed.owners is not None:
                row = int(parsed.owners[number])
                what = f"image {image_lists.places_of(parsed.owners)[number]} of its list"
            record = int(chunk.records[parsed.kept[row]])
            library = "libpng" if parsed.images[number][: len(_PNG_START)] == _PNG_START else "libjpeg"
            library = library if self._by_tensorflow is None else "TensorFlow"
            fault = self._fetcher.fault(record, f"{what} cannot be decoded, {library}: {failure}")
            faults.setdefault(parsed.kept[row], fault)
        if parsed.owners is not None:
            failures = [(int(parsed.owners[number]), failure) for number, failure in failures]
            stacked = self._buffers.make((len(parsed.kept), self._max_images, *images.shape[1:]), images.dtype)
            images = image_lists.stack(images, parsed.owners, stacked, self.values)
        others = []
        for extra, one in zip(self._extra, parsed.extra, strict=True):
            decoded, more = self.decode(one) if extra.form is None else self._decode_numbers[extra.form](one)
            others.append(decoded)
            for row, failure in more:
                detail = f"image {extra.name!r} cannot be decoded: {failure}"
                faults[parsed.kept[row]] = self._fetcher.fault(int(chunk.records[parsed.kept[row]]), detail)
            failures = [*failures, *more]
        for index in sorted(faults):
            self._skipped.add(int(chunk.positions[index]), faults[index])
        made = (images, chunk.positions[parsed.kept], *parsed.columns, *others)
        lost = [row for row, _ in failures]
        return tuple(np.delete(column, lost, axis=0) for column in made) if lost else made

    def _fill(self, made: tuple[np.ndarray, ...], first: int, end: int) -> tuple[np.ndarray, ...]:
        """Returns `made` with all positions from `first` to `end`: the next readable example replaces a missing one."""
        positions, following = made[1], end
        while not len(positions) or positions[-1] < end - 1:
            if following >= end + self._schedule.spare:  # an epoch
                raise errors.ExampleError(
                    "examples-all-broken",
                    f"none of {self._schedule.spare:,} examples from position {first:,} on could be read or decoded, "
                    f"and a batch of {self._options.batch_size} needs one: run imagebeam verify --decode",
                )
            more = self._read(following, following + _NUM_SPARES)
            made = tuple(np.concatenate(columns) for columns in zip(made, more))
            positions, following = made[1], following + _NUM_SPARES
            if len(more[1]):
                break
        wanted = np.arange(first, end, dtype=np.int64)
        filled = [column[np.searchsorted(positions, wanted)] for column in made]
        filled[1] = wanted
        return tuple(filled)

    def parse(self, chunk: Chunk) -> Parsed:
        """Returns the features of the examples in a chunk, and which part of each image the batch takes."""
        kept, contents, faults = [], [], {}
        for index, content in enumerate(chunk.contents):
            if isinstance(content, shard_files.RecordFault):
                faults[index] = content
            else:
                kept.append(index)
                contents.append(content)
        values, failures = self._find_features(contents)
        packed: list[bytes] = []
        if self._list_keys:
            packed, more = self._pack_lists(contents)
            failures = {**more, **failures}
        arrays: list[np.ndarray] = []
        if self._arrays:
            arrays, more = self._find_arrays(contents)
            failures = {**more, **failures}
        every: list[list[Any]]  # of each example its image, or the ImageList; then the extra images
        if self._lists:
            listed, more = self._find_lists(contents)
            every, sizes, failures = [listed], [], {**more, **failures}
        else:
            every, sizes = [_bytes_in(contents, values[0])], values[1 : 1 + len(self._sizes)]
        if self._is_raw:
            failures |= _check_pixels(every[0], sizes, failures, self._form)
        elif not sizes and self._options.crop is not None and not self._lists:
            assert self._by_tensorflow is not None, "why_not"
            *sizes, unknown = self._by_tensorflow[1](every[0])
            failures |= {row: f"the image cannot be decoded, TensorFlow: {failure}" for row, failure in unknown}
        sides, place = [(sizes[0], sizes[1])] if sizes else [], 1 + len(self._sizes)
        for extra in self._extra:
            encoded, *own = values[place : place + len(extra.stored)]
            every.append(_bytes_in(contents, encoded))
            sides.append((own[0], own[1]) if own else sides[0])
            place += len(extra.stored)
        if self._extra and self._options.crop not in ("squash", None):
            failures = {**extra_images.unlike(self._extra, sides), **failures}
        rows = [row for row in range(len(kept)) if row not in failures]
        for row, failure in failures.items():
            faults[kept[row]] = self._fetcher.fault(int(chunk.records[kept[row]]), failure)
        others: list[Any] = [_bytes_in(contents, each) if _is_bytes(each) else each for each in values[self._needed :]]
        if failures:
            kept, packed = _at(kept, rows), _at(packed, rows) if packed else []
            every, sides = [_at(each, rows) for each in every], [(each[0][rows], each[1][rows]) for each in sides]
            sizes, arrays = [each[rows] for each in sizes], [each[rows] for each in arrays]
            others = [each[rows] if isinstance(each, np.ndarray) else _at(each, rows) for each in others]
        points = others.pop() if self._has_points else [b""] * len(kept)
        columns = [*map(_column, others), *arrays]
        if self._has_label and columns[0].dtype == np.int64:
            columns[0] = (columns[0] + self._first_label).astype(np.int32)
        if self._list_keys:
            columns.append(np.array(packed, object))
        uniforms, owners = chunk.uniforms[kept], None
        if self._lists:
            columns.append(np.array([each.num_stored for each in every[0]], np.int64))
            flat, owners, sides_of_each = image_lists.flatten(every[0])
            every, sides, points = [flat], [sides_of_each], [b""] * len(flat)
            uniforms = uniforms[owners]
        windows: list[Any] = [None] * len(sides)
        if self._options.crop is not None:
            windows = crops.windows_alike(sides, uniforms, self._options)
        shapes = np.stack(sizes, axis=1) if self._is_raw else None
        flips = (uniforms[:, -1] < 0.5) & self._options.flips
        first = Parsed(kept, owners, every[0], points, None, shapes, None, None, flips, columns, [], faults)
        beside = Parsed(kept, None, [], [b""] * len(kept), None, None, None, None, flips, [], [], {})
        parsed = [first, *(beside._replace(images=images) for images in every[1:])]
        for index, ((height, width), parts) in enumerate(zip(sides, windows, strict=True)):
            frames = crops.frames(height, width, parts, self._options) if self._options.filters else None
            stated = np.stack([height, width], axis=1).clip(-1, np.iinfo(np.int32).max).astype(np.int32)
            parsed[index] = parsed[index]._replace(sizes=stated, parts=parts, frames=frames)
        return parsed[0]._replace(extra=parsed[1:])

    def decode(self, parsed: Parsed) -> tuple[np.ndarray, Failures]:
        """Returns the images, [k, height, width, 3], and the row and error of each one that cannot be decoded."""
        if self._by_tensorflow is not None:
            return self._by_tensorflow[0](parsed)
        assert parsed.parts is not None and parsed.sizes is not None, "why_not"
        images = self._buffers.make((len(parsed.images), *self._options.size, 3), self._dtype)
        failures = _native.decode(
            parsed.images,
            parsed.parts,
            parsed.flips,
            images.view(f"u{self._dtype.itemsize}"),  # NumPy passes no bfloat16 on to C
            self._threads,
            parsed.points,
            parsed.frames,
            _FILTERS[self._options.interpolation],
            self._options.antialias,
            self._options.dct == "accurate",
            None if self.values is None else self.values.view(f"u{self._dtype.itemsize}"),
            parsed.sizes,
        )
        return images, failures

    def _find_features(self, contents: list[bytes]) -> tuple[list[np.ndarray], dict[int, str]]:
        """Returns the values of `_wanted` in each record, and by its row why one cannot be used.

        Returns:
            For each feature int64 [n], float32 [n], or of bytes either the values, object [n], or where they begin and
            end in their record, int64 [n, 2]. Zeros for what a record lacks. The failures.
        """
        found = np.zeros((len(contents), len(self._keys)), np.bool_)
        in_c = _native is not None and (not self._image.many or bool(self._lists))
        values = []
        for feature in self._wanted:
            if feature.kind == features.BYTES or feature.many:
                values.append(np.zeros((len(contents), 2), "int64") if in_c else np.full(len(contents), b"", object))
            else:
                values.append(np.zeros(len(contents), features.NUMPY_DTYPES[feature.kind]))
        if in_c:
            failures = dict(_native.find_features(contents, self._keys, tuple(values), found))
        else:
            failures = self._find_in_python(contents, values, found)
        for index in np.flatnonzero(~found.all(axis=0)).tolist():
            # If a key is there twice and the last one is empty, the first was written.
            values[index][~found[:, index]] = b"" if values[index].dtype == object else 0
        needed = found[:, : self._needed]
        for row in np.flatnonzero(~needed.all(axis=1)).tolist():
            missing = self._keys[int(np.argmin(needed[row]))].decode()
            failures.setdefault(row, f"feature {missing!r} is missing")
        return values, failures

    def _find_in_python(self, contents: list[bytes], values: list[np.ndarray], found: np.ndarray) -> dict[int, str]:
        failures = {}
        for row, content in enumerate(contents):
            try:
                parsed = example.parse_example(content, (self._image.key,) if self._image.many else ())
                for index, feature in enumerate(self._wanted):
                    stored = parsed.get(feature.key, ())
                    if feature.many:
                        values[index][row], found[row, index] = _to_bytes(stored), True
                    elif len(stored):
                        values[index][row], found[row, index] = stored[-1], True
            except (TypeError, ValueError) as e:
                failures[row] = str(e)
        return failures

    def _find_lists(self, contents: list[bytes]) -> tuple[list[image_lists.ImageList], dict[int, str]]:
        """Returns the images of each record, and by its row why they cannot be used."""
        found, failures = [], {}
        for row, content in enumerate(contents):
            try:
                found.append(image_lists.find(content, self._lists, self._max_images))
            except ValueError as e:
                found.append(image_lists.NOTHING)
                failures[row] = str(e)
        return found, failures

    def _pack_lists(self, contents: list[bytes]) -> tuple[list[bytes], dict[int, str]]:
        """Returns the packed lists of each record, and by its row why it cannot be read."""
        packed, failures = [], {}
        for row, content in enumerate(contents):
            try:
                packed.append(example.select_features(content, self._list_keys))
            except ValueError as e:
                packed.append(b"")
                failures[row] = str(e)
        return packed, failures

    def _find_arrays(self, contents: list[bytes]) -> tuple[list[np.ndarray], dict[int, str]]:
        """Returns the arrays of each record, [n, *shape], and by its row why those of a record cannot be used."""
        keys, failures = {feature.key for feature in self._arrays}, {}
        arrays = [
            np.full(
                (len(contents), *(feature.shape or ())),
                b"" if feature.kind == features.BYTES else 0,
                features.NUMPY_DTYPES[feature.kind],
            )
            for feature in self._arrays
        ]
        for row, content in enumerate(contents):
            try:
                values = example.parse_example(example.select_features(content, keys), keys)
                for feature, array in zip(self._arrays, arrays):
                    array[row] = example.to_array(feature, values.get(feature.key, ()))
            except ValueError as e:
                failures[row] = str(e)
        return arrays, failures


def _to_bytes(pixels: Sequence[Any]) -> bytes:
    try:
        return bare_pixels.to_bytes(pixels)
    except ValueError as e:
        raise ValueError(f"the image cannot be decoded: {e}") from e


def _is_bytes(values: np.ndarray) -> bool:
    return values.dtype == object or values.ndim == 2


def _bytes_in(contents: list[bytes], values: np.ndarray) -> list[bytes | memoryview]:
    """Returns the values of a feature of bytes, out of their spans in the records without a copy."""
    if values.dtype == object:
        return values.tolist()
    return [memoryview(content)[start:stop] for content, (start, stop) in zip(contents, values.tolist())]


def _at(values: Sequence[Any], rows: list[int]) -> list[Any]:
    return [values[row] for row in rows]


def _column(values: np.ndarray | Sequence[bytes | memoryview]) -> np.ndarray:
    """Returns the values of a feature in one array; bytes are copied out of their records."""
    if isinstance(values, np.ndarray):
        return values
    column: np.ndarray = np.empty(len(values), object)
    column[:] = [bytes(each) for each in values]
    return column


def _check_pixels(
    images: Sequence[bytes | memoryview],
    sizes: Sequence[np.ndarray],
    known: Iterable[int],
    form: bare_pixels.PixelForm,
) -> dict[int, str]:
    """Returns by its row why bare pixels are no image: there are not height * width * channels of them."""
    failures = {}
    for row, (image, *shape) in enumerate(zip(images, *(each.tolist() for each in sizes))):
        height, width, channels = shape
        if not form.fits(len(image), height, width, channels):
            failures[row] = (
                f"the image cannot be decoded: it is {len(image) // form.value_bytes:,} values, and the example says "
                f"{height} x {width} pixels of {channels} channels"
            )
    return {row: failure for row, failure in failures.items() if row not in set(known)}


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
        if len(self._free) < _MAX_FREE:  # else the memory is freed
            self._free.append(memory)
