"""Mistakes of newcomers with a table or a folder: the error says what to set, and with that it works."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Sequence

import pytest

from imagebeam import errors
from imagebeam.pipelines import convert
from imagebeam.pipelines.config import model as config_lib
from imagebeam.transforms import elements
from tests import image_sets

MANIFEST = ["source.by=manifest"]
LABELLED = [*MANIFEST, "label.by=column", "label.column=label"]
NAMED = [*LABELLED, "source.manifest.header=[image, label]"]
TABLE = "image,label\na.jpg,cat\nb.jpg,café\n"
NO_HEADER = TABLE.partition("\n")[2]
CLASSES = ("café", "cat")


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """Three images side by side, and four in folders of classes."""
    image_sets.write_folder(tmp_path / "in/pets", per_label=2)
    for index, name in enumerate("abc"):
        (tmp_path / f"in/{name}.jpg").write_bytes(image_sets.make_image(50 + index))
    return tmp_path / "in"


def plan(source: pathlib.Path, overrides: Sequence[str]) -> elements.DatasetPlan:
    return convert.plan(config_lib.load_config(None, [f"source.uri={source}", *overrides]))


def complaint(source: pathlib.Path, overrides: Sequence[str]) -> str:
    """Returns the message of the error or of the plan that refuses the source."""
    try:
        planned = plan(source, overrides)
    except errors.ConfigError as e:
        return str(e)
    assert planned.action == "refuse"
    return planned.message


@pytest.mark.parametrize(
    ("data", "overrides", "message", "remedy"),
    [  # each message is pinned where it is made; here the remedy that it names works
        (TABLE.replace(",", ";").encode(), LABELLED, "split by semicolons: set ", "source.manifest.delimiter: ';'"),
        (TABLE.replace(",", "\t").encode(), LABELLED, "split by tabs: set ", 'source.manifest.delimiter: "\\t"'),
        (NO_HEADER.encode(), LABELLED, "a row, not a header: set ", "source.manifest.header: [image, label]"),
        (b"cat,a.jpg\ncaf\xc3\xa9,b.jpg\n", LABELLED, "set ", "source.manifest.header: [label, image]"),
        (NO_HEADER.replace(",", ";").encode(), NAMED, "split by semicolons: set ", "source.manifest.delimiter: ';'"),
        (
            TABLE.encode("utf-16"),
            LABELLED,
            "looks like UTF-16 text, not UTF-8: set ",
            "source.manifest.encoding: utf-16",
        ),
        (TABLE.encode("utf-16-le"), LABELLED, "set ", "source.manifest.encoding: utf-16-le"),
    ],
)
def test_table_that_is_read_wrongly_says_what_to_set(
    folder: pathlib.Path, data: bytes, overrides: list[str], message: str, remedy: str
) -> None:
    table = folder / "table.csv"
    table.write_bytes(data)
    assert f"{message}{remedy}" in complaint(table, overrides)
    planned = plan(table, [*overrides, remedy.replace(": ", "=", 1)])
    assert (planned.action, planned.labels, planned.rejected) == ("write", CLASSES, {})


@pytest.mark.parametrize(
    ("data", "overrides", "message", "remedy"),
    [
        (
            b"cat,1,a.jpg\ncaf\xc3\xa9,2,b.jpg\n",
            LABELLED,
            "header: [...], a name for each of its 3 columns, 'image', 'label' among them",
            ["source.manifest.header=[label, age, image]"],
        ),
        (
            TABLE.encode("latin-1"),
            LABELLED,
            "line 3: column 'label' holds b'caf\\xe9', which is not UTF-8: set source.manifest.encoding to the table's",
            ["source.manifest.encoding=latin-1"],
        ),
        (
            TABLE.replace("label", "catégorie").encode("latin-1"),
            [*MANIFEST, "label.by=column", "label.column=catégorie"],
            "its column 'cat\\udce9gorie' is not UTF-8: set source.manifest.encoding to the",
            ["source.manifest.encoding=latin-1"],
        ),
        (
            TABLE.replace("image", "Image").encode(),
            LABELLED,
            "'image' may be 'Image'; set source.manifest.image",
            ["source.manifest.image=Image"],
        ),
        (TABLE.encode(), MANIFEST, "set label.by: column and label.column", ["label.by=column", "label.column=label"]),
    ],
)
def test_table_that_is_read_wrongly_says_which_key_to_set(
    folder: pathlib.Path, data: bytes, overrides: list[str], message: str, remedy: list[str]
) -> None:
    table = folder / "table.csv"
    table.write_bytes(data)
    assert message in complaint(table, overrides)
    planned = plan(table, [*overrides, *remedy])
    assert (planned.action, planned.labels, planned.rejected) == ("write", CLASSES, {})


def test_encoding_is_checked_before_anything_is_read(folder: pathlib.Path) -> None:
    (folder / "table.jsonl").write_text('{"image": "a.jpg"}\n')
    for encoding, message in (("latn-1", "'latn-1' is not known; write for example latin-1"), ("hex", "'hex' is not")):
        with pytest.raises(errors.ConfigError, match=re.escape(f"source.manifest.encoding {message}")):
            plan(folder / "table.jsonl", [*MANIFEST, f"source.manifest.encoding={encoding}"])
    with pytest.raises(errors.ConfigError, match=r"source\.manifest\.encoding is for CSV and JSON lines"):
        plan(folder / "t.parquet", [*MANIFEST, "source.manifest.encoding=latin-1"])


def test_paths_of_any_bytes_need_no_encoding(folder: pathlib.Path) -> None:
    (folder / "caf\udce9.jpg").write_bytes(image_sets.make_image(9))
    (folder / "table.csv").write_bytes(b"image,label\ncaf\xe9.jpg,cat\n")
    assert plan(folder / "table.csv", LABELLED).splits["train"].num_records == 1


def test_rows_are_counted_as_lines_of_the_file(folder: pathlib.Path) -> None:
    (folder / "table.csv").write_text('\nimage,label,note\n\na.jpg,cat,"two\nlines"\nb.jpg\nc.jpg,cat,\n')
    assert f"line 6 of {folder}/table.csv: 1 cells, the header has 3" in complaint(folder / "table.csv", LABELLED)


@pytest.mark.parametrize("several", [False, True], ids=["one-table", "tables"])
def test_repeated_key_is_counted_once_and_named_with_its_first_two_rows(folder: pathlib.Path, several: bool) -> None:
    text = "image,label\na.jpg,cat\n\nb.jpg,cat\na.jpg,cat\na.jpg,cat\n"
    (folder / "table.csv").write_text(text + "b.jpg,cat\n")
    (folder / "pets/table.csv").write_text("image,label\ncat/0.jpg,cat\n")
    (folder / "b").mkdir()
    overrides = [*LABELLED, f"source.manifest.path={'**/table.csv' if several else 'table.csv'}"]
    assert complaint(folder, overrides) == (
        f"two images have the key 'a.jpg' (2 keys are given more than once): {folder}/a.jpg (line 2 of "
        f"{folder}/table.csv) and {folder}/a.jpg (line 5 of {folder}/table.csv); remove one, or name a column of "
        "unique ids in source.manifest.key; if its rows are one example, sort them by image and set "
        "source.manifest.merge_rows: true"
    )


def test_repeated_key_of_other_formats_names_lines_or_rows(folder: pathlib.Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    (folder / "t.jsonl").write_text('{"image": "a.jpg"}\n\n{"image": "a.jpg"}\n')
    assert f"(line 1 of {folder}/t.jsonl) and" in complaint(folder / "t.jsonl", [*MANIFEST, "label.by=none"])
    pq.write_table(pa.table({"image": ["b.jpg", "a.jpg", "a.jpg"]}), folder / "t.parquet")
    message = complaint(folder / "t.parquet", [*MANIFEST, "label.by=none"])
    assert f"(row 1 of {folder}/t.parquet) and {folder}/a.jpg (row 2 of {folder}/t.parquet)" in message


@pytest.mark.parametrize(
    ("below", "overrides", "message", "remedy_below", "remedy"),
    [
        pytest.param(
            "pets/cat",
            [],
            "'0.jpg' is not of the form label/image; the folder with the image is the class: if a few images are "
            "next to the class folders, leave them out with source.include='*/*'; if the folder given is itself a "
            "class, give its parent folder as --input; without classes set label.by: none",
            "pets",
            [],
            id="a-level-too-deep",
        ),
        pytest.param(
            "pets/cat", [], "without classes set label.by: none", "pets/cat", ["label.by=none"], id="unlabelled"
        ),
        pytest.param(
            "pets",
            ["split.by=directory"],
            "'cat/0.jpg' is not of the form split/label/image; the folder with the image is the class: if all "
            "folders are classes, set split={{by: none}}; if a few images are next to the class folders, "
            "leave them out with source.include='*/*/*'",
            "pets",
            ["split={by: none}"],
            id="no-splits",
        ),
        pytest.param(
            "table.csv",
            LABELLED[1:],
            "label.by: column needs source.by: manifest, idx, arrays, coco, tar, tfrecord, parquet; not files",
            "table.csv",
            LABELLED,
            id="table-without-source.by",
        ),
        pytest.param(
            "",
            LABELLED,
            "is a folder: give the table itself, or its name in the folder as source.manifest.path; for images without "
            "a table set source.by: files",
            "",
            [*LABELLED, "source.manifest.path=table.csv"],
            id="folder-of-a-table",
        ),
        pytest.param(
            "listing.jsonl",
            [],
            "is not a folder; it is a listing that plan --save-listing wrote: set source.by: listing",
            "listing.jsonl",
            ["source.by=listing"],
            id="listing-without-source.by",
        ),
        pytest.param(
            "listing.jsonl",
            MANIFEST,
            "is a listing that plan --save-listing wrote: set source.by: listing",
            "listing.jsonl",
            ["source.by=listing"],
            id="listing-as-manifest",
        ),
        pytest.param(
            "images.tar",
            [],
            "is not a folder; for a file whose name ends in .tar or .tar.gz set source.by: tar",
            None,
            [],
            id="tar",
        ),
        pytest.param(
            "x.tfrecord", [], "named as train-00000-of-00010 set source.by: tfrecord", None, [], id="tfrecord"
        ),
    ],
)
def test_input_of_another_kind_says_what_to_set(
    folder: pathlib.Path, below: str, overrides: list[str], message: str, remedy_below: str | None, remedy: list[str]
) -> None:
    (folder / "table.csv").write_text(TABLE)
    (folder / "images.tar").touch()
    (folder / "x.tfrecord").touch()
    convert.save_listing(config_lib.load_config(None, [f"source.uri={folder}/pets"]), str(folder / "listing.jsonl"))
    assert message.format(folder=folder) in complaint(folder / below, overrides)
    if remedy_below is not None:
        assert plan(folder / remedy_below, remedy).action == "write"


def test_class_from_the_path_of_a_table_with_other_columns_is_noted(folder: pathlib.Path) -> None:
    (folder / "table.csv").write_text("image,species,age\npets/cat/0.jpg,x,3\npets/dog/0.jpg,y,4\n")
    left_out = "label.by is left out, so the class of an image is the folder in its path, not a column of the table"
    overrides = [*MANIFEST, "columns.age.type=int"]
    first, second = plan(folder / "table.csv", overrides).notes
    assert first == f"{left_out} ('species'); for a column set label.by: column and label.column"
    assert second == (
        "there is one class, 'pets'; if the classes are the folders in it, give a folder below --input instead"
    )
    assert plan(folder / "table.csv", [*overrides, "label.by=directory"]).notes == (second,)
    assert plan(folder / "table.csv", [*overrides, "columns.species={}"]).notes == (second,)
