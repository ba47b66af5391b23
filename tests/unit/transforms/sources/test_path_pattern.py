from __future__ import annotations

import pickle
import re

import pytest

from imagebeam import features
from imagebeam.transforms import elements
from imagebeam.transforms.sources import listing_rules, table_rows

AGE = table_rows.Column("age", features.INT64)
FIELDS = table_rows.RowFields(label="label", split="split", group="who", columns=(AGE,))
PATTERN = r"(?P<label>\w+)/(?P<split>train|val)/(?P<age>[^_]*)_(?P<who>\d+)?\.jpg"


def apply(key: str) -> elements.ImageRef | elements.Reject:
    pattern = pickle.loads(pickle.dumps(listing_rules.PathPattern(PATTERN, FIELDS)))
    return pattern.apply(elements.ImageRef(key, f"/data/{key}"))


def test_groups_become_label_split_group_and_columns() -> None:
    ref = apply("cat/val/31_7.jpg")
    assert isinstance(ref, elements.ImageRef)
    assert (ref.label, ref.split, ref.group, ref.columns) == ("cat", "val", "7", (31,))
    ref = apply("cat/train/31_.jpg")  # a group without a match
    assert isinstance(ref, elements.ImageRef) and ref.group == ""


@pytest.mark.parametrize(
    ("key", "reason", "detail"),
    [
        ("cat/test/31_7.jpg", "no_match", r"'cat/test/31_7.jpg' does not match source.pattern '\(\?P<label>"),
        ("cat/val/x_7.jpg", "bad_value", r"'cat/val/x_7.jpg': column 'age': 'x' is not an integer"),
        ("cat/val/" + "3" * 1020 + "_7.jpg", "no_match", r"the path has more than 1,024 characters"),
    ],
)
def test_path_that_cannot_be_used_is_a_reject(key: str, reason: str, detail: str) -> None:
    reject = apply(key)
    assert isinstance(reject, elements.Reject)
    assert (reject.key, reject.uri, reject.stage, reject.reason.value) == (key, f"/data/{key}", "list", reason)
    assert re.match(detail, reject.detail)


def test_value_that_must_not_be_missing_fails_the_run() -> None:
    strict = table_rows.RowFields(columns=(table_rows.Column("age", features.INT64, missing="error"),))
    with pytest.raises(table_rows.MissingValueError, match=r"/data/x.jpg: column 'age': 'x' is not an integer, and"):
        listing_rules.PathPattern(r"(?P<age>.+)\.jpg", strict).apply(elements.ImageRef("x.jpg", "/data/x.jpg"))


@pytest.mark.parametrize(
    ("pattern", "error"),
    [
        ("(?P<label>", "is not a regular expression: missing \\)"),
        (".*", r"has no named group; write for example \(\?P<label>"),
        (r"(?P<label>\w+)*x", r"repeats a group that ends in a repetition \('\+\)\*'\), so a path that does not match"),
        (r"(?P<label>a)(b*?){2,}", "repeats a group that ends in a repetition"),
    ],
)
def test_pattern_that_cannot_be_used_is_an_error(pattern: str, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        listing_rules.check_pattern(pattern)


@pytest.mark.parametrize("pattern", [r"(?P<label>[^/]+)/.*", r"(?:[^/]+/)*(?P<label>\w+)_\d+\.jpg", r"(?P<a>x\+)+"])
def test_harmless_patterns_are_taken(pattern: str) -> None:
    assert listing_rules.check_pattern(pattern) in ({"label"}, {"a"})
