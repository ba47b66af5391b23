"""Finds in each record the features that a batch has, and decides which part of its images the batch takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from imagebeam import example, features
from imagebeam.reader import (
    bare_pixels,
    crops,
    extra_images,
    image_changes,
    image_decoder,
    image_lists,
    read_plan,
    shard_files,
    whole_images,
)
from imagebeam.reader import options as options_lib

try:
    from imagebeam import _native
except ImportError:  # installed without a compiler, or without libjpeg-turbo
    _native = None  # type: ignore[assignment]

_HEIGHT, _WIDTH, _CHANNELS = bare_pixels.SHAPE
_OBJECTS = "objects/"  # begins the names of the lists of objects in here


class Chunk(NamedTuple):
    """The records at consecutive positions."""

    contents: list[bytes | shard_files.RecordFault]
    positions: np.ndarray  # int64 [n]
    records: np.ndarray  # int64 [n], numbers of the records in the split
    rounds: np.ndarray  # int64 [n], as of `record_order.seeds`
    uniforms: np.ndarray  # float32 [n, views, NUM_UNIFORMS], random numbers in [0, 1)


class Parsed(NamedTuple):
    """The parsed examples of a chunk, before their images are decoded."""

    kept: list[int]  # places in the chunk of the examples that were parsed; the fields below hold only these
    owners: np.ndarray | None  # index in `kept` of the example of each image; None if each has one
    images: image_decoder.Wanted
    extra: list[image_decoder.Wanted]  # for each extra image, with the places and flips of the first
    columns: dict[str, np.ndarray]  # the label, and "features/KEY" of each requested feature
    objects: dict[str, np.ndarray]  # object [n], the list of each feature of objects, by its source
    faults: dict[int, str]  # by their place in the chunk, what is wrong with the other examples


class RecordParser:
    """Parses records. Thread-safe."""

    def __init__(self, plan: read_plan.ReadPlan, options: options_lib.ReadOptions):
        self._plan, self._options = plan, options
        self._views = [each.options for each in options.pictures() for _ in range(each.number or 1)]
        self._columns = tuple(plan.columns.values())
        self._many = {**plan.many, **{_OBJECTS + name: feature for name, feature in plan.objects.items()}}
        self._many_keys = {feature.key for feature in self._many.values()}
        self._first_label = options.label_base - plan.label_base
        self._num_classes = plan.num_classes if options.num_classes is None else options.num_classes
        sizes = [plan.by_source.get(name) for name in (_HEIGHT, _WIDTH, *([_CHANNELS] if plan.is_raw else []))]
        self._sizes = [feature for feature in sizes if feature is not None] if None not in sizes else []
        points = plan.by_source.get(features.ENTRY_POINTS)
        self._image = plan.by_source[features.ENCODED]
        needed = [self._image, *self._sizes, *(feature for each in plan.images for feature in each.stored)]
        self._lists = (needed[0].key, *(each.key for each in self._sizes)) if plan.has_lists_of_images else ()
        self._has_points = points is not None and not self._lists
        if self._lists:
            needed = []
        self._needed = len(needed)
        self._wanted = [*needed, *self._columns, *([points] if points is not None and self._has_points else [])]
        self._keys = tuple(feature.key.encode() for feature in self._wanted)

    def parse(self, chunk: Chunk) -> Parsed:
        """Returns the features of the examples in a chunk, and which part of each image the batch takes."""
        kept = [index for index, each in enumerate(chunk.contents) if isinstance(each, bytes)]
        contents = [each for each in chunk.contents if isinstance(each, bytes)]
        values, failures = self._find_features(contents)
        many, more = self._find_many(contents)
        failures = {**more, **failures}
        every: list[list[Any]]  # of each example its image, or the ImageList; then the extra images
        if self._lists:
            listed, more = self._find_lists(contents)
            every, sizes, failures = [listed], [], {**more, **failures}
        else:
            every, sizes = [_bytes_in(contents, values[0])], values[1 : 1 + len(self._sizes)]
            if self._plan.is_raw:
                failures |= _check_pixels(every[0], sizes, failures, self._plan.form)
            elif not sizes:
                sizes, more = _measure(every[0])
                failures = {**more, **failures}
        sides, place = [(sizes[0], sizes[1])] if sizes else [], 1 + len(self._sizes)
        for extra in self._plan.images:
            encoded, *own = values[place : place + len(extra.stored)]
            every.append(_bytes_in(contents, encoded))
            sides.append((own[0], own[1]) if own else sides[0])
            place += len(extra.stored)
        if self._plan.images and self._options.crop not in ("squash", None):
            failures = {**extra_images.unlike(self._plan.images, sides), **failures}
        faults = {kept[row]: failure for row, failure in failures.items()}
        others: list[Any] = [_bytes_in(contents, each) if _is_bytes(each) else each for each in values[self._needed :]]
        if failures:
            rows = [row for row in range(len(kept)) if row not in failures]
            kept = _at(kept, rows)
            every, sides = [_at(each, rows) for each in every], [(each[0][rows], each[1][rows]) for each in sides]
            sizes, many = [each[rows] for each in sizes], {name: each[rows] for name, each in many.items()}
            others = [each[rows] if isinstance(each, np.ndarray) else _at(each, rows) for each in others]
        points = others.pop() if self._has_points else [b""] * len(kept)
        objects = {name: many.pop(_OBJECTS + name) for name in self._plan.objects}
        columns = dict(zip(self._plan.columns, map(_column, others), strict=True)) | many
        if self._plan.label is not None and columns["label"].dtype == np.int64:
            columns["label"] = (columns["label"] + self._first_label).astype(np.int32)
        uniforms, owners = chunk.uniforms[kept], None
        if self._lists:
            columns[image_lists.COUNT] = np.array([each.num_stored for each in every[0]], np.int64)
            flat, owners, sides_of_each = image_lists.flatten(every[0])
            every, sides, points = [flat], [sides_of_each], [b""] * len(flat)
            uniforms = uniforms[owners]
        views = [_cut(sides, uniforms[:, view], options) for view, options in enumerate(self._views)]
        first = _in_turn([each[0] for each in views], self._views)
        wanted = []
        for images, (height, width), cuts in zip(every, sides, [first, *views[0][1:]], strict=True):
            stated = np.stack([height, width], axis=1).clip(-1, np.iinfo(np.int32).max).astype(np.int32)
            wanted.append(image_decoder.Wanted(images, points, stated, None, cuts))
            points = [b""] * len(kept)
        if self._plan.is_raw:
            shapes = np.stack(sizes, axis=1).clip(0, np.iinfo(np.int32).max).astype(np.int32)
            wanted[0] = wanted[0]._replace(shapes=np.ascontiguousarray(shapes))
        return Parsed(kept, owners, wanted[0], wanted[1:], columns, objects, faults)

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
        needed = found[:, : self._needed + len(self._columns)]
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
                found.append(image_lists.find(content, self._lists, self._options.max_images or 0))
            except ValueError as e:
                found.append(image_lists.NOTHING)
                failures[row] = str(e)
        return found, failures

    def _find_many(self, contents: list[bytes]) -> tuple[dict[str, np.ndarray], dict[int, str]]:
        """Returns the features with many values, and by its row why those of a record cannot be used.

        Returns:
            For each feature with a shape [n, *shape]; for each list object [n], an array of each record; for labels
            float32 [n, classes] of 0 and 1. The failures.
        """
        columns = {}
        for name, feature in self._many.items():
            if name == read_plan.LABEL:
                columns[name] = np.zeros((len(contents), self._num_classes), np.float32)
            else:
                shape, is_object = feature.shape or (), feature.shape is None or feature.kind == features.BYTES
                dtype = "object" if is_object else features.NUMPY_DTYPES[feature.kind]
                columns[name] = np.full((len(contents), *shape), b"" if is_object else 0, dtype)
        failures = {}
        for row, spans in enumerate(self._locate_many(contents) if self._many else []):
            try:
                messages = self._messages_in(contents[row], spans)
                for (name, feature), message in zip(self._many.items(), messages, strict=True):
                    found = example.to_array(feature, example.parse_array(message))
                    columns[name][row] = self._multi_hot(found) if name == read_plan.LABEL else found
            except ValueError as e:
                failures[row] = str(e)
        return columns, failures

    def _locate_many(self, contents: list[bytes]) -> Sequence[Any]:
        """Returns where the Feature messages of `_many` begin and end in each record; None if C cannot tell."""
        if _native is None:
            return [None] * len(contents)
        keys = tuple(feature.key.encode() for feature in self._many.values())
        spans = np.zeros((len(keys), len(contents), 1, 2), np.int64)
        _native.find_features(contents, keys, tuple(spans), np.zeros((len(contents), len(keys)), np.bool_))
        return spans[:, :, 0].transpose(1, 0, 2).tolist()  # type: ignore[no-any-return]

    def _messages_in(self, content: bytes, spans: Sequence[tuple[int, int]] | None) -> list[bytes | memoryview]:
        """Returns these messages of a record; an empty one for a feature that it does not have.

        Raises:
            ValueError: if it is not a serialized Example.
        """
        if spans is not None:
            return [memoryview(content)[start:stop] for start, stop in spans]
        found = example.find_messages(content, self._many_keys)
        return [found.get(feature.key, b"") for feature in self._many.values()]

    def _multi_hot(self, ids: np.ndarray) -> np.ndarray:
        vector, classes = np.zeros(self._num_classes, np.float32), ids + self._first_label
        if len(ids) and not 0 <= classes.min() <= classes.max() < self._num_classes:
            raise ValueError(f"labels are {ids.tolist()}, and the label vector has {self._num_classes:,} classes")
        vector[classes] = 1
        return vector


def _cut(
    sides: Sequence[tuple[np.ndarray, np.ndarray]], uniforms: np.ndarray, options: options_lib.ReadOptions
) -> list[image_decoder.Cuts]:
    """Returns the parts that a view takes of the image of each example, and of each extra image.

    Args:
        sides: height and width of each of them, int [n].
        uniforms: float32 [n, NUM_UNIFORMS] in [0, 1).
        options: options of the view.
    """
    windows: list[Any] = [None] * len(sides)
    if options.crop is not None:
        windows = crops.windows_alike(sides, uniforms, options)
    flips = (uniforms[:, crops.FLIP] < 0.5) & options.flips
    found = []
    for (height, width), parts in zip(sides, windows, strict=True):
        placed = crops.places(height, width, uniforms, flips, options)
        frames = crops.frames(height, width, parts, options, placed) if options.filters and parts is not None else None
        found.append(image_decoder.Cuts(parts, frames, flips, placed))
    changes = uniforms[:, crops.NUM_UNIFORMS :]
    colors, erased = image_changes.colors(changes, options), image_changes.erased(changes, options)
    return [found[0]._replace(colors=colors, erased=erased), *found[1:]]


def _in_turn(views: Sequence[image_decoder.Cuts], options: Sequence[options_lib.ReadOptions]) -> image_decoder.Cuts:
    """Returns the cuts of several views, those of each image one after the other."""
    if len(views) == 1:
        return views[0]
    count, filled = len(views[0].flips), []
    for each, own in zip(views, options, strict=True):
        whole = np.tile(np.array([0, 0, *own.size], np.int32), (count, 1))
        same = {"places": whole, "erased": np.zeros_like(whole)}
        if any(other.colors is not None for other in views):
            same["colors"] = np.tile(np.array(image_changes.SAME_COLORS, np.float32), (count, 1))
        filled.append(each._replace(**{name: array for name, array in same.items() if getattr(each, name) is None}))
    columns: list[Any] = []
    for column in zip(*filled, strict=True):
        stacked = None if column[0] is None else np.stack(column, axis=1)
        columns.append(stacked if stacked is None else stacked.reshape(-1, *stacked.shape[2:]))
    return image_decoder.Cuts(*columns)


def _measure(images: Sequence[bytes | memoryview]) -> tuple[list[np.ndarray], dict[int, str]]:
    """Returns height and width of each image, int64 [n], which the records do not have; and the failures by row."""
    sizes, failures = np.ones((2, len(images)), np.int64), {}
    for row, image in enumerate(images):
        try:
            sizes[:, row] = whole_images.measure(image)
        except ValueError as e:
            failures[row] = f"the image cannot be decoded, {e}"
    return list(sizes), failures


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
