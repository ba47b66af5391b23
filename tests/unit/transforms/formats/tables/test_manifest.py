"""Rows of a table that name several images of one example."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import os
import pathlib
import random
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from imagebeam import storage
from imagebeam.features import BYTES, FLOAT, INT64
from imagebeam.transforms import elements
from imagebeam.transforms.elements import ExtraImage, ImageRef, Reason, Reject
from imagebeam.transforms.formats.tables import manifest, table_formats
from imagebeam.transforms.formats.tables.manifest import ManifestSource
from imagebeam.transforms.formats.tables.paired_files import PairedFilesSource
from imagebeam.transforms.sources import files, image_source, table_rows
from tests import error_texts, image_sets, listed_bucket, spread_rows, written_files

JPEG = image_sets.make_image(1)
FORMATS = ("csv", "jsonl", "parquet")

Row = Mapping[str, Any]


def encode(rows: Sequence[Row], manifest_format: str) -> bytes:
    if manifest_format == "parquet":
        buffer = io.BytesIO()
        pq.write_table(pa.Table.from_pylist(list(rows)), buffer)
        return buffer.getvalue()
    if manifest_format == "jsonl":
        return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def read(source: ManifestSource) -> tuple[list[ImageRef], list[Reject], list[str]]:
    found = spread_rows.gather(spread_rows.list_both_ways(source))
    return found.refs, found.rejects, found.problems


def make_source(uri: str, manifest_format: str, **options: Any) -> ManifestSource:
    """Makes a source; `options` are its own or those of its rows, with columns as (name, kind)."""
    names = {field.name for field in dataclasses.fields(table_rows.RowFields)}
    columns = tuple(table_rows.Column(*column) for column in options.pop("columns", ()))
    fields = table_rows.RowFields(columns=columns, **{name: options.pop(name) for name in names & set(options)})
    return ManifestSource(uri, manifest_format, fields=fields, **options)


class Folder:
    """A folder with images and manifests."""

    def __init__(self, path: pathlib.Path):
        self.path = path

    def image(self, name: str) -> str:
        """Writes an image; returns its address."""
        return str(written_files.write(self.path, {name: JPEG}) / name)

    def source(self, data: bytes | str | Sequence[Row], manifest_format: str = "csv", **options: Any) -> ManifestSource:
        """Writes a manifest of these bytes, text or rows; returns its source."""
        uri = self.path / f"manifest.{manifest_format}"
        if isinstance(data, str):
            data = data.encode("utf-8", "surrogateescape")
        uri.write_bytes(data if isinstance(data, bytes) else encode(data, manifest_format))
        return make_source(str(uri), manifest_format, **options)


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> Folder:
    (tmp_path / "root").mkdir()
    return Folder(tmp_path / "root")


COLUMNS = (("age", INT64), ("dose", FLOAT), ("note", BYTES))
NAMES = ("image", "id", "class", "set", "patient", "age", "dose", "note")
CELLS = [
    ("a.jpg", "k1", "cat", "train", "p 1", 7, 0.5, "x"),
    ("b/c d.jpg", "2", 'a "dog", or\ntwo', "test", "p,2", -1, 2.0, " "),
    ('ünï,\n"q".jpg', "k\t3", "\N{CAT FACE}", "", None, 2**63 - 1, -1e-7, "é\r\n"),
]
ROWS = [dict(zip(NAMES, cells, strict=True)) for cells in CELLS]


def test_every_format_gives_the_same_references(folder: Folder) -> None:
    for manifest_format, data in [
        *((name, encode(ROWS, name)) for name in FORMATS),
        ("csv", b"\xef\xbb\xbf" + encode(ROWS, "csv")),  # csv-with-bom
        ("jsonl", b"\xef\xbb\xbf" + encode(ROWS, "jsonl")),  # jsonl-with-bom
        ("jsonl", "".join(json.dumps(row) + "\r\n" for row in ROWS).encode()),  # jsonl-in-ascii
    ]:
        uris = [folder.image(str(row["image"])) for row in ROWS]
        source = folder.source(
            data, manifest_format, key="id", label="class", split="set", group="patient", columns=COLUMNS
        )
        source.check_columns()
        found = [
            ("k1", "cat", "train", "p 1", (7, 0.5, b"x")),
            ("2", 'a "dog", or\ntwo', "test", "p,2", (-1, 2.0, b" ")),
            ("k\t3", "\N{CAT FACE}", "", "", (2**63 - 1, -1e-7, "é\r\n".encode())),
        ]
        expected = [
            ImageRef(key, uri, len(JPEG), os.stat(uri).st_mtime_ns, 0, -1, position, label, split, group, columns)
            for position, (uri, (key, label, split, group, columns)) in enumerate(zip(uris, found, strict=True))
        ]
        assert read(source) == (expected, [], [])


@pytest.mark.parametrize("manifest_format", FORMATS)
def test_path_is_the_key_by_default(folder: Folder, manifest_format: str) -> None:
    folder.image("a.jpg")
    (ref,), rejects, problems = read(folder.source([{"image": "./a.jpg", "more": "x"}], manifest_format))
    assert (ref.key, ref.uri) == ("a.jpg", f"{folder.path}/a.jpg")
    assert (ref.label, ref.split, ref.group, ref.columns) == (None, "", "", ())
    assert (rejects, problems) == ([], [])


def test_name_that_is_not_utf8_opens_its_file(folder: Folder) -> None:
    name = os.fsdecode(b"caf\xe9.jpg")
    folder.image(name)
    for data, manifest_format in (("image\n" + name, "csv"), (f'{{"image": "{name}"}}', "jsonl")):
        ((ref,), rejects, _) = read(folder.source(data, manifest_format))
        assert (ref.key, rejects) == (name, [])
        assert storage.storage_of(ref.uri).read(ref.uri) == JPEG
    table = pa.table({"image": pa.array([os.fsencode(name)], pa.binary()), "note": pa.array([b"\xff"], pa.binary())})
    pq.write_table(table, folder.path / "m.parquet")
    ((ref,), rejects, _) = read(make_source(f"{folder.path}/m.parquet", "parquet", columns=(("note", BYTES),)))
    assert (ref.key, ref.columns, rejects) == (name, (b"\xff",), [])


def test_csv_without_a_header_is_read_with_the_given_names(folder: Folder) -> None:
    folder.image("a.jpg")
    folder.image("b.jpg")
    source = folder.source("a.jpg,cat\nb.jpg,dog\nb.jpg\n", label="class", header=("image", "class"))
    source.check_columns()
    refs, (reject,), problems = read(source)
    assert [(ref.key, ref.label, ref.position) for ref in refs] == [("a.jpg", "cat", 0), ("b.jpg", "dog", 1)]
    assert (reject.reason, problems) == (Reason.BAD_ROW, [])
    with error_texts.raises("table-unknown-column"):
        folder.source("a.jpg,cat\n", label="class", header=("image",)).check_columns()


def test_delimiter_is_that_of_the_extension_or_the_config(folder: Folder) -> None:
    folder.image("a, b.jpg")
    for name, delimiter, separator in [("x.tsv", None, "\t"), ("x.csv", " ", " ")]:
        (folder.path / name).write_text(f'image{separator}age\n"a, b.jpg"{separator}7\n')
        uri = f"{folder.path}/{name}"
        source = make_source(uri, table_formats.format_of(uri), columns=(("age", INT64),), delimiter=delimiter)
        source.check_columns()
        ((ref,), rejects, problems) = read(source)
        assert (ref.key, ref.columns, rejects, problems) == ("a, b.jpg", (7,), [], [])


def test_many_rows_are_split_into_several_listings(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_source, "MAX_REFS", 3)
    folder.image("a.jpg")
    rows = [{"image": "a.jpg" if index % 2 else "gone.jpg"} for index in range(7)]
    source = folder.source(rows)
    assert [item.num_refs + len(item.rejects) for item in source.list_all()] == [3, 3, 1]
    refs, rejects, _ = read(source)
    assert [ref.position for ref in refs] == [1, 3, 5]
    assert [reject.detail.split()[1] for reject in rejects] == ["2", "4", "6", "8"]  # lines of the file


# Manifests that cannot be used


def test_json_lines_may_leave_out_all_but_the_image(folder: Folder) -> None:
    folder.image("a.jpg")
    source = folder.source('{"image": "a.jpg"}\n{"image": "a.jpg", "label": "x"}', "jsonl", label="label")
    source.check_columns()
    assert [ref.label for ref in read(source)[0]] == [None, "x"]
    with error_texts.raises("table-unknown-column"):
        folder.source('{"file": "a.jpg", "label": "x"}', "jsonl", label="label").check_columns()


def test_unreadable_manifest_is_a_config_error(folder: Folder) -> None:
    folder.source("image,x,x\na.jpg,1,2\n").check_columns()  # a column twice that is not needed
    for code, data, manifest_format in [
        ("table-column-twice", b"image,label,x,label\na.jpg,1,2,3\n", "csv"),
        ("table-unreadable", b"no parquet", "parquet"),
        ("table-unreadable", b'image,"a"b\n', "csv"),
    ]:
        with error_texts.raises(code):
            folder.source(data, manifest_format, label="label").check_columns()
    os.unlink(folder.path / "manifest.csv")
    with error_texts.raises("table-unreadable"):
        make_source(f"{folder.path}/manifest.csv", "csv").check_columns()


def test_truncated_csv_is_a_problem_after_its_whole_rows(folder: Folder) -> None:
    folder.image("a.jpg")
    for data, complaint in [
        ('image\na.jpg\n"a.jpg\na.jpg\n', "line 4: unexpected end of data"),
        ('image\na.jpg\n"a.jpg"x\n', "line 3: ',' expected after '\"'"),
    ]:
        source = folder.source(data)
        refs, rejects, problems = read(source)
        assert ([ref.key for ref in refs], rejects) == (["a.jpg"], [])
        remedy = "if quotes are part of the text set source.manifest.quotes: false"
        assert problems == [f"manifest {source.uri!r} cannot be read to its end: {complaint}; {remedy}"]


# Rows that cannot be used


def reject_of(folder: Folder, data: str | Sequence[Row], manifest_format: str = "csv", **options: Any) -> Reject:
    """Returns the reject of the only bad row."""
    folder.image("good.jpg")
    source = folder.source(data, manifest_format, **options)
    refs, (reject,), problems = read(source)
    assert [ref.uri for ref in refs] == [f"{folder.path}/good.jpg"]
    assert problems == []
    assert reject.stage == "list"
    prefix = f"{ {'csv': 'line 3', 'jsonl': 'line 2', 'parquet': 'row 1'}[manifest_format] } of {source.uri}: "
    assert reject.detail.startswith(prefix)
    return reject._replace(detail=reject.detail.removeprefix(prefix))


def test_bad_json_line_is_a_reject(folder: Folder) -> None:
    for line, detail in [
        ("{broken}", "not JSON: Expecting property name enclosed in double quotes"),
        ('{"image": "a.jpg"', "not JSON: Expecting ',' delimiter"),
        ('["a.jpg"]', "a JSON list, expected an object"),
        ('"a.jpg"', "a JSON str, expected an object"),
        ("null", "a JSON NoneType, expected an object"),
        ('{"image": "\\ud800.jpg"}', "not JSON: 'utf-8' codec can't encode character"),
        ("[" * 100_000, "not JSON: maximum recursion depth exceeded"),
    ]:
        reject = reject_of(folder, f'{{"image": "good.jpg"}}\n{line}\n', "jsonl")
        assert reject[:4] == ("line 2", f"{folder.path}/manifest.jsonl", "list", Reason.BAD_ROW)
        assert reject.detail.startswith(detail)


def test_empty_key_cell_is_a_reject(folder: Folder) -> None:
    reject = reject_of(folder, "image,id\ngood.jpg,1\na.jpg,\n", key="id")
    assert reject == Reject("line 3", "a.jpg", "list", Reason.BAD_ROW, "column 'id' is empty")


def test_path_of_an_unreadable_file_is_a_reject(folder: Folder) -> None:
    os.mkfifo(folder.path / "pipe.jpg")
    (folder.path / "folder.jpg").mkdir()
    (folder.path / "loop.jpg").symlink_to("loop.jpg")
    cases = {
        "pipe.jpg": f"'{folder.path}/pipe.jpg' is not a regular file (special)",
        "folder.jpg": f"'{folder.path}/folder.jpg' is not a regular file (directory)",
        ".": f"'{folder.path}/.' is not a regular file (directory)",
        "loop.jpg": f"'{folder.path}/loop.jpg' cannot be read (Too many levels of symbolic links)",
        "x" * 300: f"'{folder.path}/{'x' * 300}' cannot be read (File name too long)",
    }
    for path, detail in cases.items():
        reject = reject_of(folder, f"image\ngood.jpg\n{path}\n")
        assert reject == Reject(path, path, "list", Reason.UNREADABLE, detail)
    reject = reject_of(folder, '{"image": "good.jpg"}\n{"image": "a\\u0000.jpg"}\n', "jsonl")
    assert reject.reason is Reason.UNREADABLE
    assert reject.detail.startswith(f"'{folder.path}/a\\x00.jpg' is not a valid path (")
    assert "embedded null" in reject.detail


# Paths that leave the manifest's folder


@pytest.mark.parametrize("path", ["../out.jpg", "a/../../out.jpg", "{parent}/out.jpg", "file://{parent}/out.jpg"])
def test_path_outside_is_a_reject_unless_it_is_allowed(folder: Folder, path: str) -> None:
    (folder.path.parent / "out.jpg").write_bytes(JPEG)
    path = path.format(parent=folder.path.parent)
    detail = f"{path!r} leaves '{folder.path}'; source.manifest.allow_outside: true would take it"
    data = f"image\ngood.jpg\n{path}\n"
    assert reject_of(folder, data) == Reject(path, path, "list", Reason.OUTSIDE_ROOT, detail)

    (_, ref), rejects, _ = read(folder.source(data, allow_outside=True))
    assert (ref.key, rejects) == ("../out.jpg" if path.endswith("../out.jpg") else ref.uri, [])
    assert os.path.samefile(ref.uri, folder.path.parent / "out.jpg")


def test_path_inside_the_folder_is_accepted_in_any_spelling(folder: Folder) -> None:
    for path in ["a/../in.jpg", "{root}/in.jpg", "FILE://localhost{root}/in.jpg", "{root}/../root/in.jpg"]:
        uri = folder.image("in.jpg")
        path = path.format(root=folder.path)
        ((ref,), rejects, _) = read(folder.source(f"image\n{path}\n"))
        assert (ref.key, ref.uri, rejects) == ("in.jpg", uri, [])  # one key for one file


def test_path_in_a_folder_with_the_same_prefix_is_outside(folder: Folder) -> None:
    (folder.path.parent / "root2").mkdir()
    (folder.path.parent / "root2/a.jpg").write_bytes(JPEG)
    for path in (f"{folder.path}2/a.jpg", "../root2/a.jpg"):
        assert reject_of(folder, f"image\ngood.jpg\n{path}\n").reason is Reason.OUTSIDE_ROOT


def test_address_of_an_unknown_scheme_is_a_reject_even_if_allowed(folder: Folder) -> None:
    data = "image\ngood.jpg\nnfs://host/a.jpg\n"
    reject = reject_of(folder, data)
    assert (reject.reason, reject.uri) == (Reason.OUTSIDE_ROOT, "nfs://host/a.jpg")
    reject = reject_of(folder, data, allow_outside=True)
    assert (reject.reason, reject.uri) == (Reason.UNREADABLE, "nfs://host/a.jpg")
    assert reject.detail.startswith("address 'nfs://host/a.jpg': scheme 'nfs' is not known; write a path, or gs://")
    reject = reject_of(folder, "image\ngood.jpg\nfile://a/b.jpg\n", allow_outside=True)
    assert reject.reason is Reason.UNREADABLE
    assert reject.detail.startswith("address 'file://a/b.jpg' names a host after file://")


def test_value_of_another_kind_is_a_reject(folder: Folder) -> None:
    for manifest_format, bad in [("csv", "old"), ("jsonl", "old"), ("jsonl", [1]), ("parquet", "old")]:
        good = "7" if manifest_format == "parquet" else 7
        rows = [{"image": "good.jpg", "age": good}, {"image": "good.jpg", "age": bad}]
        reject = reject_of(folder, rows, manifest_format, columns=(("age", INT64),))
        several = "[1] is a list, expected one value; for a list set columns.age.list: true"
        detail = f"column 'age': {several if bad == [1] else repr(bad) + ' is not an integer'}"
        assert reject == Reject("good.jpg", "good.jpg", "list", Reason.BAD_VALUE, detail)


# Rows that are taken as they are


@pytest.mark.parametrize("manifest_format", FORMATS)
def test_trusted_rows_are_taken_with_the_size_in_their_column_and_no_look_at_a_file(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, manifest_format: str
) -> None:
    rows = [{"image": "gone.jpg", "bytes": 5}, {"image": "b/c.jpg", "bytes": None}, {"image": "../out.jpg", "bytes": 7}]
    source = folder.source(rows, manifest_format, trust=True, size="bytes")
    source.check_columns()
    monkeypatch.setattr(storage.LocalStorage, "stat", None)
    refs, rejects, problems = read(source)
    root = str(folder.path)
    assert refs == [ImageRef("gone.jpg", f"{root}/gone.jpg", 5), ImageRef("b/c.jpg", f"{root}/b/c.jpg", position=1)]
    assert ([reject.reason for reject in rejects], problems) == ([Reason.OUTSIDE_ROOT], [])
    assert [ref.size for ref in read(dataclasses.replace(source, size=None))[0]] == [-1, -1]


def test_size_that_is_no_number_of_bytes_is_a_reject_and_its_column_must_exist(folder: Folder) -> None:
    for cell, detail in (("many", "is not an integer"), ("-1", "is negative; expected a number of bytes")):
        reject = reject_of(folder, f"image,bytes\ngood.jpg,7\nbad.jpg,{cell}\n", trust=True, size="bytes")
        assert reject == Reject("bad.jpg", "bad.jpg", "list", Reason.BAD_VALUE, f"column 'bytes': {cell!r} {detail}")
    with error_texts.raises("table-unknown-column"):
        folder.source("image\na.jpg\n", trust=True, size="bytes").check_columns()


# Rows whose files are found by listing folders


def test_rows_of_a_bucket_are_looked_up_by_pages(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = listed_bucket.Bucket([f"all/{index:04d}.jpg" for index in range(0, 2000, 2)] + ["all/0003.jpg/below"], 100)
    local, opened = storage.storage_of, str(tmp_path / "m.csv")
    monkeypatch.setattr(storage, "storage_of", lambda uri: bucket if uri.startswith("stub://") else local(uri))
    monkeypatch.setattr(table_rows, "is_absolute", lambda path: path.startswith("stub://"))
    monkeypatch.setattr(storage, "normalize", str)
    names = [f"stub://b/all/{index:04d}.jpg" for index in range(1000)]
    (tmp_path / "m.csv").write_text("image\n" + "".join(f"{name}\n" for name in names))
    refs, rejects, problems = read(ManifestSource(opened, "csv", allow_outside=True))
    assert [ref.uri for ref in refs] == names[::2]
    assert problems == []
    reasons = {reject.uri: reject.reason for reject in rejects}
    assert reasons == dict.fromkeys(names[1::2], Reason.NOT_FOUND) | {"stub://b/all/0003.jpg": Reason.UNREADABLE}
    assert bucket.num_looks <= 4  # of 2000: `read` lists twice
    assert bucket.num_pages <= 14


# --- paired -----------------------------------------------------------------------------------------------------------


PNG = image_sets.make_image(1, "PNG")
AGES = table_rows.RowFields(columns=(table_rows.Column("age", INT64),))


def make_source_paired(
    root: pathlib.Path,
    table: str,
    glob: str = "*.png",
    fields: table_rows.RowFields = AGES,
    order: Literal["text", "natural"] | None = None,
) -> PairedFilesSource:
    uri = str(root / table)
    folder, include = files.split_glob(str(root / glob))
    return PairedFilesSource(
        manifest.ManifestSource(uri, table_formats.format_of(uri), image=None, fields=fields),
        files.FilesSource(folder, include),
        order,
    )


def read_paired(source: PairedFilesSource) -> tuple[list[ImageRef], list[Reject], list[str]]:
    found = spread_rows.gather(source.list_all())
    return found.refs, found.rejects, found.problems


def write_files(root: pathlib.Path, *names: str) -> None:
    written_files.write(root, dict.fromkeys(names, PNG))


def test_order_of_numbers_must_be_told_where_that_of_text_differs(tmp_path: pathlib.Path) -> None:
    write_files(tmp_path, "img1.png", "img2.png", "img10.png")
    (tmp_path / "ages.csv").write_text("age\n1\n2\n10\n")
    _, _, problems = read_paired(make_source_paired(tmp_path, "ages.csv"))
    assert [problem.replace(str(tmp_path), "") for problem in problems] == [
        "row 2 of '/ages.csv' would belong to '/img10.png' in the order of text, and to '/img2.png' in that of "
        "numbers: set source.manifest.order to text or natural"
    ]
    for order, names in (("text", (1, 10, 2)), ("natural", (1, 2, 10))):
        refs, _, problems = read_paired(make_source_paired(tmp_path, "ages.csv", order=order))
        assert [ref.key for ref in refs] == [f"img{n}.png" for n in names]
        assert problems == []


@pytest.mark.parametrize("format", ["csv", "jsonl", "parquet"])
def test_rows_belong_to_the_files_in_the_order_of_their_paths(tmp_path: pathlib.Path, format: str) -> None:
    write_files(tmp_path, "b.png", "a.png", "10.png", "2.png", "B.png", "notes.txt", "below/c.png")
    ages = [5, 6, 7, 8, 9]
    (tmp_path / f"ages.{format}").write_bytes(encode([{"age": age} for age in ages], format))
    refs, rejects, problems = read_paired(make_source_paired(tmp_path, f"ages.{format}", order="text"))
    assert (rejects, problems) == ([], [])
    names = sorted(["b.png", "a.png", "10.png", "2.png", "B.png"])
    assert [(ref.key, ref.columns, ref.position) for ref in refs] == [
        (name, (age,), row) for row, (name, age) in enumerate(zip(names, ages))
    ]
    assert [(ref.uri, ref.size) for ref in refs] == [(str(tmp_path / name), len(PNG)) for name in names]
    assert all(ref.version for ref in refs)


def test_column_of_ids_gives_the_keys(tmp_path: pathlib.Path) -> None:
    write_files(tmp_path, "a.png", "b.png", "c.png")
    (tmp_path / "ages.csv").write_text("id,age\nx,1\n,2\nz,3\n")
    refs, rejects, _ = read_paired(
        make_source_paired(tmp_path, "ages.csv", fields=table_rows.RowFields(key="id", columns=AGES.columns))
    )
    assert [(ref.key, ref.columns) for ref in refs] == [("x", (1,)), ("z", (3,))]
    assert [(r.key, r.uri, r.reason) for r in rejects] == [("b.png", str(tmp_path / "b.png"), Reason.BAD_ROW)]


def test_different_numbers_of_rows_and_files_are_a_problem(tmp_path: pathlib.Path) -> None:
    write_files(tmp_path, "a.png", "b.png", "c.png")
    for num_rows in (0, 2, 4):
        (tmp_path / "ages.csv").write_text("age\n" + "1\n" * num_rows)
        _, _, problems = read_paired(make_source_paired(tmp_path, "ages.csv"))
        assert problems == [
            f"manifest '{tmp_path}/ages.csv' has {num_rows} rows, and source.manifest.files '{tmp_path}/*.png' matches "
            f"3 files (the first '{tmp_path}/a.png', the last '{tmp_path}/c.png'): there must be one row for each "
            "file, in the order of the files' paths"
        ]


def test_bad_rows_and_files_keep_their_numbers(tmp_path: pathlib.Path) -> None:
    write_files(tmp_path, "a.png", "c.png", "d.png", "e.png")
    (tmp_path / "b.png").symlink_to(tmp_path / "nowhere")
    (tmp_path / "ages.csv").write_text("age\n1\n2\nold\n4,4\n5\n")
    refs, rejects, problems = read_paired(make_source_paired(tmp_path, "ages.csv"))
    assert problems == []
    assert [(ref.key, ref.columns, ref.position) for ref in refs] == [("a.png", (1,), 0), ("e.png", (5,), 4)]
    assert [(reject.key, reject.reason) for reject in rejects] == [
        ("b.png", Reason.NOT_FOUND),
        ("c.png", Reason.BAD_VALUE),
        ("d.png", Reason.BAD_ROW),
    ]
    assert rejects[1].detail == f"line 4 of {tmp_path}/ages.csv: column 'age': 'old' is not an integer"
    assert rejects[2].detail.startswith(f"line 5 of {tmp_path}/ages.csv: 2 cells, the header has 1")


def test_table_with_a_missing_value_that_is_an_error_or_cut_short_is_a_problem(tmp_path: pathlib.Path) -> None:
    write_files(tmp_path, "a.png", "b.png")
    fields = table_rows.RowFields(columns=(table_rows.Column("age", INT64, missing="error"),))
    for table, said in [
        ("age\n1\nold\n", f"line 3 of {tmp_path}/ages.csv: column 'age': 'old' is not an integer, and columns.age"),
        ('age\n1\n"2', f"manifest '{tmp_path}/ages.csv' cannot be read to its end: "),
    ]:
        (tmp_path / "ages.csv").write_text(table)
        _, _, (problem,) = read_paired(make_source_paired(tmp_path, "ages.csv", fields=fields))
        assert problem.startswith(said)


def test_large_tables_are_split_into_several_listings(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_source, "MAX_REFS", 2)
    write_files(tmp_path, *(f"{index}.png" for index in range(5)))
    (tmp_path / "ages.csv").write_text("age\n" + "1\n" * 5)
    assert [item.num_refs for item in make_source_paired(tmp_path, "ages.csv").list_all()] == [2, 2, 1]


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(seed=st.integers(0, 2**32))
def test_broken_tables_give_only_references_rejects_and_problems(tmp_path: pathlib.Path, seed: int) -> None:
    if not (tmp_path / "0.png").exists():
        write_files(tmp_path, *(f"{index}.png" for index in range(4)))
    rng = random.Random(seed)
    data = bytearray(b'id,age\na,1\nb,"2"\nc,3\nd,4\n')
    for _ in range(rng.randint(1, 5)):
        data[rng.randrange(len(data))] = rng.choice(b'\x00\xff",\n\r 9a')
    (tmp_path / "ages.csv").write_bytes(data)
    refs, rejects, problems = read_paired(make_source_paired(tmp_path, "ages.csv"))
    assert problems or len(refs) + len(rejects) == 4
    for ref in refs:
        assert ref.key == f"{ref.position}.png"  # nothing moves up


# --- further ----------------------------------------------------------------------------------------------------------


def list_table(
    root: pathlib.Path, text: str, image: str = "before", extra_images: tuple[str, ...] = ("after",), **options: bool
) -> tuple[list[elements.ImageRef], list[elements.Reject]]:
    """Writes a table into a folder; returns its references and rejects, listed both in one place and spread."""
    (root / "pairs.csv").write_text(text)
    source = manifest.ManifestSource(str(root / "pairs.csv"), "csv", image=image, extra_images=extra_images, **options)
    source.check_columns()
    return spread_rows.gather(spread_rows.list_both_ways(source))[:2]


@pytest.fixture
def root(tmp_path: pathlib.Path) -> pathlib.Path:
    names = ("in/a/1.jpg", "in/b/1.png", "in/b/2.png", "in/b/3.jpg", "in/b/3.png", "other.jpg")
    return written_files.write(tmp_path, {name: image_sets.make_image(len(name)) for name in names}) / "in"


def test_further_images_are_listed_with_their_size_version_and_column(root: pathlib.Path) -> None:
    [ref], rejects = list_table(root, "id,after,before\n2,b/1.png,a/1.jpg\n", extra_images=("after", "b/{id}.*"))
    expected = [(root / "b/1.png", "after"), (root / "b/2.png", "b/{id}.*")]
    stats = [(path, os.stat(path), column) for path, column in expected]
    assert ref.extra_images == tuple(
        ExtraImage(str(path), stat.st_size, stat.st_mtime_ns, by) for path, stat, by in stats
    )
    assert (ref.key, ref.uri, rejects) == ("a/1.jpg", str(root / "a/1.jpg"), [])
    assert ref.num_bytes == ref.size + sum(stat.st_size for _, stat, _ in stats)


def test_same_template_may_name_an_image_twice(root: pathlib.Path) -> None:
    [ref], _ = list_table(root, "id\n1\n", "b/{id}.*", ("b/{id}.*", "a/{id}.jpg"))
    assert [each.uri for each in ref.extra_images] == [ref.uri, str(root / "a/1.jpg")]
    with error_texts.raises("table-unknown-column"):
        list_table(root, "before\na/1.jpg\n")


def test_row_with_a_bad_further_image_is_a_reject_that_names_the_column(root: pathlib.Path) -> None:
    for cell, column, reason, detail in [
        ("", "after", Reason.BAD_ROW, "column 'after' is empty"),
        ("b/9.png", "after", Reason.NOT_FOUND, f"column 'after': there is no file '{root}/b/9.png'"),
        ("b", "after", Reason.UNREADABLE, f"column 'after': '{root}/b' is not a regular file (directory)"),
        ("9", "b/{after}.*", Reason.NOT_FOUND, f"column 'b/{{after}}.*': there is no image '{root}/b/9.*'"),
        ("", "b/{after}.*", Reason.BAD_ROW, "column 'after' is empty"),
        ("3", "b/{after}.*", Reason.BAD_ROW, f"there are several images: '{root}/b/3.jpg', '{root}/b/3.png'; give"),
        ("../other.jpg", "after", Reason.OUTSIDE_ROOT, f"column 'after': '../other.jpg' leaves '{root}'; source"),
    ]:
        refs, [reject] = list_table(root, f"before,after\na/1.jpg,{cell}\n", extra_images=(column,))
        assert (refs, reject.key, reject.uri, reject.reason) == ([], "a/1.jpg", "a/1.jpg", reason)
        assert reject.detail.startswith(f"line 2 of {root}/pairs.csv: {detail}")
