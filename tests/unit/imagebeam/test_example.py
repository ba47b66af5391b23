"""Examples that the encoder or TensorFlow wrote, read whole, in part, and damaged, by TensorFlow and by `example`."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from imagebeam import example, features
from imagebeam.features import BYTES, FLOAT, INT64, Feature
from tests import case_tables

Lists = Mapping[str, tuple[str, Sequence[example.Value]]]  # kind and values by key

INT64_EXTREMES = [0, 1, -1, 127, 128, 2**31, -(2**31), 2**63 - 1, -(2**63)]

texts = st.text(st.characters(exclude_categories=["Cs"]))
scalars: dict[str, st.SearchStrategy[Any]] = {
    BYTES: st.binary(),
    INT64: st.integers(-(2**63), 2**63 - 1) | st.sampled_from(INT64_EXTREMES),
    FLOAT: st.floats(width=32),
}
single_values = st.one_of(*(st.tuples(st.just(kind), each) for kind, each in scalars.items()))
value_lists = st.one_of(*(st.tuples(st.just(kind), st.lists(each)) for kind, each in scalars.items()))


def bits(value: example.Value) -> object:
    """Returns a value that is equal only for equal bits: 0.0 and -0.0 differ, nan equals itself."""
    return struct.pack("<f", value) if isinstance(value, float) else value


def parse_with_tensorflow(data: bytes) -> dict[str, tuple[str, list[object]]]:
    """Returns the kind and the values of every feature."""
    parsed = {}
    for key, feature in tf.train.Example.FromString(data).features.feature.items():
        kind = feature.WhichOneof("kind") or ""
        parsed[key] = (kind.removesuffix("_list"), [bits(v) for v in getattr(feature, kind).value] if kind else [])
    return parsed


def serialize_with_tensorflow(lists: Lists) -> bytes:
    message = tf.train.Example()
    for key, (kind, items) in lists.items():
        getattr(message.features.feature[key], f"{kind}_list").value.extend(items)
    return message.SerializeToString()


def damage(content: bytes, data: st.DataObject, min_size: int = 0) -> bytes:
    """Returns the content with up to three bytes changed."""
    changed = bytearray(content)
    for position in data.draw(st.lists(st.integers(0, len(content) - 1), min_size=min_size, max_size=3)):
        changed[position] = data.draw(st.integers(0, 255))
    return bytes(changed)


# Encoding


@settings(deadline=None)
@given(
    singles=st.dictionaries(texts, single_values),
    lists=st.dictionaries(texts.map("lists/{}".format), value_lists),
    image=st.none() | st.binary(max_size=1000),
)
def test_encoded_example_parses_to_the_same_values(
    singles: Mapping[str, tuple[str, example.Value]], lists: Lists, image: bytes | None
) -> None:
    wanted = [Feature(key, f"columns/{key}", kind) for key, (kind, _) in singles.items()]
    wanted += [Feature(key, f"columns/{key}", kind, many=True) for key, (kind, _) in lists.items()]
    by_source = {f"columns/{key}": value for key, (_, value) in (singles | lists).items()}
    expected = {key: (kind, [bits(value)]) for key, (kind, value) in singles.items()}
    expected |= {key: (kind, list(map(bits, values))) for key, (kind, values) in lists.items()}
    if image is not None:
        wanted.append(Feature("the image", features.ENCODED, BYTES))
        expected["the image"] = (BYTES, [image])
    data = b"".join(example.ExampleEncoder(wanted).encode(by_source, image or b""))
    assert parse_with_tensorflow(data) == expected
    parsed = {key: [bits(value) for value in found] for key, found in example.parse_example(data).items()}
    assert parsed == {key: found for key, (_, found) in expected.items()}


PLAIN = [Feature("name", "columns/name", BYTES), Feature("label", "columns/label", INT64)]


@pytest.mark.parametrize("kind", [BYTES, INT64, FLOAT])
@pytest.mark.parametrize("size", [0, 1, *(1 << bits for bits in (7, 14, 21))], ids="of-{}".format)
def test_prefix_in_c_is_that_of_python(monkeypatch: pytest.MonkeyPatch, kind: str, size: int) -> None:
    wanted = [*PLAIN, Feature("the image", features.ENCODED, kind)]
    images = [bytes([7]) * near for near in range(max(size - 70, 0), size + 2, 3 if size < 1 << 20 else 12)]
    values = {"columns/name": b"n" * (size % 300), "columns/label": size}
    in_c, in_python = example.ExampleEncoder(wanted), example.ExampleEncoder(wanted)
    found = [in_c.encode(values, image) for image in images]
    monkeypatch.setattr(example, "_encode_prefix", None)
    assert found == [in_python.encode(values, image) for image in images]


def test_each_example_has_its_own_values_whatever_the_encoder_cached() -> None:
    beyond_the_cache = [*range(3 * example._MAX_CACHED // 2), 0, 1]
    for kind, many, values in [
        (FLOAT, False, [0.0, -0.0, 0.0, -0.0]),
        (INT64, True, [[1, 2], [], [3], [1, 2]]),
        (BYTES, False, [b"%d" % number for number in beyond_the_cache]),
        (INT64, False, beyond_the_cache),
        (FLOAT, False, [float(number) for number in beyond_the_cache]),
    ]:
        encoder = example.ExampleEncoder([Feature("x", "columns/x", kind, many)])
        for value in values:
            [found] = example.parse_example(b"".join(encoder.encode({"columns/x": value}, b""))).values()
            assert list(map(bits, found)) == list(map(bits, value if many else [value]))


def test_image_is_handed_on_uncopied() -> None:
    image = bytes(1000)
    _, payload = example.ExampleEncoder([Feature("i", features.ENCODED, BYTES)]).encode({}, image)
    assert payload is image


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


# Reading


def plain(value: Any) -> example.Value:
    """Returns a number of NumPy as a number of Python."""
    return value if isinstance(value, bytes) else value.item() if hasattr(value, "item") else value


def bits_of(parsed: Mapping[str, Iterable[Any]]) -> dict[str, list[object]]:
    return {key: [bits(plain(value)) for value in values] for key, values in parsed.items()}


@settings(deadline=None)
@given(lists=st.dictionaries(texts, value_lists, min_size=1), data=st.data())
def test_all_functions_return_what_tensorflow_serializes(lists: Lists, data: st.DataObject) -> None:
    record = serialize_with_tensorflow(lists)
    expected = bits_of({key: items for key, (_, items) in lists.items()})
    wanted = data.draw(st.sets(st.sampled_from(sorted(lists))))
    assert bits_of(example.parse_example(record)) == expected
    parsed = example.parse_example(record, wanted)
    assert bits_of(parsed) == expected
    for key in wanted:
        kind, stored = lists[key]
        if kind != BYTES and stored:
            assert parsed[key].dtype == (np.int64 if kind == INT64 else np.float32)
    looked_at = {key: (kind, single) for key, kind, single in example.look_at_features(record)}
    assert looked_at == {key: (kind, len(values) == 1) for key, (kind, values) in lists.items()}
    messages = example.find_messages(record, wanted)
    assert bits_of({key: example.parse_array(each) for key, each in messages.items()}) == {
        key: expected[key] for key in wanted
    }
    key, size = data.draw(st.sampled_from(sorted(lists))), data.draw(st.integers(0, len(record)))
    found = example.find_ints(record[:size], key, lambda start, stop: record[start:stop])
    assert found == (list(lists[key][1]) if lists[key][0] == INT64 else [])
    kinds = {key: lists[key][0] for key in wanted} | {"🐟 not there": INT64}
    copied = example.copy_features(record, kinds)
    features_ = [Feature(key, f"columns/{key}", kind) for key, kind in kinds.items()]
    encoder = example.ExampleEncoder(features_, {feature.source for feature in features_})
    again = b"".join(encoder.encode({f"columns/{key}": value for key, value in copied.items()}, b""))
    stored_lists = {key: lists[key] for key in wanted} | {"🐟 not there": (INT64, [])}
    assert parse_with_tensorflow(again) == parse_with_tensorflow(serialize_with_tensorflow(stored_lists))


def delimited(field: int, payload: bytes) -> bytes:
    return bytes([field << 3 | 2, len(payload)]) + payload


def example_of(value_list: bytes) -> bytes:
    """Returns an Example with one feature, "k"."""
    entry = delimited(1, b"k") + delimited(2, value_list)
    return delimited(1, delimited(1, entry))


def test_parse_example_reads_unpacked_lists_as_tensorflow_does() -> None:
    for value_list, expected in [
        (delimited(3, b"\x08\x05\x08\x96\x01"), [5, 150]),
        (delimited(3, b"\x08" + b"\xff" * 9 + b"\x01\x0a\x03\x05\x80\x01\x08\x07"), [-1, 5, 128, 7]),
        (delimited(2, b"\x0d" + struct.pack("<f", 1.5) + b"\x0d" + struct.pack("<f", -0.0)), [1.5, -0.0]),
    ]:
        data = example_of(value_list)
        assert [bits(value) for value in example.parse_example(data)["k"]] == [bits(value) for value in expected]
        assert parse_with_tensorflow(data)["k"][1] == [bits(value) for value in expected]
        assert example.parse_example(data, {"k"})["k"].tolist() == expected


def test_feature_without_a_kind_has_none() -> None:
    message = tf.train.Example()
    message.features.feature["void"].SetInParent()
    message.features.feature["empty"].bytes_list.SetInParent()
    looked_at = sorted(example.look_at_features(message.SerializeToString()))
    assert looked_at == [("empty", BYTES, False), ("void", None, False)]


# Bytes that are not an example


@settings(deadline=None, max_examples=200)
@given(lists=st.dictionaries(texts, value_lists, min_size=1), data=st.data())
def test_damaged_or_random_bytes_parse_or_are_a_value_error(lists: Lists, data: st.DataObject) -> None:
    whole = damage(serialize_with_tensorflow(lists), data) if data.draw(st.booleans()) else data.draw(st.binary())
    try:
        parsed = example.parse_example(whole)
    except ValueError as e:
        assert str(e).startswith("not a tf.train.Example: ")
        with pytest.raises(ValueError, match=r"^not a tf\.train\.Example: "):
            example.parse_example(whole, set(lists))
    else:
        assert all(type(value) in (bytes, int, float) for found in parsed.values() for value in found)
        found = example.parse_example(whole, set(lists))
        assert {key: len(values) for key, values in found.items()} == {k: len(v) for k, v in parsed.items()}
    with contextlib.suppress(ValueError):
        kinds = {key: kind or INT64 for key, kind, _ in example.look_at_features(whole)}
        example.copy_features(whole, kinds)
    with contextlib.suppress(ValueError):
        for message in example.find_messages(whole, set(lists)).values():
            example.parse_array(message)
    with contextlib.suppress(ValueError):
        ints = example.find_ints(whole[:10], min(lists), lambda start, stop: whole[start:stop])
        assert all(isinstance(value, int) for value in ints)


def test_bytes_that_are_not_an_example_are_refused() -> None:
    for data, complaint in [
        (b"\x0a\x05abc", "a field of 5 bytes ends beyond the message"),
        (b"\x0a", "index out of bounds"),
        (b"\x09" + bytes(8), "wire type 1"),
        (b"\x80" * 200_000, "a varint of more than ten bytes"),
        (b"\x08\x05", "bytes-like object is required"),
        (delimited(1, delimited(1, b"\x08\x05\x12\x00")), "bytes-like object"),
        (delimited(1, delimited(1, delimited(1, b"\xff"))), "can't decode byte 0xff"),
        (delimited(1, delimited(1, delimited(2, b""))), "KeyError 1"),
        (example_of(delimited(1, b"\x08\xff\xff\xff\xff\x7f")), "bytes-like object"),
        (example_of(delimited(2, delimited(1, b"123"))), "buffer"),
    ]:
        with (
            case_tables.named(data, complaint),
            pytest.raises(ValueError, match=f"not a tf.train.Example: .*{complaint}"),
        ):
            example.parse_example(data)


# A part of an example


def test_find_ints_returns_all_values_of_a_list_in_the_head_of_a_record() -> None:
    for values in [(), (3,), (0, 300, -1, 7)]:
        with case_tables.named(values):
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
