from __future__ import annotations

import dataclasses
import json
import pathlib

import pytest

from imagebeam import catalog as catalog_lib
from imagebeam.transforms import commit_dataset, layout, rank_references
from imagebeam.transforms.elements import DatasetPlan, ImageRef, Reason, Reject, SplitPlan
from imagebeam.transforms.layout import RejectSummary, Sizing
from imagebeam.transforms.list_images import Tally
from imagebeam.transforms.rank_references import RepeatedKey
from tests.unit.transforms import small_dataset

MIB = 1 << 20
NO_REJECTS = RejectSummary({}, 0, None)


def ranking_of(
    sizes: dict[str, int], labels: tuple[str, ...] = ("cat", "dog"), **fields: object
) -> rank_references.Ranking:
    """A ranking of splits of so many images, 1,000 bytes each, all in one bucket."""
    known: dict[str, object] = {
        "buckets": {name: [7] for name in sizes},
        "starts": {name: [0, size] for name, size in sizes.items()},
        "num_bytes": {name: 1000 * size for name, size in sizes.items()},
        "labels": labels,
        "digest": 1,
        "duplicates": (),
    }
    return rank_references.Ranking(**{**known, **fields})


def make_plan(
    dataset: layout.DatasetLayout,
    ranking: rank_references.Ranking | None = None,
    tally: Tally | None = None,
    rejects: RejectSummary = NO_REJECTS,
) -> DatasetPlan:
    ranking = ranking or ranking_of({"train": 100})
    listed = sum(ranking.total(split) for split in ranking.starts) + sum(rejects.counts.values())
    return dataset.plan(ranking, tally or Tally(listed, {}, ()), rejects)


@pytest.fixture
def dataset(tmp_path: pathlib.Path) -> layout.DatasetLayout:
    return small_dataset.make_layout(tmp_path / "out")


@pytest.mark.parametrize(
    ("sizing", "num_records", "num_bytes", "expected"),
    [
        pytest.param(Sizing(), 1, 1000, 1, id="default-one"),
        pytest.param(Sizing(), 127, 1000, 1, id="default-next-to-nothing"),
        pytest.param(Sizing(), 128, 1000, 2, id="default-64-records-each"),
        pytest.param(Sizing(), 1024, 1000, 16, id="default-16-shards"),
        pytest.param(Sizing(), 1_000_000, 1000, 16, id="default-many-small-images"),
        pytest.param(Sizing(), 100, 2 * 128 * MIB, 2, id="default-128-MiB-each"),
        pytest.param(Sizing(), 100, 2 * 128 * MIB + 1, 3, id="default-a-byte-more"),
        pytest.param(Sizing(), 1_281_167, 137 * 2**30, 1096, id="default-imagenet"),
        pytest.param(Sizing(num_shards=5), 1, 10**12, 5, id="number"),
        pytest.param(Sizing(num_shards={"train": 7}), 1, 10**12, 7, id="number-by-split"),
        pytest.param(Sizing(num_shards={"test": 7}), 128, 1000, 2, id="number-of-another-split"),
        pytest.param(Sizing(examples_per_shard=10), 20, 10**12, 2, id="examples"),
        pytest.param(Sizing(examples_per_shard=10), 21, 10**12, 3, id="examples-rounded-up"),
        pytest.param(Sizing(target_shard_bytes=1000), 10**6, 1001, 2, id="bytes-rounded-up"),
        pytest.param(Sizing(target_shard_bytes=1000), 10**6, 0, 1, id="bytes-unknown"),
    ],
)
def test_shards_of_split_follow_the_sizing(sizing: Sizing, num_records: int, num_bytes: int, expected: int) -> None:
    assert sizing.shards_of("train", num_records, num_bytes) == expected


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        pytest.param(None, ["train", "dev", "test"], id="found-train-first"),
        pytest.param(("test", "train", "dev"), ["test", "train", "dev"], id="declared"),
    ],
)
def test_plan_to_write_says_all_that_will_be(
    dataset: layout.DatasetLayout, declared: tuple[str, ...] | None, expected: list[str]
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
        pytest.param({"vocabulary": ("dog", "cow", "cat")}, ("dog", "cow", "cat"), id="vocabulary"),
        pytest.param({"label_kind": "int64"}, (), id="targets"),
    ],
)
def test_plan_takes_labels_from_the_vocabulary_or_the_images(
    tmp_path: pathlib.Path, fields: dict[str, object], labels: tuple[str, ...]
) -> None:
    assert make_plan(small_dataset.make_layout(tmp_path, **fields)).labels == labels


@pytest.mark.parametrize(
    ("fields", "labels"),
    [
        pytest.param({"label_by": "column"}, ("1", "2", "10"), id="column"),
        pytest.param({}, ("1", "10", "2"), id="folders"),
        pytest.param({"label_by": "column", "vocabulary": ("10", "2", "1")}, ("10", "2", "1"), id="vocabulary"),
    ],
)
def test_plan_sorts_numbers_of_a_column_by_value(
    tmp_path: pathlib.Path, fields: dict[str, object], labels: tuple[str, ...]
) -> None:
    plan = make_plan(small_dataset.make_layout(tmp_path, **fields), ranking_of({"train": 3}, ("1", "10", "2")))
    assert plan.labels == labels
    assert [note for note in plan.notes if note.startswith("the classes are numbers")] == [
        note for note in plan.notes if "vocabulary" not in fields
    ]


def test_fingerprint_of_classes_in_another_order_is_another(dataset: layout.DatasetLayout) -> None:
    in_column = dataclasses.replace(dataset, label_by="column")
    for labels, differ in ((("1", "10", "2"), True), (("1", "2", "3"), False), (("cat", "dog"), False)):
        ranking = ranking_of({"train": 3}, labels)
        assert (make_plan(in_column, ranking).fingerprint != make_plan(dataset, ranking).fingerprint) is differ


def test_plan_of_stratified_splits_names_the_classes_that_one_has_not(dataset: layout.DatasetLayout) -> None:
    ranking = ranking_of({"train": 3, "test": 1}, classes={"train": {"cat", "dog"}, "test": {"dog"}})
    (note,) = make_plan(dataclasses.replace(dataset, stratified=True), ranking).notes
    assert note.startswith("test has no image of 1 of the 2 classes, because these are too small for its share: 'cat'")
    assert make_plan(dataset, ranking).notes == ()


def test_plan_of_one_class_of_folders_says_that_the_input_may_be_too_high(dataset: layout.DatasetLayout) -> None:
    of_folders = dataclasses.replace(dataset, label_by="directory")
    (note,) = make_plan(of_folders, ranking_of({"train": 3}, ("pets",))).notes
    assert note == (
        "there is one class, 'pets'; if the classes are the folders in it, give a folder below --input instead"
    )
    assert make_plan(of_folders, ranking_of({"train": 3})).notes == ()
    for fields in ({"label_by": "column"}, {"label_by": "directory", "vocabulary": ("pets",)}):
        assert make_plan(dataclasses.replace(dataset, **fields), ranking_of({"train": 3}, ("pets",))).notes == ()


@pytest.mark.parametrize(
    ("rejected", "message"),
    [
        pytest.param(
            {"no_label": 3}, "all 3 images were rejected (no_label 3), so the config does not fit", id="config"
        ),
        pytest.param({"no_label": 2}, "2 of 3 images were rejected (66.67%; no_label 2), rejects.max", id="not-all"),
        pytest.param({"truncated": 3}, "3 of 3 images were rejected (100.00%; truncated 3), rejects.max", id="images"),
    ],
)
def test_too_many_rejects_blame_the_config_where_it_takes_no_image(
    dataset: layout.DatasetLayout, rejected: dict[str, int], message: str
) -> None:
    assert str(dataset.too_many_rejects(3, rejected)).startswith(message)


def test_plan_names_classes_that_are_nearly_equal(dataset: layout.DatasetLayout) -> None:
    (note,) = make_plan(dataset, ranking_of({"train": 3}, ("Cat", "cat", "dog"))).notes
    assert note.startswith("classes whose names are nearly equal: 'Cat' and 'cat': each is a class of its own")
    without = dataclasses.replace(dataset, label_kind=None)
    assert make_plan(without, ranking_of({"train": 3}, ("Cat", "cat"))).notes == ()


def test_fingerprint_depends_on_images_rejects_config_and_vocabulary(dataset: layout.DatasetLayout) -> None:
    ranking = ranking_of({"train": 100})
    plans = [
        make_plan(dataset, ranking),
        make_plan(dataset, ranking._replace(digest=2)),
        make_plan(dataset, ranking, rejects=RejectSummary({}, 9, None)),
        make_plan(dataclasses.replace(dataset, identity='{"seed": 1}'), ranking),
        make_plan(dataclasses.replace(dataset, vocabulary=("cat", "dog")), ranking),
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
            "1.00%: nothing was committed; mend the images or raise rejects.max_fraction; no image was read yet; "
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
            2,
            "no image goes to the split train; found are none; change split.fractions or split.names, or add images",
            id="missing-every-split",
        ),
    ],
)
def test_plan_of_input_that_cannot_be_written_is_refused_with_the_reason(
    tmp_path: pathlib.Path,
    fields: dict[str, object],
    ranking: rank_references.Ranking,
    tally: Tally,
    rejects: RejectSummary,
    exit_code: int,
    message: str,
) -> None:
    plan = make_plan(small_dataset.make_layout(tmp_path / "out", **fields), ranking, tally, rejects)
    assert (plan.action, plan.exit_code, plan.message) == ("refuse", exit_code, message)


@pytest.mark.parametrize(
    ("rejected", "refused"), [pytest.param(2, False, id="at-the-limit"), pytest.param(3, True, id="above-it")]
)
def test_too_many_rejects_is_told_above_the_limit_only(
    dataset: layout.DatasetLayout, rejected: int, refused: bool
) -> None:
    assert (dataset.too_many_rejects(200, {"corrupt": rejected}) is not None) == refused


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
            {"vocabulary": ("cow", "cat", "eel", "dog")},
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
    tmp_path: pathlib.Path, fields: dict[str, object], ranking: rank_references.Ranking, notes: list[str]
) -> None:
    plan = make_plan(small_dataset.make_layout(tmp_path / "out", **fields), ranking)
    assert (plan.action, list(plan.notes)) == ("write", notes)


# ---- what is in the output already


@pytest.fixture
def committed(dataset: layout.DatasetLayout, tmp_path: pathlib.Path) -> catalog_lib.Catalog:
    """The dataset of `make_plan(dataset)`, committed with 10 images."""
    refs = small_dataset.make_refs(tmp_path / "pets")
    return commit_as(make_plan(dataset).fingerprint, dataset, refs)


def commit_as(fingerprint: str, dataset: layout.DatasetLayout, refs: list[ImageRef]) -> catalog_lib.Catalog:
    plan = small_dataset.make_plan({"train": refs}, fingerprint=fingerprint)
    written = small_dataset.write_shards(dataset, plan, {"train": refs})
    catalog = commit_dataset.Committer(dataset, "pets", {}).commit(plan, written, [])
    assert catalog is not None
    return catalog


def test_plan_of_committed_dataset_keeps_it(dataset: layout.DatasetLayout, committed: catalog_lib.Catalog) -> None:
    for overwrite in (False, True):
        plan = make_plan(dataclasses.replace(dataset, overwrite=overwrite))
        expected = f"{dataset.output} holds this dataset already: same config, same images"
        assert (plan.action, plan.exit_code, plan.message) == ("keep", 0, expected)


def test_plan_beside_another_dataset_is_refused_and_overwrites_on_request(
    dataset: layout.DatasetLayout, committed: catalog_lib.Catalog
) -> None:
    other = dataclasses.replace(dataset, identity='{"seed": 1}')
    plan = make_plan(other)
    assert (plan.action, plan.exit_code) == ("refuse", 2)
    assert plan.message == (
        f"{dataset.output} holds another dataset (pets, 10 images, written {committed.created}; config or images "
        "differ); choose another --output, or --overwrite"
    )
    assert make_plan(dataclasses.replace(other, overwrite=True)).action == "write"


@pytest.mark.parametrize(
    ("name", "data", "damage"),
    [
        pytest.param("train-00001-of-00002.tfrecord", None, "train-00001-of-00002.tfrecord is missing", id="missing"),
        pytest.param(
            "train-00000-of-00002.tfrecord",
            b"123",
            "train-00000-of-00002.tfrecord has 3 bytes, the catalog says {size:,}",
            id="cut",
        ),
        pytest.param(
            "index/train-00001-of-00002.index", None, "index/train-00001-of-00002.index is missing", id="no-index"
        ),
    ],
)
def test_plan_of_committed_dataset_with_damage_is_refused_and_writes_again_on_request(
    dataset: layout.DatasetLayout, committed: catalog_lib.Catalog, name: str, data: bytes | None, damage: str
) -> None:
    path = pathlib.Path(dataset.output, name)
    damage = damage.format(size=path.stat().st_size)
    if data is None:
        path.unlink()
    else:
        path.write_bytes(data)
    plan = make_plan(dataset)
    message = f"{dataset.output} holds this dataset, but {damage}; --overwrite writes it again"
    assert (plan.action, plan.exit_code, plan.message) == ("refuse", 2, message)
    assert make_plan(dataclasses.replace(dataset, overwrite=True)).action == "write"


@pytest.mark.parametrize(
    ("data", "damage"),
    [(None, "transform_fn/x is missing"), (b"12", "transform_fn/x has 2 bytes, the catalog says 3")],
    ids=["missing", "cut"],
)
def test_plan_of_committed_dataset_whose_transform_is_damaged_is_refused(
    dataset: layout.DatasetLayout, committed: catalog_lib.Catalog, data: bytes | None, damage: str
) -> None:
    catalog = dataclasses.replace(committed, files={**committed.files, "transform_fn/x": catalog_lib.File(3, None)})
    output = pathlib.Path(dataset.output)
    (output / "catalog.json").write_text(catalog.to_json())
    (output / "transform_fn").mkdir()
    (output / "transform_fn/x").write_bytes(b"123")
    assert make_plan(dataset).action == "keep"
    if data is None:
        (output / "transform_fn/x").unlink()
    else:
        (output / "transform_fn/x").write_bytes(data)
    assert damage in make_plan(dataset).message


def test_plan_that_analyses_train_without_a_split_of_that_name_is_refused(dataset: layout.DatasetLayout) -> None:
    assert make_plan(dataclasses.replace(dataset, analyze="train")).action == "write"
    plan = make_plan(dataclasses.replace(dataset, analyze="train"), ranking_of({"learn": 3, "test": 2}))
    assert (plan.action, plan.exit_code) == ("refuse", 2)
    assert "found are learn, test; set statistics.analyze: all" in plan.message
    assert make_plan(dataclasses.replace(dataset, analyze="all"), ranking_of({"learn": 3})).action == "write"


def test_plan_beside_unreadable_catalog_is_refused_and_overwrites_on_request(dataset: layout.DatasetLayout) -> None:
    output = pathlib.Path(dataset.output)
    output.mkdir()
    (output / "catalog.json").write_text("{}")
    plan = make_plan(dataset)
    assert (plan.action, plan.exit_code) == ("refuse", 2)
    assert plan.message.startswith(f"{output}/catalog.json is not a catalog (KeyError: 'format_version')")
    assert plan.message.endswith("; --overwrite replaces it")
    assert make_plan(dataclasses.replace(dataset, overwrite=True)).action == "write"


def test_plan_beside_stray_shard_is_refused_unless_a_commit_of_ours_left_it(dataset: layout.DatasetLayout) -> None:
    output = pathlib.Path(dataset.output)
    output.mkdir()
    (output / "README.md").write_text("not a shard")
    (output / "train-00007-of-00004.tfrecord").write_text("nor this: 7 of 4")
    assert make_plan(dataset).action == "write"
    (output / "validation-00000-of-00004").write_bytes(b"")
    plan = make_plan(dataset)
    message = (
        f"{output} holds validation-00000-of-00004, which no catalog.json names; choose another --output, or move or "
        "delete it: --overwrite replaces only what a catalog names, and readers that list the folder would read it "
        "with the dataset"
    )
    assert (plan.action, plan.exit_code, plan.message) == ("refuse", 2, message)
    assert make_plan(dataclasses.replace(dataset, overwrite=True)).message == message
    staged = pathlib.Path(dataset.staging("f1"))
    staged.mkdir(parents=True)
    pathlib.Path(dataset.publish_marker).write_text("f1")
    assert make_plan(dataset).message == message  # a commit was cut short, but it did not put this file there
    shard = catalog_lib.Shard("validation-00000-of-00004", 0, 0, 0)
    catalog = dataclasses.replace(EMPTY, splits={"validation": catalog_lib.Split((shard,))})
    (staged / "catalog.json").write_text(catalog.to_json())
    assert make_plan(dataset).action == "write"


EMPTY = catalog_lib.Catalog(
    name="pets",
    fingerprint="f1",
    compression="none",
    splits={},
    labels=(),
    label_kind=None,
    label_base=0,
    features=(),
    config={},
    counts=catalog_lib.Counts(0, 0, {}, {}),
    versions={},
    created="",
)


@pytest.mark.parametrize("name", ["labels.txt", "statistics.json", "dataset_info.json", "features.json"])
def test_plan_beside_users_file_of_our_name_is_refused_unless_a_commit_of_ours_left_it(
    dataset: layout.DatasetLayout, name: str
) -> None:
    output = pathlib.Path(dataset.output)
    output.mkdir()
    (output / name).write_text("the user's own")
    plan = make_plan(dataset)
    message = f"{output} holds {name}, which no catalog.json names; choose another --output, or --overwrite"
    assert (plan.action, plan.exit_code, plan.message) == ("refuse", 2, message)
    assert make_plan(dataclasses.replace(dataset, overwrite=True)).action == "write"
    staged = pathlib.Path(dataset.staging("f1"))
    staged.mkdir(parents=True)
    (staged / "catalog.json").write_text(dataclasses.replace(EMPTY, labels=("cat",)).to_json())
    assert make_plan(dataset).action == "write"


def test_report_holds_the_plan(dataset: layout.DatasetLayout) -> None:
    ranking = ranking_of({"train": 10, "test": 3}, labels=("caf\udce9", "train"))
    plan = make_plan(dataclasses.replace(dataset, sizing=Sizing(num_shards=5)), ranking)
    assert plan.notes
    fields = json.loads(layout.encode_report("refused", plan, "why \udcff", 3))
    assert (fields["state"], fields["message"], fields["exit_code"]) == ("refused", "why \udcff", 3)
    assert layout.decode_plan(fields["plan"]) == plan


def test_layout_names_its_folders_below_the_output(dataset: layout.DatasetLayout) -> None:
    assert dataset.control == f"{dataset.output}/.imagebeam"
    assert dataset.staging("ab12") == f"{dataset.output}/.imagebeam/staging-ab12"
    assert dataset.shard_name("train", 3, 16) == "train-00003-of-00016.tfrecord"


@pytest.mark.parametrize(("base", "ids"), [(0, {"cat": 0, "dog": 1}), (1, {"cat": 1, "dog": 2})])
def test_label_ids_count_from_the_base(dataset: layout.DatasetLayout, base: int, ids: dict[str, int]) -> None:
    assert dataclasses.replace(dataset, label_base=base).label_ids(("cat", "dog")) == ids
