from __future__ import annotations

import json
from typing import Any

from imagebeam.transforms.output import run_report


def describe(listed: int = 0, config: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    known: dict[str, Any] = {
        "identity": json.dumps([config or {}, {"pillow": "12.1"}]),
        "writer_version": 1,
        "labels": None,
        "listed": listed,
        "rejected": {},
        "rejects_digest": 0,
    }
    return json.loads(json.dumps(run_report.describe_inputs(**{**known, **fields})))


SECOND = {"split": {"seed": 1, "fractions": {"train": 0.8, "test": 0.2}}, "output": {"num_shards": 4}}


def test_differences_are_named() -> None:
    for before, now, expected in [
        (describe(9), describe(10), "10 images listed, 9 then"),  # listed
        (
            describe(0, {"output": {"num_shards": 3}}),
            describe(0, SECOND),
            "output.num_shards was 3, is 4; split.fractions.test was not set, is 0.2; "
            "split.fractions.train was not set, is 0.8; split.seed was not set, is 1",
        ),  # config
        (
            describe(0, {"columns": {name: 1 for name in "abcdefg"}}),
            describe(),
            "columns.a was 1, is not set; columns.b was 1, is not set; columns.c was 1, is not set; "
            "columns.d was 1, is not set; columns.e was 1, is not set; 2 more keys",
        ),  # many-keys
        (
            describe(0, identity=json.dumps([{}, {"pillow": "12.0"}])),
            describe(),
            'pillow was "12.0", is "12.1"',
        ),  # library
        (
            describe(0, identity=json.dumps([{}, {"masks": [2, None]}])),
            describe(
                0, identity=json.dumps([{}, {"masks": [2, [["sky", 0, 0, 0, False], ["edge", 255, 0, 9, True]]]}])
            ),
            "source.masks.colors was not set, is {sky: [0, 0, 0], edge: [255, 0, 9] (ignored)}",
        ),  # colors-of-masks
        (
            describe(0, identity=json.dumps([{}, {"masks": [1, [[f"c{n}", n, n, n, False] for n in range(2)]]}])),
            describe(0, identity=json.dumps([{}, {"masks": [2, [["c0", 0, 0, 0, False]]]}])),
            "masks was 1, is 2; source.masks.colors was {c0: [0, 0, 0], c1: [1, 1, 1]}, is {c0: [0, 0, 0]}",
        ),  # other-colors-of-masks
        (describe(), describe(0, labels=("cat",)), "label.vocabulary or label.texts holds other classes"),  # labels
        (describe(), describe(0, writer_version=2), "this version of imagebeam writes other bytes"),  # version
        (
            describe(),
            describe(0, rejected={"no_label": 1200}, rejects_digest=1),
            "rejected before reading: none then, no_label 1,200 now",
        ),  # rejects
        (describe(), describe(0, rejects_digest=1), "other images are rejected before reading"),  # other-rejects
        (describe(), describe(), "images, or their labels or columns, differ"),  # nothing-that-is-known
        ({}, describe(), "config or images differ"),  # not-kept
    ]:
        assert run_report.compare_inputs(before, now) == expected


def test_update_goes_on_with_newer_libraries_and_with_nothing_else_that_differs() -> None:
    for others, expected in [
        ({"libraries": {"pillow": "12.0"}}, ""),  # newer-library
        ({"raw_shape": [2, 2, 1]}, "raw_shape was [2, 2, 1], is not set"),  # other-pixels
    ]:
        before = describe(0, identity=json.dumps([{}, others]))
        now = describe(0, identity=json.dumps([{}, {"libraries": {"pillow": "12.1"}}]))
        assert run_report.compare_configs(before, now) == expected
