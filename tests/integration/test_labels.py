"""Class names of tables, and the splits of small classes, through the call that the command makes."""

from __future__ import annotations

import collections
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from imagebeam import catalog as catalog_lib
from imagebeam import errors
from imagebeam.pipelines import convert
from tests import case_tables, datasets, image_sets

COLUMN = {"by": "column", "column": "label"}


def write_table(folder: pathlib.Path, kind: str, labels: Sequence[Any]) -> pathlib.Path:
    """Writes a table of one image for each label, in the format `kind`."""
    folder.mkdir(exist_ok=True)
    names = [f"{index}.jpg" for index in range(len(labels))]
    for index, name in enumerate(names):
        (folder / name).write_bytes(image_sets.make_image(index))
    uri = folder / f"table.{kind}"
    if kind == "parquet":
        pq.write_table(pa.table({"image": names, "label": list(labels)}), uri)
    elif kind == "jsonl":
        uri.write_text("".join(json.dumps({"image": n, "label": each}) + "\n" for n, each in zip(names, labels)))
    else:
        uri.write_text("image,label\n" + "".join(f"{name},{label}\n" for name, label in zip(names, labels)))
    return uri


@case_tables.each_case(
    "kind, labels",
    {
        "csv": ("csv", ["10", "2", "30", "2"]),
        "csv-of-pandas": ("csv", ["10.0", " 2", "30", "2.0"]),
        "jsonl-mixed": ("jsonl", [10, 2.0, "30", "2"]),
        "parquet-integers": ("parquet", [10, 2, 30, 2]),
        "parquet-floats": ("parquet", [10.0, 2.0, 30.0, 2.0]),
        "parquet-text": ("parquet", ["10", "2", "30.0", "2"]),
    },
)
def test_integer_labels_of_any_table_sort_by_value_and_are_noted(
    tmp_path: pathlib.Path, kind: str, labels: Sequence[Any]
) -> None:
    table = write_table(tmp_path / "in", kind, labels)
    result = datasets.make(table, tmp_path / "out", source={"by": "manifest"}, label=COLUMN)
    assert result.catalog.labels == ("2", "10", "30")
    found = {
        each["image/key"].decode(): (each["image/class/label"], each["image/class/text"].decode())
        for each in datasets.read(tmp_path / "out")
    }
    assert found == {"0.jpg": (1, "10"), "1.jpg": (0, "2"), "2.jpg": (2, "30"), "3.jpg": (0, "2")}
    note = (
        "the classes are numbers, and 3 of 3 get another number as their id: 2 -> 0, 10 -> 1, 30 -> 2; "
        "label.type: int keeps the numbers"
    )
    assert result.plan.notes == (note,)


def test_vocabulary_of_a_column_is_spelled_as_its_cells_are(tmp_path: pathlib.Path) -> None:
    table = write_table(tmp_path / "in", "parquet", [10.0, 2.0])
    (tmp_path / "labels.txt").write_text("10.0\n2\n7 \n")
    label = {**COLUMN, "vocabulary": str(tmp_path / "labels.txt")}
    datasets.make(table, tmp_path / "out", source={"by": "manifest"}, label=label)
    assert catalog_lib.load_catalog(str(tmp_path / "out")).labels == ("10", "2", "7")
    (tmp_path / "labels.txt").write_text("2.0\n2\n")
    with pytest.raises(errors.ConfigError, match=r"label.vocabulary .* names '2' twice"):
        convert.plan({"source": {"uri": str(table), "by": "manifest"}, "label": label})


def test_stratified_splits_of_small_classes_hold_their_shares_and_name_what_they_lack(tmp_path: pathlib.Path) -> None:
    image_sets.write_folder(tmp_path / "in", [f"class {index:02}" for index in range(20)], 4)
    fractions = {"train": 0.8, "validation": 0.1, "test": 0.1}
    split = {"by": "hash", "fractions": fractions, "stratify": True}
    result = datasets.make(tmp_path / "in", tmp_path / "out", split=split)
    sizes = {name: each.num_examples for name, each in result.catalog.splits.items()}
    assert sizes == {"train": 64, "validation": 8, "test": 8}
    for name in ("validation", "test"):
        held = collections.Counter(key.split("/")[0] for key in datasets.keys(tmp_path / "out", name))
        absent = [f"class {index:02}" for index in range(20) if f"class {index:02}" not in held]
        (note,) = [note for note in result.plan.notes if note.startswith(name)]
        assert f"{name} has no image of {len(absent)} of the 20 classes" in note
        assert repr(absent[0]) in note
