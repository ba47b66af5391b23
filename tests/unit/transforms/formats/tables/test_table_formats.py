"""Tables as other tools write them: lists in JSON, blanks in headers, short rows, zero bytes."""

from __future__ import annotations

import pathlib
import re
import sys
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from imagebeam import errors
from imagebeam.transforms import elements
from imagebeam.transforms.formats.tables import table_formats, table_per_folder
from imagebeam.transforms.formats.tables.manifest import ManifestSource
from imagebeam.transforms.formats.tables.table_formats import TableFile
from imagebeam.transforms.images import structure
from imagebeam.transforms.packed import parquet_content
from imagebeam.transforms.sources import table_rows
from tests import case_tables, error_texts, image_sets, spread_rows


def write(path: pathlib.Path, data: bytes | str) -> str:
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return str(path)


def rows_of(uri: str, format: str = "csv", columns: tuple[str, ...] = ("a",), **options: Any) -> list[tuple[str, Any]]:
    """Returns the places and contents of all rows."""
    table = TableFile(uri, format, **{key: value for key, value in options.items() if key != "texts"})
    return [(str(place), row) for place, row in table.rows(columns, options.get("texts", ()))]


def test_format_of_an_address_is_its_extensions() -> None:
    for uri, expected in [
        ("/a/m.csv", "csv"),
        ("/a.jsonl/m.CSV", "csv"),
        ("gs://b/m.jsonl", "jsonl"),
        ("m.ndjson", "jsonl"),
        ("m.parquet", "parquet"),
        ("m.v2.pq", "parquet"),
    ]:
        assert table_formats.format_of(uri) == expected


@pytest.mark.parametrize("uri", ["/a/m.txt", "/a.csv/m", ""])
def test_format_of_another_extension_is_a_config_error(uri: str) -> None:
    with error_texts.raises("table-unknown-extension"):
        table_formats.format_of(uri)


def test_rows_have_the_lines_of_an_editor(tmp_path: pathlib.Path) -> None:
    for name, data, places in [
        ("t.csv", "\n\na,b\r\n\n1,x\n\n2,y\n\n", ["line 5", "line 7"]),  # csv-counts-blank-lines
        ("t.tsv", "a\tb\n1\tx\n2\ty\n", ["line 2", "line 3"]),  # tsv
        ("t.jsonl", '\n{"a": "1", "b": "x"}\n \n{"a": "2", "b": "y"}', ["line 2", "line 4"]),  # jsonl
    ]:
        folder = case_tables.new_folder(tmp_path)
        uri = write(folder / name, data)
        format = table_formats.format_of(uri)
        assert rows_of(uri, format, ("a", "b")) == list(zip(places, [{"a": "1", "b": "x"}, {"a": "2", "b": "y"}]))
        assert [place.position for place, _ in TableFile(uri, format).rows(("a",))] == [0, 1]
        assert TableFile(uri, format).column_names() == ["a", "b"]


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


def test_rows_keep_bytes_outside_of_the_encoding_except_in_texts(tmp_path: pathlib.Path) -> None:
    uri = write(tmp_path / "t.csv", b"a,b\n\xff,caf\xe9\n")
    assert rows_of(uri, columns=("a", "b")) == [("line 2", {"a": "\udcff", "b": "caf\udce9"})]
    assert rows_of(uri, columns=("a", "b"), encoding="latin-1", texts=("b",)) == [("line 2", {"a": "ÿ", "b": "café"})]
    with pytest.raises(ValueError, match=r"^line 2: column 'b' holds b'caf\\xe9', which is not UTF-8: set source"):
        rows_of(uri, columns=("a", "b"), texts=("b",))


def test_rows_of_csv_without_header_use_the_given_names(tmp_path: pathlib.Path) -> None:
    uri = write(tmp_path / "t.csv", "1,x\n")
    assert rows_of(uri, columns=("b",), header=("a", "b")) == [("line 1", {"b": "x"})]
    assert TableFile(uri, "csv", header=("a", "b")).column_names() == ["a", "b"]


def test_column_names_of_another_format_or_encoding_raise(tmp_path: pathlib.Path) -> None:
    for data, message in [
        (b"PAR1", "it is a Parquet file: set source.manifest.format: parquet"),
        (b"PK\x03\x04", "it is a zip file, as spreadsheets are: save the table as CSV"),
        (b"\xd0\xcf\x11\xe0", "it is a spreadsheet: save the table as CSV"),
        (b"\x1f\x8b\x08", "it is compressed with gzip: unpack it"),
        ("a,b\n".encode("utf-16"), "it looks like UTF-16 text, not UTF-8: set source.manifest.encoding: utf-16,"),
        ("a,b\n".encode("utf-16-le"), "it looks like UTF-16 text, not UTF-8: set source.manifest.encoding: utf-16-le,"),
        ("a,b\n".encode("utf-16-be"), "it looks like UTF-16 text, not UTF-8: set source.manifest.encoding: utf-16-be,"),
        (b"a,caf\xe9\n", "its column 'caf\\udce9' is not UTF-8: set source.manifest.encoding"),
    ]:
        folder = case_tables.new_folder(tmp_path)
        uri = write(folder / "t.csv", data)
        with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
            TableFile(uri, "csv").column_names()


def test_guess_delimiter_prefers_the_one_that_gives_what_is_wanted() -> None:
    for line, wanted, expected in [
        ("image;label", ("image", "label"), "semicolons: set source.manifest.delimiter: ';'"),
        ("image\tlabel", ("image", "label"), 'tabs: set source.manifest.delimiter: "\\t"'),
        ("image|a;b", ("image", "label"), "bars: set source.manifest.delimiter: '|'"),
        ("1;2", 2, "semicolons: set source.manifest.delimiter: ';'"),
        ("1;2", 3, ""),
        ("image", ("image",), ""),
    ]:
        assert table_formats.guess_delimiter(line, ",", wanted) == expected


# --- other ------------------------------------------------------------------------------------------------------------


FIELDS = table_rows.RowFields(label="label")


def read(folder: pathlib.Path, name: str, text: str | bytes, **options: str) -> tuple[dict[str, object], list[str]]:
    """Returns label or detail of the reject by key, and the problems."""
    for image in ("a.jpg", "b.jpg"):
        (folder / image).write_bytes(image_sets.make_image(1))
    (folder / name).write_bytes(text.encode() if isinstance(text, str) else text)
    format = "jsonl" if name.endswith("jsonl") else name.rpartition(".")[2]
    table = ManifestSource(str(folder / name), format, fields=FIELDS, **options)  # type: ignore[arg-type]
    table.check_columns()
    found = spread_rows.gather(spread_rows.list_both_ways(table))
    labels = {ref.key: ref.label for ref in found.refs}
    return {**labels, **{reject.key: f"! {reject.detail}" for reject in found.rejects}}, found.problems


ROWS = '[{"image": "a.jpg", "label": "cat"}, {"image": "b.jpg", "label": 2}, 3]'


@pytest.mark.parametrize(
    ("text", "items"),
    [(ROWS, ""), (f'{{"annotations": {{"n": 1, "items": {ROWS}}}, "images": []}}', "annotations.items")],
)
def test_list_in_json_is_a_table(tmp_path: pathlib.Path, text: str, items: str) -> None:
    found, problems = read(tmp_path, "t.json", text, items=items)
    where = f"! row 2 of {tmp_path}/t.json: a JSON int, expected an object"
    assert (found, problems) == ({"a.jpg": "cat", "b.jpg": "2", "row 2": where}, [])


def test_json_without_the_list_names_those_it_has(tmp_path: pathlib.Path) -> None:
    for text, items, code in [
        ('{"a": {"b": []}, "c": [1]}', "", "table-unreadable"),
        ('{"a": []}', "b", "table-unreadable"),
        ("{}", "", "table-unreadable"),
        ('[{"image": ', "", "table-unreadable"),
    ]:
        folder = case_tables.new_folder(tmp_path)
        with error_texts.raises(code):
            read(folder, "t.json", text, items=items)


def test_json_that_breaks_off_is_a_problem(tmp_path: pathlib.Path) -> None:
    _, (problem,) = read(tmp_path, "t.json", '[{"image": "a.jpg", "label": "cat"}, {"ima')
    assert "t.json' cannot be read to its end: row 1: not JSON" in problem


def test_glob_takes_json_only_if_it_says_so(tmp_path: pathlib.Path) -> None:
    (tmp_path / "metadata.json").write_text("[]")
    (tmp_path / "metadata.csv").write_text("image\n")
    assert table_per_folder.find_tables(str(tmp_path), "metadata.*") == [f"{tmp_path}/metadata.csv"]
    assert table_per_folder.find_tables(str(tmp_path), "*.json") == [f"{tmp_path}/metadata.json"]


def test_blanks_around_names_of_columns_do_not_count_in_any_format(tmp_path: pathlib.Path) -> None:
    buffer = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist([{"image": "a.jpg", " label ": "cat"}]), buffer)
    for name, data in (
        ("t.csv", b"image, label \na.jpg,cat\n"),
        ("t.jsonl", b'{"image": "a.jpg", " label ": "cat"}\n'),
        ("t.json", b'[{"image": "a.jpg", " label ": "cat"}]'),
        ("t.parquet", buffer.getvalue().to_pybytes()),
    ):
        assert read(tmp_path, name, data) == ({"a.jpg": "cat"}, [])


def test_classes_of_roboflow_have_blanks_in_header_and_cells(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.jpg").write_bytes(image_sets.make_image(1))
    (tmp_path / "_classes.csv").write_text("filename, cat, dog\na.jpg, 0, 1\n")
    flags = table_rows.RowFields(label_flags=("cat", "dog"))
    table = ManifestSource(str(tmp_path / "_classes.csv"), "csv", image="filename", fields=flags)
    (found,) = spread_rows.list_both_ways(table)
    assert [ref.label for ref in elements.unpack_refs(found.packed_refs)] == [("dog",)]


def test_short_row_is_a_reject_only_if_a_missing_column_is_asked_for(tmp_path: pathlib.Path) -> None:
    found, _ = read(tmp_path, "t.csv", "image,label,note,more\na.jpg,cat\nb.jpg\n")
    where = f"! line 3 of {tmp_path}/t.csv: 1 cells, the header has 4; quote the cells that hold commas"
    assert found == {"a.jpg": "cat", "line 3": where}


def test_few_zero_bytes_are_no_utf16(tmp_path: pathlib.Path) -> None:
    found, problems = read(tmp_path, "t.csv", b"image,label\na.jpg,cat\nb\0.jpg,dog\n")
    assert found["a.jpg"] == "cat"
    if sys.version_info < (3, 11):  # whose csv module refuses them
        assert "cannot be read to its end: line 3: line contains NUL" in problems[0]
    else:
        assert (problems, "is not a valid path" in str(found["b\0.jpg"])) == ([], True)
    wide = table_formats.TableFile(str(tmp_path / "w.csv"), "csv")
    (tmp_path / "w.csv").write_bytes("image,label\na.jpg,cat\n".encode("utf-16-le"))
    with pytest.raises(ValueError, match=r"it looks like UTF-16 text, not UTF-8: .*: utf-16-le"):
        wide.column_names()


def test_pointer_of_git_lfs_is_named() -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
    with pytest.raises(structure.BadImageError, match=r"a pointer of Git LFS instead of the image \(git lfs pull"):
        structure.check_image(pointer)
