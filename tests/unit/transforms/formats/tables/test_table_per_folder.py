from __future__ import annotations

import dataclasses
import pathlib
import re
from collections.abc import Sequence
from typing import Any

import pytest
from fsspec.utils import glob_translate
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from imagebeam import errors, storage
from imagebeam.transforms import elements
from imagebeam.transforms.formats.tables import manifest, table_per_folder
from imagebeam.transforms.sources import image_source, table_rows
from tests import case_tables, error_texts, image_sets, spread_rows, written_files

TREE = (
    *("m.csv", "a/m.csv", "a/b/m.csv", "a/b/c/m.jsonl", "a/b/other.csv", "b/m.csv", "b/m.txt"),
    *(".hidden/m.csv", "a/.m.csv"),
)


def write(root: pathlib.Path, names: Sequence[str] = TREE) -> str:
    return str(written_files.write(root, dict.fromkeys(names, "image\n")))


def find(root: str, glob: str, **options: Any) -> list[str]:
    return [uri.removeprefix(f"{root}/") for uri in table_per_folder.find_tables(root, glob, **options)]


def test_tables_are_found_by_a_glob(tmp_path: pathlib.Path) -> None:
    for glob, expected in [
        ("**/m.*", ["a/b/c/m.jsonl", "a/b/m.csv", "a/m.csv", "b/m.csv", "m.csv"]),  # any-depth
        ("*/m.csv", ["a/m.csv", "b/m.csv"]),  # one-below
        ("*.csv", ["m.csv"]),  # at-the-root
        ("a/**/*.csv", ["a/b/m.csv", "a/b/other.csv", "a/m.csv"]),  # below-a-folder
        ("**/b/*.csv", ["a/b/m.csv", "a/b/other.csv", "b/m.csv"]),  # folder-at-any-depth
        ("**/**/m.csv", ["a/b/m.csv", "a/m.csv", "b/m.csv", "m.csv"]),  # any-depth-twice
        ("[ab]/?.csv", ["a/m.csv", "b/m.csv"]),  # characters
        ("**", [*sorted(name for name in TREE if "/." not in f"/{name}" and "txt" not in name)]),  # all
    ]:
        folder = case_tables.new_folder(tmp_path)
        assert find(write(folder), glob) == expected


def test_given_format_accepts_any_extension(tmp_path: pathlib.Path) -> None:
    assert find(write(tmp_path), "b/*", format="csv") == ["b/m.csv", "b/m.txt"]


def test_output_and_loops_are_not_searched(tmp_path: pathlib.Path) -> None:
    root = write(tmp_path, ["a/m.csv", "out/m.csv"])
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    assert find(root, "**/m.csv", exclude=f"{root}/out") == ["a/m.csv"]


@pytest.mark.parametrize("glob", ["**/x.csv", "b/*.txt"])
def test_no_table_is_a_config_error(tmp_path: pathlib.Path, glob: str) -> None:
    with error_texts.raises("table-no-match"):
        table_per_folder.find_tables(write(tmp_path), glob)


def test_folder_that_is_not_listed_is_a_config_error(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    list_directory = storage.LocalStorage.list_directory

    def refuse(self: storage.LocalStorage, uri: str) -> Any:
        if uri.endswith("/a/b"):
            raise PermissionError(13, "Permission denied")
        return list_directory(self, uri)

    monkeypatch.setattr(storage.LocalStorage, "list_directory", refuse)
    with error_texts.raises("folder-unreadable"):
        table_per_folder.find_tables(write(tmp_path), "**/m.csv")


PARTS = st.sampled_from(["**", "*", "a", "b", "?", "[!a]", "m.csv", "*.csv", "m.*", "[", "[]", "[z-a]", "", ".", ".."])


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(st.lists(PARTS, min_size=1, max_size=6))
def test_any_glob_matches_like_the_shell_or_is_a_config_error(tmp_path: pathlib.Path, parts: list[str]) -> None:
    root, glob = write(tmp_path), "/".join(parts)
    visible = [name for name in TREE if "/." not in f"/{name}" and not name.endswith(".txt")]
    try:
        found = find(root, glob)
    except errors.ConfigError:
        found = []
    assert set(found) <= set(visible)
    if not any(part in ("[", "[]", "[z-a]", "[!a]", "", ".", "..") for part in parts):
        pattern = re.compile(glob_translate(glob))
        assert found == sorted(name for name in visible if pattern.fullmatch(name))


# Rows


def make_source(root: pathlib.Path, **options: Any) -> table_per_folder.TablePerFolderSource:
    names = table_per_folder.find_tables(str(root), "*/m.csv")
    found = [manifest.ManifestSource(uri, "csv", keys_below=str(root), **options) for uri in names]
    return table_per_folder.TablePerFolderSource(tuple(found))


def read(
    source: table_per_folder.TablePerFolderSource,
) -> tuple[list[elements.ImageRef], list[elements.Reject], list[str]]:
    found = spread_rows.gather(spread_rows.list_both_ways(source))
    return found.refs, found.rejects, found.problems


def write_images(root: pathlib.Path, names: dict[str, list[str]]) -> None:
    for folder, images in names.items():
        (root / folder).mkdir()
        (root / folder / "m.csv").write_text("image\n" + "".join(f"{name}\n" for name in images))
        for name in images:
            if name != "gone":
                (root / folder / name).write_bytes(image_sets.make_image(1))


@pytest.mark.parametrize("max_refs", [1, 2, 10_000])
def test_positions_continue_and_keys_are_relative_to_the_root(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, max_refs: int
) -> None:
    monkeypatch.setattr(image_source, "MAX_REFS", max_refs)
    write_images(tmp_path, {"b": ["1", "gone", "2"], "a": ["1", "2"], "c": [], "d": ["1"]})
    source = make_source(tmp_path)
    source.check_columns()
    refs, rejects, problems = read(source)
    assert [(ref.key, ref.position) for ref in refs] == [("a/1", 0), ("a/2", 1), ("b/1", 2), ("b/2", 4), ("d/1", 5)]
    assert [ref.uri for ref in refs] == [f"{tmp_path}/{ref.key}" for ref in refs]
    assert [reject.detail.partition(":")[0] for reject in rejects] == [f"line 3 of {tmp_path}/b/m.csv"]
    assert problems == []


def test_positions_of_merged_rows_do_not_overlap_with_the_next_table(tmp_path: pathlib.Path) -> None:
    write_images(tmp_path, {"a": ["1"] * 5 + ["2"] * 3, "b": ["1", "1", "2"], "c": ["1"]})
    refs, rejects, problems = read(make_source(tmp_path, merge_rows=True))
    assert [ref.key for ref in sorted(refs, key=lambda ref: ref.position)] == ["a/1", "a/2", "b/1", "b/2", "c/1"]
    assert len({ref.position for ref in refs}) == 5
    assert (rejects, problems) == ([], [])


def test_every_table_must_have_the_columns(tmp_path: pathlib.Path) -> None:
    write_images(tmp_path, {"a": ["1"], "b": ["1"]})
    (tmp_path / "b" / "m.csv").write_text("image,label\n1,x\n")
    source = make_source(tmp_path, fields=table_rows.RowFields(label="label"))
    with error_texts.raises("table-unknown-column"):
        source.check_columns()


def test_table_deleted_before_it_is_read_is_a_problem(tmp_path: pathlib.Path) -> None:
    write_images(tmp_path, {"a": ["1"], "b": ["1"]})
    source = make_source(tmp_path)
    (tmp_path / "a" / "m.csv").unlink()
    refs, _, problems = read(source)
    assert [ref.key for ref in refs] == ["b/1"]
    assert len(problems) == 1
    assert "/a/m.csv' cannot be read to its end" in problems[0]


# Images that no row names


def count_unnamed(source: table_per_folder.TablePerFolderSource) -> dict[str, int]:
    return spread_rows.gather(spread_rows.list_both_ways(source)).skipped


def test_images_that_no_row_names_are_counted(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_source, "MAX_REFS", 2)
    write_images(tmp_path, {"a": ["1.jpg", "2.JPG", "3.jpg"], "b": ["1.jpg", "gone", "2.jpg"]})
    with open(tmp_path / "a/m.csv", "a") as table:
        table.write("../b/other.jpg\n4.jpg,x\n")  # a reject whose file is named all the same, and one that names none
    names = ("b/other.jpg", "b/3.PNG", "c/d/5.jpeg", "notes.txt", "b/.6.jpg", ".hidden/7.jpg", "out/8.jpg", "a/4.jpg")
    written_files.write(tmp_path, dict.fromkeys(names, b""))
    source = dataclasses.replace(make_source(tmp_path), folder=str(tmp_path), exclude=f"{tmp_path}/out")
    refs, rejects, problems = read(source)
    assert (len(refs), len(rejects), problems) == (5, 3, [])
    assert count_unnamed(source) == {"not_in_table": 4}  # b/other.jpg is outside of a/; b/3.PNG, c/d/5.jpeg, a/4.jpg
    assert count_unnamed(dataclasses.replace(source, folder=None)) == {}
    trusted = (dataclasses.replace(table, trust=True) for table in source.tables)
    assert count_unnamed(dataclasses.replace(source, tables=tuple(trusted))) == {}  # no folder is listed


def test_tables_without_any_row_are_a_problem(tmp_path: pathlib.Path) -> None:
    write_images(tmp_path, {"a": [], "b": []})
    _, _, (problem,) = read(make_source(tmp_path))
    assert (
        problem == f"no manifest has a row, so there are no images: {tmp_path}/a/m.csv, {tmp_path}/b/m.csv; fill them"
    )


def test_describe_rows_continues_from_table_to_table(tmp_path: pathlib.Path) -> None:
    write_images(tmp_path, {"a": ["1", "2"], "b": [], "c": ["1", "2"]})
    source = make_source(tmp_path)
    a, c = f"{tmp_path}/a/m.csv", f"{tmp_path}/c/m.csv"
    assert source.describe_rows([1, 3, 0, 2]) == [
        f"line 3 of {a}",
        f"line 3 of {c}",
        f"line 2 of {a}",
        f"line 2 of {c}",
    ]
    assert source.describe_rows([3, 3]) == [f"line 3 of {c}"] * 2
    with pytest.raises(ValueError, match="positions are not those of rows"):
        make_source(tmp_path, merge_rows=True).describe_rows([0])
