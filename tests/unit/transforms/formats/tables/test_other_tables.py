"""Tables as other tools write them: lists in JSON, blanks in headers, short rows, zero bytes."""

from __future__ import annotations

import pathlib

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from imagebeam import errors
from imagebeam.transforms import elements
from imagebeam.transforms.formats.tables import table_formats, table_per_folder
from imagebeam.transforms.formats.tables.manifest import ManifestSource
from imagebeam.transforms.images import structure
from imagebeam.transforms.sources import table_rows
from tests import image_sets, spread_rows

FIELDS = table_rows.RowFields(label="label")


def read(folder: pathlib.Path, name: str, text: str | bytes, **options: str) -> tuple[dict[str, object], list[str]]:
    """Returns label or detail of the reject by key, and the problems."""
    for image in ("a.jpg", "b.jpg"):
        (folder / image).write_bytes(image_sets.make_image(1))
    (folder / name).write_bytes(text.encode() if isinstance(text, str) else text)
    format = "jsonl" if name.endswith("jsonl") else name.rpartition(".")[2]
    table = ManifestSource(str(folder / name), format, fields=FIELDS, **options)  # type: ignore[arg-type]
    table.check_columns()
    found = spread_rows.list_both_ways(table)
    refs = {ref.key: ref.label for each in found for ref in elements.unpack_refs(each.packed_refs)}
    rejects = {reject.key: f"! {reject.detail}" for each in found for reject in each.rejects}
    return {**refs, **rejects}, [problem for each in found for problem in each.problems]


ROWS = '[{"image": "a.jpg", "label": "cat"}, {"image": "b.jpg", "label": 2}, 3]'


@pytest.mark.parametrize(
    ("text", "items"),
    [(ROWS, ""), (f'{{"annotations": {{"n": 1, "items": {ROWS}}}, "images": []}}', "annotations.items")],
)
def test_list_in_json_is_a_table(tmp_path: pathlib.Path, text: str, items: str) -> None:
    found, problems = read(tmp_path, "t.json", text, items=items)
    where = f"! row 2 of {tmp_path}/t.json: a JSON int, expected an object"
    assert (found, problems) == ({"a.jpg": "cat", "b.jpg": "2", "row 2": where}, [])


@pytest.mark.parametrize(
    ("text", "items", "error"),
    [
        ('{"a": {"b": []}, "c": [1]}', "", "it is not a list of rows; its lists are a.b, c: set source.manifest.items"),
        ('{"a": []}', "b", "it has no list 'b'; its lists are a: set"),
        ("{}", "", ".*; its lists are none"),
        ('[{"image": ', "", "row 0: not JSON"),
    ],
)
def test_json_without_the_list_names_those_that_it_has(
    tmp_path: pathlib.Path, text: str, items: str, error: str
) -> None:
    with pytest.raises(errors.ConfigError, match=rf"manifest '.*t.json' cannot be read as json: {error}"):
        read(tmp_path, "t.json", text, items=items)


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
    assert (found["a.jpg"], problems) == ("cat", [])
    assert "is not a valid path" in str(found["b\0.jpg"])
    wide = table_formats.TableFile(str(tmp_path / "w.csv"), "csv")
    (tmp_path / "w.csv").write_bytes("image,label\na.jpg,cat\n".encode("utf-16-le"))
    with pytest.raises(ValueError, match=r"it looks like UTF-16 text, not UTF-8: .*: utf-16-le"):
        wide.column_names()


def test_pointer_of_git_lfs_is_named() -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
    with pytest.raises(structure.BadImageError, match=r"a pointer of Git LFS instead of the image \(git lfs pull"):
        structure.check_image(pointer)
