from __future__ import annotations

import json
import pathlib
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from imagebeam.features import INT64
from imagebeam.transforms import elements
from imagebeam.transforms.elements import ImageRef, Reason, Reject
from imagebeam.transforms.formats.tables import manifest, table_formats
from imagebeam.transforms.formats.tables.manifest import PairedFilesSource
from imagebeam.transforms.sources import files, image_source, table_rows
from tests import image_sets

PNG = image_sets.make_image(1, "PNG")
AGES = table_rows.RowFields(columns=(table_rows.Column("age", INT64),))


def make_source(
    root: pathlib.Path, table: str, glob: str = "*.png", fields: table_rows.RowFields = AGES
) -> PairedFilesSource:
    uri = str(root / table)
    folder, include = files.split_glob(str(root / glob))
    return PairedFilesSource(
        manifest.ManifestSource(uri, table_formats.format_of(uri), image=None, fields=fields),
        files.FilesSource(folder, include),
    )


def read(source: PairedFilesSource) -> tuple[list[ImageRef], list[Reject], list[str]]:
    found = list(source.list_all())
    refs = [ref for item in found if item.num_refs for ref in elements.unpack_refs(item.packed_refs)]
    return refs, [r for item in found for r in item.rejects], [problem for item in found for problem in item.problems]


def write_files(root: pathlib.Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(PNG)


@pytest.mark.parametrize("format", ["csv", "jsonl", "parquet"])
def test_rows_belong_to_the_files_in_the_order_of_their_paths(tmp_path: pathlib.Path, format: str) -> None:
    write_files(tmp_path, "b.png", "a.png", "10.png", "2.png", "B.png", "notes.txt", "below/c.png")
    ages = [5, 6, 7, 8, 9]
    if format == "csv":
        (tmp_path / "ages.csv").write_text("age\n" + "".join(f"{age}\n" for age in ages))
    elif format == "jsonl":
        (tmp_path / "ages.jsonl").write_text("".join(json.dumps({"age": age}) + "\n" for age in ages))
    else:
        pq.write_table(pa.table({"age": ages}), tmp_path / "ages.parquet")
    refs, rejects, problems = read(make_source(tmp_path, f"ages.{format}"))
    assert (rejects, problems) == ([], [])
    names = sorted(["b.png", "a.png", "10.png", "2.png", "B.png"])
    assert [(ref.key, ref.columns, ref.position) for ref in refs] == [
        (name, (age,), row) for row, (name, age) in enumerate(zip(names, ages))
    ]
    assert [(ref.uri, ref.size) for ref in refs] == [(str(tmp_path / name), len(PNG)) for name in names]
    assert all(ref.version for ref in refs)


def test_files_may_be_in_another_folder(tmp_path: pathlib.Path) -> None:
    write_files(tmp_path, "images/a/2.png", "images/b/1.png")
    (tmp_path / "ages.csv").write_text("age\n1\n2\n")
    refs, _, _ = read(make_source(tmp_path, "ages.csv", "images/**/*.png"))
    assert [ref.key for ref in refs] == ["images/a/2.png", "images/b/1.png"]


def test_column_of_ids_gives_the_keys(tmp_path: pathlib.Path) -> None:
    write_files(tmp_path, "a.png", "b.png", "c.png")
    (tmp_path / "ages.csv").write_text("id,age\nx,1\n,2\nz,3\n")
    refs, rejects, _ = read(
        make_source(tmp_path, "ages.csv", fields=table_rows.RowFields(key="id", columns=AGES.columns))
    )
    assert [(ref.key, ref.columns) for ref in refs] == [("x", (1,)), ("z", (3,))]
    assert [(r.key, r.uri, r.reason) for r in rejects] == [("b.png", str(tmp_path / "b.png"), Reason.BAD_ROW)]


@pytest.mark.parametrize("num_rows", [0, 2, 4])
def test_different_numbers_of_rows_and_files_are_a_problem_that_states_both(
    tmp_path: pathlib.Path, num_rows: int
) -> None:
    write_files(tmp_path, "a.png", "b.png", "c.png")
    (tmp_path / "ages.csv").write_text("age\n" + "1\n" * num_rows)
    _, _, problems = read(make_source(tmp_path, "ages.csv"))
    assert problems == [
        f"manifest '{tmp_path}/ages.csv' has {num_rows} rows, and source.manifest.files '{tmp_path}/*.png' matches 3 "
        f"files (the first '{tmp_path}/a.png', the last '{tmp_path}/c.png'): there must be one row for each file, in "
        "the order of the files' paths"
    ]


def test_glob_that_matches_nothing_is_a_problem(tmp_path: pathlib.Path) -> None:
    (tmp_path / "ages.csv").write_text("age\n1\n")
    _, _, (problem,) = read(make_source(tmp_path, "ages.csv"))
    assert f"has 1 row, and source.manifest.files '{tmp_path}/*.png' matches 0 files: there must be" in problem


def test_bad_rows_and_files_keep_their_numbers(tmp_path: pathlib.Path) -> None:
    write_files(tmp_path, "a.png", "c.png", "d.png", "e.png")
    (tmp_path / "b.png").symlink_to(tmp_path / "nowhere")
    (tmp_path / "ages.csv").write_text("age\n1\n2\nold\n4,4\n5\n")
    refs, rejects, problems = read(make_source(tmp_path, "ages.csv"))
    assert problems == []
    assert [(ref.key, ref.columns, ref.position) for ref in refs] == [("a.png", (1,), 0), ("e.png", (5,), 4)]
    assert [(reject.key, reject.reason) for reject in rejects] == [
        ("b.png", Reason.NOT_FOUND),
        ("c.png", Reason.BAD_VALUE),
        ("d.png", Reason.BAD_ROW),
    ]
    assert rejects[1].detail == f"line 4 of {tmp_path}/ages.csv: column 'age': 'old' is not an integer"
    assert rejects[2].detail.startswith(f"line 5 of {tmp_path}/ages.csv: 2 cells, the header has 1")


def test_missing_value_that_is_an_error_is_a_problem(tmp_path: pathlib.Path) -> None:
    write_files(tmp_path, "a.png", "b.png")
    (tmp_path / "ages.csv").write_text("age\n1\nold\n")
    fields = table_rows.RowFields(columns=(table_rows.Column("age", INT64, missing="error"),))
    _, _, (problem,) = read(make_source(tmp_path, "ages.csv", fields=fields))
    assert problem.startswith(f"line 3 of {tmp_path}/ages.csv: column 'age': 'old' is not an integer, and columns.age")


def test_table_that_is_cut_short_is_a_problem(tmp_path: pathlib.Path) -> None:
    write_files(tmp_path, "a.png", "b.png")
    (tmp_path / "ages.csv").write_text('age\n1\n"2')
    _, _, (problem,) = read(make_source(tmp_path, "ages.csv"))
    assert problem.startswith(f"manifest '{tmp_path}/ages.csv' cannot be read to its end: ")


def test_large_tables_are_split_into_several_listings(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_source, "MAX_REFS", 2)
    write_files(tmp_path, *(f"{index}.png" for index in range(5)))
    (tmp_path / "ages.csv").write_text("age\n" + "1\n" * 5)
    found = list(make_source(tmp_path, "ages.csv").list_all())
    assert [item.num_refs for item in found] == [2, 2, 1]


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
    refs, rejects, problems = read(make_source(tmp_path, "ages.csv"))
    assert problems or len(refs) + len(rejects) == 4
    for ref in refs:
        assert ref.key == f"{ref.position}.png"  # nothing moves up
