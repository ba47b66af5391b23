from __future__ import annotations

import io
import json
import pathlib
import re
import sys
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from imagebeam import errors
from imagebeam.transforms.formats.tables import table_formats
from imagebeam.transforms.formats.tables.table_formats import TableFile
from imagebeam.transforms.packed import parquet_content


def write(path: pathlib.Path, data: bytes | str) -> str:
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return str(path)


def rows_of(uri: str, format: str = "csv", columns: tuple[str, ...] = ("a",), **options: Any) -> list[tuple[str, Any]]:
    """Returns the places and contents of all rows."""
    table = TableFile(uri, format, **{key: value for key, value in options.items() if key != "texts"})
    return [(str(place), row) for place, row in table.rows(columns, options.get("texts", ()))]


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("/a/m.csv", "csv"),
        ("/a.jsonl/m.CSV", "csv"),
        ("gs://b/m.jsonl", "jsonl"),
        ("m.ndjson", "jsonl"),
        ("m.parquet", "parquet"),
        ("m.v2.pq", "parquet"),
    ],
)
def test_format_of_an_address_is_its_extensions(uri: str, expected: str) -> None:
    assert table_formats.format_of(uri) == expected


@pytest.mark.parametrize(("uri", "extension"), [("/a/m.txt", ".txt"), ("/a.csv/m", ""), ("", "")])
def test_format_of_another_extension_is_a_config_error(uri: str, extension: str) -> None:
    complaint = (
        f"manifest {uri!r}: extension {extension!r} is none of .csv, .tsv, .jsonl, .ndjson, .json, .parquet, .pq; "
        "set source.manifest.format, or source.by: files for a folder of images"
    )
    with pytest.raises(errors.ConfigError, match=re.escape(complaint)):
        table_formats.format_of(uri)


@pytest.mark.parametrize(
    ("name", "data", "places"),
    [
        pytest.param("t.csv", "a,b\n1,x\n\n2,y\n", ["line 2", "line 4"], id="csv-counts-blank-lines"),
        pytest.param("t.tsv", "a\tb\n1\tx\n2\ty\n", ["line 2", "line 3"], id="tsv"),
        pytest.param("t.jsonl", '{"a": "1", "b": "x"}\n\n{"a": "2", "b": "y"}\n', ["line 1", "line 3"], id="jsonl"),
    ],
)
def test_rows_have_the_line_numbers_of_an_editor(
    tmp_path: pathlib.Path, name: str, data: str, places: list[str]
) -> None:
    uri = write(tmp_path / name, data)
    format = table_formats.format_of(uri)
    assert rows_of(uri, format) == list(zip(places, [{"a": "1", "b": "x"}, {"a": "2", "b": "y"}]))
    assert [place.position for place, _ in TableFile(uri, format).rows(("a",))] == [0, 1]
    assert TableFile(uri, format).column_names() == ["a", "b"]


def test_rows_of_quoted_cells_over_several_lines_have_the_place_of_their_first_line(tmp_path: pathlib.Path) -> None:
    uri = write(tmp_path / "t.csv", 'a,b\n1,"x\ny"\n2,z\n')
    assert [place for place, _ in rows_of(uri)] == ["line 2", "line 4"]


def test_rows_of_parquet_are_counted_from_zero_and_hold_only_the_columns(tmp_path: pathlib.Path) -> None:
    buffer = io.BytesIO()
    pq.write_table(pa.table({"a": [1, None], "b": ["x", "y"]}), buffer)
    uri = write(tmp_path / "t.parquet", buffer.getvalue())
    assert rows_of(uri, "parquet") == [("row 0", {"a": 1}), ("row 1", {"a": None})]
    assert TableFile(uri, "parquet").column_names() == ["a", "b"]


@pytest.mark.parametrize("before", ["", '[{"a": "x.jpg", "b": ' + "1" * 70_000 + "}, "])
def test_rows_of_json_nested_too_deep_raise(tmp_path: pathlib.Path, before: str) -> None:
    uri = write(tmp_path / "t.json", before + "[" * 100_000)
    table = TableFile(uri, "json")
    with pytest.raises(ValueError, match="it holds lists or objects nested more than 1,000 deep: it is no table"):
        list(table.rows(("a",), ()))


def test_parquet_without_pyarrow_names_the_extra(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = f"{tmp_path}/t.parquet"
    pq.write_table(pa.table({"a": [1]}), uri)
    message = f"pyarrow is not installed, reading '{uri}' needs it: pip install 'imagebeam[convert]'"
    table = TableFile(uri, "parquet")
    readers: list[Callable[[], object]] = [table.column_names, lambda: [*table.rows(("a",), ())]]
    readers += [lambda: parquet_content.open_parquet(uri).__enter__()]
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for read in readers:
        with pytest.raises(errors.ConfigError, match=re.escape(message)):
            read()


def test_rows_with_another_number_of_cells_are_texts_that_name_the_delimiter(tmp_path: pathlib.Path) -> None:
    uri = write(tmp_path / "t.csv", "a,b\n1\n1;2\n1,2,3\n")
    assert [row for _, row in rows_of(uri, columns=("a", "b"))] == [
        "1 cells, the header has 2; quote the cells that hold commas",
        "1 cells, the header has 2; the line is split by semicolons: set source.manifest.delimiter: ';'",
        "3 cells, the header has 2; quote the cells that hold commas",
    ]


@pytest.mark.parametrize("line", ["{", "[1]", '"text"', '{"a": "\\ud800"}'])
def test_rows_of_broken_json_are_texts(tmp_path: pathlib.Path, line: str) -> None:
    ((place, row),) = rows_of(write(tmp_path / "t.jsonl", line + "\n"), "jsonl")
    assert place == "line 1"
    assert re.match("not JSON: |a JSON (list|str), expected an object", row)


def test_rows_keep_bytes_outside_of_the_encoding_except_in_texts(tmp_path: pathlib.Path) -> None:
    uri = write(tmp_path / "t.csv", b"a,b\n\xff,caf\xe9\n")
    assert rows_of(uri) == [("line 2", {"a": "\udcff", "b": "caf\udce9"})]
    assert rows_of(uri, encoding="latin-1", texts=("b",)) == [("line 2", {"a": "ÿ", "b": "café"})]
    with pytest.raises(ValueError, match=r"^line 2: column 'b' holds b'caf\\xe9', which is not UTF-8: set source"):
        rows_of(uri, texts=("b",))


def test_rows_of_csv_without_header_use_the_given_names(tmp_path: pathlib.Path) -> None:
    uri = write(tmp_path / "t.csv", "1,x\n")
    assert rows_of(uri, header=("a", "b")) == [("line 1", {"a": "1", "b": "x"})]
    assert TableFile(uri, "csv", header=("a", "b")).column_names() == ["a", "b"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"PAR1", "it is a Parquet file: set source.manifest.format: parquet"),
        (b"PK\x03\x04", "it is a zip file, as spreadsheets are: save the table as CSV"),
        (b"\xd0\xcf\x11\xe0", "it is a spreadsheet: save the table as CSV"),
        (b"\x1f\x8b\x08", "it is compressed with gzip: unpack it"),
        ("a,b\n".encode("utf-16"), "it looks like UTF-16 text, not UTF-8: set source.manifest.encoding: utf-16,"),
        ("a,b\n".encode("utf-16-le"), "it looks like UTF-16 text, not UTF-8: set source.manifest.encoding: utf-16-le,"),
        ("a,b\n".encode("utf-16-be"), "it looks like UTF-16 text, not UTF-8: set source.manifest.encoding: utf-16-be,"),
        (b"a,caf\xe9\n", "its column 'caf\\udce9' is not UTF-8: set source.manifest.encoding"),
    ],
    ids=["parquet", "zip", "spreadsheet", "gzip", "utf-16", "utf-16-le", "utf-16-be", "latin-1"],
)
def test_column_names_of_another_format_or_encoding_raise(tmp_path: pathlib.Path, data: bytes, message: str) -> None:
    uri = write(tmp_path / "t.csv", data)
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        TableFile(uri, "csv").column_names()


def test_column_names_of_json_lines_are_those_of_the_first_row(tmp_path: pathlib.Path) -> None:
    lines = [{"a": 1}, {"a": 1, "b": 2}]
    uri = write(tmp_path / "t.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    assert TableFile(uri, "jsonl").column_names() == ["a"]
    assert TableFile(write(tmp_path / "empty.jsonl", ""), "jsonl").column_names() == []


@pytest.mark.parametrize(
    ("line", "wanted", "expected"),
    [
        ("image;label", ("image", "label"), "semicolons: set source.manifest.delimiter: ';'"),
        ("image\tlabel", ("image", "label"), 'tabs: set source.manifest.delimiter: "\\t"'),
        ("image|a;b", ("image", "label"), "bars: set source.manifest.delimiter: '|'"),
        ("1;2", 2, "semicolons: set source.manifest.delimiter: ';'"),
        ("1;2", 3, ""),
        ("image", ("image",), ""),
    ],
)
def test_guess_delimiter_prefers_the_one_that_gives_what_is_wanted(
    line: str, wanted: tuple[str, ...] | int, expected: str
) -> None:
    assert table_formats.guess_delimiter(line, ",", wanted) == expected
