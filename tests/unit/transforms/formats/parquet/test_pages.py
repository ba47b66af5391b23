"""Located values are those that pyarrow reads."""

from __future__ import annotations

import functools
import pathlib
import random
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imagebeam.transforms import elements
from imagebeam.transforms.formats.parquet import pages
from imagebeam.transforms.packed import parquet_content

OPTIONS: dict[str, dict[str, Any]] = {
    "as-datasets-writes": {"use_dictionary": False, "compression": "none", "write_page_index": True},
    "as-datasets-wrote": {"row_group_size": 40},
    "second-version-of-pages": {"data_page_version": "2.0", "row_group_size": 60},
    "second-version-uncompressed": {"data_page_version": "2.0", "compression": "none"},
    "small-pages": {"data_page_size": 1000, "write_batch_size": 5, "dictionary_pagesize_limit": 2000},
    "checksums-and-statistics": {"write_page_checksum": True, "write_statistics": True, "use_dictionary": False},
}


def read_at(content: bytes, place: pages.Place) -> bytes:
    data = content[place.offset : place.offset + place.length]
    if place.blocks is None:
        return data
    plain = parquet_content.decode_blocks(data, place.blocks.num_bytes)
    return plain[place.blocks.start : place.blocks.start + place.size]


def locate(path: pathlib.Path, column: int = 0) -> list[pages.Place | None]:
    """Returns the places of all values of a column."""
    file = pyarrow.parquet.ParquetFile(path)
    level = file.schema.column(column).max_definition_level
    data = path.read_bytes()
    found: list[pages.Place | None] = []
    for group in range(file.metadata.num_row_groups):
        about = file.metadata.row_group(group).column(column)
        start = min(about.data_page_offset, about.dictionary_page_offset or about.data_page_offset)
        is_snappy = about.compression == "SNAPPY"
        end = start + about.total_compressed_size
        chunk = pages.Chunk(start, end, about.num_values, is_snappy, level)
        found += pages.locate_values(lambda offset, length: data[offset : offset + length], chunk)
    return found


@functools.cache  # nobody changes the list
def some_values(count: int) -> list[bytes | None]:
    rng = random.Random(count)
    known = [rng.randbytes(300) * 2 for _ in range(4)]
    return [
        rng.choice((None, b"", rng.choice(known), rng.randbytes(rng.choice((1, 30, 5_000, 200_000)))))
        for _ in range(count)
    ]


@pytest.mark.parametrize("options", OPTIONS.values(), ids=list(OPTIONS))
@pytest.mark.parametrize("kind", ["struct", "nullable", "required", "large"])
def test_each_value_is_found_where_pyarrow_reads_it(kind: str, options: dict[str, Any], tmp_path: pathlib.Path) -> None:
    values = [value for value in some_values(150) if kind != "required" or value is not None]
    rows: Any = values
    type_: Any = pa.large_binary() if kind == "large" else pa.binary()
    if kind == "struct":
        type_ = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        rows = [None if i % 7 == 3 else {"bytes": value, "path": "x"} for i, value in enumerate(values)]
        values = [None if i % 7 == 3 else value for i, value in enumerate(values)]
    schema = pa.schema([pa.field("image", type_, nullable=kind != "required")])
    path = tmp_path / "x.parquet"
    pyarrow.parquet.write_table(pa.Table.from_arrays([pa.array(rows, type_)], schema=schema), path, **options)
    found, content = locate(path), path.read_bytes()
    assert [place and read_at(content, place) for place in found] == values
    for value, place in zip(values, found):
        assert (place and place.size) == (None if value is None else len(value))
        if place and place.blocks:  # far less than the page of 40 to 150 values
            assert place.blocks.num_bytes <= place.size + 2 * parquet_content.BLOCK_BYTES


@pytest.mark.parametrize("encoding", ["DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"])
def test_other_encodings_are_left_to_pyarrow(encoding: str, tmp_path: pathlib.Path) -> None:
    options: Any = {"use_dictionary": False, "column_encoding": {"image": encoding}}
    pyarrow.parquet.write_table(pa.table({"image": [b"a", b"b"]}), tmp_path / "x.parquet", **options)
    with pytest.raises(pages.NotLocatedError, match="encoding"):
        locate(tmp_path / "x.parquet")


@settings(max_examples=150, deadline=None)
@given(
    st.integers(1, 9).flatmap(
        lambda width: st.tuples(
            st.just(width),
            st.lists(st.tuples(st.booleans(), st.integers(1, 9), st.integers(0, (1 << width) - 1)), max_size=6),
        )
    )
)
def test_numbers_in_runs_and_packed_bits_are_decoded(case: tuple[int, list[tuple[bool, int, int]]]) -> None:
    width, runs = case
    encoded, expected = b"", list[int]()
    for is_packed, length, value in runs:
        if is_packed:
            numbers = [(value + i) % (1 << width) for i in range(8 * length)]
            bits = sum(number << width * i for i, number in enumerate(numbers))
            encoded += bytes([length << 1 | 1]) + bits.to_bytes(width * length, "little")
            expected += numbers
        else:
            encoded += bytes([length << 1]) + value.to_bytes((width + 7) // 8, "little")
            expected += [value] * length
    assert pages.decode_levels(encoded, width, len(expected)) == expected
    with pytest.raises(pages.NotLocatedError, match="end early"):
        pages.decode_levels(encoded, width, len(expected) + 1)


@functools.cache
def small_file(options: str) -> bytes:
    values = pa.array([b"x" * 100, None, b"y" * 300, b"x" * 100] * 20)
    sink = pa.BufferOutputStream()
    pyarrow.parquet.write_table(pa.table({"image": values}), sink, **OPTIONS[options])
    written: bytes = sink.getvalue().to_pybytes()
    return written


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damaged_pages_are_not_located_or_lie_in_the_file(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["as-datasets-writes", "as-datasets-wrote", "second-version-of-pages"]))
    damaged = bytearray(small_file(name))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, 200))] = data.draw(st.integers(0, 255))
    chunk = pages.Chunk(4, len(damaged) // 2, 80, name != "as-datasets-writes", 1)
    try:
        for place in pages.locate_values(lambda at, length: bytes(damaged[at : at + length]), chunk):
            assert place is None or 0 <= place.offset <= place.offset + place.length <= len(damaged)
    except pages.NotLocatedError:
        pass


def test_header_of_a_page_is_read_whatever_its_length() -> None:
    """Statistics in it may hold two whole values."""
    sink = pa.BufferOutputStream()
    pyarrow.parquet.write_table(pa.table({"image": [b"x"]}), sink, compression="none", use_dictionary=False)
    plain = sink.getvalue().to_pybytes()
    values = b"\x02\x00\x00\x00\x02\x01" + b"\x01\x00\x00\x00x"  # levels: one run of one value; then the value
    statistics = b"\x18\xc0\x84\x3d" + b"z" * 1_000_000 + b"\x00"  # field 1, bytes
    about = b"\x15\x02\x15\x00\x15\x06\x15\x06\x1c" + statistics + b"\x00"
    header = b"\x15\x00\x15\x16\x15\x16\x2c" + about + b"\x00"
    data = plain[:4] + header + values
    chunk = pages.Chunk(4, len(data), 1, False, 1)
    (place,) = pages.locate_values(lambda at, length: data[at : at + length], chunk)
    assert place == pages.Place(1, len(data) - 1, 1)
    assert elements.ImageRef("", "").blocks is place.blocks is None
