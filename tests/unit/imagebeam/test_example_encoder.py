"""Examples that the encoder writes, read by TensorFlow and by `example`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from imagebeam import example, features
from imagebeam.features import BYTES, FLOAT, INT64, Feature
from tests.unit.imagebeam.example_values import (
    bits,
    parse_with_tensorflow,
    single_values,
    texts,
    value_lists,
)


def encode(named: Mapping[str, tuple[str, example.Value]], image: bytes | None = None) -> bytes:
    wanted = [Feature(key, f"columns/{key}", kind) for key, (kind, _) in named.items()]
    if image is not None:
        wanted.append(Feature("the image", features.ENCODED, BYTES))
    by_source = {f"columns/{key}": value for key, (_, value) in named.items()}
    return b"".join(example.ExampleEncoder(wanted).encode(by_source, image or b""))


@settings(deadline=None)
@given(st.dictionaries(texts, single_values), st.none() | st.binary(max_size=1000))
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


def test_float_zeros_keep_their_sign_in_one_encoder() -> None:
    encoder = example.ExampleEncoder([Feature("x", "columns/x", FLOAT)])
    signs = []
    for value in (0.0, -0.0, 0.0, -0.0):
        (found,) = example.parse_example(b"".join(encoder.encode({"columns/x": value}, b"")))["x"]
        signs.append(math.copysign(1, found))
    assert signs == [1, -1, 1, -1]


def test_encoder_used_beyond_its_cache_stays_right() -> None:
    for kind in [BYTES, INT64, FLOAT]:
        encoder = example.ExampleEncoder([Feature("x", "columns/x", kind)])
        for number in [*range(3 * example._MAX_CACHED // 2), 0, 1]:
            value = {BYTES: str(number).encode(), INT64: number, FLOAT: float(number)}[kind]
            assert example.parse_example(b"".join(encoder.encode({"columns/x": value}, b""))) == {"x": [value]}


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
