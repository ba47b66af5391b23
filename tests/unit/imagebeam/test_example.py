from __future__ import annotations

import contextlib
import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from imagebeam import example, features
from imagebeam.features import BYTES, FLOAT, INT64, Feature

INT64_EXTREMES = [0, 1, -1, 127, 128, 2**31, -(2**31), 2**63 - 1, -(2**63)]

texts = st.text(st.characters(exclude_categories=["Cs"]))
values = st.one_of(
    st.tuples(st.just(BYTES), st.binary()),
    st.tuples(st.just(INT64), st.integers(-(2**63), 2**63 - 1) | st.sampled_from(INT64_EXTREMES)),
    st.tuples(st.just(FLOAT), st.floats(width=32)),
)
value_lists = st.one_of(
    st.tuples(st.just(BYTES), st.lists(st.binary())),
    st.tuples(st.just(INT64), st.lists(st.integers(-(2**63), 2**63 - 1))),
    st.tuples(st.just(FLOAT), st.lists(st.floats(width=32))),
)


def bits(value: example.Value) -> object:
    """What compares equal for equal bits alone: 0.0 and -0.0 differ, nan is itself."""
    return struct.pack("<f", value) if isinstance(value, float) else value


def parse_with_tensorflow(data: bytes) -> dict[str, tuple[str, list[object]]]:
    """The kind and the values of every feature."""
    parsed = {}
    for key, feature in tf.train.Example.FromString(data).features.feature.items():
        kind = feature.WhichOneof("kind") or ""
        parsed[key] = (kind.removesuffix("_list"), [bits(v) for v in getattr(feature, kind).value] if kind else [])
    return parsed


def serialize_with_tensorflow(lists: Mapping[str, tuple[str, Sequence[example.Value]]]) -> bytes:
    message = tf.train.Example()
    for key, (kind, items) in lists.items():
        getattr(message.features.feature[key], f"{kind}_list").value.extend(items)
    return message.SerializeToString()


def encode(named: Mapping[str, tuple[str, example.Value]], image: bytes | None = None) -> bytes:
    wanted = [Feature(key, f"columns/{key}", kind) for key, (kind, _) in named.items()]
    if image is not None:
        wanted.append(Feature("the image", features.ENCODED, BYTES))
    by_source = {f"columns/{key}": value for key, (_, value) in named.items()}
    return b"".join(example.ExampleEncoder(wanted).encode(by_source, image or b""))


@settings(deadline=None)
@given(st.dictionaries(texts, values), st.none() | st.binary(max_size=1000))
def test_encoded_example_parses_to_the_same_values(
    named: Mapping[str, tuple[str, example.Value]], image: bytes | None
) -> None:
    data = encode(named, image)
    expected = {key: (kind, [bits(value)]) for key, (kind, value) in named.items()}
    if image is not None:
        expected["the image"] = (BYTES, [image])
    assert parse_with_tensorflow(data) == expected
    parsed = {key: [bits(value) for value in found] for key, found in example.parse_example(data).items()}
    assert parsed == {key: found for key, (_, found) in expected.items()}


@pytest.mark.parametrize("value", INT64_EXTREMES)
def test_int64_extremes_survive(value: int) -> None:
    data = encode({"key": (INT64, value)})
    assert parse_with_tensorflow(data) == {"key": (INT64, [value])}
    assert example.parse_example(data) == {"key": [value]}


@settings(deadline=None)
@given(st.dictionaries(texts, value_lists))
def test_parse_example_reads_what_tensorflow_serializes(
    lists: Mapping[str, tuple[str, Sequence[example.Value]]],
) -> None:
    parsed = example.parse_example(serialize_with_tensorflow(lists))
    assert {key: [bits(value) for value in found] for key, found in parsed.items()} == {
        key: [bits(value) for value in items] for key, (_, items) in lists.items()
    }


def delimited(field: int, payload: bytes) -> bytes:
    return bytes([field << 3 | 2, len(payload)]) + payload


def example_of(value_list: bytes) -> bytes:
    """An Example with one feature, "k"."""
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
    value_list: bytes, expected: Sequence[example.Value]
) -> None:
    data = example_of(value_list)
    assert [bits(value) for value in example.parse_example(data)["k"]] == [bits(value) for value in expected]
    assert parse_with_tensorflow(data)["k"][1] == [bits(value) for value in expected]


def test_float_zeros_keep_their_sign_in_one_encoder() -> None:
    encoder = example.ExampleEncoder([Feature("x", "columns/x", FLOAT)])
    signs = []
    for value in (0.0, -0.0, 0.0, -0.0):
        (found,) = example.parse_example(b"".join(encoder.encode({"columns/x": value}, b"")))["x"]
        signs.append(math.copysign(1, found))
    assert signs == [1, -1, 1, -1]


@pytest.mark.parametrize("kind", [BYTES, INT64, FLOAT])
def test_encoder_used_beyond_its_cache_stays_right(kind: str) -> None:
    encoder = example.ExampleEncoder([Feature("x", "columns/x", kind)])
    for number in [*range(3 * example._MAX_CACHED // 2), 0, 1]:
        value = {BYTES: str(number).encode(), INT64: number, FLOAT: float(number)}[kind]
        assert example.parse_example(b"".join(encoder.encode({"columns/x": value}, b""))) == {"x": [value]}


def test_image_is_handed_on_uncopied() -> None:
    image = bytes(1000)
    _, payload = example.ExampleEncoder([Feature("i", features.ENCODED, BYTES)]).encode({}, image)
    assert payload is image


# Pixels as numbers


@pytest.mark.parametrize("kind", [INT64, FLOAT])
@settings(deadline=None)
@given(st.binary(max_size=400))
def test_pixels_become_a_list_of_numbers_as_tensorflow_writes_it(kind: str, pixels: bytes) -> None:
    encoder = example.ExampleEncoder([Feature("n", "columns/n", INT64), Feature("img", features.ENCODED, kind, True)])
    data = b"".join(encoder.encode({"columns/n": 5}, pixels))
    found = tf.train.Example.FromString(data).features.feature["img"]
    assert list(getattr(found, f"{kind}_list").value) == list(pixels)
    assert example.parse_example(data) == {"n": [5], "img": list(pixels)}
    spec = tf.io.FixedLenFeature([len(pixels)], tf.int64 if kind == INT64 else tf.float32)
    if pixels:
        assert tf.io.parse_single_example(data, {"img": spec})["img"].numpy().tolist() == list(pixels)


@pytest.mark.parametrize("kind", [INT64, FLOAT])
def test_pixels_may_come_as_an_array(kind: str) -> None:
    array = np.arange(256, dtype=np.uint8).reshape(16, 8, 2)
    encoder = example.ExampleEncoder([Feature("img", features.ENCODED, kind, True)])
    assert encoder.encode({}, array) == encoder.encode({}, array.tobytes())
    assert example.parse_example(b"".join(encoder.encode({}, array))) == {"img": list(range(256))}


@settings(deadline=None)
@given(lists=st.dictionaries(texts, value_lists, min_size=1), data=st.data())
def test_copied_features_are_those_of_the_record(
    lists: Mapping[str, tuple[str, Sequence[example.Value]]], data: st.DataObject
) -> None:
    whole = serialize_with_tensorflow(lists)
    looked_at = {key: (kind, single) for key, kind, single in example.look_at_features(whole)}
    assert looked_at == {key: (kind, len(values) == 1) for key, (kind, values) in lists.items()}
    wanted = data.draw(st.sets(st.sampled_from(sorted(lists))))
    kinds = {key: lists[key][0] for key in wanted} | {"🐟 not there": INT64}
    copied = example.copy_features(whole, kinds)
    features_ = [Feature(key, f"columns/{key}", kind) for key, kind in kinds.items()]
    encoder = example.ExampleEncoder(features_, {feature.source for feature in features_})
    record = b"".join(encoder.encode({f"columns/{key}": value for key, value in copied.items()}, b""))
    expected = {key: lists[key] for key in wanted} | {"🐟 not there": (INT64, [])}
    assert parse_with_tensorflow(record) == parse_with_tensorflow(serialize_with_tensorflow(expected))


def test_feature_without_a_kind_has_none() -> None:
    message = tf.train.Example()
    message.features.feature["void"].SetInParent()
    message.features.feature["empty"].bytes_list.SetInParent()
    looked_at = sorted(example.look_at_features(message.SerializeToString()))
    assert looked_at == [("empty", BYTES, False), ("void", None, False)]


@settings(deadline=None, max_examples=300)
@given(st.dictionaries(texts, value_lists, min_size=1), st.data())
def test_damaged_features_are_copied_or_are_a_value_error(
    lists: Mapping[str, tuple[str, Sequence[example.Value]]], data: st.DataObject
) -> None:
    whole = bytearray(serialize_with_tensorflow(lists))
    for position in data.draw(st.lists(st.integers(0, len(whole) - 1), min_size=1, max_size=3)):
        whole[position] = data.draw(st.integers(0, 255))
    try:
        looked_at = example.look_at_features(bytes(whole))
    except ValueError as e:
        assert str(e).startswith("not a tf.train.Example: ")
    else:
        example.copy_features(bytes(whole), {key: kind or INT64 for key, kind, _ in looked_at})


@pytest.mark.parametrize("piece_bytes", [10, 11, 64, 1 << 16])
@settings(deadline=None)
@given(lists=st.dictionaries(texts, value_lists, min_size=1), data=st.data())
def test_numbers_come_as_arrays_where_asked_for(
    piece_bytes: int, lists: Mapping[str, tuple[str, Sequence[example.Value]]], data: st.DataObject
) -> None:
    whole = serialize_with_tensorflow(lists)
    wanted = data.draw(st.sets(st.sampled_from(sorted(lists))))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(example, "_PIECE_BYTES", piece_bytes)
        found = example.parse_example(whole, wanted)
    expected = example.parse_example(whole)
    assert list(found) == list(expected)
    for key, values in found.items():
        kind, stored = lists[key]
        if key in wanted and kind != BYTES and stored:
            assert values.dtype == (np.int64 if kind == INT64 else np.float32)
        assert list(map(bits, map(plain, values))) == list(map(bits, expected[key]))


def plain(value: Any) -> example.Value:
    """A number of NumPy as Python's."""
    return value if isinstance(value, bytes) else value.item() if hasattr(value, "item") else value


def test_numbers_that_are_not_packed_come_as_arrays() -> None:
    ints = b"\x1a\x16" + b"\x08" + b"\xff" * 9 + b"\x01" + b"\x0a\x03\x05\x80\x01" + b"\x08\x07" + b"\x0a\x02\x01\x02"
    entry = b"\x0a\x01x\x12" + bytes([len(ints)]) + ints
    data = b"\x0a" + bytes([len(entry) + 2]) + b"\x0a" + bytes([len(entry)]) + entry
    expected = example.parse_example(data)["x"]
    assert expected == [-1, 5, 128, 7, 1, 2]
    assert example.parse_example(data, {"x"})["x"].tolist() == expected


@settings(deadline=None, max_examples=300)
@given(st.dictionaries(texts, value_lists, min_size=1), st.data())
def test_damaged_numbers_are_refused_as_arrays_where_they_are_as_lists(
    lists: Mapping[str, tuple[str, Sequence[example.Value]]], data: st.DataObject
) -> None:
    whole = bytearray(serialize_with_tensorflow(lists))
    for position in data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=3)):
        whole[position] = data.draw(st.integers(0, 255))
    try:
        expected = example.parse_example(bytes(whole))
    except ValueError as e:
        with pytest.raises(ValueError, match=r"^not a tf\.train\.Example: "):
            example.parse_example(bytes(whole), set(lists))
        assert str(e).startswith("not a tf.train.Example: ")
    else:
        found = example.parse_example(bytes(whole), set(lists))
        assert {key: len(values) for key, values in found.items()} == {k: len(v) for k, v in expected.items()}


# What is no example


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
def test_damaged_example_parses_or_is_a_value_error(
    lists: Mapping[str, tuple[str, Sequence[example.Value]]], data: st.DataObject
) -> None:
    whole = bytearray(serialize_with_tensorflow(lists))
    for position in data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=3)):
        whole[position] = data.draw(st.integers(0, 255))
    assert_parses_or_is_a_value_error(bytes(whole))


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
def test_what_is_no_example_is_refused(data: bytes, complaint: str) -> None:
    with pytest.raises(ValueError, match=f"not a tf.train.Example: .*{complaint}"):
        example.parse_example(data)


@settings(deadline=None)
@given(st.dictionaries(texts, value_lists), st.none() | st.binary(max_size=1000))
def test_lists_are_read_by_tensorflow(named: Mapping[str, tuple[str, Sequence[Any]]], image: bytes | None) -> None:
    wanted = [Feature(key, f"columns/{key}", kind, many=True) for key, (kind, _) in named.items()]
    if image is not None:
        wanted.append(Feature("the image", features.ENCODED, BYTES))
    by_source = {f"columns/{key}": items for key, (_, items) in named.items()}
    encoded = b"".join(example.ExampleEncoder(wanted).encode(by_source, image or b""))
    expected = {key: (kind, list(map(bits, items))) for key, (kind, items) in named.items()}
    if image is not None:
        expected["the image"] = (BYTES, [image])
    assert parse_with_tensorflow(encoded) == expected
    assert {key: list(map(bits, items)) for key, items in example.parse_example(encoded).items()} == {
        key: items for key, (_, items) in expected.items()
    }


def test_list_is_not_kept_for_the_next_example() -> None:
    encoder = example.ExampleEncoder([Feature("x", "columns/x", INT64, many=True)])
    for items in ([1, 2], [], [3], (1, 2)):
        encoded = b"".join(encoder.encode({"columns/x": items}, b""))
        assert example.parse_example(encoded) == {"x": list(items)}


def test_image_that_is_a_list_of_numbers_is_a_feature_like_others() -> None:
    encoder = example.ExampleEncoder([Feature("img", features.ENCODED, INT64, many=True)])
    encoded = b"".join(encoder.encode({}, bytes(range(256))))
    assert parse_with_tensorflow(encoded) == {"img": (INT64, list(range(256)))}


# A part of an example


@pytest.mark.parametrize("values", [(), (3,), (0, 300, -1, 7)], ids=["none", "one", "many"])
def test_find_ints_gives_all_values_of_a_list_at_the_head_of_a_record(values: tuple[int, ...]) -> None:
    wanted = [Feature("ids", "ids", INT64, True), Feature("image", features.ENCODED, BYTES)]
    head, image = example.ExampleEncoder(wanted).encode({"ids": values}, b"x" * 9000)
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
def test_selected_features_are_those_of_the_record(
    lists: Mapping[str, tuple[str, Sequence[example.Value]]], data: st.DataObject
) -> None:
    record = serialize_with_tensorflow(lists)
    keys = data.draw(st.sets(st.sampled_from(sorted(lists))))
    selected = example.parse_example(example.select_features(record, keys))
    whole = example.parse_example(record)
    assert sorted(selected) == sorted(keys)
    assert all(list(map(bits, selected[key])) == list(map(bits, whole[key])) for key in keys)


@settings(deadline=None)
@given(st.dictionaries(texts, value_lists, min_size=1), st.data())
def test_features_of_a_damaged_record_are_selected_or_are_a_value_error(
    lists: Mapping[str, tuple[str, Sequence[example.Value]]], data: st.DataObject
) -> None:
    whole = bytearray(serialize_with_tensorflow(lists))
    for position in data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=3)):
        whole[position] = data.draw(st.integers(0, 255))
    try:
        example.select_features(bytes(whole), set(lists))
    except ValueError as e:
        assert str(e).startswith("not a tf.train.Example: ")


@settings(deadline=None)
@given(st.dictionaries(texts, value_lists, min_size=1), st.data())
def test_find_ints_reads_any_feature_of_numbers_in_parts(
    lists: Mapping[str, tuple[str, Sequence[example.Value]]], data: st.DataObject
) -> None:
    record = serialize_with_tensorflow(lists)
    key = data.draw(st.sampled_from(sorted(lists)))
    size = data.draw(st.integers(0, len(record)))
    kind, values = lists[key]
    found = example.find_ints(record[:size], key, lambda start, stop: record[start:stop])
    assert found == (list(values) if kind == INT64 else [])


@settings(deadline=None)
@given(st.dictionaries(texts, value_lists, min_size=1), st.data())
def test_find_ints_in_a_damaged_record_finds_numbers_or_is_a_value_error(
    lists: Mapping[str, tuple[str, Sequence[example.Value]]], data: st.DataObject
) -> None:
    record = bytearray(serialize_with_tensorflow(lists))
    for position in data.draw(st.lists(st.integers(0, len(record) - 1), min_size=1, max_size=3)):
        record[position] ^= 1 << data.draw(st.integers(0, 7))
    whole = bytes(record)
    with contextlib.suppress(ValueError):
        found = example.find_ints(whole[:10], min(lists), lambda start, stop: whole[start:stop])
        assert all(isinstance(value, int) for value in found)
