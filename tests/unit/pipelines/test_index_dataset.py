"""Shards that TensorFlow wrote in the layouts of several tools, indexed and read where they are."""

from __future__ import annotations

import json
import pathlib
import shlex
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import imagebeam
from imagebeam import catalog as catalog_lib
from imagebeam import errors, records
from imagebeam.pipelines import convert, index_dataset, inspect_dataset, verify_dataset
from imagebeam.transforms.indexing import scan_shard
from imagebeam.transforms.output import output_folder
from imagebeam.transforms.publish import publish_dataset
from tests import case_tables, command_line, datasets, error_texts, foreign_shards, written_files


def make_imagenet(folder: pathlib.Path) -> None:
    foreign_shards.numbered(folder / "train", [foreign_shards.imagenet(each) for each in range(10)], 2)
    foreign_shards.numbered(folder / "validation", [foreign_shards.imagenet(each) for each in range(4)], 1)


def make_tfds(folder: pathlib.Path) -> None:
    foreign_shards.numbered(folder / "toy-train.tfrecord", [foreign_shards.tfds(each) for each in range(8)], 2)
    foreign_shards.numbered(folder / "toy-test.tfrecord", [foreign_shards.tfds(each) for each in range(3)], 1)
    (folder / "label.labels.txt").write_text("ant\nbee\ncow\ndog\n")
    (folder / "dataset_info.json").write_text("{}")


def make_detection(folder: pathlib.Path) -> None:
    foreign_shards.numbered(folder / "coco_train.record", [foreign_shards.detection(each) for each in range(4)], 2)


def make_kaggle(folder: pathlib.Path) -> None:
    for split in ("train", "val"):
        examples = [{"image": foreign_shards.jpeg(each), "class": each % 2, "id": b"x"} for each in range(3)]
        foreign_shards.write(folder / split / "00-40x30-3.tfrec", examples)


def make_gzip(folder: pathlib.Path) -> None:
    foreign_shards.write(folder / "train.records", [foreign_shards.imagenet(each) for each in range(5)], "GZIP")


def make_raw(folder: pathlib.Path) -> None:
    examples = [
        {
            "image_raw": foreign_shards.pixels(each, 4, 6, 1).tobytes(),
            "height": 4,
            "width": 6,
            "depth": 1,
            "label": each % 3,
        }
        for each in range(6)
    ]
    foreign_shards.write(folder / "mnist", examples)


def files_of(folder: pathlib.Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def read(folder: pathlib.Path, split: str, **options: Any) -> dict[str, np.ndarray]:
    """Returns all examples of a split, in the order of its shards, as one batch."""
    dataset = imagebeam.open_dataset(folder)
    size = dataset.num_examples(split)
    batches = dataset.as_numpy(split, size, shuffle=None, num_epochs=1, crop="squash", image_size=(30, 40), **options)
    return next(iter(batches))


@case_tables.each_case(
    "make, split, labels, label_base, label_ids, image",
    [
        (
            make_imagenet,
            "train",
            ("tench, Tinca tinca", "goldfish", "great white shark"),
            1,
            [0, 1, 2, 0],
            "image/encoded",
        ),
        (make_tfds, "test", ("ant", "bee", "cow", "dog"), 0, [0, 1, 2], "image"),
        (make_detection, "train", (), 0, None, "image/encoded"),
        (make_kaggle, "val", ("0", "1"), 0, [0, 1, 0], "image"),
        (make_gzip, "train", ("tench, Tinca tinca", "goldfish", "great white shark"), 1, [0, 1, 2, 0], "image/encoded"),
        (make_raw, "train", ("0", "1", "2"), 0, [0, 1, 2, 0], "image_raw"),
    ],
)
def test_shards_of_a_tool_are_read_where_they_are(
    tmp_path: pathlib.Path,
    make: Callable[[pathlib.Path], None],
    split: str,
    labels: tuple[str, ...],
    label_base: int,
    label_ids: list[int] | None,
    image: str,
) -> None:
    import tensorflow as tf

    make(tmp_path)
    before = files_of(tmp_path)
    result = imagebeam.index(tmp_path, workers=1)
    after = files_of(tmp_path)
    assert {name: after[name] for name in before} == before
    assert not (tmp_path / ".imagebeam").exists()
    catalog = catalog_lib.load_catalog(tmp_path)
    assert result.catalog == catalog
    assert (catalog.labels, catalog.label_base) == (labels, label_base)
    shards = [tmp_path / shard.name for shard in catalog.splits[split].shards]
    serialized = [
        each.numpy()
        for path in shards
        for each in tf.data.TFRecordDataset(str(path), "GZIP" if catalog.compression == "gzip" else "")
    ]
    assert len(serialized) == imagebeam.open_dataset(tmp_path).num_examples(split)
    batch = read(tmp_path, split)
    for record, found in zip(serialized, batch["image"], strict=True):
        stored = tf.train.Example.FromString(record).features.feature[image].bytes_list.value[0]
        if image == "image_raw":
            continue
        decoded = tf.image.resize(tf.io.decode_image(stored, 3), (30, 40)).numpy()
        assert np.abs(decoded - found).max() <= 2
    if label_ids is None:
        assert "label" not in batch
    else:
        assert batch["label"][:4].tolist() == label_ids
    assert verify_dataset.verify(tmp_path, decode=True).problems == ()
    assert imagebeam.index(tmp_path, workers=1).state == "kept"


def test_pixels_of_a_raw_set_are_those_that_were_written(tmp_path: pathlib.Path) -> None:
    make_raw(tmp_path)
    imagebeam.index(tmp_path, workers=1)
    source = imagebeam.open_dataset(tmp_path).as_grain("train")
    for index in range(6):
        gray = foreign_shards.pixels(index, 4, 6, 1)
        np.testing.assert_array_equal(source[index]["image"], np.repeat(gray, 3, 2))


def test_boxes_are_lists_also_where_an_image_has_none(tmp_path: pathlib.Path) -> None:
    make_detection(tmp_path)
    imagebeam.index(tmp_path, workers=1)
    batch = read(tmp_path, "train", features=("image/object/bbox/ymin", "image/filename"), list_size=3, flip=False)
    assert batch["image/object/bbox/ymin/count"].tolist() == [0, 1, 2, 3]
    assert batch["image/object/bbox/ymin"][3].tolist() == [0, 0.25, 0.5]
    assert batch["image/filename"][2] == b"2.jpg"


def test_sizes_are_used_only_if_they_are_those_of_every_image(tmp_path: pathlib.Path) -> None:
    wrong = foreign_shards.imagenet(0) | {"image/height": 31}
    foreign_shards.write(tmp_path / "train", [foreign_shards.imagenet(1), wrong])
    result = imagebeam.index(tmp_path, workers=1)
    sources = {feature.key: feature.source for feature in result.catalog.features}
    assert (sources["image/height"], sources["image/width"]) == ("columns/image/height", "image/width")
    assert "image/height is not the size of every image, and is not used as such" in result.notes
    assert result.image_size == "30 x 40"
    assert len(read(tmp_path, "train")["image"]) == 2


def test_second_index_reads_only_what_has_changed(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_imagenet(tmp_path)
    imagebeam.index(tmp_path, workers=1)
    scanned: list[str] = []
    scan = scan_shard.scan_shard
    monkeypatch.setattr(scan_shard, "scan_shard", lambda task: scanned.append(task.name) or scan(task))
    name = "train-00001-of-00002"
    foreign_shards.write(tmp_path / name, [foreign_shards.imagenet(each) for each in range(3)])
    with pytest.raises(errors.ShardError, match=rf"{name} has .* bytes, the catalog says .* imagebeam index"):
        imagebeam.open_dataset(tmp_path)
    result = imagebeam.index(tmp_path, workers=1)
    assert (result.state, scanned) == ("committed", [name])
    assert len(result.changes) == 1
    assert result.changes[0].startswith(f"{name}: ")
    assert imagebeam.open_dataset(tmp_path).num_examples("train") == 8
    assert verify_dataset.verify(tmp_path).problems == ()
    (tmp_path / name).touch()
    fingerprint = result.catalog.fingerprint
    assert imagebeam.index(tmp_path, workers=1).catalog.fingerprint == fingerprint


def test_new_shard_is_named_by_verify_and_taken_in(tmp_path: pathlib.Path) -> None:
    foreign_shards.numbered(tmp_path / "train", [foreign_shards.imagenet(each) for each in range(2)], 1)
    imagebeam.index(tmp_path, workers=1)
    foreign_shards.numbered(tmp_path / "val", [foreign_shards.imagenet(each) for each in range(2)], 1)
    [problem] = verify_dataset.verify(tmp_path).problems
    assert "val-00000-of-00001: the catalog does not name this file" in str(problem)
    assert "run imagebeam index again" in str(problem)
    assert imagebeam.index(tmp_path, workers=1).changes == ("val-00000-of-00001: new",)
    (tmp_path / "val-00000-of-00001").unlink()
    assert imagebeam.index(tmp_path, workers=1).changes == ("val-00000-of-00001: gone",)
    assert sorted(path.name for path in (tmp_path / "index").iterdir()) == [
        "scans.json.gz",
        "train-00000-of-00001.index",
        "train-00000-of-00001.sizes",
    ]


def test_split_by_a_pattern_leaves_out_the_others(tmp_path: pathlib.Path) -> None:
    make_imagenet(tmp_path)
    result = imagebeam.index(tmp_path, split="^(train)-00000", workers=1)
    assert {name: len(split.shards) for name, split in result.catalog.splits.items()} == {"train": 1}
    assert result.catalog.counts.skipped == {"left_out": 2}
    assert verify_dataset.verify(tmp_path).problems == ()
    assert imagebeam.index(tmp_path, workers=1).state == "committed"  # another choice is another index


@case_tables.each_case(
    "damage, code",
    [
        (lambda data: data[:-30], "index-shard-unreadable"),
        (lambda data: data[:-30] + b"xxx" + data[-27:], "index-broken-records"),
    ],
)
def test_broken_file_is_named_and_nothing_committed(
    tmp_path: pathlib.Path, damage: Callable[[bytes], bytes], code: str
) -> None:
    make_imagenet(tmp_path)
    path = tmp_path / "validation-00000-of-00001"
    path.write_bytes(damage(path.read_bytes()))
    with error_texts.raises(code):
        imagebeam.index(tmp_path, workers=1)
    assert not (tmp_path / "catalog.json").exists()
    with error_texts.raises("catalog-unfinished"):
        catalog_lib.load_catalog(tmp_path)


def test_broken_record_can_be_kept_and_skipped(tmp_path: pathlib.Path) -> None:
    foreign_shards.write(tmp_path / "train", [foreign_shards.imagenet(each) for each in range(4)])
    written_files.flip(tmp_path / "train", -30)
    result = imagebeam.index(tmp_path, keep_broken=True, workers=1)
    assert "1 record cannot be read; readers need on_error='skip'" in result.notes
    batches = imagebeam.open_dataset(tmp_path).as_numpy(
        "train", 4, shuffle=None, num_epochs=1, drop_remainder=False, on_error="skip", max_error_fraction=1.0
    )
    assert len(next(iter(batches))["image"]) == 3


def test_record_without_a_good_image_is_broken(tmp_path: pathlib.Path) -> None:
    bad = foreign_shards.imagenet(0) | {"image/encoded": foreign_shards.jpeg(0)[:-200]}
    lacks = {key: value for key, value in foreign_shards.imagenet(0).items() if key != "image/encoded"}
    foreign_shards.write(tmp_path / "train", [foreign_shards.imagenet(0), bad, lacks])
    with error_texts.raises("index-broken-records"):
        imagebeam.index(tmp_path, workers=1)


def test_killed_index_goes_on_where_it_was(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_imagenet(tmp_path)
    scan, scanned = scan_shard.scan_shard, []

    def die_at_the_last(task: scan_shard.ScanTask) -> scan_shard.ShardScan:
        if task.name.startswith("validation") and "die" not in scanned:
            scanned.append("die")
            raise KeyboardInterrupt
        scanned.append(task.name)
        return scan(task)

    monkeypatch.setattr(scan_shard, "scan_shard", die_at_the_last)
    with pytest.raises(KeyboardInterrupt):
        imagebeam.index(tmp_path, workers=1)
    assert imagebeam.index(tmp_path, workers=1).state == "committed"
    assert scanned == ["train-00000-of-00002", "train-00001-of-00002", "die", "validation-00000-of-00001"]


@case_tables.each_case("step", ["move_shards", "_move_files", "remove_left", "_publish_catalog"])
def test_commit_that_was_killed_is_finished_by_the_next(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    make_imagenet(tmp_path)
    imagebeam.index(tmp_path, workers=1)
    foreign_shards.write(tmp_path / "train-00001-of-00002", [foreign_shards.imagenet(9)])
    before = files_of(tmp_path)

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(publish_dataset.Publication, step, die)
        with pytest.raises(KeyboardInterrupt):
            imagebeam.index(tmp_path, workers=1)
    with error_texts.raises("catalog-unfinished"):
        imagebeam.open_dataset(tmp_path)
    assert imagebeam.index(tmp_path, workers=1).state == "committed"
    after = files_of(tmp_path)
    assert after.keys() == before.keys()
    assert {name: after[name] for name in before if "-of-" in name and "/" not in name} == {
        name: before[name] for name in before if "-of-" in name and "/" not in name
    }
    assert verify_dataset.verify(tmp_path).problems == ()
    assert imagebeam.open_dataset(tmp_path).num_examples("train") == 6


def test_convert_never_replaces_indexed_shards(tmp_path: pathlib.Path) -> None:
    shards, images = tmp_path / "shards", tmp_path / "images" / "cat"
    make_imagenet(shards)
    imagebeam.index(shards, workers=1)
    before = files_of(shards)
    images.mkdir(parents=True)
    (images / "a.jpg").write_bytes(foreign_shards.jpeg(0))
    sections = {"source": {"uri": str(images.parent)}, "output": {"uri": str(shards)}}
    for overwrite in (False, True):
        with error_texts.raises("output-indexed"):
            convert.convert(sections, workers=1, overwrite=overwrite)
    catalog = json.loads((shards / "catalog.json").read_text()) | {"name": "edited"}
    (shards / "catalog.json").write_text(json.dumps(catalog))
    with error_texts.raises("output-unnamed-shards"):
        convert.convert(sections, workers=1, overwrite=True)
    del before["catalog.json"]
    assert {name: data for name, data in files_of(shards).items() if name in before} == before


def test_dataset_of_imagebeam_needs_no_index(tmp_path: pathlib.Path) -> None:
    images = tmp_path / "images" / "cat"
    images.mkdir(parents=True)
    (images / "a.jpg").write_bytes(foreign_shards.jpeg(0))
    datasets.make(images.parent, tmp_path / "out")
    with error_texts.raises("index-of-dataset"):
        imagebeam.index(tmp_path / "out")


def test_files_of_the_user_are_not_replaced(tmp_path: pathlib.Path) -> None:
    make_imagenet(tmp_path)
    (tmp_path / "statistics.json").write_text("mine")
    with error_texts.raises("index-name-taken"):
        imagebeam.index(tmp_path, workers=1)
    assert (tmp_path / "statistics.json").read_text() == "mine"


def test_unwritable_folder_is_an_error_with_a_remedy(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_gzip(tmp_path)

    def refuse(*_: Any) -> None:
        raise errors.ConfigError("a-code", "--output cannot be written: Read-only file system")

    monkeypatch.setattr(index_dataset.output_lock, "hold", refuse)
    with error_texts.raises("index-unwritable"):
        imagebeam.index(tmp_path)


def test_folder_of_links_is_indexed(tmp_path: pathlib.Path) -> None:
    make_imagenet(tmp_path / "shards")
    (tmp_path / "links").mkdir()
    for path in (tmp_path / "shards").iterdir():
        (tmp_path / "links" / path.name).symlink_to(path)
    imagebeam.index(tmp_path / "links", workers=1)
    assert len(read(tmp_path / "links", "validation")["image"]) == 4
    assert sorted(path.name for path in (tmp_path / "shards").iterdir()) == sorted(
        ["train-00000-of-00002", "train-00001-of-00002", "validation-00000-of-00001"]
    )


def test_command_for_base64_pixels_converts_them(tmp_path: pathlib.Path) -> None:
    examples = [foreign_shards.tfrecorder(each) for each in range(5)]
    foreign_shards.write(tmp_path / "in" / "train-00000-of-00001.tfrecord.gz", examples, "GZIP")
    with pytest.raises(errors.ConfigError) as caught:
        imagebeam.index(tmp_path / "in")
    command = shlex.split(str(caught.value).partition("convert the records once: ")[2])
    arguments = [str(tmp_path / "out") if each == "OUTPUT" else each for each in command[1:]]
    command_line.succeed(*arguments, "--set", "source.tfrecord.key=image_name", "--set", "label.column=label")
    source = imagebeam.open_dataset(tmp_path / "out").as_grain("TRAIN")  # the feature "split" of the records
    assert len(source) == 5
    for each in map(source.__getitem__, range(5)):
        index = int(each["image/key"].partition(b".")[0])
        np.testing.assert_array_equal(each["image"], foreign_shards.pixels(index))
        assert each["label"] == index % 2


def test_wrong_arguments_are_an_error(tmp_path: pathlib.Path) -> None:
    make_gzip(tmp_path)
    written_files.write(tmp_path, {"other/train.tfrecord": b"", "lost/catalog.json": "{"})
    for folder, options, code in (
        ("gone", {}, "folder-not-found"),
        ("train.records", {}, "folder-is-file"),
        ("", {"label_base": 2}, "index-label-base"),
        ("", {"split": ""}, "option-empty"),
        ("other", {}, "index-no-record"),
        ("lost", {}, "index-unreadable"),
    ):
        with error_texts.raises(code):
            imagebeam.index(tmp_path / folder, **options)


def test_folders_with_files_of_one_name_are_read_through_the_cache(tmp_path: pathlib.Path) -> None:
    import fsspec

    for split, first in (("train", 0), ("val", 5)):
        examples = [{"image": foreign_shards.jpeg(first + each), "label": each} for each in range(2)]
        foreign_shards.write(tmp_path / "in" / split / "0.tfrec", examples)
    fsspec.filesystem("memory").put(str(tmp_path / "in"), "/indexed", recursive=True)
    assert imagebeam.index("memory://indexed", workers=1).state == "committed"
    assert imagebeam.index("memory://indexed", workers=1).state == "kept"  # reads all: there are no versions
    assert not fsspec.filesystem("memory").exists("/indexed/.imagebeam")
    imagebeam.index(tmp_path / "in", workers=1)
    assert verify_dataset.verify("memory://indexed").problems == ()
    far = imagebeam.open_dataset("memory://indexed", cache_dir=tmp_path / "cache")
    for split in ("train", "val"):
        batch = next(iter(far.as_numpy(split, 2, shuffle=None, num_epochs=1, crop="squash", image_size=(30, 40))))
        np.testing.assert_array_equal(batch["image"], read(tmp_path / "in", split)["image"])


def test_plan_writes_nothing(tmp_path: pathlib.Path) -> None:
    make_imagenet(tmp_path)
    before = files_of(tmp_path)
    shown = command_line.succeed("index", tmp_path, "--plan").stdout
    assert files_of(tmp_path) == before
    assert not (tmp_path / ".imagebeam").exists()
    assert "train       2 shards" in shown
    assert "image         image/encoded\nlabel         image/class/label\n" in shown


def test_command_indexes_and_shows_the_dataset(tmp_path: pathlib.Path) -> None:
    make_imagenet(tmp_path)
    shown = command_line.succeed("index", tmp_path, "--label-base", "0", "--workers", "2").stdout
    assert "train       10 records, 2 shards" in shown
    assert "image         image/encoded, 30 x 40 pixels (height x width)" in shown
    assert "image/class/label: 4 classes, ids 0 to 3: 0, tench, Tinca tinca, goldfish, great white shark" in shown
    assert f"next: imagebeam verify {tmp_path}" in shown
    again = command_line.succeed("index", tmp_path, "--label-base", "0").stdout
    assert "fits its shards; nothing to do" in again
    command_line.succeed("verify", tmp_path, "--decode")
    assert "tench" in command_line.succeed("inspect", tmp_path, "-n", "1").stdout
    assert inspect_dataset.write_report(tmp_path, tmp_path.parent / "report.html") > 10_000


def test_processes_find_the_same_as_one(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_imagenet(tmp_path)
    monkeypatch.setattr(index_dataset, "_BYTES_FOR_PROCESS", 1)
    parallel = imagebeam.index(tmp_path, workers=2).catalog
    (tmp_path / "catalog.json").unlink()
    (tmp_path / "statistics.json").unlink()
    (tmp_path / "index" / "scans.json.gz").unlink()
    assert imagebeam.index(tmp_path, workers=1).catalog.splits == parallel.splits


def test_older_releases_refuse_the_catalog(tmp_path: pathlib.Path) -> None:
    make_gzip(tmp_path)
    catalog = imagebeam.index(tmp_path, workers=1).catalog
    assert json.loads(catalog.to_json())["format_version"] == 3
    assert output_folder.files_of(catalog) == {
        "catalog.json",
        "statistics.json",
        "index/scans.json.gz",
    }


def test_head_of_a_file_tells_whether_it_is_tfrecord() -> None:
    assert records.begins_with_record(records.frame_header(7))
    assert not records.begins_with_record(records.frame_header(7)[:11])
    assert not records.begins_with_record(bytes(12))
