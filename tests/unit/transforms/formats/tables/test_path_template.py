from __future__ import annotations

import pytest

from imagebeam.transforms.formats.tables import row_steps
from imagebeam.transforms.sources import table_rows


@pytest.mark.parametrize(
    ("text", "columns", "folder", "path"),
    [
        ("{id}.jpg", ("id",), "", "7.jpg"),
        ("images/{id}.*", ("id",), "images", "images/7.*"),
        ("a/b-{kind}/{id}_{id}.png", ("kind", "id"), "a", "a/b-cat/7_7.png"),
        ("{a b}", ("a b",), "", "x/y.jpg"),
        ("**/{id}.*", ("id",), "", "**/7.*"),
        ("a/**/b-{kind}/{id}.jpg", ("kind", "id"), "a", "a/**/b-cat/7.jpg"),
    ],
)
def test_template_is_filled_with_cells(text: str, columns: tuple[str, ...], folder: str, path: str) -> None:
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
