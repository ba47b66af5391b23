from __future__ import annotations

import pathlib
from typing import Any

import pytest

from imagebeam import errors
from imagebeam.pipelines import image_rules
from imagebeam.pipelines.config import model as config_lib
from imagebeam.transforms.sources.label_rule import LabelRule
from tests import image_sets


def open_rules(folder: pathlib.Path, is_update: bool = False, **fields: Any) -> image_rules.ImageRules:
    if not (folder / "images").exists():
        image_sets.write_folder(folder / "images", per_label=1)
    whole: dict[str, Any] = {"source": {"uri": str(folder / "images")}, "output": {}} | fields
    whole["output"]["uri"] = str(folder / "out")
    return image_rules.open_rules(config_lib.parse_config(whole, where="the test"), is_update)


def test_rules_of_a_folder_find_the_label_above_an_image_and_one_split(tmp_path: pathlib.Path) -> None:
    rules = open_rules(tmp_path)
    assert (rules.label.by, rules.label.level, rules.split.by, rules.split.name) == ("directory", 0, "none", "train")
    assert open_rules(tmp_path, split={"by": "directory"}).label.level == 1


def test_group_of_a_pattern_is_found_with_the_label_and_another_one_is_a_column(tmp_path: pathlib.Path) -> None:
    label = {"by": "filename", "pattern": r"(?P<label>\w+)_(?P<patient>\w+)\.png"}
    split = {"by": "hash", "fractions": {"train": 0.5, "test": 0.5}, "group": "patient"}
    rules = open_rules(tmp_path, label=label, split=split)
    assert (rules.label.group, rules.split.grouped) == ("patient", True)


def test_labelled_source_leaves_stratified_splits_to_the_job_and_texts_to_the_commit(tmp_path: pathlib.Path) -> None:
    (tmp_path / "texts.txt").write_text("cat a cat\n")
    split = {"by": "hash", "fractions": {"train": 0.5, "test": 0.5}, "stratify": True}
    rules = open_rules(tmp_path, split=split, label={"texts": str(tmp_path / "texts.txt")})
    assert rules.names.texts == {"cat": "a cat"}
    labelled = rules.labelled
    assert labelled.split is None
    assert isinstance(labelled.label, LabelRule) and labelled.label.names.texts == {}
    assert open_rules(tmp_path).labelled.split == open_rules(tmp_path).split


@pytest.mark.parametrize(
    ("fields", "is_update", "ranks"),
    [
        pytest.param({}, False, True, id="default"),
        pytest.param({"split": {"by": "hash", "fractions": {"train": 0.5, "test": 0.5}}}, False, True, id="split"),
        pytest.param({"duplicates": {"exact": "report"}}, False, True, id="duplicates-reported"),
        pytest.param({"duplicates": {"exact": "drop"}}, False, False, id="duplicates-dropped"),
        pytest.param({"output": {"shuffle": "none"}}, False, False, id="listed-order"),
        pytest.param(
            {"split": {"by": "hash", "fractions": {"train": 0.5, "test": 0.5}, "stratify": True}},
            False,
            False,
            id="stratified",
        ),
        pytest.param({}, True, False, id="update"),
    ],
)
def test_labelled_source_ranks_images_where_no_later_step_leaves_some_out(
    tmp_path: pathlib.Path, fields: dict[str, Any], is_update: bool, ranks: bool
) -> None:
    rules = open_rules(tmp_path, is_update, **fields)
    assert (rules.labelled.order is not None) == ranks
    assert rules.labelled.order in (rules.order, None)


def test_vocabulary_that_cannot_be_read_is_an_error_of_the_config(tmp_path: pathlib.Path) -> None:
    with pytest.raises(errors.ConfigError, match=r"label\.vocabulary"):
        open_rules(tmp_path, label={"vocabulary": str(tmp_path / "absent.txt")})
