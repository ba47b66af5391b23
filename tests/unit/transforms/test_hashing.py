from __future__ import annotations

import collections

from hypothesis import given
from hypothesis import strategies as st

from imagebeam.transforms import elements

ORDER, SPLIT = b"imagebeam.order", b"imagebeam.split"


def test_hash64_is_the_same_in_every_release() -> None:
    for key, seed, purpose, value in [
        ("cat/1.jpg", 0, ORDER, 0x3F0237DDEF44AC86),  # order
        ("cat/1.jpg", 0, SPLIT, 0x311556096947DCAC),  # split
        ("cat/1.jpg", 1, ORDER, 0xD8D6CA93A677B289),  # other-seed
        ("cat/1.jpg", -(2**63), ORDER, 0x8EE1E433372E8C17),  # least-seed
        ("caf\u00e9/\u732b.jpg", 0, ORDER, 0xB0900621F2749F1F),  # beyond-ascii
        ("caf\udce9.jpg", 0, ORDER, 0x6815CAB929974036),  # undecodable-byte
        ("\ud83d.jpg", 0, ORDER, 0x5B216E5A40019B8C),  # half-a-surrogate-pair
        ("", 0, b"", 0xE4A6A0577479B2B4),  # nothing
    ]:
        assert elements.hash64(key, seed, purpose) == value  # another value would move images between splits and shards


def test_encode_key_of_odd_names_gives_bytes() -> None:
    for key, encoded in [
        ("cat/1.jpg", b"cat/1.jpg"),  # ascii
        ("\u732b", b"\xe7\x8c\xab"),  # beyond-ascii
        ("a\udcff\udc80b", b"a\xff\x80b"),  # undecodable-bytes
        ("\ud83d", b"\xed\xa0\xbd"),  # half-a-surrogate-pair
        ("\ud83d\udcff", b"\xed\xa0\xbd\xed\xb3\xbf"),  # two-halves
    ]:
        assert elements.encode_key(key) == encoded


@given(st.binary())
def test_encode_key_returns_the_bytes_of_any_file_name(name: bytes) -> None:
    assert elements.encode_key(name.decode("utf-8", "surrogateescape")) == name


def test_hash64_of_many_keys_is_uniform_and_unlike_under_another_purpose() -> None:
    keys = [f"cat/{index}.jpg" for index in range(8000)]
    eighths = [(elements.hash64(key, 0, ORDER) >> 61, elements.hash64(key, 0, SPLIT) >> 61) for key in keys]
    counts = collections.Counter(eighths)
    assert len(counts) == 64
    assert all(80 < count < 175 for count in counts.values())  # 125 expected, five standard deviations
