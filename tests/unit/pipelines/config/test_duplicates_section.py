from __future__ import annotations

from typing import Any

import pytest

from imagebeam import errors
from imagebeam.pipelines.config import model as config_lib
from tests import case_tables

BEAM = {"uri": "out", "writer": "beam", "num_shards": 2}


def parse(duplicates: dict[str, Any], **sections: Any) -> config_lib.Config:
    return config_lib.parse_config({"duplicates": duplicates, **sections}, "a test")


@case_tables.each_case(
    "duplicates, sections, message",
    [
        (
            {"exact": "report", "near": "drop"},
            {},
            r"duplicates\.near: drop also drops images with the same bytes, and duplicates\.exact is report: set "
            r"duplicates\.exact: drop or off",
        ),
        ({"near_distance": 3}, {}, r"duplicates\.near_distance needs duplicates\.near: report"),
        ({"near": "report", "near_distance": 7}, {}, "less than or equal to 6, got 7"),
        ({"keep_in": ["test"]}, {}, r"duplicates\.keep_in needs duplicates\.exact or"),
        ({"exact": "drop", "keep_in": ["a", "a"]}, {}, r"keep_in names 'a': give each split once"),
        ({"exact": "drop", "keep_in": ["a/b"]}, {}, r"keep_in names 'a/b': give each split once"),
        (
            {"exact": "drop", "keep_in": ["tset"]},
            {"split": {"by": "hash", "fractions": {"train": 0.5, "test": 0.5}}},
            r"duplicates\.keep_in names tset, the splits are train, test",
        ),
        ({"exact": "fail"}, {"output": BEAM}, r"writer: beam keeps no hashes of what it has written"),
        ({"exact": "warn"}, {}, r"duplicates\.exact: input should be 'off', 'report', 'drop' or"),
    ],
)
def test_config_that_cannot_be_meant_is_refused(
    duplicates: dict[str, Any], sections: dict[str, Any], message: str
) -> None:
    with pytest.raises(errors.ConfigError, match=message):
        parse(duplicates, **sections)


def test_drop_goes_with_beams_writer() -> None:
    assert parse({"exact": "drop", "near": "drop"}, output=BEAM).duplicates.settings().only("drop").is_on


@case_tables.each_case(
    "one, other, is_same",
    {
        "shards-of-a-refused-run-are-kept": ({"exact": "fail"}, {"exact": "report"}, True),
        "off": ({}, {"near": "off"}, True),
        "a-dataset-without-a-report-is-another-one": ({}, {"exact": "report"}, False),
        "drop": ({"exact": "drop"}, {"exact": "report"}, False),
        "distance": ({"near": "report"}, {"near": "report", "near_distance": 2}, False),
        "order": ({"exact": "drop"}, {"exact": "drop", "keep_in": ["test"]}, False),
    },
)
def test_identity_is_that_of_the_duplicates_that_are_known(
    one: dict[str, Any], other: dict[str, Any], is_same: bool
) -> None:
    split = {"by": "directory"}
    assert (parse(one, split=split).identity() == parse(other, split=split).identity()) is is_same
    assert parse({}).identity() == config_lib.parse_config({}, "a test").identity()
