"""Examples that TensorFlow or the encoder wrote, read whole, in part, and damaged."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from imagebeam import example, example_encoder, features, wire_format
from imagebeam.features import BYTES, INT64, Feature
from tests.unit.imagebeam.example_values import (
    Lists,
    bits,
    damage,
    parse_with_tensorflow,
    serialize_with_tensorflow,
    texts,
    value_lists,
)


@settings(deadline=None)
@given(st.dictionaries(texts, value_lists))
def test_parse_example_reads_what_tensorflow_serializes(
    lists: Lists,
) -> None:
    parsed = example.parse_example(serialize_with_tensorflow(lists))
    assert {key: [bits(value) for value in found] for key, found in parsed.items()} == {
        key: [bits(value) for value in items] for key, (_, items) in lists.items()
    }


def delimited(field: int, payload: bytes) -> bytes:
    return bytes([field << 3 | 2, len(payload)]) + payload


def example_of(value_list: bytes) -> bytes:
    """Returns an Example with one feature, "k"."""
    entry = delimited(1, b"k") + delimited(2, value_list)
    return delimited(1, delimited(1, entry))


@pytest.mark.parametrize(
    ("value_list", "expected"),
    [
        pytest.param(delimited(3, b"\x08\x05\x08\x96\x01"), [5, 150], id="int64"),
        pytest.param(
            delimited(2, b"\x0d" + struct.pack("<f", 1.5) + b"\x0d" + struct.pack("<f", -0.0)), [1.5, -0.0], id="float"
        ),
    ],
)
def test_parse_example_reads_unpacked_lists_as_tensorflow_does(
    value_list: bytes, expected: Sequence[example_encoder.Value]
) -> None:
    data = example_of(value_list)
    assert [bits(value) for value in example.parse_example(data)["k"]] == [bits(value) for value in expected]
    assert parse_with_tensorflow(data)["k"][1] == [bits(value) for value in expected]


@settings(deadline=None)
@given(lists=st.dictionaries(texts, value_lists, min_size=1), data=st.data())
def test_copied_features_are_those_of_the_record(lists: Lists, data: st.DataObject) -> None:
    whole = serialize_with_tensorflow(lists)
    looked_at = {key: (kind, single) for key, kind, single in example.look_at_features(whole)}
    assert looked_at == {key: (kind, len(values) == 1) for key, (kind, values) in lists.items()}
    wanted = data.draw(st.sets(st.sampled_from(sorted(lists))))
    kinds = {key: lists[key][0] for key in wanted} | {"🐟 not there": INT64}
    copied = example.copy_features(whole, kinds)
    features_ = [Feature(key, f"columns/{key}", kind) for key, kind in kinds.items()]
    encoder = example_encoder.ExampleEncoder(features_, {feature.source for feature in features_})
    record = b"".join(encoder.encode({f"columns/{key}": value for key, value in copied.items()}, b""))
    expected = {key: lists[key] for key in wanted} | {"🐟 not there": (INT64, [])}
    assert parse_with_tensorflow(record) == parse_with_tensorflow(serialize_with_tensorflow(expected))


def test_feature_without_a_kind_has_none() -> None:
    message = tf.train.Example()
    message.features.feature["void"].SetInParent()
    message.features.feature["empty"].bytes_list.SetInParent()
    looked_at = sorted(example.look_at_features(message.SerializeToString()))
    assert looked_at == [("empty", BYTES, False), ("void", None, False)]


@settings(deadline=None, max_examples=150)
@given(st.dictionaries(texts, value_lists, min_size=1), st.data())
def test_damaged_features_are_copied_or_are_a_value_error(lists: Lists, data: st.DataObject) -> None:
    whole = damage(serialize_with_tensorflow(lists), data, min_size=1)
    try:
        looked_at = example.look_at_features(whole)
    except ValueError as e:
        assert str(e).startswith("not a tf.train.Example: ")
    else:
        example.copy_features(whole, {key: kind or INT64 for key, kind, _ in looked_at})


@settings(deadline=None)
@given(lists=st.dictionaries(texts, value_lists, min_size=1), data=st.data())
def test_requested_numbers_are_returned_as_arrays(lists: Lists, data: st.DataObject) -> None:
    whole = serialize_with_tensorflow(lists)
    wanted = data.draw(st.sets(st.sampled_from(sorted(lists))))
    expected = example.parse_example(whole)
    for piece_bytes in (10, 11, 64, 1 << 16):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(wire_format, "_PIECE_BYTES", piece_bytes)
            found = example.parse_example(whole, wanted)
        assert list(found) == list(expected)
        for key, values in found.items():
            kind, stored = lists[key]
            if key in wanted and kind != BYTES and stored:
                assert values.dtype == (np.int64 if kind == INT64 else np.float32)
            assert list(map(bits, map(plain, values))) == list(map(bits, expected[key]))


def plain(value: Any) -> example_encoder.Value:
    """Returns a number of NumPy as a number of Python."""
    return value if isinstance(value, bytes) else value.item() if hasattr(value, "item") else value


def test_numbers_that_are_not_packed_come_as_arrays() -> None:
    ints = b"\x1a\x16" + b"\x08" + b"\xff" * 9 + b"\x01" + b"\x0a\x03\x05\x80\x01" + b"\x08\x07" + b"\x0a\x02\x01\x02"
    entry = b"\x0a\x01x\x12" + bytes([len(ints)]) + ints
    data = b"\x0a" + bytes([len(entry) + 2]) + b"\x0a" + bytes([len(entry)]) + entry
    expected = example.parse_example(data)["x"]
    assert expected == [-1, 5, 128, 7, 1, 2]
    assert example.parse_example(data, {"x"})["x"].tolist() == expected


@settings(deadline=None, max_examples=150)
@given(st.dictionaries(texts, value_lists, min_size=1), st.data())
def test_damaged_numbers_are_refused_as_arrays_if_they_are_as_lists(lists: Lists, data: st.DataObject) -> None:
    whole = damage(serialize_with_tensorflow(lists), data)
    try:
        expected = example.parse_example(whole)
    except ValueError as e:
        with pytest.raises(ValueError, match=r"^not a tf\.train\.Example: "):
            example.parse_example(whole, set(lists))
        assert str(e).startswith("not a tf.train.Example: ")
    else:
        found = example.parse_example(whole, set(lists))
        assert {key: len(values) for key, values in found.items()} == {k: len(v) for k, v in expected.items()}


# Bytes that are not an example


def assert_parses_or_is_a_value_error(data: bytes) -> None:
    try:
        parsed = example.parse_example(data)
    except ValueError as e:
        assert str(e).startswith("not a tf.train.Example: ")
    else:
        assert all(type(value) in (bytes, int, float) for found in parsed.values() for value in found)


@given(st.binary(max_size=300))
def test_random_bytes_parse_or_are_a_value_error(data: bytes) -> None:
    assert_parses_or_is_a_value_error(data)


@settings(deadline=None)
@given(st.dictionaries(texts, value_lists, min_size=1), st.data())
def test_damaged_example_parses_or_is_a_value_error(lists: Lists, data: st.DataObject) -> None:
    whole = damage(serialize_with_tensorflow(lists), data)
    assert_parses_or_is_a_value_error(whole)


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        pytest.param(b"\x0a\x05abc", "a field of 5 bytes ends beyond the message", id="cut-short"),
        pytest.param(b"\x0a", "index out of bounds", id="cut-in-a-tag"),
        pytest.param(b"\x09" + bytes(8), "wire type 1", id="wire-type"),
        pytest.param(b"\x80" * 200_000, "a varint of more than ten bytes", id="endless-varint"),
        pytest.param(b"\x08\x05", "bytes-like object is required", id="number-for-the-features"),
        pytest.param(delimited(1, delimited(1, b"\x08\x05\x12\x00")), "bytes-like object", id="number-for-a-key"),
        pytest.param(delimited(1, delimited(1, delimited(1, b"\xff"))), "can't decode byte 0xff", id="key-not-utf8"),
        pytest.param(delimited(1, delimited(1, delimited(2, b""))), "KeyError 1", id="no-key"),
        pytest.param(example_of(delimited(1, b"\x08\xff\xff\xff\xff\x7f")), "bytes-like object", id="number-for-bytes"),
        pytest.param(example_of(delimited(2, delimited(1, b"123"))), "buffer", id="floats-of-three-bytes"),
    ],
)
def test_bytes_that_are_not_an_example_are_refused(data: bytes, complaint: str) -> None:
    with pytest.raises(ValueError, match=f"not a tf.train.Example: .*{complaint}"):
        example.parse_example(data)


# A part of an example


@pytest.mark.parametrize("values", [(), (3,), (0, 300, -1, 7)], ids=["none", "one", "many"])
def test_find_ints_returns_all_values_of_a_list_in_the_head_of_a_record(values: tuple[int, ...]) -> None:
    wanted = [Feature("ids", "ids", INT64, True), Feature("image", features.ENCODED, BYTES)]
    head, image = example_encoder.ExampleEncoder(wanted).encode({"ids": values}, b"x" * 9000)
    assert example.find_ints(head + image[:100], "ids") == list(values)
    with pytest.raises(ValueError, match="no feature 'other' in the first"):
        example.find_ints(head, "other")
    if values:
        end = head.index(b"ids") + 3 + 2 + 2 + 1
        with pytest.raises(ValueError, match=f"feature 'ids' does not end in the first {end} bytes"):
            example.find_ints(head[:end], "ids")


def test_find_ints_reads_unpacked_lists() -> None:
    assert example.find_ints(example_of(delimited(3, b"\x08\x05\x08\x06")), "k") == [5, 6]
    with pytest.raises(ValueError, match="feature 'k' is broken"):
        example.find_ints(example_of(delimited(3, b"\x0a\x01\xff")), "k")


@settings(deadline=None)
@given(st.dictionaries(texts, value_lists, min_size=1), st.data())
def test_selected_features_are_those_of_the_record(lists: Lists, data: st.DataObject) -> None:
    record = serialize_with_tensorflow(lists)
    keys = data.draw(st.sets(st.sampled_from(sorted(lists))))
    selected = example.parse_example(example.select_features(record, keys))
    whole = example.parse_example(record)
    assert sorted(selected) == sorted(keys)
    assert all(list(map(bits, selected[key])) == list(map(bits, whole[key])) for key in keys)


@settings(deadline=None)
@given(st.dictionaries(texts, value_lists, min_size=1), st.data())
def test_features_of_a_damaged_record_are_selected_or_are_a_value_error(lists: Lists, data: st.DataObject) -> None:
    whole = damage(serialize_with_tensorflow(lists), data)
    try:
        example.select_features(whole, set(lists))
    except ValueError as e:
        assert str(e).startswith("not a tf.train.Example: ")


@settings(deadline=None)
@given(st.dictionaries(texts, value_lists, min_size=1), st.data())
def test_find_ints_reads_any_feature_of_numbers_in_parts(lists: Lists, data: st.DataObject) -> None:
    record = serialize_with_tensorflow(lists)
    key = data.draw(st.sampled_from(sorted(lists)))
    size = data.draw(st.integers(0, len(record)))
    kind, values = lists[key]
    found = example.find_ints(record[:size], key, lambda start, stop: record[start:stop])
    assert found == (list(values) if kind == INT64 else [])


@settings(deadline=None)
@given(st.dictionaries(texts, value_lists, min_size=1), st.data())
def test_find_ints_in_a_damaged_record_finds_numbers_or_is_a_value_error(lists: Lists, data: st.DataObject) -> None:
    whole = damage(serialize_with_tensorflow(lists), data, min_size=1)
    with contextlib.suppress(ValueError):
        found = example.find_ints(whole[:10], min(lists), lambda start, stop: whole[start:stop])
        assert all(isinstance(value, int) for value in found)
