"""Which features of records are kept: the survey sums up to the whole, and the rule names what it leaves out."""

from __future__ import annotations

import itertools
import random
from typing import Any

from imagebeam import features
from imagebeam.features import BYTES, FLOAT, INT64, Feature
from imagebeam.transforms import kept_features
from imagebeam.transforms.kept_features import FeatureSurvey, KeepRule, Kept, Seen

WRITTEN = (Feature("image/key", "image/key", BYTES), Feature(features.ENCODED, features.ENCODED, BYTES))
RECORDS = [
    [Seen("text", BYTES, True), Seen("boxes", FLOAT, False), Seen("id", INT64, True), Seen("image/key", BYTES, True)],
    [
        Seen("text", BYTES, True),
        Seen("boxes", FLOAT, True),
        Seen("image/width", INT64, True),
        Seen("void", None, False),
    ],
    [Seen("text", BYTES, True), Seen("boxes", FLOAT, False), Seen("id", INT64, True)],
]
TEXT, BOXES = Feature("text", "columns/text", BYTES), Feature("boxes", "columns/boxes", FLOAT, True)
ID = Feature("id", "columns/id", INT64, True)


def survey(records: list[list[Seen]], start: int = 0) -> FeatureSurvey:
    surveyor = kept_features.FeatureSurveyor()
    for number, seen in enumerate(records, start):
        surveyor.add(seen, f"record {number}")
    return surveyor.survey


def resolve(records: list[list[Seen]] = RECORDS, **rule: Any) -> Kept:
    return KeepRule(**rule).resolve(survey(records), WRITTEN)


def test_survey_of_parts_in_any_order_is_that_of_the_whole() -> None:
    rng = random.Random(0)
    for order in itertools.permutations(range(3)):
        parts = [survey([RECORDS[index]], index) for index in order]
        rng.shuffle(parts)
        merged = kept_features.NO_FEATURES
        for part in parts:
            merged = merged.merge(part)
        assert merged == survey(RECORDS)


def test_all_is_kept_with_its_kind_and_what_is_not_is_named() -> None:
    kept = resolve()
    assert kept.features == (BOXES, ID, Feature("image/width", "columns/image/width", INT64, True), TEXT)
    assert kept.notes == (
        "features of the records that are replaced by new values: image/key",
        "features of the records that have no value anywhere, and are left out: void",
        "features that some records lack, and are kept as lists: id (in 2 of 3 records), image/width (in 1 of 3 "
        "records)",
        "source.tfrecord.key: image/key would keep the keys of the records, and the order by them",
    )


def test_features_computed_from_the_image_again_are_not_noted() -> None:
    written = (*WRITTEN, Feature("image/width", "image/width", INT64))
    kept = KeepRule(elsewhere=frozenset({"image/key"})).resolve(survey(RECORDS[1:]), written)
    assert BOXES in kept.features
    assert not any("image/" in note for note in kept.notes)


def test_what_is_named_is_kept_and_the_rest_is_told() -> None:
    for rule, kept, left_out in [
        ({"names": ("text",)}, (TEXT,), "boxes, id, image/width, void"),  # one
        ({"names": ()}, (), "boxes, id, image/width, text, void"),  # none
        ({"names": ("text", "boxes"), "elsewhere": frozenset({"boxes", "id"})}, (TEXT,), "image/width, void"),
        ({"names": ("text", "id"), "renamed": (("text", "t"), ("id", None))}, (TEXT._replace(key="t"),), None),
    ]:
        found = resolve(**rule)
        assert (found.features, found.problem) == (kept, None)
        text = "features of the records that are left out, which neither columns nor source.tfrecord.keep names: "
        if left_out is not None:
            assert found.notes[0] == text + left_out


NONE_HAS_IT = "and no record has that feature; found are boxes, id, image/key, image/width, text, void"
BOTH = "'columns/id' and 'columns/text' both"


def test_rule_that_does_not_fit_the_records_is_a_problem() -> None:
    for rule, problem in [
        ({"names": ("tex",)}, f"source.tfrecord.keep names 'tex', {NONE_HAS_IT}"),
        ({"renamed": (("no", "x"),)}, f"features names 'columns/no', {NONE_HAS_IT}"),
        (
            {"renamed": (("id", "text"),)},
            "features 'columns/id' and 'columns/text' both have the key 'text': rename one",
        ),
    ]:
        assert resolve(**rule).problem == problem


def test_feature_of_two_kinds_is_a_problem_unless_it_is_left_out() -> None:
    records = [*RECORDS, [Seen("id", BYTES, True)], [Seen("id", BYTES, True)]]
    assert resolve(records).problem == (
        "feature 'id' holds bytes in record 3 and int64 in record 0, and a feature has one kind: write those records "
        "again, leave their file out with source.include, or the feature with features: {columns/id: null}"
    )
    assert resolve(records, renamed=(("id", None),)).problem is None
    assert resolve(records, names=("text",)).problem is None


def test_no_record_has_nothing_to_keep() -> None:
    assert resolve([], names=("text",)) == Kept()


def test_places_in_the_image_are_known_by_their_keys() -> None:
    for key in ("image/object/bbox/xmin", "image/segmentation/class/encoded", "image/objects"):
        feature = Feature("x", f"columns/{key}", FLOAT, True)
        assert kept_features.has_coordinates([TEXT, feature]) == (key != "image/objects")
