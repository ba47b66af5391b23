from __future__ import annotations

import dataclasses
import pathlib

import pytest

from imagebeam import features, storage
from imagebeam.transforms import dataset_settings, summaries
from imagebeam.transforms.classes.label_names import LabelNames
from imagebeam.transforms.dataset_settings import Sizing
from imagebeam.transforms.elements import DatasetPlan, Reason, Reject, SplitPlan
from imagebeam.transforms.plan import decide_plan
from imagebeam.transforms.summaries import RejectSummary, RepeatedKey, Tally
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
            exit_code=0,
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
NO_IMAGE = ranking_of({})


def refusal(
    ranking: summaries.Ranking = NO_IMAGE,
    tally: Tally | None = None,
    rejects: RejectSummary = NO_REJECTS,
    **fields: object,
) -> tuple[int, str]:
    """Returns the exit code and the message of a plan that is refused."""
    plan = make_plan(small_dataset.make_settings(pathlib.Path("/out"), **fields), ranking, tally, rejects)
    assert plan.action == "refuse"
    return plan.exit_code, plan.message


def repeated(*keys: RepeatedKey, num_duplicates: int = 1) -> summaries.Ranking:
    return ranking_of({"train": 2}, duplicates=keys, num_duplicates=num_duplicates)


def test_input_without_an_image_is_refused_with_the_reason() -> None:
    masks = {"features": features.resolve_features({}, None, {}, given=("segmentation",))}
    start, end = "the input holds no image (skipped: ", "check --input and source.include"
    for skipped, fields, message in [
        ({"hidden": 1234, "non_image": 1}, {}, f"1,234 hidden, 1 non_image); {end}"),
        ({}, {}, f"nothing at all); {end}"),
        (
            {"not_included": 3},
            masks,
            f"3 not_included); {end}, or change source.masks.image so that it matches the paths of images",
        ),
        (
            {"image_without_mask": 3},
            masks,
            "3 image_without_mask); no image has a mask: change source.masks.mask so that it gives the paths of the "
            "masks below --input",
        ),
    ]:
        assert refusal(tally=Tally(0, skipped, ()), **fields) == (2, start + message)
    assert refusal(tally=Tally(0, {}, ("a is closed", "b too"))) == (2, "a is closed; b too")


def test_input_with_rejects_or_without_a_split_is_refused_with_the_reason() -> None:
    unknown = RejectSummary({"unknown_label": 1}, 1, COW)
    assert refusal(ranking_of({"train": 99}), rejects=unknown, unknown_label_is_error=True) == (
        2,
        "/data/cow/1.jpg: label 'cow' is not in label.vocabulary; add it there, or set label.unknown: reject",
    )
    many = RejectSummary({"no_label": 50, "not_found": 150}, 1, None, COW)
    assert refusal(ranking_of({"train": 9_800}), rejects=many) == (
        3,
        "200 of 10,000 images were rejected (2.00%; not_found 150, no_label 50), rejects.max_fraction allows "
        "1.00%: nothing was committed; fix the images or raise rejects.max_fraction; no image was read yet; "
        "the first: /data/cow/1.jpg: label 'cow' is not in label.vocabulary",
    )
    every = RejectSummary({"no_label": 4}, 1, None)
    assert refusal(rejects=every, declared_splits=("train",), max_reject_fraction=1.0) == (
        3,
        "all 4 images were rejected (no_label 4), so the config does not fit the input: nothing was committed; "
        "no image was read yet",
    )
    assert refusal(ranking_of({"train": 4}), declared_splits=("train", "validation", "test")) == (
        2,
        "no image goes to the split validation, test; found are train; "
        "change split.fractions or split.names, or add images",
    )


def test_input_with_a_repeated_key_is_refused_with_the_remedy() -> None:
    one, two = RepeatedKey("1", ("/a/1", "/b/1"), (0, 0)), RepeatedKey("2\udcff", ("/a/2", "/b/2"), (0, 0))
    remedy = "/a/1 and /b/1; remove one, or name a column of unique ids in source.manifest.key"
    assert refusal(repeated(one)) == (2, f"two images have the key '1': {remedy}")
    several = f"two images have the key '1' (2,000 keys are given more than once): {remedy}"
    assert refusal(repeated(one, two, num_duplicates=2000)) == (2, several)
    elsewhere = "two images have the key '1': /a/1 and /b/1; name each image once"
    assert refusal(repeated(one), on_repeated_key="name each image once") == (2, elsewhere)


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


def test_plan_that_analyses_train_without_a_split_of_that_name_is_refused() -> None:
    assert make_plan(dataclasses.replace(DATASET, analyze="train")).action == "write"
    plan = make_plan(dataclasses.replace(DATASET, analyze="train"), ranking_of({"learn": 3, "test": 2}))
    assert (plan.action, plan.exit_code) == ("refuse", 2)
    assert "found are learn, test; set statistics.analyze: all" in plan.message
    assert make_plan(dataclasses.replace(DATASET, analyze="all"), ranking_of({"learn": 3})).action == "write"


def test_plan_names_the_rows_of_a_repeated_key_where_they_are_known() -> None:
    repeated = RepeatedKey("1", ("/data/a", "/data/a"), (3, 5))
    ranking = ranking_of({"train": 2}, duplicates=(repeated,), num_duplicates=1)
    rows = ("line 5 of m.csv", "line 7 of m.csv")
    plan = decide_plan.make_plan(DATASET, ranking, Tally(2, {}, ()), NO_REJECTS, rows)
    assert plan.message == (
        "two images have the key '1': /data/a (line 5 of m.csv) and /data/a (line 7 of m.csv); remove one, or name a "
        "column of unique ids in source.manifest.key; if its rows are one example, sort them by image and set "
        "source.manifest.merge_rows: true"
    )


def test_plan_reads_and_writes_no_storage(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(uri: str) -> None:
        raise AssertionError(f"the plan looks at {uri}")

    monkeypatch.setattr(storage, "storage_of", fail)
    assert make_plan(small_dataset.make_settings(pathlib.Path("/nowhere"))).action == "write"
