"""Tests the base of all sources of containers with a format of its own."""

from __future__ import annotations

import dataclasses
import pathlib
import re
from collections.abc import Iterator

import pytest

from imagebeam.features import INT64
from imagebeam.transforms import elements
from imagebeam.transforms.elements import ImageRef, Reason, Reject
from imagebeam.transforms.packed import packed_file
from imagebeam.transforms.sources import containers, table_rows
from imagebeam.transforms.sources.table_rows import Column
from tests import case_tables, tars


@dataclasses.dataclass(frozen=True)
class LineSource(containers.ContainerSource):
    """A source of text files: each line is an image, a reject (!), a problem (?) or skipped (#)."""

    NOUN = "line file"
    FILE_NAME = re.compile(r".+\.lines")
    EXPECTED = "a file whose name ends in .lines"
    CELL = "cell"

    def scan(self, container: containers.Container) -> Iterator[containers.Found]:
        for line in pathlib.Path(container.uri).read_text().split():
            if line == "missing":
                raise table_rows.MissingValueError("a value is missing")
            if line == "fault":
                raise OSError(5, "Input/output error")
            if line.startswith("!"):
                yield Reject(line, container.uri, "list", Reason.CORRUPT, "")
            elif line.startswith("?"):
                raise containers.ContainerError(line)
            elif line.startswith("#"):
                yield containers.Skipped("comment")
            else:
                yield ImageRef(line, container.uri)
        yield containers.Cells(frozenset({"age", "name"}))


def write(root: pathlib.Path, **texts: str) -> None:
    for name, text in texts.items():
        (root / f"{name}.lines").write_text(text)


def test_images_are_numbered_over_all_files_in_the_order_of_their_paths(tmp_path: pathlib.Path) -> None:
    write(tmp_path, b="b1 !b2 b3", a="a1 #x a2")
    (tmp_path / "other.txt").write_text("c1")
    found = tars.list_all(LineSource(str(tmp_path)))
    assert [(ref.key, ref.position) for ref in found.refs] == [("a1", 0), ("a2", 1), ("b1", 2), ("b3", 4)]
    assert [reject.key for reject in found.rejects] == ["!b2"]
    assert (found.skipped, found.problems) == ({"comment": 1, "other_file": 1}, [])


def test_problems_of_a_file_do_not_hide_the_other_files(tmp_path: pathlib.Path) -> None:
    write(tmp_path, a="a1 ?broken", b="missing", c="fault", d="d1")
    found = tars.list_all(LineSource(str(tmp_path)))
    assert [ref.key for ref in found.refs] == ["a1", "d1"]
    assert found.problems == [
        "?broken",
        f"{tmp_path}/b.lines: a value is missing",
        f"line file '{tmp_path}/c.lines' cannot be read (Input/output error), so the images in it would be lost: "
        "repair it, or leave it out with source.include",
    ]


def test_cell_that_no_image_has_is_a_problem_unless_it_has_a_default(tmp_path: pathlib.Path) -> None:
    write(tmp_path, a="a1")
    columns = (Column("age", INT64), Column("height", INT64), Column("width", INT64, missing="default", default=0))
    fields = table_rows.RowFields(label="class", columns=columns)
    assert tars.list_all(LineSource(str(tmp_path), fields=fields)).problems == [
        f"no image in '{tmp_path}' has the cell 'class', 'height'; found are age, name; "
        "set label.column (without labels label={by: none}), columns.height"
    ]


def test_broken_link_is_a_problem(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.lines").symlink_to(tmp_path / "gone")
    (problem,) = tars.list_all(LineSource(str(tmp_path))).problems
    assert problem == f"'{tmp_path}/a.lines' is a broken link, so the images in it would be lost: repair it"


def test_gzip_under_another_name_is_read_as_such(tmp_path: pathlib.Path) -> None:
    for name, data, is_gzip in [
        ("a.tar", packed_file.GZIP_MAGIC + b"\x08", True),
        ("a.tar.gz", packed_file.GZIP_MAGIC + b"\x08", False),
        ("a.tar", b"no gzip", False),
    ]:
        folder = case_tables.new_folder(tmp_path)
        (folder / name).write_bytes(data)
        container = containers.Container(name, str(folder / name), len(data), 1, str(folder / name))
        found = containers.as_gzip(container)
        assert (found is not None) == is_gzip
        if found is not None:
            assert (found.uri, found.address) == (container.uri, f"{container.uri}#.gz")
            assert containers.as_gzip(found) is None


def test_fill_rejects_several_values_where_one_is_expected() -> None:
    for value, detail in [
        ([1, 2], "'age' holds 2 values, expected one; columns take several with list: true"),
        ({"a": 1}, "'age' holds a dict of its own; write for example json.box.width for what is in it"),
        ([[1]], None),
    ]:
        fields = table_rows.RowFields(columns=(Column("age", INT64, many=detail is None),))
        with pytest.raises(table_rows.BadRowError) as caught:
            containers.fill(fields, ImageRef("k", "/k"), {"age": value})
        assert caught.value.reason is elements.Reason.BAD_VALUE
        if detail is None:
            detail = "'age' holds a list of its own; write for example json.box.width for what is in it"
        assert caught.value.detail == detail
