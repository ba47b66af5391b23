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


@pytest.fixture
def dataset(tmp_path: pathlib.Path) -> dataset_settings.DatasetSettings:
    return small_dataset.make_settings(tmp_path / "out")


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        pytest.param(None, ["train", "dev", "test"], id="found-train-first"),
        pytest.param(("test", "train", "dev"), ["test", "train", "dev"], id="declared"),
    ],
)
def test_plan_to_write_says_all_that_will_be(
    dataset: dataset_settings.DatasetSettings, declared: tuple[str, ...] | None, expected: list[str]
) -> None:
    dataset = dataclasses.replace(dataset, declared_splits=declared)
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
        passed_over={"hidden": 2},
    )


@pytest.mark.parametrize(
    ("fields", "labels"),
    [
        pytest.param({}, ("cat", "dog"), id="found"),
        pytest.param({"names": LabelNames(("dog", "cow", "cat"))}, ("dog", "cow", "cat"), id="vocabulary"),
        pytest.param({"label_kind": "int64"}, (), id="targets"),
    ],
)
def test_plan_takes_labels_from_the_vocabulary_or_the_images(
    tmp_path: pathlib.Path, fields: dict[str, object], labels: tuple[str, ...]
) -> None:
    assert make_plan(small_dataset.make_settings(tmp_path, **fields)).labels == labels


@pytest.mark.parametrize(
    ("fields", "labels"),
    [
        pytest.param({"label_by": "column"}, ("1", "2", "10"), id="column"),
        pytest.param({}, ("1", "10", "2"), id="folders"),
        pytest.param({"label_by": "column", "names": LabelNames(("10", "2", "1"))}, ("10", "2", "1"), id="vocabulary"),
    ],
)
def test_plan_sorts_numbers_of_a_column_by_value(
    tmp_path: pathlib.Path, fields: dict[str, object], labels: tuple[str, ...]
) -> None:
    plan = make_plan(small_dataset.make_settings(tmp_path, **fields), ranking_of({"train": 3}, ("1", "10", "2")))
    assert plan.labels == labels
    assert [note for note in plan.notes if note.startswith("the classes are numbers")] == [
        note for note in plan.notes if "names" not in fields
    ]


def test_fingerprint_of_classes_in_another_order_is_another(dataset: dataset_settings.DatasetSettings) -> None:
    in_column = dataclasses.replace(dataset, label_by="column")
    for labels, differ in ((("1", "10", "2"), True), (("1", "2", "3"), False), (("cat", "dog"), False)):
        ranking = ranking_of({"train": 3}, labels)
        assert (make_plan(in_column, ranking).fingerprint != make_plan(dataset, ranking).fingerprint) is differ


def test_plan_of_stratified_splits_names_classes_missing_from_a_split(
    dataset: dataset_settings.DatasetSettings,
) -> None:
    ranking = ranking_of({"train": 3, "test": 1}, classes={"train": {"cat", "dog"}, "test": {"dog"}})
    (note,) = make_plan(dataclasses.replace(dataset, stratified=True), ranking).notes
    assert note.startswith("test has no image of 1 of the 2 classes, because these are too small for its share: 'cat'")
    assert make_plan(dataset, ranking).notes == ()


def test_plan_of_one_class_of_folders_says_that_the_input_may_be_too_high(
    dataset: dataset_settings.DatasetSettings,
) -> None:
    of_folders = dataclasses.replace(dataset, label_by="directory")
    (note,) = make_plan(of_folders, ranking_of({"train": 3}, ("pets",))).notes
    assert note == (
        "there is one class, 'pets'; if the classes are the folders in it, give a folder below --input instead"
    )
    assert make_plan(of_folders, ranking_of({"train": 3})).notes == ()
    for fields in ({"label_by": "column"}, {"label_by": "directory", "names": LabelNames(("pets",))}):
        assert make_plan(dataclasses.replace(dataset, **fields), ranking_of({"train": 3}, ("pets",))).notes == ()


def test_plan_names_classes_that_are_nearly_equal(dataset: dataset_settings.DatasetSettings) -> None:
    (note,) = make_plan(dataset, ranking_of({"train": 3}, ("Cat", "cat", "dog"))).notes
    assert note.startswith("classes whose names are nearly equal: 'Cat' and 'cat': each is a class of its own")
    without = dataclasses.replace(dataset, label_kind=None)
    assert make_plan(without, ranking_of({"train": 3}, ("Cat", "cat"))).notes == ()


def test_fingerprint_depends_on_images_rejects_config_and_vocabulary(dataset: dataset_settings.DatasetSettings) -> None:
    ranking = ranking_of({"train": 100})
    plans = [
        make_plan(dataset, ranking),
        make_plan(dataset, ranking._replace(digest=2)),
        make_plan(dataset, ranking, rejects=RejectSummary({}, 9, None)),
        make_plan(dataclasses.replace(dataset, identity='{"seed": 1}'), ranking),
        make_plan(dataclasses.replace(dataset, names=LabelNames(("cat", "dog"))), ranking),
    ]
    assert len({plan.fingerprint for plan in plans}) == len(plans)
    moved = dataclasses.replace(dataset, output="/elsewhere", overwrite=True, max_reject_fraction=0.5)
    assert make_plan(moved, ranking).fingerprint == plans[0].fingerprint


COW = Reject("cow/1.jpg", "/data/cow/1.jpg", "label", Reason.UNKNOWN_LABEL, "label 'cow' is not in label.vocabulary")


@pytest.mark.parametrize(
    ("fields", "ranking", "tally", "rejects", "exit_code", "message"),
    [
        pytest.param(
            {},
            ranking_of({}),
            Tally(0, {"hidden": 1234, "non_image": 1}, ()),
            NO_REJECTS,
            2,
            "the input holds no image (passed over: 1,234 hidden, 1 non_image); check --input and source.include",
            id="no-image",
        ),
        pytest.param(
            {},
            ranking_of({}),
            Tally(0, {}, ()),
            NO_REJECTS,
            2,
            "the input holds no image (passed over: nothing at all); check --input and source.include",
            id="nothing-at-all",
        ),
        pytest.param(
            {"features": features.resolve_features({}, None, {}, given=("segmentation",))},
            ranking_of({}),
            Tally(0, {"not_included": 3}, ()),
            NO_REJECTS,
            2,
            "the input holds no image (passed over: 3 not_included); check --input and source.include, or change "
            "source.masks.image so that it matches the paths of images",
            id="no-path-of-an-image",
        ),
        pytest.param(
            {"features": features.resolve_features({}, None, {}, given=("segmentation",))},
            ranking_of({}),
            Tally(0, {"image_without_mask": 3}, ()),
            NO_REJECTS,
            2,
            "the input holds no image (passed over: 3 image_without_mask); no image has a mask: change "
            "source.masks.mask so that it gives the paths of the masks below --input",
            id="no-mask",
        ),
        pytest.param(
            {},
            ranking_of({}),
            Tally(0, {}, ("a is closed", "b too")),
            NO_REJECTS,
            2,
            "a is closed; b too",
            id="problems",
        ),
        pytest.param(
            {"unknown_label_is_error": True},
            ranking_of({"train": 99}),
            Tally(100, {}, ()),
            RejectSummary({"unknown_label": 1}, 1, COW),
            2,
            "/data/cow/1.jpg: label 'cow' is not in label.vocabulary; add it there, or set label.unknown: reject",
            id="unknown-label",
        ),
        pytest.param(
            {},
            ranking_of({"train": 9_800}),
            Tally(10_000, {}, ()),
            RejectSummary({"no_label": 50, "not_found": 150}, 1, None, COW),
            3,
            "200 of 10,000 images were rejected (2.00%; not_found 150, no_label 50), rejects.max_fraction allows "
            "1.00%: nothing was committed; fix the images or raise rejects.max_fraction; no image was read yet; "
            "the first: /data/cow/1.jpg: label 'cow' is not in label.vocabulary",
            id="too-many-rejects",
        ),
        pytest.param(
            {},
            ranking_of(
                {"train": 2}, duplicates=(RepeatedKey("1", ("/data/a/1", "/data/b/1"), (0, 0)),), num_duplicates=1
            ),
            Tally(2, {}, ()),
            NO_REJECTS,
            2,
            "two images have the key '1': /data/a/1 and /data/b/1; "
            "remove one, or name a column of unique ids in source.manifest.key",
            id="duplicate",
        ),
        pytest.param(
            {"on_repeated_key": "name each image once"},
            ranking_of({"train": 2}, duplicates=(RepeatedKey("1", ("/a/1", "/a/1"), (0, 0)),), num_duplicates=1),
            Tally(2, {}, ()),
            NO_REJECTS,
            2,
            "two images have the key '1': /a/1 and /a/1; name each image once",
            id="duplicate-elsewhere",
        ),
        pytest.param(
            {},
            ranking_of(
                {"train": 4},
                duplicates=(
                    RepeatedKey("1", ("/a/1", "/b/1"), (0, 0)),
                    RepeatedKey("2\udcff", ("/a/2", "/b/2"), (0, 0)),
                ),
                num_duplicates=2000,
            ),
            Tally(4, {}, ()),
            NO_REJECTS,
            2,
            "two images have the key '1' (2,000 keys are given more than once): /a/1 and /b/1; "
            "remove one, or name a column of unique ids in source.manifest.key",
            id="duplicates",
        ),
        pytest.param(
            {"declared_splits": ("train", "validation", "test")},
            ranking_of({"train": 4}),
            Tally(4, {}, ()),
            NO_REJECTS,
            2,
            "no image goes to the split validation, test; found are train; "
            "change split.fractions or split.names, or add images",
            id="missing-split",
        ),
        pytest.param(
            {"declared_splits": ("train",), "max_reject_fraction": 1.0},
            ranking_of({}),
            Tally(4, {}, ()),
            RejectSummary({"no_label": 4}, 1, None),
            3,
            "all 4 images were rejected (no_label 4), so the config does not fit the input: nothing was committed; "
            "no image was read yet",
            id="all-rejected-though-all-may-be",
        ),
    ],
)
def test_plan_of_input_that_cannot_be_written_is_refused_with_the_reason(
    tmp_path: pathlib.Path,
    fields: dict[str, object],
    ranking: summaries.Ranking,
    tally: Tally,
    rejects: RejectSummary,
    exit_code: int,
    message: str,
) -> None:
    plan = make_plan(small_dataset.make_settings(tmp_path / "out", **fields), ranking, tally, rejects)
    assert (plan.action, plan.exit_code, plan.message) == ("refuse", exit_code, message)


@pytest.mark.parametrize(
    ("fields", "ranking", "notes"),
    [
        pytest.param({}, ranking_of({"train": 10}), [], id="none"),
        pytest.param(
            {"sizing": Sizing(num_shards=1500)},
            ranking_of({"train": 10, "test": 1600}),
            ["1,490 of the 1,500 shards of train will be empty"],
            id="empty-shards",
        ),
        pytest.param(
            {},
            ranking_of({"train": 10}, labels=("Val", "train")),
            ["the labels Val, train look like splits; for split/label/image set split.by=directory"],
            id="labels-like-splits",
        ),
        pytest.param({}, ranking_of({"train": 10}, labels=("cat", "test", "train")), [], id="a-label-unlike-splits"),
        pytest.param({}, ranking_of({"train": 10}, labels=("test",)), [], id="one-label-like-a-split"),
        pytest.param(
            {"label_kind": None}, ranking_of({"train": 10}, labels=("test", "train")), [], id="no-labels-like-splits"
        ),
        pytest.param(
            {"names": LabelNames(("cow", "cat", "eel", "dog"))},
            ranking_of({"train": 10}),
            ["labels of the vocabulary without an image: 2, the first is 'cow'"],
            id="unseen-labels",
        ),
        pytest.param(
            {"sizing": Sizing(num_shards={"val": 2, "train": 1, "dev": 3})},
            ranking_of({"train": 10}),
            [
                "output.num_shards names the split dev, which receives no image",
                "output.num_shards names the split val, which receives no image",
            ],
            id="absent-splits",
        ),
    ],
)
def test_plan_notes_what_the_user_should_know(
    tmp_path: pathlib.Path, fields: dict[str, object], ranking: summaries.Ranking, notes: list[str]
) -> None:
    plan = make_plan(small_dataset.make_settings(tmp_path / "out", **fields), ranking)
    assert (plan.action, list(plan.notes)) == ("write", notes)


def test_plan_that_analyses_train_without_a_split_of_that_name_is_refused(
    dataset: dataset_settings.DatasetSettings,
) -> None:
    assert make_plan(dataclasses.replace(dataset, analyze="train")).action == "write"
    plan = make_plan(dataclasses.replace(dataset, analyze="train"), ranking_of({"learn": 3, "test": 2}))
    assert (plan.action, plan.exit_code) == ("refuse", 2)
    assert "found are learn, test; set statistics.analyze: all" in plan.message
    assert make_plan(dataclasses.replace(dataset, analyze="all"), ranking_of({"learn": 3})).action == "write"


def test_plan_names_the_rows_of_a_repeated_key_where_they_are_known(dataset: dataset_settings.DatasetSettings) -> None:
    repeated = RepeatedKey("1", ("/data/a", "/data/a"), (3, 5))
    ranking = ranking_of({"train": 2}, duplicates=(repeated,), num_duplicates=1)
    rows = ("line 5 of m.csv", "line 7 of m.csv")
    plan = decide_plan.make_plan(dataset, ranking, Tally(2, {}, ()), NO_REJECTS, rows)
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
