"""Which features of records are kept: the survey sums up to the whole, and the rule names what it leaves out."""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
import random
from typing import Any

from imagebeam import features
from imagebeam.features import BYTES, FLOAT, INT64, Feature
from imagebeam.transforms import kept_features
from imagebeam.transforms.dataset_settings import Sizing
from imagebeam.transforms.kept_features import FeatureSurvey, KeepRule, Kept, Seen
from tests.unit.transforms import small_dataset

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


# --- the settings of a dataset ---------------------------------------------------------------------------------------


MIB = 1 << 20


def test_shards_of_split_follow_the_sizing() -> None:
    for sizing, num_records, num_bytes, expected in [
        (Sizing(), 1, 1000, 1),  # default-one
        (Sizing(), 127, 1000, 1),  # default-next-to-nothing
        (Sizing(), 128, 1000, 2),  # default-64-records-each
        (Sizing(), 1024, 1000, 16),  # default-16-shards
        (Sizing(), 1_000_000, 1000, 16),  # default-many-small-images
        (Sizing(), 100, 2 * 128 * MIB, 2),  # default-128-MiB-each
        (Sizing(), 100, 2 * 128 * MIB + 1, 3),  # default-a-byte-more
        (Sizing(), 1_281_167, 137 * 2**30, 1096),  # default-imagenet
        (Sizing(num_shards=5), 1, 10**12, 5),  # number
        (Sizing(num_shards={"train": 7}), 1, 10**12, 7),  # number-by-split
        (Sizing(num_shards={"test": 7}), 128, 1000, 2),  # number-of-another-split
        (Sizing(examples_per_shard=10), 20, 10**12, 2),  # examples
        (Sizing(examples_per_shard=10), 21, 10**12, 3),  # examples-rounded-up
        (Sizing(target_shard_bytes=1000), 10**6, 1001, 2),  # bytes-rounded-up
        (Sizing(target_shard_bytes=1000), 10**6, 0, 1),  # bytes-unknown
    ]:
        assert sizing.shards_of("train", num_records, num_bytes) == expected


DATASET = small_dataset.make_settings(pathlib.Path("/out"))


def test_label_ids_count_from_the_base() -> None:
    for base, ids in [(0, {"cat": 0, "dog": 1}), (1, {"cat": 1, "dog": 2})]:
        assert dataclasses.replace(DATASET, label_base=base).label_ids(("cat", "dog")) == ids


def test_shard_name_has_the_suffix() -> None:
    assert DATASET.shard_name("train", 3, 16) == "train-00003-of-00016.tfrecord"
    assert dataclasses.replace(DATASET, suffix="").shard_name("train", 3, 16) == "train-00003-of-00016"
