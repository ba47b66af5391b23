"""Writes and reads tf.train.Example without TensorFlow.

`ExampleEncoder` takes a third of the time of the protobuf class, and copies no image. The functions below it read all
features of an example, a few of them, or where they are.

Source: tensorflow/core/example/{example,feature}.proto.
"""

from __future__ import annotations

import contextlib
import functools
import math
import struct
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from imagebeam import features as features_lib
from imagebeam import wire_format
from imagebeam.wire_format import delimited, fields_of, int_values, read_varint, signed, unpack_varints, varint

Value = bytes | int | float
Values = Value | Sequence[Value]  # a sequence for a feature that is a list

Layout = tuple[list[Any], bytes, int]  # the features with what is cached of them, key and tag of the image

_MAX_CACHED = 4096
_TAGS = {features_lib.BYTES: b"\x0a", features_lib.FLOAT: b"\x12", features_lib.INT64: b"\x1a"}  # fields of a Feature
_KINDS = {1: features_lib.BYTES, 2: features_lib.FLOAT, 3: features_lib.INT64}  # by the fields of a Feature
_INT64_LIST = 3  # field of a Feature
_NUMPY_KINDS = {features_lib.BYTES: "S", features_lib.FLOAT: "f", features_lib.INT64: "i"}
_WINDOW_BYTES = 4096  # read at a time while looking for a feature
_MAX_FIELD_HEAD = 20  # bytes of a tag and a size

# See its docstring; None where the C extension was not built.
_encode_prefix: Callable[[list[Any], Mapping[str, Any], bytes, int, int], bytes | None] | None = None
with contextlib.suppress(ImportError):
    from imagebeam._writer import encode_prefix as _encode_prefix


class EncodedValues(bytes):
    """The values of a feature as they are stored in an Example: a serialized Feature message."""


class ExampleEncoder:
    """Encodes examples with a fixed set of features, in their order. Not thread-safe.

    Args:
        features: features of every example; `image/encoded` must be the last. If it is a list of bytes, it is a
            feature like the others, whose values are copied.
        copied: sources of the features whose values are given as `EncodedValues`.
    """

    def __init__(self, features: Sequence[features_lib.Feature], copied: Collection[str] = ()):
        last = features[-1] if features else None
        self._has_image = (
            last is not None and last.source == features_lib.ENCODED and not features_lib.is_list_of_images(last)
        )
        self._image_kind = last.kind if last is not None else ""
        # Source, kind, encoded key, entries of values met before, and heads of entries by the length of their value.
        self._plain: list[tuple[str, str, bytes, dict[Value, bytes] | None, dict[int, bytes] | None]] = []
        for feature in features[:-1] if self._has_image else features:
            is_single = not feature.many and feature.source not in copied
            entries: dict[Value, bytes] | None = {} if is_single and feature.kind != features_lib.BYTES else None
            heads: dict[int, bytes] | None = {} if is_single and feature.kind == features_lib.BYTES else None
            key = delimited(b"\x0a", feature.key.encode())
            self._plain.append((feature.source, feature.kind, key, entries, heads))
        self._image_key = delimited(b"\x0a", features[-1].key.encode()) if self._has_image else b""
        self._image_tag = _TAGS[self._image_kind][0] if self._has_image else 0
        self._image_heads: dict[int, bytes] = {}

    @property
    def layout(self) -> Layout | None:
        """Arguments of `_writer.put_jpeg`; None if there is no image, or it is stored as numbers."""
        is_encoded = self._has_image and self._image_kind == features_lib.BYTES
        return (self._plain, self._image_key, self._image_tag) if is_encoded else None

    def encode(self, values: Mapping[str, Any], image: Any) -> tuple[bytes, bytes]:
        """Returns the example in two pieces: everything before the image's bytes, and the image's bytes.

        Args:
            values: by the features' sources, a sequence for a list; further values are ignored.
            image: the encoded image as bytes. If it is stored as numbers: its pixels, as bytes or as a C-contiguous
                array of uint8. Ignored if the image is not a feature.
        """
        if self._has_image and self._image_kind != features_lib.BYTES:
            image = _pack_pixels(self._image_kind, image)
        if self._has_image and _encode_prefix is not None and type(values) is dict:
            prefix = _encode_prefix(self._plain, values, self._image_key, self._image_tag, len(image))
            if prefix is not None:
                return prefix, image
        parts: list[bytes] = []
        for source, kind, key, cache, heads in self._plain:
            value = values[source]
            if heads is not None:
                parts.append(heads.get(len(value)) or _cache_head(heads, key, _TAGS[kind], len(value)))
                parts.append(value)
            elif cache is not None:
                parts.append(cache.get(value) or _cache_entry(cache, kind, key, value))
            else:
                parts.append(_entry(key, encode_values(kind, value)))
        entries = b"".join(parts)
        if not self._has_image:
            return delimited(b"\x0a", entries), b""
        size = len(image)
        tag = _TAGS[self._image_kind]
        entries += self._image_heads.get(size) or _cache_head(self._image_heads, self._image_key, tag, size)
        return b"\x0a" + varint(len(entries) + size) + entries, image


def _entry(key: bytes, feature: bytes) -> bytes:
    """Returns the map entry of one feature."""
    return delimited(b"\x0a", key + delimited(b"\x12", feature))


def _cache_entry(cache: dict[Value, bytes], kind: str, key: bytes, value: Value) -> bytes:
    """Returns the map entry of a single number, cached because sizes and labels repeat."""
    entry = _entry(key, encode_values(kind, (value,)))
    if len(cache) >= _MAX_CACHED:
        cache.clear()
    if kind != features_lib.FLOAT:  # 0.0 and -0.0 are the same key of a dict but differ in an Example
        cache[value] = entry
    return entry


def _cache_head(heads: dict[int, bytes], key: bytes, tag: bytes, size: int) -> bytes:
    """Returns what precedes a single value of `size` bytes in its map entry, cached because lengths repeat.

    Args:
        heads: the cache, by size.
        key: the encoded key.
        tag: tag of the list in the Feature.
        size: bytes of the value, or of all numbers, packed.
    """
    in_list = b"\x0a" + varint(size)
    in_feature = tag + varint(len(in_list) + size) + in_list
    in_entry = key + b"\x12" + varint(len(in_feature) + size) + in_feature
    if len(heads) >= _MAX_CACHED:
        heads.clear()
    heads[size] = b"\x0a" + varint(len(in_entry) + size) + in_entry
    return heads[size]


def encode_values(kind: str, values: Sequence[Any]) -> bytes:
    """Returns the Feature message of these values. Numbers are packed; no values give an empty list."""
    if isinstance(values, EncodedValues):
        return values
    if kind == features_lib.BYTES:
        return delimited(b"\x0a", b"".join(delimited(b"\x0a", value) for value in values))
    if kind == features_lib.INT64:
        packed, tag = b"".join(map(varint, values)), b"\x1a"
    else:
        packed, tag = struct.pack(f"<{len(values)}f", *values), b"\x12"
    return delimited(tag, delimited(b"\x0a", packed) if packed else b"")


def _pack_pixels(kind: str, pixels: Any) -> bytes:
    """Returns values from 0 to 255 as a packed list of numbers: 12 ns each as varints, 400 ns in a loop of Python.

    Args:
        kind: int64 or float.
        pixels: bytes, or a C-contiguous array of uint8.
    """
    import numpy as np  # imported here: a writer process that stores images as they are needs no NumPy

    values = np.frombuffer(pixels, np.uint8)
    if kind == features_lib.FLOAT:
        return values.astype("<f4").tobytes()
    varints, are_used = _varint_tables()
    return varints.take(values).view(np.uint8)[are_used.take(values).view(np.bool_)].tobytes()


@functools.cache
def _varint_tables() -> tuple[Any, Any]:
    """Returns for each value from 0 to 255 its varint in two bytes and which of them are used, both as uint16."""
    import numpy as np

    values = np.arange(256)
    is_long = values >= 0x80
    # From 128 on the value already has the top bit set, and the next byte is 1.
    varints = np.stack([values, is_long], axis=1).astype(np.uint8)
    are_used = np.stack([np.ones(256, np.bool_), is_long], axis=1)
    return varints.view(np.uint16).ravel(), are_used.view(np.uint16).ravel()


def parse_example(data: bytes, arrays: Collection[str] = ()) -> dict[str, Any]:
    """Returns the features of a serialized tf.train.Example, each as the list of its values.

    Args:
        data: the Example.
        arrays: keys of features of numbers to return as NumPy arrays, int64 [n] or float32 [n], a hundred times as
            fast; a feature of bytes is returned as a list all the same.

    Raises:
        ValueError: if `data` is not a serialized Example.
    """
    with _as_value_errors():
        return {
            key: (_parse_array(feature) if key in arrays else parse_values(feature))
            for key, feature, _ in _entries(data)
        }


def to_array(feature: features_lib.Feature, values: Sequence[Any]) -> Any:
    """Returns the values of a feature with many of them in one new array: of its shape, or [n] if it has none.

    Args:
        feature: the feature.
        values: of one example, as `parse_example` returns them.

    Raises:
        ValueError: if they are too few or too many for the shape, or of another kind.
    """
    import numpy as np  # imported here: imagebeam without extras has no NumPy

    if feature.shape is not None and len(values) != (expected := math.prod(feature.shape)):
        raise ValueError(
            f"feature {feature.key!r} has {len(values):,} values, expected {expected:,} of the shape "
            f"{list(feature.shape)}"
        )
    if len(values) and np.asarray(values[:1]).dtype.kind != _NUMPY_KINDS[feature.kind]:
        raise ValueError(f"feature {feature.key!r} is not stored as {feature.kind}")
    array = np.empty(len(values), features_lib.NUMPY_DTYPES[feature.kind])
    array[:] = values
    return array if feature.shape is None else array.reshape(feature.shape)


class Located(NamedTuple):
    """A few features of a serialized Example."""

    keys: tuple[str, ...]  # all features
    values: dict[str, list[Any]]  # the requested features that exist
    spans: list[tuple[int, int]] | None  # offset and length of each value of the feature that is only located


def locate_values(data: bytes, key: str, wanted: Collection[str]) -> Located:
    """Returns where the values of the bytes feature `key` are in a serialized Example, and the values of `wanted`.

    The values of `key` and of the other features are not copied. `spans` is None if there is no feature `key`.

    Raises:
        ValueError: if `data` is not a serialized Example, or `key` is a feature of numbers.
    """
    keys, values, spans = [], {}, None
    with _as_value_errors():
        for name, feature, start in _entries(data):
            keys.append(name)
            if name == key:
                spans = _bytes_spans(name, feature, start)
            if name in wanted:
                values[name] = parse_values(feature)
    return Located(tuple(keys), values, spans)


@contextlib.contextmanager
def _as_value_errors() -> Iterator[None]:
    try:
        yield
    except (IndexError, KeyError, TypeError, struct.error, UnicodeDecodeError) as e:
        raise ValueError(f"not a tf.train.Example: {type(e).__name__} {e}") from e


def _entries(data: bytes) -> Iterator[tuple[str, Any, int]]:
    """Yields each feature of an Example: its key, its Feature message, and where the message starts in `data`."""
    for _, _, features, features_start in fields_of(data):
        for _, _, entry, entry_start in fields_of(features):
            message = {number: (payload, start) for number, _, payload, start in fields_of(entry)}
            feature, start = message.get(2, (b"", 0))
            yield str(message[1][0], "utf-8"), feature, features_start + entry_start + start


def _bytes_spans(key: str, feature: Any, start: int) -> list[tuple[int, int]]:
    spans = []
    for number, _, value_list, list_start in fields_of(feature):
        if number != 1:
            raise ValueError(f"feature {key!r} holds numbers, expected bytes")
        spans += [(start + list_start + first, len(value)) for _, _, value, first in fields_of(value_list)]
    return spans


def find_bytes(head: bytes, key: str) -> bytes:
    """Returns the value of a bytes feature at the beginning of a serialized Example whose rest may be broken.

    Raises:
        ValueError: if the feature is not in `head`.
    """
    name = delimited(b"\x0a", key.encode())
    position = head.find(name) + len(name)
    if position < len(name):
        raise ValueError(f"no feature {key!r} in the first {len(head)} bytes")
    view, size = memoryview(head), 0
    try:
        for _ in range(3):  # the map entry's value, its list, the first of the list
            size, position = read_varint(view, position + 1)
    except IndexError as e:
        raise ValueError(f"feature {key!r} is broken: {e}") from e
    return head[position : position + size]


def find_ints(head: bytes, key: str, read: Callable[[int, int], bytes] | None = None) -> list[int]:
    """Returns the values of an int64 feature of a serialized Example, and reads no more of it than necessary.

    Args:
        head: the beginning of the Example.
        key: key of the feature.
        read: returns bytes `start` to `stop` of the Example, fewer if it ends early; None if there is only `head`.

    Raises:
        ValueError: if the feature is missing or broken.
    """
    window = _ReadWindow(head, read)
    try:
        found = _find_feature(window, key.encode())
    except IndexError:  # it is cut short, or is not an Example
        found = None
    if found is None:
        raise ValueError(f"no feature {key!r}" + ("" if read else f" in the first {len(head)} bytes"))
    start, stop = found
    feature = window.view(start, stop)
    if len(feature) < stop - start:
        raise ValueError(f"feature {key!r} does not end in the first {window.end} bytes")
    try:
        return [
            value
            for number, _, value_list, _ in fields_of(feature)
            if number == _INT64_LIST
            for _, wire_type, payload, _ in fields_of(value_list)
            for value in int_values(wire_type, payload)
        ]
    except (IndexError, TypeError) as e:
        raise ValueError(f"feature {key!r} is broken: {e}") from e


class _ReadWindow:
    """The part of a serialized Example that was read last; reads further parts when they are needed."""

    def __init__(self, head: bytes, read: Callable[[int, int], bytes] | None):
        self._start, self._data = 0, memoryview(head)
        self._read = read

    @property
    def end(self) -> int:
        """The offset after the last byte that was read."""
        return self._start + len(self._data)

    def view(self, start: int, stop: int) -> memoryview:
        """Returns bytes `start` to `stop`, fewer if there are no more."""
        if self._read is not None and not self._start <= start <= stop <= self.end:
            self._start, self._data = start, memoryview(self._read(start, max(stop, start + _WINDOW_BYTES)))
        return self._data[start - self._start : stop - self._start] if start >= self._start else self._data[:0]

    def take_field(self, position: int) -> tuple[int, int, int]:
        """Returns the number of the field at `position`, and start and stop of its payload, maybe beyond the end."""
        view = self.view(position, position + _MAX_FIELD_HEAD)
        tag, used = read_varint(view, 0)
        if tag & 7 == wire_format.LENGTH_DELIMITED:
            size, used = read_varint(view, used)
        elif tag & 7 == 0:
            size = read_varint(view, used)[1] - used
        elif tag & 7 in wire_format.FIXED_SIZES:
            size = wire_format.FIXED_SIZES[tag & 7]
        else:
            raise IndexError(f"wire type {tag & 7}")
        return tag >> 3, position + used, position + used + size


def _find_feature(window: _ReadWindow, key: bytes) -> tuple[int, int] | None:
    """Returns where the Feature message of a key starts and stops, without reading the features before it."""
    top = 0
    while window.view(top, top + 1):
        number, position, top = window.take_field(top)
        while number == 1 and position < top:  # the Features message
            _, start, position = window.take_field(position)
            found = _feature_of_entry(window, start, position, key)
            if found is not None:
                return found
    return None


def _feature_of_entry(window: _ReadWindow, position: int, stop: int, key: bytes) -> tuple[int, int] | None:
    """Returns where the Feature of a map entry starts and stops, if the entry has this key, before or after it."""
    is_it, feature = False, (stop, stop)
    while position < stop:
        number, start, position = window.take_field(position)
        if number == 1:
            if position - start != len(key) or window.view(start, position) != key:
                return None
            is_it = True
        elif number == 2:
            feature = start, position
    return feature if is_it else None


def copy_features(record: bytes, kinds: Mapping[str, str]) -> dict[str, EncodedValues]:
    """Returns the values of some features of `record` without parsing them; an empty list for a missing feature.

    Args:
        record: a serialized Example.
        kinds: kinds of these features, by their keys.

    Raises:
        ValueError: if `record` is not a serialized Example.
    """
    with _as_value_errors():
        found = {key: bytes(feature) for key, feature, _ in _entries(record) if key in kinds and feature}
    copied = {key: found.get(key) or encode_values(kind, ()) for key, kind in kinds.items()}
    return {key: EncodedValues(feature) for key, feature in copied.items()}


def look_at_features(record: bytes) -> list[tuple[str, str | None, bool]]:
    """Returns the key of each feature of `record`, its kind or None, and whether it has exactly one value.

    Raises:
        ValueError: if `record` is not a serialized Example.
    """
    with _as_value_errors():
        found = {key: feature for key, feature, _ in _entries(record)}
        return [(key, *_kind_and_single(feature)) for key, feature in found.items()]


def _kind_and_single(feature: bytes | memoryview) -> tuple[str | None, bool]:
    kind, num_values = None, 0
    for number, _, value_list, _ in fields_of(feature):
        found = _KINDS[number]
        if kind is not None and kind != found:
            num_values = 0  # the last field of a oneof counts
        kind = found
        for _, wire_type, payload, _ in fields_of(value_list):
            if number == 1 or wire_type != wire_format.LENGTH_DELIMITED:
                num_values += 1
            elif number == 2:
                num_values += len(payload) // 4
            else:  # for a long list it is enough to know that there are many
                is_long = len(payload) > wire_format.MAX_VARINT_BITS // 7
                num_values += 2 if is_long else sum(byte < 0x80 for byte in payload)
    return kind, num_values == 1


def find_messages(record: bytes, keys: Collection[str]) -> dict[str, bytes | memoryview]:
    """Returns the Feature messages of some features of a serialized Example, as `parse_array` takes them.

    Raises:
        ValueError: if `record` is not a serialized Example.
    """
    with _as_value_errors():
        return {key: feature for key, feature, _ in _entries(record) if key in keys}


def parse_values(feature: bytes | memoryview) -> list[Value]:
    """Returns the values of a Feature message."""
    values: list[Value] = []
    for number, _, value_list, _ in fields_of(feature):
        for _, wire_type, payload, _ in fields_of(value_list):
            if number == 1:
                values.append(memoryview(payload).tobytes())  # bytes() of an int would be that many zeros
            elif number == 2:
                values.extend(value for (value,) in struct.iter_unpack("<f", payload))
            else:
                values.extend(int_values(wire_type, payload))
    return values


def parse_array(message: bytes | memoryview) -> Any:
    """Returns the numbers of a Feature message as an array, int64 [n] or float32 [n], and bytes as a list.

    Raises:
        ValueError: if it is not a serialized Feature.
    """
    with _as_value_errors():
        return _parse_array(message)


def _parse_array(feature: bytes | memoryview) -> Any:
    """Returns the numbers of a Feature message as an array, and bytes as a list."""
    value_lists = list(fields_of(feature))
    if any(number == 1 for number, *_ in value_lists):
        return parse_values(feature)
    import numpy as np  # late: a process that draws encoded images needs no NumPy

    parts: list[Any] = []
    for number, _, value_list, _ in value_lists:
        for _, wire_type, payload, _ in fields_of(value_list):
            if number == 2:
                if len(payload) % 4:
                    raise IndexError(f"floats of {len(payload)} bytes")
                parts.append(np.frombuffer(payload, "<f4"))
            elif wire_type == 0:  # not packed
                parts.append(np.array([signed(payload)], np.int64))
            else:
                parts.append(unpack_varints(np.frombuffer(payload, np.uint8)))
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)
