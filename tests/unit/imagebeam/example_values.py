"""Values of features for tests of examples, and TensorFlow's view of an example."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

import tensorflow as tf
from hypothesis import strategies as st

from imagebeam import example
from imagebeam.features import BYTES, FLOAT, INT64

Lists = Mapping[str, tuple[str, Sequence[example.Value]]]  # kind and values by key

INT64_EXTREMES = [0, 1, -1, 127, 128, 2**31, -(2**31), 2**63 - 1, -(2**63)]

texts = st.text(st.characters(exclude_categories=["Cs"]))
single_values = st.one_of(
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
