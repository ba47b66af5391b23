from __future__ import annotations

import pathlib
from typing import Any

import pytest

from imagebeam import errors
from imagebeam.pipelines import call_arguments, job
from tests import case_tables, image_sets


def make(folder: pathlib.Path, update: bool = False, **fields: Any) -> job.Job:
    if not (folder / "images").exists():
        image_sets.write_folder(folder / "images", per_label=1)
    whole: dict[str, Any] = {"source": {"uri": str(folder / "images")}, "output": {}} | fields
    whole["output"]["uri"] = str(folder / "out")
    return job.make_job(job.check(call_arguments.Request(whole, [], update=update)))


def test_rules_of_a_folder_find_the_label_above_an_image_and_one_split(tmp_path: pathlib.Path) -> None:
    label, split = make(tmp_path).rules.label, make(tmp_path).split
    assert label is not None
    assert (label.by, label.level, split.by, split.name) == ("directory", 0, "none", "train")
    assert "level=1" in str(make(tmp_path, split={"by": "directory"}).rules.label)


def test_group_of_a_pattern_is_found_with_the_label_and_another_one_is_a_column(tmp_path: pathlib.Path) -> None:
    label = {"by": "filename", "pattern": r"(?P<label>\w+)_(?P<patient>\w+)\.png"}
    split = {"by": "hash", "fractions": {"train": 0.5, "test": 0.5}, "group": "patient"}
    made = make(tmp_path, label=label, split=split)
    assert "group='patient'" in str(made.rules.label)
    assert made.split.grouped


@case_tables.each_case(
    "fields, update, ranks",
    {
        "default": ({}, False, True),
        "split": ({"split": {"by": "hash", "fractions": {"train": 0.5, "test": 0.5}}}, False, True),
        "duplicates-reported": ({"duplicates": {"exact": "report"}}, False, True),
        "duplicates-dropped": ({"duplicates": {"exact": "drop"}}, False, False),
        "listed-order": ({"output": {"shuffle": "none"}}, False, False),
        "stratified": (
            {"split": {"by": "hash", "fractions": {"train": 0.5, "test": 0.5}, "stratify": True}},
            False,
            False,
        ),
        "update": ({}, True, False),
    },
)
def test_images_are_ranked_when_they_are_listed_where_no_later_step_leaves_some_out(
    tmp_path: pathlib.Path, fields: dict[str, Any], update: bool, ranks: bool
) -> None:
    made = make(tmp_path, update, **fields)
    assert made.early_order == (made.order if ranks else None)
    assert (made.rules.split is None) == made.split.stratify


def test_vocabulary_that_cannot_be_read_is_an_error_of_the_config(tmp_path: pathlib.Path) -> None:
    with pytest.raises(errors.ConfigError, match=r"label\.vocabulary"):
        make(tmp_path, label={"vocabulary": str(tmp_path / "absent.txt")})
