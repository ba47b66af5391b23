from __future__ import annotations

import random

import pyarrow as pa
import pytest

from imagebeam.transforms.packed import parquet_content

BLOCK = parquet_content.BLOCK_BYTES


def compress(data: bytes) -> bytes:
    packed: bytes = pa.Codec("snappy").compress(data, asbytes=True)
    return packed


def mixed(num_bytes: int) -> bytes:
    """Returns bytes of which some repeat, so that all kinds of copies occur."""
    rng = random.Random(num_bytes)
    parts = [rng.randbytes(rng.choice((3, 50, 70, 3000))) for _ in range(40)]
    data = b"".join(rng.choices(parts, k=num_bytes // 300 + 1))
    return (data * (num_bytes // max(len(data), 1) + 1))[:num_bytes]


@pytest.mark.parametrize("num_bytes", [0, 1, 59, 60, 61, 1000, BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK + 7])
@pytest.mark.parametrize("make", [mixed, bytes, random.Random(1).randbytes], ids=["mixed", "zeros", "random"])
def test_each_run_of_blocks_decodes_alone(num_bytes: int, make: object) -> None:
    data = make(num_bytes)  # type: ignore[operator]
    packed = compress(data)
    blocks = parquet_content.find_blocks(packed, num_bytes)
    assert blocks is not None and len(blocks) == -(-num_bytes // BLOCK) + 1 and blocks[-1] == len(packed)
    for first in range(len(blocks) - 1):
        for last in range(first + 1, len(blocks)):
            plain = data[first * BLOCK : last * BLOCK]
            assert parquet_content.decode_blocks(packed[blocks[first] : blocks[last]], len(plain)) == plain


@pytest.mark.parametrize(
    ("packed", "num_bytes"),
    [
        pytest.param(b"", 0, id="nothing"),
        pytest.param(b"\x05\x00a", 5, id="shorter-than-said"),
        pytest.param(b"\x01\x00a", 2, id="another-length"),
        pytest.param(b"\x01\x00ab", 1, id="more-behind"),
        pytest.param(b"\x01\x08a", 1, id="a-literal-that-ends-early"),
        pytest.param(b"\x05\x00a\x01\x02", 5, id="a-copy-from-before-the-start"),
        pytest.param(b"\x05\x00a\x01\x00", 5, id="a-copy-of-offset-zero"),
        pytest.param(b"\xff" * 9, 5, id="a-length-without-end"),
        pytest.param(b"\x05\x00a\x01", 5, id="a-tag-without-its-offset"),
    ],
)
def test_damaged_stream_has_no_blocks(packed: bytes, num_bytes: int) -> None:
    assert parquet_content.find_blocks(packed, num_bytes) is None


def test_block_that_refers_to_an_earlier_one_is_found() -> None:
    literal = b"\xf4" + (BLOCK - 1).to_bytes(2, "little") + b"x" * BLOCK  # one block
    copy = b"\x0e" + (4).to_bytes(2, "little")  # of 4 bytes from 4 bytes before: in the block before
    length = BLOCK + 4
    packed = bytes([length & 0x7F | 0x80, length >> 7 & 0x7F | 0x80, length >> 14]) + literal + copy
    assert parquet_content.find_blocks(packed, length) is None
    straddling = literal.replace(b"x", b"", 1)[3:]
    whole = b"\xf4" + (BLOCK - 2).to_bytes(2, "little") + straddling + copy
    length -= 1
    packed = bytes([length & 0x7F | 0x80, length >> 7 & 0x7F | 0x80, length >> 14]) + whole
    assert pa.Codec("snappy").decompress(packed, length, asbytes=True) == b"x" * length
    assert parquet_content.find_blocks(packed, length) is None


def test_damaged_blocks_raise() -> None:
    with pytest.raises(OSError, match="snappy"):
        parquet_content.decode_blocks(b"\xff\xff", 10)
