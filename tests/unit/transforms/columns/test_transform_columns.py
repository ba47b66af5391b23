from __future__ import annotations

import json
import pathlib
from collections.abc import Sequence
from typing import Any

import google_crc32c
import pytest

from imagebeam import features
from imagebeam.transforms import elements
from imagebeam.transforms.columns import transform_columns
from imagebeam.transforms.elements import ColumnTransform, ImageRef
from imagebeam.transforms.output import output_folder
from tests.unit.transforms import small_dataset

AGE = ColumnTransform("age", "age", 1, features.FLOAT, "z_score")
CITY = ColumnTransform("city", "town", 2, features.BYTES, "vocabulary")


class Doubled:
    """A saved transform that says twice what it is given, and in how many rows at once."""

    def __init__(self) -> None:
        self.num_rows: list[int] = []

    def apply(self, values: Sequence[Sequence[Any]]) -> list[list[Any]]:
        self.num_rows.append(len(values[0]))
        return [[2 * value for value in column] for column in values]


def make_refs(number: int, split: str = "train") -> list[ImageRef]:
    return [ImageRef(f"{i}", f"/{i}", split=split, columns=(b"note", float(i), b"x")) for i in range(number)]


def packed(refs: Sequence[ImageRef], first_rank: int = 0) -> tuple[int, bytes]:
    return first_rank, elements.pack_refs(refs)


def test_apply_replaces_the_transformed_columns_alone() -> None:
    refs = make_refs(3)
    changed = transform_columns.apply([AGE, CITY], Doubled(), refs)  # type: ignore[arg-type]
    assert [ref.columns for ref in changed] == [(b"note", 0.0, b"xx"), (b"note", 2.0, b"xx"), (b"note", 4.0, b"xx")]
    assert [ref._replace(columns=()) for ref in changed] == [ref._replace(columns=()) for ref in refs]


def test_applied_runs_keep_their_ranks_and_come_in_batches_of_one_size() -> None:
    pytest.importorskip("tensorflow_transform")
    refs = make_refs(2500)
    apply, saved = transform_columns._ApplyFn([AGE]), Doubled()
    apply._saved = saved  # type: ignore[assignment]
    runs = [packed(refs[2000:], 2010), (10, b""), packed(refs[:2000], 10)]
    ((key, changed),) = apply.process((("train", 3), runs), "/nowhere")
    assert key == ("train", 3)
    assert [rank for rank, _ in changed] == [10, 10 + 1024, 10 + 2048]
    assert saved.num_rows == [1024, 1024, 452]
    found = [ref for _, run in changed for ref in elements.unpack_refs(run)]
    assert [(ref.key, ref.columns[1]) for ref in found] == [(str(i), 2.0 * i) for i in range(2500)]


def test_values_are_taken_of_the_analysed_split_alone() -> None:
    for analyze, expected in [("train", 1), ("test", 0), ("all", 1)]:
        taken = list(transform_columns._take_values((("train", 0), [packed(make_refs(2))]), [CITY, AGE], analyze))
        assert taken == [[(b"x", b"x"), (0.0, 1.0)]][:expected]


def test_values_of_a_shard_come_in_batches() -> None:
    refs = make_refs(2500)
    shard = ("train", 0), [packed(refs[2000:], 2000), packed(refs[:2000]), (0, b"")]
    batches = list(transform_columns._take_values(shard, [AGE], "all"))
    assert [len(ages) for (ages,) in batches] == [1024, 1024, 452]
    assert sorted(age for (ages,) in batches for age in ages) == [float(i) for i in range(2500)]


def test_stage_copies_both_folders_and_lists_them(tmp_path: pathlib.Path) -> None:
    small_dataset.write_transform(tmp_path / "from")
    (tmp_path / "from/temporary").mkdir()
    (tmp_path / "from/temporary/x").write_bytes(b"3")
    output_folder.stage(str(tmp_path / "from"), str(tmp_path / "to"))
    output_folder.stage(str(tmp_path / "from"), str(tmp_path / "to"))  # as a bundle that runs twice does
    listed = json.loads((tmp_path / "to" / output_folder.STAGED_FILES).read_text())
    assert listed == {
        name: [len(data), google_crc32c.value(data)]
        for name, data in {"transform_fn/assets/city": b"Rome\n", "transform_fn/saved_model.pb": b"1"}.items()
    }
    assert (tmp_path / "to/transform_fn/assets/city").read_bytes() == b"Rome\n"
    assert not (tmp_path / "to/temporary").exists()
