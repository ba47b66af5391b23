from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import pytest

from imagebeam import features, storage
from imagebeam.transforms import dataset_settings, elements, summaries
from imagebeam.transforms.classes.label_names import LabelNames
from imagebeam.transforms.dataset_settings import Sizing
from imagebeam.transforms.elements import DatasetPlan, Reason, Reject, SplitPlan
from imagebeam.transforms.plan import decide_plan
from imagebeam.transforms.shard import read_ahead
from imagebeam.transforms.summaries import RejectSummary, RepeatedKey, Tally
from tests import case_tables, error_texts
from tests.unit.transforms import small_dataset

NO_REJECTS = RejectSummary({}, 0, None)
ranking_of = small_dataset.make_ranking


def make_plan(
    dataset: dataset_settings.DatasetSettings,
    ranking: summaries.Ranking | None = None,
    tally: Tally | None = None,
    rejects: RejectSummary = NO_REJECTS,
) -> DatasetPlan:
    ranking = ranking or ranking_of({"train": 100})
    listed = sum(ranking.total(split) for split in ranking.starts) + sum(rejects.counts.values())
    return decide_plan.make_plan(dataset, ranking, tally or Tally(listed, {}, ()), rejects)


DATASET = small_dataset.make_settings(pathlib.Path("/out"))


def test_plan_to_write_says_all_that_will_be() -> None:
    for declared, expected in [
        (None, ["train", "dev", "test"]),  # found-train-first
        (("test", "train", "dev"), ["test", "train", "dev"]),  # declared
    ]:
        dataset = dataclasses.replace(DATASET, declared_splits=declared)
        rejects = RejectSummary({"no_label": 1}, 5, None)
        tally = Tally(1153, {"hidden": 2}, ())
        plan = make_plan(dataset, ranking_of({"dev": 64, "test": 64, "train": 1024}), tally, rejects)
        assert list(plan.splits) == expected
        assert plan == DatasetPlan(
            action="write",
            message="",
            fingerprint=plan.fingerprint,
            splits={
                "train": SplitPlan(1024, 1_024_000, 16),
                "dev": SplitPlan(64, 64_000, 1),
                "test": SplitPlan(64, 64_000, 1),
            },
            labels=("cat", "dog"),
            listed=1153,
            rejected={"no_label": 1},
            skipped={"hidden": 2},
        )


def test_plan_takes_labels_from_the_vocabulary_or_the_images() -> None:
    for fields, labels in [
        ({}, ("cat", "dog")),  # found
        ({"names": LabelNames(("dog", "cow", "cat"))}, ("dog", "cow", "cat")),  # vocabulary
        ({"label_kind": "int64"}, ()),  # targets
    ]:
        assert make_plan(small_dataset.make_settings(pathlib.Path("/out"), **fields)).labels == labels


def test_plan_sorts_numbers_of_a_column_by_value() -> None:
    for fields, labels in [
        ({"label_by": "column"}, ("1", "2", "10")),  # column
        ({}, ("1", "10", "2")),  # folders
        ({"label_by": "column", "names": LabelNames(("10", "2", "1"))}, ("10", "2", "1")),  # vocabulary
    ]:
        plan = make_plan(
            small_dataset.make_settings(pathlib.Path("/out"), **fields), ranking_of({"train": 3}, ("1", "10", "2"))
        )
        assert plan.labels == labels
        assert [note for note in plan.notes if note.startswith("the classes are numbers")] == [
            note for note in plan.notes if "names" not in fields
        ]


def test_fingerprint_of_classes_in_another_order_is_another() -> None:
    in_column = dataclasses.replace(DATASET, label_by="column")
    for labels, differ in ((("1", "10", "2"), True), (("1", "2", "3"), False), (("cat", "dog"), False)):
        ranking = ranking_of({"train": 3}, labels)
        assert (make_plan(in_column, ranking).fingerprint != make_plan(DATASET, ranking).fingerprint) is differ


def test_plan_of_stratified_splits_names_classes_missing_from_a_split() -> None:
    ranking = ranking_of({"train": 3, "test": 1}, classes={"train": {"cat", "dog"}, "test": {"dog"}})
    (note,) = make_plan(dataclasses.replace(DATASET, stratified=True), ranking).notes
    assert note.startswith("test has no image of 1 of the 2 classes, because these are too small for its share: 'cat'")
    assert make_plan(DATASET, ranking).notes == ()


def test_plan_of_one_class_of_folders_says_that_the_input_may_be_too_high() -> None:
    of_folders = dataclasses.replace(DATASET, label_by="directory")
    (note,) = make_plan(of_folders, ranking_of({"train": 3}, ("pets",))).notes
    assert note == (
        "there is one class, 'pets'; if the classes are the folders in it, give a folder below --input instead"
    )
    assert make_plan(of_folders, ranking_of({"train": 3})).notes == ()
    for fields in ({"label_by": "column"}, {"label_by": "directory", "names": LabelNames(("pets",))}):
        assert make_plan(dataclasses.replace(DATASET, **fields), ranking_of({"train": 3}, ("pets",))).notes == ()


def test_plan_names_classes_that_are_nearly_equal() -> None:
    (note,) = make_plan(DATASET, ranking_of({"train": 3}, ("Cat", "cat", "dog"))).notes
    assert note.startswith("classes whose names are nearly equal: 'Cat' and 'cat': each is a class of its own")
    without = dataclasses.replace(DATASET, label_kind=None)
    assert make_plan(without, ranking_of({"train": 3}, ("Cat", "cat"))).notes == ()


def test_fingerprint_depends_on_images_rejects_config_and_vocabulary() -> None:
    ranking = ranking_of({"train": 100})
    plans = [
        make_plan(DATASET, ranking),
        make_plan(DATASET, ranking._replace(digest=2)),
        make_plan(DATASET, ranking, rejects=RejectSummary({}, 9, None)),
        make_plan(dataclasses.replace(DATASET, identity='{"seed": 1}'), ranking),
        make_plan(dataclasses.replace(DATASET, names=LabelNames(("cat", "dog"))), ranking),
    ]
    assert len({plan.fingerprint for plan in plans}) == len(plans)
    moved = dataclasses.replace(DATASET, output="/elsewhere", overwrite=True, max_reject_fraction=0.5)
    assert make_plan(moved, ranking).fingerprint == plans[0].fingerprint


COW = Reject("cow/1.jpg", "/data/cow/1.jpg", "label", Reason.UNKNOWN_LABEL, "label 'cow' is not in label.vocabulary")
STRICT, LENIENT = {"unknown_label_is_error": True}, {"max_reject_fraction": 1.0, "declared_splits": ("train",)}
TRAIN = ranking_of({"train": 100})
ONE, TWO = RepeatedKey("1", ("/a/1", "/b/1"), (0, 0)), RepeatedKey("2\udcff", ("/a/2", "/b/2"), (0, 0))
OF_ROWS = RepeatedKey("1", ("/data/a", "/data/a"), (3, 5))
MASKS = {"features": features.resolve_features({}, None, {}, given=("segmentation",))}
HELD = {"declared_splits": ("train", "test"), "holdout": (("test", "train", 50),)}


def repeated(*keys: RepeatedKey, num_duplicates: int = 1) -> summaries.Ranking:
    return ranking_of({"train": 2}, duplicates=keys, num_duplicates=num_duplicates)


@case_tables.each_case(
    "code, ranking, tally, rejects, fields",
    {
        "empty": ("input-no-image", None, Tally(0, {}, ()), NO_REJECTS, {}),
        "skipped": ("input-no-image", None, Tally(0, {"hidden": 1234, "non_image": 1}, ()), NO_REJECTS, {}),
        "not-included": ("input-no-image", None, Tally(0, {"not_included": 3}, ()), NO_REJECTS, MASKS),
        "no-mask": ("input-no-image", None, Tally(0, {"image_without_mask": 3}, ()), NO_REJECTS, MASKS),
        "problems": ("input-broken", None, Tally(0, {}, ("a is closed", "b too")), NO_REJECTS, {}),
        "label": ("label-unknown", TRAIN, None, RejectSummary({"unknown_label": 1}, 1, COW), STRICT),
        "many-rejects": ("rejects-above-limit", TRAIN, None, RejectSummary({"no_label": 5, "x": 9}, 1, None, COW), {}),
        "all-rejects": ("rejects-all", ranking_of({}), None, RejectSummary({"no_label": 4}, 1, None), LENIENT),
        "split": ("split-empty", TRAIN, None, NO_REJECTS, {"declared_splits": ("train", "validation", "test")}),
        "holdout": ("split-empty", ranking_of({"test": 50}), None, NO_REJECTS, HELD),
        "key": ("key-repeated", repeated(ONE), None, NO_REJECTS, {}),
        "keys": ("key-repeated", repeated(ONE, TWO, num_duplicates=2000), None, NO_REJECTS, {}),
        "remedy": ("key-repeated", repeated(ONE), None, NO_REJECTS, {"on_repeated_key": "name each image once"}),
        "rows": ("key-repeated", repeated(OF_ROWS), None, NO_REJECTS, {}),
        "analyze": ("statistics-no-train", ranking_of({"learn": 3, "test": 2}), None, NO_REJECTS, {"analyze": "train"}),
        "texts": ("label-without-text", TRAIN, None, NO_REJECTS, {"names": LabelNames(texts={"dog": "a dog"})}),
    },
)
def test_input_is_refused_with_the_reason_and_the_remedy(
    code: str, ranking: summaries.Ranking | None, tally: Tally | None, rejects: RejectSummary, fields: dict[str, Any]
) -> None:
    ranking = ranking_of({}) if ranking is None else ranking
    listed = sum(ranking.total(split) for split in ranking.starts) + sum(rejects.counts.values())
    settings = small_dataset.make_settings(pathlib.Path("/out"), **fields)
    rows = ("line 5 of m.csv", "line 7 of m.csv") if OF_ROWS in ranking.duplicates else ()
    plan = decide_plan.make_plan(settings, ranking, tally or Tally(listed, {}, ()), rejects, rows)
    error_texts.check(plan.error, code)
    assert (plan.action, plan.message) == ("refuse", str(plan.error))


def test_plan_notes_what_the_user_should_know() -> None:
    for fields, ranking, notes in [
        ({}, ranking_of({"train": 10}), []),  # none
        (
            {"sizing": Sizing(num_shards=1500)},
            ranking_of({"train": 10, "test": 1600}),
            ["1,490 of the 1,500 shards of train will be empty"],
        ),  # empty-shards
        (
            {},
            ranking_of({"train": 10}, labels=("Val", "train")),
            ["the labels Val, train look like splits; for split/label/image set split.by=directory"],
        ),  # labels-like-splits
        ({}, ranking_of({"train": 10}, labels=("cat", "test", "train")), []),  # a-label-unlike-splits
        ({}, ranking_of({"train": 10}, labels=("test",)), []),  # one-label-like-a-split
        ({"label_kind": None}, ranking_of({"train": 10}, labels=("test", "train")), []),  # no-labels-like-splits
        (
            {"names": LabelNames(("cow", "cat", "eel", "dog"))},
            ranking_of({"train": 10}),
            ["labels of the vocabulary without an image: 2, the first is 'cow'"],
        ),  # unseen-labels
        (
            {"sizing": Sizing(num_shards={"val": 2, "train": 1, "dev": 3})},
            ranking_of({"train": 10}),
            [
                "output.num_shards names the split dev, which receives no image",
                "output.num_shards names the split val, which receives no image",
            ],
        ),  # absent-splits
    ]:
        plan = make_plan(small_dataset.make_settings(pathlib.Path("/out"), **fields), ranking)
        assert (plan.action, list(plan.notes)) == ("write", notes)


def test_plan_reads_and_writes_no_storage(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(uri: str) -> None:
        raise AssertionError(f"the plan looks at {uri}")

    monkeypatch.setattr(storage, "storage_of", fail)
    assert make_plan(small_dataset.make_settings(pathlib.Path("/nowhere"))).action == "write"


# ---- reject limit


def test_find_excess_blames_the_config_if_it_rejects_every_image() -> None:
    for rejected, message in [
        ({"no_label": 3}, "all 3 images were rejected (no_label 3), so the config does not fit"),  # config
        ({"no_label": 2}, "2 of 3 images were rejected (66.67%; no_label 2), rejects.max"),  # not-all
        ({"truncated": 3}, "3 of 3 images were rejected (100.00%; truncated 3), rejects.max"),  # images
    ]:
        assert str(decide_plan.find_excess(DATASET, 3, rejected)).startswith(message)


def test_find_excess_of_changed_images_says_to_list_again() -> None:
    for saved, again in [(False, "run the same command again"), (True, "save the listing again")]:
        error = decide_plan.find_excess(dataclasses.replace(DATASET, saved_listing=saved), 3, {"changed": 2})
        assert f"allows 1.00%: nothing was committed; 2 changed after the listing: {again}" in str(error)
        assert str(error).endswith("which lists again; for others fix the images or raise rejects.max_fraction")


def test_images_of_another_size_than_the_table_says_blame_the_table() -> None:
    trusted = dataclasses.replace(DATASET, read_ahead=read_ahead.READ_AHEAD._replace(size_column="bytes"))
    end = "rejected; to take {} in, correct the table and run the same command again with --overwrite"
    assert decide_plan.note_changed(trusted, {"changed": 1}) == [
        "1 image differs in size from column 'bytes' of the table and was " + end.format("it")
    ]
    assert decide_plan.note_changed(trusted, {"changed": 2}) == [
        "2 images differ in size from column 'bytes' of the table and were " + end.format("them")
    ]
    error = decide_plan.find_excess(trusted, 3, {"changed": 2})
    assert "committed; 2 differ in size from column 'bytes' of the table: correct the table; for others fix" in str(
        error
    )


def test_every_reason_has_an_advice_or_a_reason_for_none() -> None:
    for reason in elements.Reason:
        assert (reason in decide_plan._ADVICE) != (reason in decide_plan._NO_ADVICE)
        advice = decide_plan.advise({reason.value: 2, "not_found": 1})
        assert advice == decide_plan._ADVICE.get(reason, "")
        without = dataclasses.replace(DATASET, max_reject_fraction=-1)  # duplicates that are dropped never count
        error = str(decide_plan.find_excess(without, 3, {reason.value: 3}, advises=True))
        assert error.endswith(
            f"nothing was committed; {advice}" if advice else ("committed", "raise rejects.max_fraction")
        )


def test_a_run_may_reject_many_images_but_not_all() -> None:
    for listed, rejected, message in [
        (3, {"truncated": 2}, None),
        (3, {"truncated": 2, "duplicate": 1}, "all 2 images were rejected (truncated 2): nothing was committed; copy"),
        (3, {"duplicate": 2}, None),
        (2, {"no_label": 2}, "all 2 images were rejected (no_label 2), so the config does not fit the input: nothing"),
        (0, {}, None),
    ]:
        lenient = dataclasses.replace(DATASET, max_reject_fraction=1.0)
        error = decide_plan.find_excess(lenient, listed, rejected, advises=True)
        assert (error is None) == (message is None)
        assert str(error).startswith(message or "None")


def test_advice_is_for_the_most_frequent_reason_and_only_if_no_image_is_left() -> None:
    rejected = {"too_small": 2, "truncated": 1}
    assert str(decide_plan.find_excess(DATASET, 3, rejected, advises=True)) == (
        "3 of 3 images were rejected (100.00%; too_small 2, truncated 1), rejects.max_fraction allows 1.00%: nothing "
        "was committed; lower image.limits.min_side"
    )
    for listed, advises in ((4, True), (3, False)):
        error = str(decide_plan.find_excess(DATASET, listed, rejected, advises))
        assert error.endswith("nothing was committed; fix the images or raise rejects.max_fraction")
    assert decide_plan.advise({}) == ""
