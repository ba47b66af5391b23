"""Reads tf.train.Example without TensorFlow: all of its features, a few of them, or where they are.

Source: tensorflow/core/example/{example,feature}.proto. `example_encoder` writes examples.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

from imagebeam import example_encoder, wire_format
from imagebeam import features as features_lib

_KINDS = {1: features_lib.BYTES, 2: features_lib.FLOAT, 3: features_lib.INT64}  # by the fields of a Feature
_INT64_LIST = 3  # field of a Feature
_WINDOW_BYTES = 4096  # read at a time while looking for a feature
_MAX_FIELD_HEAD = 20  # bytes of a tag and a size


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
            key: (_parse_array(feature) if key in arrays else _parse_value_list(feature))
            for key, feature, _ in _entries(data)
        }


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
                values[name] = _parse_value_list(feature)
    return Located(tuple(keys), values, spans)


@contextlib.contextmanager
def _as_value_errors() -> Iterator[None]:
    try:
        yield
    except (IndexError, KeyError, TypeError, struct.error, UnicodeDecodeError) as e:
        raise ValueError(f"not a tf.train.Example: {type(e).__name__} {e}") from e


def _entries(data: bytes) -> Iterator[tuple[str, Any, int]]:
    """Yields each feature of an Example: its key, its Feature message, and where the message starts in `data`."""
    for _, _, features, features_start in wire_format.fields(data):
        for _, _, entry, entry_start in wire_format.fields(features):
            message = {number: (payload, start) for number, _, payload, start in wire_format.fields(entry)}
            feature, start = message.get(2, (b"", 0))
            yield str(message[1][0], "utf-8"), feature, features_start + entry_start + start


def _bytes_spans(key: str, feature: Any, start: int) -> list[tuple[int, int]]:
    spans = []
    for number, _, value_list, list_start in wire_format.fields(feature):
        if number != 1:
            raise ValueError(f"feature {key!r} holds numbers, expected bytes")
        spans += [(start + list_start + first, len(value)) for _, _, value, first in wire_format.fields(value_list)]
    return spans


def find_bytes(head: bytes, key: str) -> bytes:
    """Returns the value of a bytes feature at the beginning of a serialized Example whose rest may be broken.

    Raises:
        ValueError: if the feature is not in `head`.
    """
    name = wire_format.delimited(b"\x0a", key.encode())
    position = head.find(name) + len(name)
    if position < len(name):
        raise ValueError(f"no feature {key!r} in the first {len(head)} bytes")
    start, size = _enter(head, key, position, 3)  # the map entry's value, its list, the first of the list
    return head[start : start + size]


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
            for number, _, value_list, _ in wire_format.fields(feature)
            if number == _INT64_LIST
            for _, wire_type, payload, _ in wire_format.fields(value_list)
            for value in wire_format.int_values(wire_type, payload)
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
        tag, used = wire_format.read_varint(view, 0)
        if tag & 7 == wire_format.LENGTH_DELIMITED:
            size, used = wire_format.read_varint(view, used)
        elif tag & 7 == 0:
            size = wire_format.read_varint(view, used)[1] - used
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


def copy_features(record: bytes, kinds: Mapping[str, str]) -> dict[str, example_encoder.EncodedValues]:
    """Returns the values of some features of `record` without parsing them; an empty list for a missing feature.

    Args:
        record: a serialized Example.
        kinds: kinds of these features, by their keys.

    Raises:
        ValueError: if `record` is not a serialized Example.
    """
    with _as_value_errors():
        found = {key: bytes(feature) for key, feature, _ in _entries(record) if key in kinds and feature}
    copied = {key: found.get(key) or example_encoder.encode_values(kind, ()) for key, kind in kinds.items()}
    return {key: example_encoder.EncodedValues(feature) for key, feature in copied.items()}


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
    for number, _, value_list, _ in wire_format.fields(feature):
        found = _KINDS[number]
        if kind is not None and kind != found:
            num_values = 0  # the last field of a oneof counts
        kind = found
        for _, wire_type, payload, _ in wire_format.fields(value_list):
            if number == 1 or wire_type != wire_format.LENGTH_DELIMITED:
                num_values += 1
            elif number == 2:
                num_values += len(payload) // 4
            else:  # for a long list it is enough to know that there are many
                is_long = len(payload) > wire_format.MAX_VARINT_BITS // 7
                num_values += 2 if is_long else sum(byte < 0x80 for byte in payload)
    return kind, num_values == 1


def select_features(record: bytes, keys: Collection[str]) -> bytes:
    """Returns a serialized Example with some features of `record`, without parsing their values.

    Raises:
        ValueError: if `record` is not a serialized Example.
    """
    with _as_value_errors():
        found = [(key.encode(), bytes(feature)) for key, feature, _ in _entries(record) if key in keys]
    entries = [wire_format.delimited(b"\x0a", key) + wire_format.delimited(b"\x12", feature) for key, feature in found]
    return wire_format.delimited(b"\x0a", b"".join(wire_format.delimited(b"\x0a", entry) for entry in entries))


def _enter(head: bytes, key: str, position: int, depth: int) -> tuple[int, int]:
    """Returns where the innermost of `depth` nested fields at `position` starts, and its size."""
    view, size = memoryview(head), 0
    try:
        for _ in range(depth):
            size, position = wire_format.read_varint(view, position + 1)
    except IndexError as e:
        raise ValueError(f"feature {key!r} is broken: {e}") from e
    return position, size


def _parse_value_list(feature: bytes | memoryview) -> list[example_encoder.Value]:
    values: list[example_encoder.Value] = []
    for number, _, value_list, _ in wire_format.fields(feature):
        for _, wire_type, payload, _ in wire_format.fields(value_list):
            if number == 1:
                values.append(memoryview(payload).tobytes())  # bytes() of an int would be that many zeros
            elif number == 2:
                values.extend(value for (value,) in struct.iter_unpack("<f", payload))
            else:
                values.extend(wire_format.int_values(wire_type, payload))
    return values


def _parse_array(feature: bytes | memoryview) -> Any:
    """Returns the numbers of a Feature message as an array, and bytes as a list."""
    value_lists = list(wire_format.fields(feature))
    if any(number == 1 for number, *_ in value_lists):
        return _parse_value_list(feature)
    import numpy as np  # late: a process that draws encoded images needs no NumPy

    parts: list[Any] = []
    for number, _, value_list, _ in value_lists:
        for _, wire_type, payload, _ in wire_format.fields(value_list):
            if number == 2:
                if len(payload) % 4:
                    raise IndexError(f"floats of {len(payload)} bytes")
                parts.append(np.frombuffer(payload, "<f4"))
            elif wire_type == 0:  # not packed
                parts.append(np.array([wire_format.signed(payload)], np.int64))
            else:
                parts.append(wire_format.unpack_varints(np.frombuffer(payload, np.uint8)))
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)
