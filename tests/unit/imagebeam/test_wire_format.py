"""Varints and fields of protocol buffers; test_example.py compares whole messages with TensorFlow's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imagebeam import wire_format

INT64 = st.integers(-(2**63), 2**63 - 1)


@settings(deadline=None)
@given(st.lists(INT64, max_size=20))
def test_packed_varints_are_unpacked_one_by_one_and_as_an_array(values: list[int]) -> None:
    packed = b"".join(map(wire_format.varint, values))
    assert list(wire_format.int_values(wire_format.LENGTH_DELIMITED, packed)) == values
    assert wire_format.unpack_varints(np.frombuffer(packed, np.uint8)).tolist() == values


def test_long_lists_of_varints_are_unpacked_in_pieces() -> None:
    values = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 20_000).tolist()  # 190 KB of varints
    packed = b"".join(map(wire_format.varint, values))
    assert wire_format.unpack_varints(np.frombuffer(packed, np.uint8)).tolist() == values


@given(INT64, st.binary(max_size=5), st.binary(max_size=5))
def test_varint_is_read_at_its_position(value: int, before: bytes, after: bytes) -> None:
    varint = wire_format.varint(value)
    found, end = wire_format.read_varint(memoryview(before + varint + after), len(before))
    assert (wire_format.signed(found), end) == (value, len(before) + len(varint))


def test_fields_have_number_wire_type_payload_and_offset() -> None:
    message = wire_format.delimited(b"\x0a", b"abc") + b"\x10\x96\x01" + b"\x1d" + b"1234"
    found = [(number, kind, bytes(p) if kind else p, start) for number, kind, p, start in wire_format.fields(message)]
    assert found == [(1, 2, b"abc", 2), (2, 0, 150, 6), (3, 5, b"1234", 9)]


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        (b"\x0a\x05abc", "a field of 5 bytes ends beyond the message"),
        (b"\x09" + bytes(8), "wire type 1"),
        (b"\x80" * 11, "a varint of more than ten bytes"),
        (b"\x80", "index out of bounds"),
    ],
)
def test_broken_message_is_an_index_error(message: bytes, complaint: str) -> None:
    with pytest.raises(IndexError, match=complaint):
        wire_format.fields(message)
