"""Which features of another tool's records are the image and the label, and the ids of classes."""

from __future__ import annotations

import base64
import gzip
import io
import pathlib
from typing import Any

from imagebeam import features, records
from imagebeam.transforms import kept_features
from imagebeam.transforms.indexing import choose_features, find_shards, scan_shard
from tests import case_tables, error_texts, foreign_shards, written_files

JPEG = b"\xff\xd8\xff\xe0" + bytes(40)
CONVERT = "imagebeam convert ..."
BROKEN = b"\xff\xff\xff"


def choose(values: dict[str, Any], image: str | None = None, label: str | None = None) -> scan_shard.Keys:
    return choose_features.choose_keys([foreign_shards.serialize(values)], image, label, "a.tfrecord", CONVERT)


def test_image_and_label_are_found() -> None:
    for values, image, label, is_raw in [
        ({"image/encoded": JPEG, "image/class/label": 1}, "image/encoded", "image/class/label", False),
        ({"image": JPEG, "label": 1, "id": 7}, "image", "label", False),  # tfds
        ({"picture": JPEG, "class": [1, 2]}, "picture", "class", False),  # any-name
        ({"image": JPEG, "mask": JPEG}, "image", None, False),  # usual-name-first
        ({"image": JPEG, "label": b"cat"}, "image", None, False),  # text-is-no-label
        ({"image_raw": bytes(12), "height": 2, "width": 3, "depth": 2, "label": 0}, "image_raw", "label", True),  # raw
    ]:
        keys = choose(values)
        assert (keys.image, keys.label, keys.is_raw) == (image, label, is_raw)


def test_image_and_label_are_those_of_the_user() -> None:
    keys = choose({"image": JPEG, "mask": JPEG, "label": 1, "age": 0.5}, "mask", "age")
    assert (keys.image, keys.label) == ("mask", "age")
    assert choose({"image": JPEG, "class": 3}, label="none").label is None


PIXELS = {"image": base64.urlsafe_b64encode(bytes(range(48))), "image_height": 4, "image_width": 4, "image_channels": 3}


def test_records_without_a_certain_image_are_an_error() -> None:
    for code, asked, values in [
        ("index-several-image-features", {}, {"a": JPEG, "b": JPEG}),
        ("index-no-image-feature", {}, {"a": 1}),
        ("index-unknown-feature", {"image": "x"}, {"image": JPEG}),
        ("index-feature-of-numbers", {"image": "image"}, {"image": [1, 2]}),
        ("index-unknown-feature", {"label": "x"}, {"image": JPEG}),
        ("index-label-text", {"label": "x"}, {"image": JPEG, "x": b"cat"}),
        ("index-feature-of-pixels", {}, {"image": bytes(30)}),
        ("index-feature-base64", {}, PIXELS),
    ]:
        with error_texts.raises(code):
            choose(values, **asked)
    with error_texts.raises("index-no-example"):
        choose_features.choose_keys([BROKEN, BROKEN], None, None, "a.tfrecord", CONVERT)


def test_broken_record_among_the_first_does_not_matter() -> None:
    record = foreign_shards.serialize({"image": JPEG, "label": 3})
    found = choose_features.choose_keys([BROKEN, record], None, None, "a.tfrecord", CONVERT)
    assert (found.image, found.label) == ("image", "label")


def survey(uses: dict[str, tuple[dict[str, str], int, int]]) -> kept_features.FeatureSurvey:
    return kept_features.FeatureSurvey(4, {key: kept_features.FeatureUse(*use) for key, use in uses.items()})


def test_features_are_named_by_what_every_record_holds() -> None:
    found = choose_features.choose_features(
        survey(
            {
                "image": ({"bytes": "a"}, 4, 4),
                "label": ({"int64": "a"}, 4, 4),
                "height": ({"int64": "a"}, 4, 4),
                "width": ({"int64": "a"}, 4, 4),
                "image/object/bbox/xmin": ({"float": "a"}, 2, 1),
                "image/filename": ({"bytes": "a"}, 4, 4),
                "image/key": ({"bytes": "a"}, 3, 3),
                "odd": ({"bytes": "a", "int64": "b"}, 4, 4),
                "empty": ({}, 0, 0),
            }
        ),
        scan_shard.Keys("image", "label", (), (("image/height", "height"), ("image/width", "width"))),
        ["width"],
        {0: 2, 1: 2},
    )
    assert {each.key: (each.source, each.many) for each in found.features} == {
        "image": (features.ENCODED, False),
        "label": (features.LABEL, False),
        "height": ("image/height", False),
        "width": ("columns/width", False),  # not that of every image
        "image/object/bbox/xmin": ("image/object/bbox/xmin", True),
        "image/filename": ("image/filename", False),
        "image/key": ("columns/image/key", True),  # missing in a record
    }
    assert found.features[-1].source == features.ENCODED
    assert found.label_kind == "class"
    assert found.notes == (
        "width is not the size of every image, and is not used as such",
        "features of several kinds, which the reader does not give: odd",
    )


def test_label_that_is_no_class_is_a_number() -> None:
    for kind, labels in [("float", {}), ("int64", {-7: 1, 3: 1}), ("int64", {5_000_000: 1})]:
        uses = {"image": ({"bytes": "a"}, 4, 4), "label": ({kind: "a"}, 4, 4)}
        found = choose_features.choose_features(survey(uses), scan_shard.Keys("image", "label"), (), labels)
        assert found.label_kind == kind


TEXTS = {features.TEXT: {1: "one", 2: "two"}}


def test_names_and_base_of_classes() -> None:
    for labels, names, listed, base, expected in [
        ([0, 2], {}, None, None, (("0", "1", "2"), 0)),  # numbers
        ([1, 2], {}, None, None, (("1", "2"), 1)),  # no-0-begins-at-1
        ([1, 2], TEXTS, None, None, (("one", "two"), 1)),  # texts
        ([1, 2], TEXTS, None, 0, (("0", "one", "two"), 0)),  # base-of-the-user
        ([1, 2], {}, ["x", "y", "z"], None, (("x", "y", "z"), 0)),  # file-of-names
        ([1, 3], {}, ["x", "y", "z"], None, (("x", "y", "z"), 1)),  # file-of-names-from-1
        ([-1, 0, 1], {}, None, None, (("0", "1"), 0)),  # unknown-labels
        ([0, 4], {}, ["x"], None, (tuple("01234"), 0)),  # file-too-short
    ]:
        classes = choose_features.choose_classes(dict.fromkeys(labels, 1), names, listed, base)
        assert (classes.names, classes.base) == expected


def test_base_above_a_label_and_an_image_of_several_kinds_are_errors() -> None:
    with error_texts.raises("index-label-base"):
        choose_features.choose_classes({0: 1}, {}, None, 1)
    with error_texts.raises("index-feature-type"):
        uses = {"image": ({"bytes": "a", "int64": "b"}, 4, 4)}
        choose_features.choose_features(survey(uses), scan_shard.Keys("image"), (), {})


def test_names_that_clash_in_some_file_are_not_used() -> None:
    one = scan_shard.ShardScan("a", 1, names={"x": {1: "cat"}, "y": {1: "cat"}, "z": {1: "cat"}})
    two = scan_shard.ShardScan("b", 1, names={"x": {2: "dog"}, "y": {1: "dog"}})
    assert choose_features.merge_names([one, two]) == {"x": {1: "cat", 2: "dog"}}


# --- shards ----------------------------------------------------------------------------------------------------------


def content(count: int = 1) -> bytes:
    file = io.BytesIO()
    writer = records.RecordWriter(file)
    for _ in range(count):
        writer.write(b"abc")
    writer.finish()
    return file.getvalue()


def make(folder: pathlib.Path, *names: str, data: bytes | None = None) -> str:
    return str(written_files.write(folder, dict.fromkeys(names, content() if data is None else data)))


def test_files_of_any_name_are_found_in_the_order_of_their_numbers(tmp_path: pathlib.Path) -> None:
    make(tmp_path, "train_10", "train_9", "deep/val/x.dat", "test", "index/train.index", ".hidden/a.tfrecord")
    make(tmp_path, "readme", "features.json", data=b"{}")
    found = find_shards.find_shards(str(tmp_path))
    names = {split: [shard.name for shard in shards] for split, shards in found.splits.items()}
    assert names == {"train": ["train_9", "train_10"], "test": ["test"], "val": ["deep/val/x.dat"]}
    assert (found.compression, found.skipped) == ("none", {"other_file": 2})


def test_gzip_is_found_by_its_content(tmp_path: pathlib.Path) -> None:
    make(tmp_path, "train.tfrecord", "test.tfrecord.gz", data=gzip.compress(content()))
    assert find_shards.find_shards(str(tmp_path)).compression == "gzip"
    make(tmp_path, "val.tfrecord")
    with error_texts.raises("index-mixed-compression"):
        find_shards.find_shards(str(tmp_path))
    assert find_shards.find_shards(str(tmp_path), "(val)").left_out == ["test.tfrecord.gz", "train.tfrecord"]


def test_empty_files_named_like_shards_count(tmp_path: pathlib.Path) -> None:
    make(tmp_path, "train-00000-of-00002")
    make(tmp_path, "train-00001-of-00002", "other", data=b"")
    assert [shard.name for shard in find_shards.find_shards(str(tmp_path)).shards] == [
        "train-00000-of-00002",
        "train-00001-of-00002",
    ]


@case_tables.each_case(
    "code, names, pattern",
    {
        "none": ("index-no-tfrecord", (), None),
        "missing": ("index-shards-missing", ("a-00000-of-00003", "a-00002-of-00003"), None),
        "two-runs": ("index-two-series", ("a-00000-of-00001", "a-00000-of-00002", "a-00001-of-00002"), None),
        "one-index": ("index-names-collide", ("a.tfrecord", "a"), None),
        "bad-pattern": ("index-split-pattern", ("ok.tfrecord",), "("),
        "no-match": ("index-no-tfrecord", ("ok.tfrecord",), "x"),
    },
)
def test_files_that_make_no_dataset_are_an_error(
    tmp_path: pathlib.Path, code: str, names: tuple[str, ...], pattern: str | None
) -> None:
    with error_texts.raises(code):
        find_shards.find_shards(make(tmp_path, *names), pattern)


def test_missing_files_can_be_allowed(tmp_path: pathlib.Path) -> None:
    assert find_shards.find_shards(make(tmp_path, "a-00002-of-00003"), is_partial=True).shards
    one = make(tmp_path / "from-1", "a-00001-of-00002", "a-00002-of-00002")  # some tools count from 1
    assert len(find_shards.find_shards(one).shards) == 2


def test_damaged_and_foreign_files_named_like_shards_are_an_error(tmp_path: pathlib.Path) -> None:
    make(tmp_path, "ok.tfrecord")
    make(tmp_path, "bad.tfrecord", data=b"\x78\x9c" + bytes(30))
    with error_texts.raises("index-no-tfrecord"):
        find_shards.find_shards(str(tmp_path))
