from __future__ import annotations

import itertools
import pathlib
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagebeam.features import BYTES
from imagebeam.pipelines import job
from imagebeam.pipelines.config import model as config_lib
from imagebeam.transforms import elements
from imagebeam.transforms.formats.tables import row_steps
from imagebeam.transforms.formats.tables.table_formats import RowPlace
from imagebeam.transforms.sources import image_source, table_rows
from imagebeam.transforms.sources.table_rows import Column, RowFields
from tests import case_tables, error_texts, image_sets, spread_rows, written_files


def test_template_is_filled_with_cells() -> None:
    for text, columns, folder, path in [
        ("{id}.jpg", ("id",), "", "7.jpg"),
        ("images/{id}.*", ("id",), "images", "images/7.*"),
        ("images/{id:03}.*", ("id",), "images", "images/007.*"),
        ("a/b-{kind}/{id}_{id}.png", ("kind", "id"), "a", "a/b-cat/7_7.png"),
        ("{a b}", ("a b",), "", "x/y.jpg"),
        ("**/{id}.*", ("id",), "", "**/7.*"),
        ("a/**/b-{kind}/{id}.jpg", ("kind", "id"), "a", "a/**/b-cat/7.jpg"),
    ]:
        template = row_steps.parse(text)
        assert template is not None
        assert (template.columns, template.folder) == (columns, folder)
        assert template.fill({"id": 7, "kind": "cat", "a b": "x/y.jpg"}) == path


@pytest.mark.parametrize("text", [None, "image", "image path.jpg"])
def test_name_of_a_column_is_no_template(text: str | None) -> None:
    assert row_steps.parse(text) is None


@pytest.mark.parametrize("text", ["{id}{.jpg", "{id}}.jpg"])
def test_open_brace_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"has a brace without its other one; write for example 'images/\{id\}.jpg'"):
        row_steps.parse(text)


@pytest.mark.parametrize("text", ["*/{id}.jpg", "{id}*", "{id}.*.*", "a**/{id}.jpg", "{id}/**/x.jpg", "**/**/{id}.jpg"])
def test_star_elsewhere_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"has a '\*' that is neither its whole extension nor '\*\*/' before"):
        row_steps.parse(text)


def test_empty_cell_makes_no_path_and_is_named() -> None:
    template = row_steps.PathTemplate("{a}/{b}.jpg")
    assert template.fill({"a": "x", "b": ""}) == ""
    assert template.find_empty({"a": "x", "b": ""}) == "b"


def test_cell_with_several_values_is_a_bad_row() -> None:
    with pytest.raises(table_rows.BadRowError, match=r"column 'a'.*expected one value"):
        row_steps.PathTemplate("{a}.jpg").fill({"a": ["x", "y"]})


# --- merged -----------------------------------------------------------------------------------------------------------


FIELDS = RowFields(split="set", columns=(Column("caption", BYTES, many=True),))


def merged(rows: Sequence[Any], fields: RowFields = FIELDS) -> list[tuple[int, Any]]:
    """Merges rows; returns each with its position."""
    placed = [(RowPlace(position, "line", position + 2), row) for position, row in enumerate(rows)]
    return [(place.position, row) for place, row in row_steps.merge_rows(placed, "image", fields)]


def row(image: str, caption: Any, split: Any = "train") -> dict[str, Any]:
    return {"image": image, "caption": caption, "set": split}


def test_consecutive_rows_of_an_image_are_merged() -> None:
    found = merged([row("a", "1"), row("a", ["2", "3"]), row("a", ""), row("b", "4"), row("a", "5")])
    assert found == [(0, row("a", ["1", "2", "3"])), (3, row("b", "4")), (4, row("a", "5"))]


def test_text_with_a_separator_is_split() -> None:
    fields = RowFields(label="tags", label_separator="|")
    rows = [{"image": "a", "tags": "x|y"}, {"image": "a", "tags": None}, {"image": "a", "tags": "y"}]
    assert merged(rows, fields) == [(0, {"image": "a", "tags": ["x", "y", "y"]})]


def test_unused_columns_may_differ_and_empty_cells_are_equal() -> None:
    rows = [{**row("a", "1", None), "id": 1}, {**row("a", "2", ""), "id": 2}]
    assert merged(rows) == [(0, {**row("a", ["1", "2"], None), "id": 1})]


def test_rows_that_differ_in_a_single_value_are_a_conflict_that_names_the_first_pair() -> None:
    ((number, found),) = merged([row("a", "1"), row("a", "2", "test"), row("a", "3", "x")])
    assert number == 0
    assert isinstance(found, row_steps.Conflict)
    assert found.cells["image"] == "a"
    assert found.detail.startswith(
        "line 2 and line 3 are of one image, and column 'set' is 'train' in one and 'test' in"
    )


def test_row_that_cannot_be_parsed_is_passed_on_and_ends_no_group() -> None:
    assert merged([row("a", "1"), "broken", row("a", "2")]) == [(1, "broken"), (0, row("a", ["1", "2"]))]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.lists(st.text(min_size=1), max_size=3))))
def test_no_value_is_lost_or_moved(pairs: list[tuple[str, list[str]]]) -> None:
    found = merged([row(image, captions) for image, captions in pairs])
    images = [cells["image"] for _, cells in found]
    assert all(one != other for one, other in itertools.pairwise(images))
    flat = [(cells["image"], caption) for _, cells in found for caption in cells["caption"]]
    assert flat == [(image, caption) for image, captions in pairs for caption in captions]


# --- joined -----------------------------------------------------------------------------------------------------------


IMAGES = "1 a/1.jpg\n2 a/2.jpg\n3 b/3.jpg\n"


def open_birds(folder: pathlib.Path, images: str, classes: str, splits: str) -> image_source.ImageSource:
    tables = {"images.txt": images, "image_class_labels.txt": classes, "train_test_split.txt": splits}
    pictures = dict.fromkeys(("images/a/1.jpg", "images/a/2.jpg", "images/b/3.jpg"), image_sets.make_image(1))
    written_files.write(folder, tables | pictures)
    config = config_lib.load_config("cub200", [f"source.uri={folder}", f"output.uri={folder}_out"])
    table = job.make_source(config)
    assert table is not None
    return table


def test_lists_of_the_birds_are_joined_by_id(tmp_path: pathlib.Path) -> None:
    table = open_birds(tmp_path, IMAGES, "1 7\n2 7\n3 8 x\n", "1 1\n2 0\n3 1\n")
    assert table.column_names() == ["id", "file", "class", "is_training"]
    found = spread_rows.list_both_ways(table)  # type: ignore[arg-type]
    refs = [(ref.key, ref.label, ref.split) for each in found for ref in elements.unpack_refs(each.packed_refs)]
    assert refs == [("images/a/1.jpg", "7", "1"), ("images/a/2.jpg", "7", "0")]
    (reject,) = (reject for each in found for reject in each.rejects)
    assert reject.reason == elements.Reason.BAD_ROW
    assert "line 3 of" in reject.detail and "image_class_labels.txt: 3 cells, the header has 2" in reject.detail


def test_tables_with_other_ids_are_a_problem(tmp_path: pathlib.Path) -> None:
    for classes, error in [
        ("1 7\n3 8\n2 7\n", "line 2 has id '2', and line 2 of .*labels.txt' has '3': source.manifest.join needs"),
        ("1 7\n2 7\n", "it has more rows than .*image_class_labels.txt', which source.manifest.join names"),
        ("1 7\n2 7\n3 7\n4 7\n", "it has fewer rows than"),
    ]:
        folder = case_tables.new_folder(tmp_path)
        table = open_birds(folder, IMAGES, classes, "1 1\n2 0\n3 1\n")
        problems = [problem for each in table.list_all() for problem in each.problems]
        with pytest.raises(ValueError, match=error):
            raise ValueError(problems[0])


def test_join_of_another_format_or_without_its_column_is_an_error(tmp_path: pathlib.Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"image": "a.jpg", "id": 1}\n')
    (tmp_path / "t.csv").write_text("image\na.jpg\n")
    (tmp_path / "u.csv").write_text("id,label\n1,cat\n")
    for name, code in (("t.jsonl", "table-option-of-csv"), ("t.csv", "table-unknown-column")):
        overrides = [
            f"source.uri={tmp_path / name}",
            "output.uri=/tmp/no_output",
            "label.by=none",
            "source.by=manifest",
        ]
        config = config_lib.load_config(None, [*overrides, "source.manifest.join={key: id, tables: {u.csv: []}}"])
        with error_texts.raises(code):
            job.make_source(config)
