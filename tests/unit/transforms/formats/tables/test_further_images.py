"""Rows of a table that name several images of one example."""

from __future__ import annotations

import os
import pathlib

import pytest

from imagebeam import errors
from imagebeam.transforms import elements
from imagebeam.transforms.elements import FurtherImage, Reason
from imagebeam.transforms.formats.tables import manifest, table_per_folder
from tests import image_sets, spread_rows


def list_table(
    root: pathlib.Path, text: str, image: str = "before", further: tuple[str, ...] = ("after",), **options: bool
) -> tuple[list[elements.ImageRef], list[elements.Reject]]:
    """Writes a table into a folder; returns its references and rejects, listed both in one place and spread."""
    (root / "pairs.csv").write_text(text)
    source = manifest.ManifestSource(str(root / "pairs.csv"), "csv", image=image, further=further, **options)
    source.check_columns()
    found = spread_rows.list_both_ways(source)
    refs = [ref for each in found if each.num_refs for ref in elements.unpack_refs(each.packed_refs)]
    return refs, [reject for each in found for reject in each.rejects]


@pytest.fixture
def root(tmp_path: pathlib.Path) -> pathlib.Path:
    for name in ("in/a/1.jpg", "in/b/1.png", "in/b/2.png", "in/b/3.jpg", "in/b/3.png", "other.jpg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(image_sets.make_image(len(name)))
    return tmp_path / "in"


def test_further_images_are_listed_with_their_size_version_and_column(root: pathlib.Path) -> None:
    [ref], rejects = list_table(root, "id,after,before\n2,b/1.png,a/1.jpg\n", further=("after", "b/{id}.*"))
    expected = [(root / "b/1.png", "after"), (root / "b/2.png", "b/{id}.*")]
    stats = [(path, os.stat(path), column) for path, column in expected]
    assert ref.further == tuple(FurtherImage(str(path), stat.st_size, stat.st_mtime_ns, by) for path, stat, by in stats)
    assert (ref.key, ref.uri, rejects) == ("a/1.jpg", str(root / "a/1.jpg"), [])
    assert ref.num_bytes == ref.size + sum(stat.st_size for _, stat, _ in stats)


def test_same_template_may_name_an_image_twice(root: pathlib.Path) -> None:
    [ref], _ = list_table(root, "id\n1\n", "b/{id}.*", ("b/{id}.*", "a/{id}.jpg"))
    assert [each.uri for each in ref.further] == [ref.uri, str(root / "a/1.jpg")]


@pytest.mark.parametrize(
    ("cell", "column", "reason", "detail"),
    [
        ("", "after", Reason.BAD_ROW, "column 'after' is empty"),
        ("b/9.png", "after", Reason.NOT_FOUND, "column 'after': there is no file '{root}/b/9.png'"),
        ("b", "after", Reason.UNREADABLE, "column 'after': '{root}/b' is not a regular file (directory)"),
        ("9", "b/{after}.*", Reason.NOT_FOUND, "column 'b/{{after}}.*': there is no image '{root}/b/9.*'"),
        ("", "b/{after}.*", Reason.BAD_ROW, "column 'after' is empty"),
        (
            "3",
            "b/{after}.*",
            Reason.BAD_ROW,
            "there are several images: '{root}/b/3.jpg', '{root}/b/3.png'; give the extension in 'b/{{after}}.*'",
        ),
        (
            "../other.jpg",
            "after",
            Reason.OUTSIDE_ROOT,
            "column 'after': '../other.jpg' leaves '{root}'; source.manifest.allow_outside: true would take it",
        ),
    ],
)
def test_row_with_a_bad_further_image_is_a_reject_that_names_the_column(
    root: pathlib.Path, cell: str, column: str, reason: Reason, detail: str
) -> None:
    refs, [reject] = list_table(root, f"before,after\na/1.jpg,{cell}\n", further=(column,))
    assert (refs, reject.key, reject.uri, reject.reason) == ([], "a/1.jpg", "a/1.jpg", reason)
    assert reject.detail == f"line 2 of {root}/pairs.csv: " + detail.format(root=root)


def test_column_of_further_images_must_exist(root: pathlib.Path) -> None:
    with pytest.raises(errors.ConfigError, match="has no column 'after'; its columns are 'before'"):
        list_table(root, "before\na/1.jpg\n")


def test_further_images_are_named_by_the_table_also_where_the_row_is_a_reject(root: pathlib.Path) -> None:
    (root / "pairs.csv").write_text("before,after\na/1.jpg,b/1.png\na/9.jpg,b/2.png\n")
    table = manifest.ManifestSource(
        str(root / "pairs.csv"), "csv", image="before", further=("after",), keys_below=str(root)
    )
    found = spread_rows.list_both_ways(table_per_folder.TablePerFolderSource((table,), str(root)))
    assert sum(each.skipped.get(table_per_folder.UNNAMED, 0) for each in found) == 2  # b/3.jpg and b/3.png
