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
from tests import golden_texts, image_sets

MANIFEST = ["source.by=manifest"]
LABELLED = [*MANIFEST, "label.by=column", "label.column=label"]
NAMED = [*LABELLED, "source.manifest.header=[image, label]"]
TABLE = "image,label\na.jpg,cat\nb.jpg,café\n"
NO_HEADER = TABLE.partition("\n")[2]
CLASSES = ("café", "cat")


LATIN = ["source.manifest.encoding=latin-1"]
FRENCH = [*MANIFEST, "label.by=column", "label.column=catégorie"]


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


def assert_complaint(name: str, folder: pathlib.Path, source: pathlib.Path, overrides: Sequence[str]) -> None:
    """Compares the message with that in golden/faults.json."""
    found = complaint(source, overrides).replace(str(folder), "TMP")
    golden_texts.check(golden_texts.FAULTS, name, found)


MISREAD: dict[str, tuple[bytes, list[str], list[str]]] = {  # a table, the settings, those that the complaint names
    "semicolons": (TABLE.replace(",", ";").encode(), LABELLED, ["source.manifest.delimiter=';'"]),
    "tabs": (TABLE.replace(",", "\t").encode(), LABELLED, ['source.manifest.delimiter="\\t"']),
    "no-header": (NO_HEADER.encode(), LABELLED, ["source.manifest.header=[image, label]"]),
    "label-first": (b"cat,a.jpg\ncaf\xc3\xa9,b.jpg\n", LABELLED, ["source.manifest.header=[label, image]"]),
    "named-semicolons": (NO_HEADER.replace(",", ";").encode(), NAMED, ["source.manifest.delimiter=';'"]),
    "three-columns": (b"cat,1,a.jpg\ncaf\xc3\xa9,2,b.jpg\n", LABELLED, ["source.manifest.header=[label, age, image]"]),
    "utf-16": (TABLE.encode("utf-16"), LABELLED, ["source.manifest.encoding=utf-16"]),
    "utf-16-le": (TABLE.encode("utf-16-le"), LABELLED, ["source.manifest.encoding=utf-16-le"]),
    "latin-1": (TABLE.encode("latin-1"), LABELLED, LATIN),
    "latin-1-header": (TABLE.replace("label", "catégorie").encode("latin-1"), FRENCH, LATIN),
    "other-case": (TABLE.replace("image", "Image").encode(), LABELLED, ["source.manifest.image=Image"]),
    "no-label": (TABLE.encode(), MANIFEST, ["label.by=column", "label.column=label"]),
}


@pytest.mark.parametrize("name", MISREAD)
def test_table_that_is_read_wrongly_says_what_to_set(folder: pathlib.Path, name: str) -> None:
    data, overrides, remedy = MISREAD[name]
    table = folder / "table.csv"
    table.write_bytes(data)
    assert_complaint(f"table: {name}", folder, table, overrides)
    planned = plan(table, [*overrides, *remedy])
    assert (planned.action, planned.labels, planned.rejected) == ("write", CLASSES, {})


def test_encoding_is_checked_before_anything_is_read(folder: pathlib.Path) -> None:
    (folder / "table.jsonl").write_text('{"image": "a.jpg"}\n')
    for encoding, message in (("latn-1", "'latn-1' is not known; write for example latin-1"), ("hex", "'hex' is not")):
        with pytest.raises(errors.ConfigError, match=re.escape(f"source.manifest.encoding {message}")):
            plan(folder / "table.jsonl", [*MANIFEST, f"source.manifest.encoding={encoding}"])
    with pytest.raises(errors.ConfigError, match=r"source\.manifest\.encoding is for CSV and JSON"):
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


OTHER_KINDS: dict[str, tuple[str, list[str], str | None, list[str]]] = {  # input and settings, and those that work
    "a-level-too-deep": ("pets/cat", [], "pets", []),
    "unlabelled": ("pets/cat", [], "pets/cat", ["label.by=none"]),
    "no-splits": ("pets", ["split.by=directory"], "pets", ["split={by: none}"]),
    "table-without-source.by": ("table.csv", LABELLED[1:], "table.csv", LABELLED),
    "folder-of-a-table": ("", LABELLED, "", [*LABELLED, "source.manifest.path=table.csv"]),
    "listing-without-source.by": ("listing.jsonl", [], "listing.jsonl", ["source.by=listing"]),
    "listing-as-manifest": ("listing.jsonl", MANIFEST, "listing.jsonl", ["source.by=listing"]),
    "tar": ("images.tar", [], None, []),
    "tfrecord": ("x.tfrecord", [], None, []),
}


@pytest.mark.parametrize("name", OTHER_KINDS)
def test_input_of_another_kind_says_what_to_set(folder: pathlib.Path, name: str) -> None:
    below, overrides, remedy_below, remedy = OTHER_KINDS[name]
    (folder / "table.csv").write_text(TABLE)
    (folder / "images.tar").touch()
    (folder / "x.tfrecord").touch()
    convert.save_listing(config_lib.load_config(None, [f"source.uri={folder}/pets"]), str(folder / "listing.jsonl"))
    assert_complaint(f"input: {name}", folder, folder / below, overrides)
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
