"""tf.train.Example on the wire, without TensorFlow: three times as fast as the protobuf class, the image uncopied.

Source: https://protobuf.dev/programming-guides/encoding/ and tensorflow/core/example/{example,feature}.proto.
"""

from __future__ import annotations

import contextlib
import functools
import struct
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from imagebeam import features as features_lib

Value = bytes | int | float
Values = Value | Sequence[Value]  # of a feature: a sequence where it has many

_MAX_CACHED = 4096
_UINT64 = (1 << 64) - 1
_LENGTH_DELIMITED = 2
_FIXED_SIZES = {1: 8, 5: 4}  # bytes, by wire type
_INT64_LIST = 3  # field of a Feature
_WINDOW_BYTES = 4096  # that are read at a time where a feature is looked for
_MAX_FIELD_HEAD = 20  # bytes of a tag and a size
_MAX_VARINT_BITS = 70  # ten bytes
_PIECE_BYTES = 1 << 16  # of varints at once


def _varint(value: int) -> bytes:
    value &= _UINT64
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _delimited(tag: bytes, payload: bytes) -> bytes:
    return tag + _varint(len(payload)) + payload


def _value_list(kind: str, values: Sequence[Any]) -> bytes:
    """The Feature message that holds these values; numbers are packed, and none of them leaves an empty list."""
    if isinstance(values, EncodedValues):
        return values
    if kind == features_lib.BYTES:
        return _delimited(b"\x0a", b"".join(_delimited(b"\x0a", value) for value in values))
    if kind == features_lib.INT64:
        packed, tag = b"".join(map(_varint, values)), b"\x1a"
    else:
        packed, tag = struct.pack(f"<{len(values)}f", *values), b"\x12"
    return _delimited(tag, _delimited(b"\x0a", packed) if packed else b"")


_KINDS = {1: features_lib.BYTES, 2: features_lib.FLOAT, 3: features_lib.INT64}  # by the fields of a Feature
_FIELDS = {features_lib.BYTES: b"\x0a", features_lib.FLOAT: b"\x12", features_lib.INT64: b"\x1a"}  # of a Feature


def _pack_pixels(kind: str, pixels: Any) -> bytes:
    """Values from 0 to 255 as a packed list of numbers: 12 ns each as varints instead of 400 by a loop.

    Args:
        kind: int64 or float.
        pixels: bytes, or a C-contiguous array of uint8.
    """
    import numpy as np  # not for a writer process that stores images as they are

    values = np.frombuffer(pixels, np.uint8)
    if kind == features_lib.FLOAT:
        return values.astype("<f4").tobytes()
    varints, are_used = _varint_tables()
    return varints.take(values).view(np.uint8)[are_used.take(values).view(np.bool_)].tobytes()


@functools.cache
def _varint_tables() -> tuple[Any, Any]:
    """By value from 0 to 255: two bytes, and which of them its varint has; each two as one number, for speed."""
    import numpy as np

    values = np.arange(256)
    is_long = values >= 0x80
    varints = np.stack([values, is_long], axis=1).astype(np.uint8)  # the upper bit is set already, the next byte is 1
    are_used = np.stack([np.ones(256, np.bool_), is_long], axis=1)
    return varints.view(np.uint16).ravel(), are_used.view(np.uint16).ravel()


class EncodedValues(bytes):
    """The values of a feature as they stand in an Example: a serialized Feature message."""


class ExampleEncoder:
    """Encodes examples of a fixed set of features. Entries stand in the order of the features; not thread-safe.

    Args:
        features: of every example; `image/encoded` only as the last.
        copied: sources of those whose values come as `EncodedValues`.
    """

    def __init__(self, features: Sequence[features_lib.Feature], copied: Collection[str] = ()):
        last = features[-1] if features else None
        self._has_image = last is not None and last.source == features_lib.ENCODED
        self._image_kind = last.kind if last is not None else ""
        self._plain: list[tuple[str, str, bytes, dict[Value, bytes] | None]] = [
            (
                feature.source,
                feature.kind,
                _delimited(b"\x0a", feature.key.encode()),
                None if feature.many or feature.source in copied else {},
            )
            for feature in (features[:-1] if self._has_image else features)
        ]
        self._image_key = _delimited(b"\x0a", features[-1].key.encode()) if self._has_image else b""
        self._size, self._before = -1, b""  # of the last image

    def encode(self, values: Mapping[str, Any], image: Any) -> tuple[bytes, bytes]:
        """Returns the example as two pieces: all that stands before the image's bytes, and those bytes.

        Args:
            values: by the features' sources, a sequence for one with many; more than are needed may be given.
            image: the encoded image as bytes; where it is a feature of numbers, its pixels, as bytes or as a
                C-contiguous array of uint8. Taken no notice of where it is no feature.
        """
        entries = b"".join([self._entry(values[source], kind, key, cache) for source, kind, key, cache in self._plain])
        if not self._has_image:
            return _delimited(b"\x0a", entries), b""
        if self._image_kind != features_lib.BYTES:
            image = _pack_pixels(self._image_kind, image)
        size = len(image)
        if size != self._size:  # bare pixels are all of one size
            self._size, self._before = size, self._before_image(size)
        entries += self._before
        return b"\x0a" + _varint(len(entries) + size) + entries, image

    def _before_image(self, size: int) -> bytes:
        """What stands in front of an image of `size` bytes: it depends on nothing else."""
        in_list = b"\x0a" + _varint(size)  # BytesList.value, or the packed value of another list
        in_feature = _FIELDS[self._image_kind] + _varint(len(in_list) + size)  # Feature.bytes_list and the like
        in_entry = b"\x12" + _varint(len(in_feature) + len(in_list) + size)  # the map entry's value
        before = self._image_key + in_entry + in_feature + in_list
        return b"\x0a" + _varint(len(before) + size) + before

    @staticmethod
    def _entry(value: Any, kind: str, key: bytes, cache: dict[Value, bytes] | None) -> bytes:
        """The map entry of one feature; sizes, labels and formats repeat, so entries are kept (keys are not hit)."""
        if cache is None:
            return _delimited(b"\x0a", key + _delimited(b"\x12", _value_list(kind, value)))
        entry = cache.get(value)
        if entry is None:
            entry = _delimited(b"\x0a", key + _delimited(b"\x12", _value_list(kind, (value,))))
            if len(cache) >= _MAX_CACHED:
                cache.clear()
            if kind != features_lib.FLOAT:  # 0.0 and -0.0 are one key of a dict and two on the wire
                cache[value] = entry
        return entry


def parse_example(data: bytes, arrays: Collection[str] = ()) -> dict[str, Any]:
    """The features of a serialized tf.train.Example, each as the list of its values.

    Args:
        data: the Example.
        arrays: keys of features of numbers that are wanted as NumPy arrays, int64 [n] or float32 [n], a hundred times
            as fast; one that holds bytes comes as a list all the same.

    Raises:
        ValueError: if `data` is not a serialized Example.
    """
    with _errors_told():
        return {
            key: (_parse_array(feature) if key in arrays else _parse_value_list(feature))
            for key, feature, _ in _entries(data)
        }


class Located(NamedTuple):
    """A serialized Example of which a few features are wanted."""

    keys: tuple[str, ...]  # of all its features
    values: dict[str, list[Any]]  # of those that were asked for and are there
    spans: list[tuple[int, int]] | None  # offset and length of each value of the feature that stays where it is


def locate_values(data: bytes, key: str, wanted: Collection[str]) -> Located:
    """Where the values of the bytes feature `key` lie in a serialized Example, and the values of those `wanted`.

    Nothing is copied of the other features, nor of `key` itself. `spans` is None where there is no such feature.

    Raises:
        ValueError: if `data` is not a serialized Example, or `key` is a feature of numbers.
    """
    keys, values, spans = [], {}, None
    with _errors_told():
        for name, feature, start in _entries(data):
            keys.append(name)
            if name == key:
                spans = _bytes_spans(name, feature, start)
            if name in wanted:
                values[name] = _parse_value_list(feature)
    return Located(tuple(keys), values, spans)


@contextlib.contextmanager
def _errors_told() -> Iterator[None]:
    try:
        yield
    except (IndexError, KeyError, TypeError, struct.error, UnicodeDecodeError) as e:
        raise ValueError(f"not a tf.train.Example: {type(e).__name__} {e}") from e


def _entries(data: bytes) -> Iterator[tuple[str, Any, int]]:
    """Each feature of an Example: its key, its Feature message, and where that starts in `data`."""
    for _, _, features, features_start in _fields(data):
        for _, _, entry, entry_start in _fields(features):
            message = {number: (payload, start) for number, _, payload, start in _fields(entry)}
            feature, start = message.get(2, (b"", 0))
            yield str(message[1][0], "utf-8"), feature, features_start + entry_start + start


def _bytes_spans(key: str, feature: Any, start: int) -> list[tuple[int, int]]:
    spans = []
    for number, _, value_list, list_start in _fields(feature):
        if number != 1:
            raise ValueError(f"feature {key!r} holds numbers, expected bytes")
        spans += [(start + list_start + first, len(value)) for _, _, value, first in _fields(value_list)]
    return spans


def find_bytes(head: bytes, key: str) -> bytes:
    """The value of a bytes feature in the beginning of a serialized Example, the rest of which may be broken.

    Raises:
        ValueError: if it is not there.
    """
    name = _delimited(b"\x0a", key.encode())
    position = head.find(name) + len(name)
    if position < len(name):
        raise ValueError(f"no feature {key!r} in the first {len(head)} bytes")
    start, size = _enter(head, key, position, 3)  # the map entry's value, its list, the first of the list
    return head[start : start + size]


def find_ints(head: bytes, key: str, read: Callable[[int, int], bytes] | None = None) -> list[int]:
    """The values of an int64 feature of a serialized Example of which no more is read than is needed.

    Args:
        head: the beginning of the Example.
        key: of the feature.
        read: gives bytes `start` to `stop` of the Example, fewer where it ends; None if there is no more than `head`.

    Raises:
        ValueError: if the feature is not there, or is broken.
    """
    window = _Window(head, read)
    try:
        found = _find_feature(window, key.encode())
    except IndexError:  # breaks off, or is no Example
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
            for number, _, value_list, _ in _fields(feature)
            if number == _INT64_LIST
            for _, wire_type, payload, _ in _fields(value_list)
            for value in _int_values(wire_type, payload)
        ]
    except (IndexError, TypeError) as e:
        raise ValueError(f"feature {key!r} is broken: {e}") from e


class _Window:
    """The part of a serialized Example that was read last."""

    def __init__(self, head: bytes, read: Callable[[int, int], bytes] | None):
        self._start, self._data = 0, memoryview(head)
        self._read = read

    @property
    def end(self) -> int:
        """The first byte after what was read."""
        return self._start + len(self._data)

    def view(self, start: int, stop: int) -> memoryview:
        """Bytes `start` to `stop`, fewer where there are no more."""
        if self._read is not None and not self._start <= start <= stop <= self.end:
            self._start, self._data = start, memoryview(self._read(start, max(stop, start + _WINDOW_BYTES)))
        return self._data[start - self._start : stop - self._start] if start >= self._start else self._data[:0]

    def take_field(self, position: int) -> tuple[int, int, int]:
        """The number of the field at `position`, and where its payload starts and stops; it may stop beyond the end."""
        view = self.view(position, position + _MAX_FIELD_HEAD)
        tag, used = _read_varint(view, 0)
        if tag & 7 == _LENGTH_DELIMITED:
            size, used = _read_varint(view, used)
        elif tag & 7 == 0:
            size = _read_varint(view, used)[1] - used
        elif tag & 7 in _FIXED_SIZES:
            size = _FIXED_SIZES[tag & 7]
        else:
            raise IndexError(f"wire type {tag & 7}")
        return tag >> 3, position + used, position + used + size


def _find_feature(window: _Window, key: bytes) -> tuple[int, int] | None:
    """Where the Feature message of a key starts and stops; what it passes on its way is not read."""
    top = 0
    while window.view(top, top + 1):
        number, position, top = window.take_field(top)
        while number == 1 and position < top:  # the Features message
            _, start, position = window.take_field(position)
            found = _feature_of_entry(window, start, position, key)
            if found is not None:
                return found
    return None


def _feature_of_entry(window: _Window, position: int, stop: int, key: bytes) -> tuple[int, int] | None:
    """Where the Feature of a map entry starts and stops if it has this key, which may stand behind it."""
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
    """The values of some features of `record`, not looked at; none of a feature that is not there.

    Args:
        record: a serialized Example.
        kinds: of the features that are wanted, by their keys.

    Raises:
        ValueError: if `record` is not a serialized Example.
    """
    with _errors_told():
        found = {key: EncodedValues(feature) for key, feature, _ in _entries(record) if key in kinds and feature}
    return {key: found.get(key) or EncodedValues(_value_list(kind, ())) for key, kind in kinds.items()}


def look_at_features(record: bytes) -> list[tuple[str, str | None, bool]]:
    """Of each feature of `record`: its key, its kind, None where it has none, and whether it has exactly one value.

    Raises:
        ValueError: if `record` is not a serialized Example.
    """
    with _errors_told():
        found = {key: feature for key, feature, _ in _entries(record)}
        return [(key, *_kind_and_single(feature)) for key, feature in found.items()]


def _kind_and_single(feature: bytes | memoryview) -> tuple[str | None, bool]:
    kind, num_values = None, 0
    for number, _, value_list, _ in _fields(feature):
        found = _KINDS[number]
        if kind is not None and kind != found:
            num_values = 0  # of a oneof the last one counts
        kind = found
        for _, wire_type, payload, _ in _fields(value_list):
            if number == 1 or wire_type != _LENGTH_DELIMITED:
                num_values += 1
            elif number == 2:
                num_values += len(payload) // 4
            else:  # of a long list it is enough that there are many
                num_values += 2 if len(payload) > _MAX_VARINT_BITS // 7 else sum(byte < 0x80 for byte in payload)
    return kind, num_values == 1


def select_features(record: bytes, keys: Collection[str]) -> bytes:
    """The serialized Example of some features of `record`, their values not looked at.

    Raises:
        ValueError: if `record` is not a serialized Example.
    """
    with _errors_told():
        found = [(key.encode(), bytes(feature)) for key, feature, _ in _entries(record) if key in keys]
    entries = [_delimited(b"\x0a", key) + _delimited(b"\x12", feature) for key, feature in found]
    return _delimited(b"\x0a", b"".join(_delimited(b"\x0a", entry) for entry in entries))


def _enter(head: bytes, key: str, position: int, depth: int) -> tuple[int, int]:
    """Where the field in a field... at `position` begins, and its size."""
    view, size = memoryview(head), 0
    try:
        for _ in range(depth):
            size, position = _read_varint(view, position + 1)
    except IndexError as e:
        raise ValueError(f"feature {key!r} is broken: {e}") from e
    return position, size


def _fields(data: bytes | memoryview) -> list[tuple[int, int, Any, int]]:
    """The fields of a message: number, wire type, payload and where that starts."""
    view, position = memoryview(data), 0
    fields: list[tuple[int, int, Any, int]] = []
    while position < len(view):
        tag, position = _read_varint(view, position)
        wire_type = tag & 7
        if wire_type == _LENGTH_DELIMITED:
            size, position = _read_varint(view, position)
            if position + size > len(view):
                raise IndexError(f"a field of {size} bytes ends beyond the message")
            fields.append((tag >> 3, wire_type, view[position : position + size], position))
            position += size
        elif wire_type == 0:
            start = position
            value, position = _read_varint(view, position)
            fields.append((tag >> 3, wire_type, value, start))
        elif wire_type == 5:
            fields.append((tag >> 3, wire_type, view[position : position + 4], position))
            position += 4
        else:
            raise IndexError(f"wire type {wire_type}")
    return fields


def _read_varint(view: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = view[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _UINT64, position
        shift += 7
        if shift == _MAX_VARINT_BITS:
            raise IndexError("a varint of more than ten bytes")


def _parse_value_list(feature: bytes | memoryview) -> list[Value]:
    values: list[Value] = []
    for number, _, value_list, _ in _fields(feature):
        for _, wire_type, payload, _ in _fields(value_list):
            if number == 1:
                values.append(memoryview(payload).tobytes())  # bytes() of an int would be that many zeros
            elif number == 2:
                values.extend(value for (value,) in struct.iter_unpack("<f", payload))
            else:
                values.extend(_int_values(wire_type, payload))
    return values


def _parse_array(feature: bytes | memoryview) -> Any:
    """The numbers of a Feature message as an array; bytes as a list."""
    import numpy as np

    parts: list[Any] = []
    for number, _, value_list, _ in _fields(feature):
        if number == 1:
            return _parse_value_list(feature)
        for _, wire_type, payload, _ in _fields(value_list):
            if number == 2:
                if len(payload) % 4:
                    raise IndexError(f"floats of {len(payload)} bytes")
                parts.append(np.frombuffer(payload, "<f4"))
            elif wire_type == 0:  # not packed
                parts.append(np.array([_signed(payload)], np.int64))
            else:
                parts.append(_unpack_varints(np.frombuffer(payload, np.uint8)))
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def _unpack_varints(packed: Any) -> Any:
    """Varints that stand one after the other, uint8 [m], as int64 [n]."""
    import numpy as np

    values = np.empty(np.count_nonzero(packed < 0x80), np.int64)
    first = start = 0
    while start < len(packed):  # by pieces, so that what is needed in between stays small
        ends = np.flatnonzero(packed[start : start + _PIECE_BYTES] < 0x80)
        if not len(ends):
            raise IndexError("a varint is cut short, or has more than ten bytes")
        size = int(ends[-1]) + 1
        values[first : first + len(ends)] = _unpack_piece(packed[start : start + size], ends)
        first, start = first + len(ends), start + size
    return values


def _unpack_piece(packed: Any, ends: Any) -> Any:
    """Varints of which `ends` holds the places of the last bytes: a pass for each byte of the longest."""
    import numpy as np

    starts = np.concatenate([[0], ends[:-1] + 1])
    lengths = ends - starts + 1
    longest = int(lengths.max())
    if 7 * longest > _MAX_VARINT_BITS:
        raise IndexError("a varint of more than ten bytes")
    values = packed[starts].astype(np.uint64) & 0x7F
    for place in range(1, longest):
        here = np.flatnonzero(lengths > place)
        values[here] |= (packed[starts[here] + place] & 0x7F).astype(np.uint64) << np.uint64(7 * place)
    return values.view(np.int64)


def _int_values(wire_type: int, payload: Any) -> Iterator[int]:
    """The values in one field of an Int64List, packed or not."""
    if wire_type == 0:
        yield _signed(payload)
        return
    position = 0
    while position < len(payload):
        value, position = _read_varint(payload, position)
        yield _signed(value)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
