from __future__ import annotations

import pathlib
import random
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from imagebeam import errors
from imagebeam.transforms import elements
from imagebeam.transforms.elements import Reason
from imagebeam.transforms.formats.parquet import parquet
from imagebeam.transforms.packed import unpacked_content
from imagebeam.transforms.shard import read_ahead
from imagebeam.transforms.sources import table_rows
from tests import case_tables, error_texts, parquet_files, tars

RNG = random.Random(0)
IMAGES = [RNG.randbytes(RNG.choice((200, 9_000, 90_000))) for _ in range(30)]
COMPRESSED = (
    "the images in {} are compressed ({}): each writer process unpacks each file once into the folder TMPDIR; without "
    "compression or with snappy they are read where they are"
)
LABEL = table_rows.RowFields(label="label")


def list_all(folder: pathlib.Path, **options: Any) -> tars.Listed:
    return tars.list_all(parquet.ParquetSource(str(folder), **options))


def read(refs: list[elements.ImageRef]) -> list[bytes]:
    """Reads images as the shard writer does, in another order."""
    found = dict(read_ahead.fetch(sorted(refs, key=lambda ref: ref.key[::-1])))
    data = [found[ref] for ref in refs]
    assert all(isinstance(each, bytes) for each in data), data
    return data  # type: ignore[return-value]


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"use_dictionary": False, "compression": "none"}, id="plain"),
        pytest.param({"row_group_size": 10}, id="snappy"),
        pytest.param({"compression": "zstd", "row_group_size": 7}, id="zstd"),
        pytest.param({"compression": "gzip", "use_dictionary": False}, id="gzip"),
        pytest.param({"use_dictionary": False, "column_encoding": "DELTA_LENGTH_BYTE_ARRAY"}, id="delta"),
    ],
)
@pytest.mark.parametrize("bare", [False, True], ids=["struct", "bare"])
def test_images_are_read_as_they_were_written(options: dict[str, Any], bare: bool, tmp_path: pathlib.Path) -> None:
    if encoding := options.get("column_encoding"):
        options = options | {"column_encoding": {"image" if bare else "image.bytes": encoding}}
    path = parquet_files.write(tmp_path / "data" / "train-00000-of-00001.parquet", IMAGES, bare=bare, **options)
    found = list_all(tmp_path)
    assert (found.rejects, found.problems) == ([], [])
    assert [ref.key for ref in found.refs] == [f"data/{path.name}/{i}" for i in range(30)]
    assert [ref.size for ref in found.refs] == list(map(len, IMAGES))
    assert [ref.position for ref in found.refs] == list(range(30))
    assert read(found.refs) == IMAGES
    noted = {"zstd": "zstd", "gzip": "gzip"}.get(options.get("compression", ""))
    assert parquet.ParquetSource(str(tmp_path)).layout.notes == ((COMPRESSED.format(path, noted),) if noted else ())
    is_unpacked = unpacked_content.is_packed(found.refs[0].uri)
    assert is_unpacked == (options.get("compression") in ("zstd", "gzip") or "column_encoding" in options)


def test_row_groups_of_both_kinds_in_one_file(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not located is read from the unpacked column, at the right place."""
    parquet_files.write(tmp_path / "x.parquet", [*IMAGES[:14], None, *IMAGES[14:]], row_group_size=10)
    monkeypatch.setattr("imagebeam.transforms.formats.parquet.pages._MAX_PAGE_VALUES", 9)  # the last group has one
    found = list_all(tmp_path)
    assert [ref.blocks is None for ref in found.refs] == [True] * 29 + [False]
    assert read(found.refs) == IMAGES


def test_classes_have_the_names_that_the_file_declares(tmp_path: pathlib.Path) -> None:
    labels = [2, 0, 1, None, -1, 3, 2]
    path = parquet_files.write(
        tmp_path / "train.parquet", IMAGES[:7], {"label": labels}, names=["zebra", " tench, Tinca tinca", "ant"]
    )
    source = parquet.ParquetSource(str(tmp_path), fields=LABEL)
    assert source.layout.names == ("zebra", "tench, Tinca tinca", "ant")
    found = tars.list_all(source)
    assert [ref.label for ref in found.refs] == ["ant", "zebra", "tench, Tinca tinca", None, "ant"]
    assert [(reject.key, reject.reason) for reject in found.rejects] == [
        ("train.parquet/4", Reason.NO_LABEL),
        ("train.parquet/5", Reason.UNKNOWN_LABEL),
    ]
    unlabelled, unknown = found.rejects
    assert unlabelled.detail == (
        f"row 4 of {path}: column 'label' is -1, which `datasets` stores where the class is not published: leave such "
        "files out with source.include, or convert them apart with label={by: none}"
    )
    assert unknown.detail == f"row 5 of {path}: column 'label' is 3, and its classes have the ids 0 to 2"
    as_numbers = list_all(tmp_path, fields=LABEL, names_classes=False)
    assert [ref.label for ref in as_numbers.refs] == ["2", "0", "1", None, "-1", "3", "2"]


def test_several_classes_of_an_image_have_names(tmp_path: pathlib.Path) -> None:
    path = parquet_files.write(tmp_path / "x.parquet", IMAGES[:3], {"label": [[1, 0], [], [7]]})
    table = pyarrow.parquet.read_table(path)
    for kind in (
        {"feature": parquet_files.class_label("a", "b"), "_type": "List"},
        [parquet_files.class_label("a", "b")],
    ):
        described = parquet_files.describe(image={"_type": "Image"}, label=kind)
        pyarrow.parquet.write_table(table.replace_schema_metadata(described), path)
        found = list_all(tmp_path, fields=table_rows.RowFields(label="label", label_separator=","))
        assert [ref.label for ref in found.refs] == [("b", "a"), ()]
        assert [reject.reason for reject in found.rejects] == [Reason.UNKNOWN_LABEL]


def test_other_columns_are_cells(tmp_path: pathlib.Path) -> None:
    columns = {
        "caption": ["häuser", "b"],
        "score": pa.array([0.5, None], pa.float32()),
        "tags": [["x", "y"], []],
        "meta": [{"w": 3, "in": {"k": "deep"}}, {"w": None, "in": None}],
        "other": [1, 2],
    }
    parquet_files.write(tmp_path / "default" / "test" / "0000.parquet", IMAGES[:2], columns)
    fields = table_rows.RowFields(
        key="image.path",
        split="split",
        group="meta.w",
        columns=(
            table_rows.Column("caption", "bytes"),
            table_rows.Column("score", "float", missing="default", default=-1.0),
            table_rows.Column("tags", "bytes", many=True),
            table_rows.Column("meta.in.k", "bytes", missing="default", default="none"),
            table_rows.Column("nowhere", "bytes", missing="default", default="-"),
        ),
    )
    found = list_all(tmp_path, fields=fields)
    assert (found.rejects, found.problems) == ([], [])
    first, second = found.refs
    assert (first.key, first.split, first.group) == ("0.jpg", "test", "3")
    assert first.columns == ("häuser".encode(), 0.5, (b"x", b"y"), b"deep", b"-")
    assert (second.key, second.group) == ("1.jpg", "")
    assert second.columns == (b"b", -1.0, (), b"none", b"-")


@pytest.mark.parametrize(
    ("path", "split"),
    [
        ("data/train-00000-of-00005.parquet", "train"),
        ("data/train-00000-of-00005-a67fbbc34bf54a40.parquet", "train"),
        ("data/train_00000_of_00005.parquet", "train"),
        ("data/my.held-out-00000-of-00001.parquet", "my.held-out"),
        ("default/validation/0000.parquet", "validation"),
        ("default/partial-train/0000.parquet", "partial-train"),
        ("plain_text/test-00000-of-00001.parquet", "test"),
        ("train/part-3.parquet", "train"),
        ("Test/a.parquet", "Test"),
        ("val.parquet", "val"),
        ("train_0.pq", "train"),
        ("train/test.parquet", "test"),
        ("images.parquet", ""),
        ("a/b/images-1.parquet", ""),
    ],
)
def test_split_is_in_the_path(path: str, split: str, tmp_path: pathlib.Path) -> None:
    parquet_files.write(tmp_path / "in" / path, IMAGES[:1])
    found = list_all(tmp_path / "in", fields=table_rows.RowFields(split="split"))
    assert [ref.split for ref in found.refs] == [split]
    assert bool(found.problems) == (not split)  # no file says a split
    if not split:
        assert "the column 'split'" in found.problems[0] and "(without splits split={by: none})" in found.problems[0]


def test_missing_files_of_a_set_are_noted(tmp_path: pathlib.Path) -> None:
    for numbers, notes in [
        ((0, 1, 2), []),
        ((1,), ["2 of the 3 files of data/train are not there, the first is data/train-00000-of-00003"]),
        ((0, 1), ["1 of the 3 files of data/train is not there, the first is data/train-00002-of-00003"]),
    ]:
        folder = case_tables.new_folder(tmp_path)
        for number in numbers:
            parquet_files.write(folder / f"data/train-{number:05d}-of-00003-a1b2.parquet", IMAGES[:1])
        parquet_files.write(folder / "data/test.parquet", IMAGES[:1])
        found = parquet.ParquetSource(str(folder)).layout.notes
        assert [note.partition(";")[0] for note in found] == notes


def test_column_named_split_is_used_and_not_the_path(tmp_path: pathlib.Path) -> None:
    parquet_files.write(tmp_path / "train.parquet", IMAGES[:2], {"split": ["a", "b"]})
    assert [ref.split for ref in list_all(tmp_path, fields=table_rows.RowFields(split="split")).refs] == ["a", "b"]


def test_rows_without_bytes_are_rejects(tmp_path: pathlib.Path) -> None:
    rows = [{"bytes": None, "path": "a.jpg"}, None, {"bytes": b"", "path": None}, {"bytes": b"x", "path": None}]
    path = tmp_path / "x.parquet"
    pyarrow.parquet.write_table(pa.table({"image": pa.array(rows, parquet_files.IMAGE)}), path)
    found = list_all(tmp_path)
    assert [(reject.key, reject.reason) for reject in found.rejects] == [
        ("x.parquet/0", Reason.BAD_ROW),
        ("x.parquet/1", Reason.BAD_ROW),
    ]
    assert found.rejects[0].detail == (
        f"row 0 of {path}: column 'image.bytes' is empty; where images are named by path alone, store their bytes: "
        "Dataset.to_parquet of `datasets` does"
    )
    assert read(found.refs) == [b"", b"x"]
    keyed = list_all(tmp_path, fields=table_rows.RowFields(key="image.path"))
    assert [reject.detail for reject in keyed.rejects[2:]] == [
        f"row {row} of {path}: column 'image.path' (source.parquet.key) has no value" for row in (2, 3)
    ]


def test_column_of_images_is_found_or_named(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x.parquet"

    def layout_of(table: pa.Table, image: str | None = None) -> str:
        pyarrow.parquet.write_table(table, path)
        return parquet.ParquetSource(str(tmp_path), image=image).layout.image

    struct = pa.array([{"bytes": b"x", "path": "y"}], parquet_files.IMAGE)
    binary, texts = pa.array([b"x"], pa.large_binary()), pa.array(["x"])
    assert layout_of(pa.table({"a": texts, "b": struct, "c": binary})) == "b.bytes"
    assert layout_of(pa.table({"a": texts, "c": binary})) == "c"
    assert layout_of(pa.table({"c": binary, "d": struct}), "c") == "c"
    assert layout_of(pa.table({"c": binary, "d": struct}), "d.bytes") == "d.bytes"
    two = pa.table({"a": struct, "b": struct, "c": binary})
    assert layout_of(two.replace_schema_metadata(parquet_files.describe(b={"_type": "Image"}))) == "b.bytes"
    lists = pa.table({"image": pa.array([[{"bytes": b"x", "path": "y"}]], pa.list_(parquet_files.IMAGE))})
    only_texts, both = pa.table({"a": texts}), pa.table({"a": texts, "b": struct})
    for table, image in ((two, None), (only_texts, None), (two, "z"), (both, "a"), (lists, "image")):
        with error_texts.raises("parquet-no-image"):
            layout_of(table, image)


def test_metadata_that_cannot_be_used_are_noted(tmp_path: pathlib.Path) -> None:
    for said, note in [
        (b"{", "is not JSON"),
        (b"\xff", "is not JSON"),
        (b"[1]", "has no info.features"),
        (b'{"info": {"features": {"label": {"_type": "ClassLabel"}}}}', "has no list of names for the column 'label'"),
        (b"[" * 100_000, "is not JSON"),
    ]:
        folder = case_tables.new_folder(tmp_path)
        path = parquet_files.write(folder / "x.parquet", IMAGES[:2], {"label": [1, 0]})
        table = pyarrow.parquet.read_table(path).replace_schema_metadata({b"huggingface": said})
        pyarrow.parquet.write_table(table, path)
        source = parquet.ParquetSource(str(folder), fields=LABEL)
        (found,) = source.layout.notes
        assert note in found and found.startswith(f"{path}: the key 'huggingface' of its metadata ")
        assert [ref.label for ref in tars.list_all(source).refs] == ["1", "0"]


def test_files_of_different_schemas(tmp_path: pathlib.Path) -> None:
    parquet_files.write(tmp_path / "0.parquet", IMAGES[:1], {"label": [0], "age": [5]}, ["a", "b"])
    parquet_files.write(tmp_path / "1.parquet", IMAGES[:1], {"more": [1], "label": ["b"], "age": [6.0]}, ["a", "b"])
    path = parquet_files.write(tmp_path / "2.parquet", IMAGES[:2], {"label": [1, 1]}, ["a", "b"])
    fields = table_rows.RowFields(label="label", columns=(table_rows.Column("age", "int64"),))
    found = list_all(tmp_path, fields=fields)
    assert [(ref.label, ref.columns) for ref in found.refs] == [("a", (5,)), ("b", (6,))]
    assert [(reject.reason, reject.detail) for reject in found.rejects] == [
        (Reason.BAD_ROW, f"row {row} of {path}: the file has no column 'age'") for row in (0, 1)
    ]
    parquet_files.write(tmp_path / "3.parquet", IMAGES[:1], {"label": [0], "age": [5]}, ["b", "a"])
    pyarrow.parquet.write_table(pa.table({"label": [1]}), tmp_path / "4.parquet")
    parquet_files.write(tmp_path / "5.parquet", IMAGES[:1], {"label": [0], "age": [5]})
    names, no_image, unnamed = list_all(tmp_path, fields=fields).problems
    assert names == (
        f"Parquet file '{tmp_path}/3.parquet' names the classes in the column 'label' 'b', 'a', the first file names "
        "them 'a', 'b': convert them apart, or set label.type: int, which keeps the numbers"
    )
    assert "4.parquet' has no column of images; its columns are 'label'" in no_image
    assert "5.parquet' names the classes in the column 'label' not, the first file names them 'a', 'b'" in unnamed


def test_column_that_no_file_has_is_named_with_the_others(tmp_path: pathlib.Path) -> None:
    parquet_files.write(tmp_path / "train.parquet", IMAGES[:1], {"fine_label": [0], "label_of": [{"x": 1}]})
    found = list_all(tmp_path, fields=LABEL)
    assert found.problems == [
        f"no image in '{tmp_path}' has the column 'label'; found are fine_label, image, image.bytes, "
        "image.path, label_of, label_of.x, split; set label.column (without labels label={by: none})"
    ]


def test_tables_without_rows_and_with_many_columns(tmp_path: pathlib.Path) -> None:
    parquet_files.write(tmp_path / "0.parquet", [])
    columns = {f"c{i}": [i] for i in range(3_000)} | {"maps": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int8()))}
    parquet_files.write(tmp_path / "1.parquet", IMAGES[:1], columns)
    fields = table_rows.RowFields(columns=(table_rows.Column("c2999", "int64"), table_rows.Column("maps", "bytes")))
    (reject,) = list_all(tmp_path, fields=fields).rejects
    assert reject.reason == Reason.BAD_VALUE and "'maps' holds 1 values, expected one" in reject.detail
    fields = table_rows.RowFields(columns=(table_rows.Column("c2999", "int64"),))
    assert [ref.columns for ref in list_all(tmp_path, fields=fields).refs] == [(2999,)]


def test_two_columns_of_one_name_are_an_error_where_one_is_needed(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x.parquet"
    arrays = [pa.array([b"x"]), pa.array([1]), pa.array([2])]
    pyarrow.parquet.write_table(pa.Table.from_arrays(arrays, ["image", "label", "label"]), path)
    assert len(list_all(tmp_path).refs) == 1
    twice = f"Parquet file '{path}' has the column 'label' twice; rename one of them"
    assert list_all(tmp_path, fields=LABEL).problems == [twice]
    pyarrow.parquet.write_table(pa.Table.from_arrays(arrays, ["image", "image", "label"]), path)
    with error_texts.raises("parquet-column-twice"):
        _ = parquet.ParquetSource(str(tmp_path), image="image").layout


def test_texts_that_are_not_utf8_are_rejects(tmp_path: pathlib.Path) -> None:
    bad = pa.array([b"\xff", b"ok"]).view(pa.string())
    path = parquet_files.write(tmp_path / "x.parquet", IMAGES[:2], {"label": bad})
    rejects = list_all(tmp_path, fields=LABEL).rejects
    assert {(reject.key, reject.reason) for reject in rejects} == {
        (f"x.parquet/{row}", Reason.BAD_VALUE) for row in (0, 1)
    }
    assert rejects[0].detail.startswith(f"row 0 of {path}: the rows around it cannot be read ('utf-8' codec can't")


def test_file_that_is_something_else_is_named(tmp_path: pathlib.Path) -> None:
    path = parquet_files.write(tmp_path / "x.parquet", IMAGES)
    whole = path.read_bytes()
    for data in (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
        b"PARE" + whole[4:],
        b"\x1f\x8b" + whole,
        b"\x89PNG\r\n\x1a\n",
        b"",
        whole[:-1],
        b"PAR1",
        b"PAR1" + bytes(4) + b"PAR1",
        whole[:-8] + b"\xff\xff\xff\x7fPAR1",
        whole[:-8] + b"\x10\x00\x00\x00PAR1",
        whole.replace(b"image", b"im\xffge"),
    ):
        path.write_bytes(data)
        with error_texts.raises("parquet-unreadable") as caught:
            _ = parquet.ParquetSource(str(tmp_path)).layout
        parquet_files.write(tmp_path / "a.parquet", IMAGES[:1])  # the first file is right
        found = tars.list_all(parquet.ParquetSource(str(tmp_path)))
        assert (len(found.refs), found.problems) == (1, [str(caught.value)])
        (tmp_path / "a.parquet").unlink()
    path.unlink()
    with error_texts.raises("parquet-no-file"):
        _ = parquet.ParquetSource(str(tmp_path)).layout


def test_encrypted_columns_are_an_error(tmp_path: pathlib.Path) -> None:
    """The footer is plain, and says that the columns are encrypted."""
    path = parquet_files.write(tmp_path / "x.parquet", IMAGES, compression="none", use_dictionary=False)
    data = bytearray(path.read_bytes())
    data[4:2000] = random.Random(2).randbytes(1996)  # what the header of the first page is then
    path.write_bytes(data)
    found = list_all(tmp_path)
    assert len(found.problems) == 1 and found.problems[0].startswith(f"Parquet file '{path}' cannot be read as Parquet")


def test_file_replaced_since_it_was_listed_is_not_read(tmp_path: pathlib.Path) -> None:
    path = parquet_files.write(tmp_path / "x.parquet", IMAGES, compression="zstd")
    refs = list_all(tmp_path).refs
    parquet_files.write(path, IMAGES[::-1], compression="zstd")
    outcomes = [data for _, data in read_ahead.fetch(refs)]
    assert {getattr(each, "reason", None) for each in outcomes} == {Reason.CHANGED}
    refs = list_all(tmp_path).refs
    path.unlink()
    assert {getattr(each, "reason", None) for _, each in read_ahead.fetch(refs)} == {Reason.NOT_FOUND}


def test_damaged_blocks_are_a_reject_of_their_image(tmp_path: pathlib.Path) -> None:
    path = parquet_files.write(tmp_path / "x.parquet", IMAGES)
    refs = list_all(tmp_path).refs
    broken = next(ref for ref in refs if ref.blocks)._replace(version=0)
    data = bytearray(path.read_bytes())
    data[broken.offset : broken.offset + 8] = b"\xff" * 8
    path.write_bytes(data)
    ((_, error),) = read_ahead.fetch([broken])
    assert isinstance(error, read_ahead.ReadError) and error.reason == Reason.CORRUPT
    assert error.detail == "the compressed page that holds it is damaged; fetch the file again"


@pytest.mark.parametrize("options", [{}, {"compression": "none", "use_dictionary": False}, {"compression": "zstd"}])
def test_flipped_bytes_are_problems_or_images(options: dict[str, Any], tmp_path: pathlib.Path) -> None:
    images = [b"\xff\xd8" + RNG.randbytes(50) for _ in range(40)]
    path = parquet_files.write(
        tmp_path / "x.parquet", images, {"label": list(range(40))}, [str(i) for i in range(40)], **options
    )
    whole, rng = path.read_bytes(), random.Random(3)
    for _ in range(150):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        path.write_bytes(data)
        try:
            found = list_all(tmp_path, fields=LABEL)
        except errors.ConfigError:
            continue
        for ref, outcome in read_ahead.fetch(found.refs):
            assert isinstance(outcome, (bytes, read_ahead.ReadError)) and (
                not isinstance(outcome, bytes) or len(outcome) == ref.size
            )
