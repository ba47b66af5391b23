"""WebDataset shards and TFRecord files become datasets that plain TensorFlow reads."""

from __future__ import annotations

import collections
import io
import json
import pathlib
import re
import tarfile
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

import imagebeam
from imagebeam import errors
from imagebeam.pipelines import convert
from imagebeam.pipelines.config import model as config_lib
from tests import datasets, image_sets, parsed_records, tars

Samples = dict[str, dict[str, Any]]  # by key


def preset(name: str, source: pathlib.Path, output: pathlib.Path, *overrides: str) -> convert.ConvertResult:
    """Does what `imagebeam convert --config name` does, in this process."""
    more = (f"source.uri={source}", f"output.uri={output}", *overrides)
    return convert.convert(config_lib.load_config(name, more), workers=1)


def read_with_tensorflow(folder: pathlib.Path, pattern: str, spec: dict[str, Any], gzip: bool = False) -> Samples:
    """Returns the records of the shards that match, by their image/key."""
    spec = {"image/key": tf.io.FixedLenFeature([], tf.string), "image/encoded": IMAGE, **spec}
    found = {}
    for parsed in parsed_records.parse(folder.glob(pattern), spec, "GZIP" if gzip else ""):
        key = parsed["image/key"].decode()
        assert key not in found
        found[key] = parsed
    return found


IMAGE = tf.io.FixedLenFeature([], tf.string)
LABEL = {"image/class/label": tf.io.FixedLenFeature([], tf.int64)}


# --- WebDataset ------------------------------------------------------------------------------------------------------


def write_webdataset(folder: pathlib.Path, suffix: str = ".tar") -> None:
    """Two train shards and one for validation, as webdataset.TarWriter writes them."""
    number = 0
    for split, num_shards in (("train", 2), ("validation", 1)):
        for shard in range(num_shards):
            members = []
            for _ in range(10):
                stem = f"n{number % 3}/{number:06d}"
                described = {"caption": f"picture {number}", "size": {"w": 24}, "tags": ["a", "b"][: number % 3]}
                members += [
                    (f"{stem}.cls", str(number * 7).encode()),
                    (f"{stem}.jpg", image_sets.make_image(number)),
                    (f"{stem}.json", json.dumps(described).encode()),
                    (f"{stem}.txt", f"text {number}\n".encode()),
                ]
                number += 1
            path = folder / f"set-{split}-{shard:06d}{suffix}"
            tars.write_tar(path, members, "w:gz" if "gz" in suffix else "w")


def as_webdataset_reads(folder: pathlib.Path) -> Samples:
    """Returns the samples by tar and stem, grouped as the package `webdataset` does it."""
    samples: Samples = {}
    for path in sorted(folder.iterdir()):
        with tarfile.open(path) as file:
            for member in file:
                stem, _, extension = member.name.partition(".")
                samples.setdefault(f"{path.name}/{stem}", {})[extension] = file.extractfile(member).read()  # type: ignore[union-attr]
    return samples


COLUMNS = (
    "columns={txt: {}, json.caption: {}, json.size.w: {type: int}, json.tags: {list: true}}",
    "split={by: column, column: split}",
)


def test_webdataset_preset_keeps_images_labels_and_texts(tmp_path: pathlib.Path) -> None:
    write_webdataset(tmp_path / "in")
    result = preset("webdataset", tmp_path / "in", tmp_path / "out", *COLUMNS, "output.num_shards=2")
    assert result.catalog.counts.written == 30 and result.catalog.counts.rejected == {}
    samples = as_webdataset_reads(tmp_path / "in")
    spec = {
        **LABEL,
        "txt": tf.io.FixedLenFeature([], tf.string),
        "json.caption": tf.io.FixedLenFeature([], tf.string),
        "json.size.w": tf.io.FixedLenFeature([], tf.int64),
        "json.tags": tf.io.VarLenFeature(tf.string),
    }
    for split, count in (("train", 20), ("validation", 10)):
        found = read_with_tensorflow(tmp_path / "out", f"{split}-*", spec)
        assert len(found) == count and all(key.startswith(f"set-{split}-") for key in found)
        for key, record in found.items():
            sample = samples.pop(key)
            described = json.loads(sample["json"])
            assert record["image/encoded"] == sample["jpg"]
            assert record["image/class/label"] == int(sample["cls"])
            assert record["txt"] == sample["txt"]
            assert record["json.caption"].decode() == described["caption"]
            assert record["json.size.w"] == 24
            assert [tag.decode() for tag in record["json.tags"]] == described["tags"]
            pixels = tf.io.decode_jpeg(record["image/encoded"], dct_method="INTEGER_ACCURATE").numpy()
            expected = np.asarray(Image.open(io.BytesIO(sample["jpg"])))
            assert pixels.shape == expected.shape and np.abs(pixels.astype(int) - expected).max() <= 2
    assert samples == {}


def test_webdataset_is_read_back_by_the_reader(tmp_path: pathlib.Path) -> None:
    write_webdataset(tmp_path / "in")
    columns = "columns={txt: {type: string}}"
    preset("webdataset", tmp_path / "in", tmp_path / "out", columns)
    ds = imagebeam.open_dataset(str(tmp_path / "out"))
    texts = {}
    for batch in ds.as_numpy("train", 10, image_size=16, crop="center", shuffle=None, num_epochs=1, features=("txt",)):
        assert batch["image"].shape == (10, 16, 16, 3)
        texts |= dict(zip(batch["label"].tolist(), batch["txt"].tolist()))
    assert texts == {number * 7: f"text {number}\n".encode() for number in range(30)}


def test_webdataset_classes_by_name_get_ids(tmp_path: pathlib.Path) -> None:
    for shard in range(2):
        members = []
        for number in range(6):
            name = ["dog", "cat"][number % 2]
            members += [(f"{number}.jpg", image_sets.make_image(number)), (f"{number}.cls", f"{name}\n".encode())]
        tars.write_tar(tmp_path / "in" / f"{shard:05d}.tar", members)
    result = preset("webdataset", tmp_path / "in", tmp_path / "out", "label.type=class")
    assert result.catalog.labels == ("cat", "dog")
    examples = datasets.read(tmp_path / "out")
    counts = collections.Counter((each["image/class/text"], each["image/class/label"]) for each in examples)
    assert counts == {(b"cat", 0): 6, (b"dog", 1): 6}


def test_one_tar_and_a_glob_are_inputs(tmp_path: pathlib.Path) -> None:
    write_webdataset(tmp_path / "in")
    one = preset("webdataset", tmp_path / "in" / "set-train-000001.tar", tmp_path / "one")
    some = preset("webdataset", tmp_path / "in" / "set-train-*.tar", tmp_path / "some")
    assert (one.catalog.counts.written, some.catalog.counts.written) == (10, 20)
    assert set(datasets.keys(tmp_path / "one")) < set(datasets.keys(tmp_path / "some"))


def test_tar_cut_short_ends_the_run_unless_it_is_left_out(tmp_path: pathlib.Path) -> None:
    write_webdataset(tmp_path / "in")
    broken = tmp_path / "in" / "set-train-000000.tar"
    broken.write_bytes(broken.read_bytes()[:9000])
    with pytest.raises(
        errors.ConfigError,
        match=rf"tar '{broken}': .* at byte offset \d+; all examples after this point \([\d,]+ bytes\) would",
    ):
        preset("webdataset", tmp_path / "in", tmp_path / "out")
    assert not (tmp_path / "out" / "catalog.json").exists()
    result = preset("webdataset", tmp_path / "in", tmp_path / "out", "source.include=['*1.tar', '*validation*']")
    assert (result.catalog.counts.written, result.catalog.counts.passed_over) == (20, {"not_included": 1})


def test_sample_without_a_label_or_image_is_a_dead_letter(tmp_path: pathlib.Path) -> None:
    write_webdataset(tmp_path / "in")
    image = image_sets.make_image(1)
    tars.write_tar(
        tmp_path / "in" / "x.tar",
        [("a.jpg", image), ("b.cls", b"1"), ("c.jpg", image), ("c.cls", b"one"), ("d.jpg", b"text"), ("d.cls", b"2")],
    )
    preset("webdataset", tmp_path / "in", tmp_path / "out", "rejects.max_fraction=0.2")
    assert datasets.rejects(tmp_path / "out") == {
        "x.tar/a": "no_label",
        "x.tar/b": "bad_row",
        "x.tar/c": "bad_value",
        "x.tar/d": "not_an_image",
    }


def test_two_samples_with_one_stem_are_refused(tmp_path: pathlib.Path) -> None:
    pair = [("a.jpg", image_sets.make_image(1)), ("a.cls", b"1")]
    tars.write_tar(tmp_path / "in" / "x.tar", [*pair, ("b.jpg", image_sets.make_image(2)), ("b.cls", b"2"), *pair])
    with pytest.raises(errors.ConfigError, match=r"two images have the key 'x\.tar/a'"):
        preset("webdataset", tmp_path / "in", tmp_path / "out")


# --- TFRecord files --------------------------------------------------------------------------------------------------


def write_tfrecords(folder: pathlib.Path, compression: str = "") -> Samples:
    """Writes shards of two splits in ImageNet's convention with TensorFlow; returns the features by key."""
    folder.mkdir()
    expected = {}
    for split, num_shards in (("train", 3), ("validation", 1)):
        for shard in range(num_shards):
            name = f"{split}-{shard:05d}-of-{num_shards:05d}" + (".gz" if compression else "")
            with tf.io.TFRecordWriter(str(folder / name), compression) as writer:
                for index in range(8):
                    seed = len(expected)
                    features = {
                        "image/encoded": image_sets.make_image(seed),
                        "image/class/label": seed % 5 + 1,
                        "image/class/text": f"class {seed % 5}".encode(),
                        "image/filename": f"{seed}.JPEG".encode(),
                        "boxes": [seed / 10, 0.25, 0.5],
                        "big": b"x" * 10_000,
                    }
                    example = tf.train.Example()
                    for key, value in features.items():
                        feature = example.features.feature[key]
                        if isinstance(value, bytes):
                            feature.bytes_list.value.append(value)
                        elif isinstance(value, int):
                            feature.int64_list.value.append(value)
                        else:
                            feature.float_list.value.extend(value)
                    writer.write(example.SerializeToString())
                    expected[f"{name}/{index}"] = {**features, "split": split}
    return expected


TFRECORD_COLUMNS = "columns={image/class/text: {}, image/filename: {}, boxes: {type: float, list: true}}"
TFRECORD_SPEC = {
    **LABEL,
    "image/class/text": tf.io.FixedLenFeature([], tf.string),
    "image/filename": tf.io.FixedLenFeature([], tf.string),
    "boxes": tf.io.VarLenFeature(tf.float32),
}


def check_tfrecords(output: pathlib.Path, expected: Samples, pattern: dict[str, int]) -> None:
    for split, num_shards in pattern.items():
        assert len(list(output.glob(f"{split}-*-of-{num_shards:05d}.tfrecord"))) == num_shards
        found = read_with_tensorflow(output, f"{split}-*", TFRECORD_SPEC)
        assert set(found) == {key for key, each in expected.items() if each["split"] == split}
        for key, record in found.items():
            assert "big" not in record
            for name in ("image/encoded", "image/class/label", "image/class/text", "image/filename"):
                assert record[name] == expected[key][name]
            assert record["boxes"] == [float(np.float32(each)) for each in expected[key]["boxes"]]


def test_tfrecord_preset_changes_the_shards_and_keeps_all_else(tmp_path: pathlib.Path) -> None:
    expected = write_tfrecords(tmp_path / "in")
    shards = "output.num_shards={train: 5, validation: 2}"
    result = preset("tfrecord", tmp_path / "in", tmp_path / "out", TFRECORD_COLUMNS, shards)
    assert result.catalog.counts.written == len(expected) == 32
    check_tfrecords(tmp_path / "out", expected, {"train": 5, "validation": 2})
    keys = {feature.key for feature in result.catalog.features}
    assert "big" not in keys and {"boxes", "image/filename"} <= keys


def test_tfrecord_preset_gives_new_splits_and_keys(tmp_path: pathlib.Path) -> None:
    expected = write_tfrecords(tmp_path / "in")
    overrides = ("source.tfrecord.key=image/filename", "split={by: hash, fractions: {train: 0.5, test: 0.5}}")
    result = preset("tfrecord", tmp_path / "in", tmp_path / "out", *overrides)
    found = {split: read_with_tensorflow(tmp_path / "out", f"{split}-*", LABEL) for split in result.catalog.splits}
    assert set(found) == {"train", "test"}
    by_name = {each["image/filename"].decode(): each for each in expected.values()}
    assert sorted([*found["train"], *found["test"]]) == sorted(by_name)
    for record in [*found["train"].values(), *found["test"].values()]:
        same = by_name[record["image/key"].decode()]
        for name in ("image/encoded", "image/class/label"):
            assert record[name] == same[name]


@pytest.mark.parametrize("encode", ["keep", "png"])
def test_bare_pixels_are_kept_or_encoded(tmp_path: pathlib.Path, encode: str) -> None:
    pictures = np.random.default_rng(0).integers(0, 256, (20, 4, 3, 3), np.uint8)
    with tf.io.TFRecordWriter(str(tmp_path / "train-00000-of-00001")) as writer:
        for label, picture in enumerate([*pictures, pictures[0, :3]]):  # the last one lacks a row
            example = tf.train.Example()
            example.features.feature["image_raw"].bytes_list.value.append(picture.tobytes())
            example.features.feature["label"].int64_list.value.append(label)
            writer.write(example.SerializeToString())
    overrides = ["source.tfrecord.image=image_raw", "source.tfrecord.raw_shape=[4, 3, 3]", "label.column=label"]
    settings = [*overrides, f"image.encode={encode}", "rejects.max_fraction=0.1"]
    preset("tfrecord", tmp_path, tmp_path / "out", *settings)
    (reason,) = datasets.rejects(tmp_path / "out").values()
    assert reason == "truncated"
    spec = {
        "image/encoded": tf.io.FixedLenFeature([], tf.string),
        "image/class/label": tf.io.FixedLenFeature([], tf.int64),
    }
    found = {}
    for example in parsed_records.parse((tmp_path / "out").glob("train-*"), spec):
        data = example["image/encoded"]
        pixels = np.frombuffer(data, np.uint8) if encode == "keep" else np.asarray(Image.open(io.BytesIO(data)))
        found[int(example["image/class/label"])] = pixels.reshape(4, 3, 3)
    np.testing.assert_array_equal([found[label] for label in range(20)], pictures)


def test_dataset_of_imagebeam_is_rewritten_with_names_ids_and_keys(tmp_path: pathlib.Path) -> None:
    image_sets.write_folder(tmp_path / "images", labels=("zebra", "ant", "cow"), per_label=5)
    (tmp_path / "labels.txt").write_text("zebra\nant\ncow\n")
    datasets.make(tmp_path / "images", tmp_path / "one", label={"vocabulary": str(tmp_path / "labels.txt"), "base": 1})
    label = (
        "label={by: column, column: image/class/text, type: class, base: 1, "
        f"vocabulary: {tmp_path / 'one' / 'labels.txt'}}}"
    )
    overrides = ("source.tfrecord.key=image/key", label, "output.num_shards=1")
    preset("tfrecord", tmp_path / "one", tmp_path / "two", *overrides)
    one, two = (
        {each["image/key"]: {k: v for k, v in each.items() if k != "image/filename"} for each in datasets.read(folder)}
        for folder in (tmp_path / "one", tmp_path / "two")
    )
    assert one == two and len(one) == 15
    assert (tmp_path / "two" / "labels.txt").read_text() == "zebra\nant\ncow\n"


def test_record_with_a_flipped_bit_is_a_dead_letter(tmp_path: pathlib.Path) -> None:
    expected = write_tfrecords(tmp_path / "in")
    first = expected["train-00000-of-00003/0"]["image/encoded"]
    data = bytearray((tmp_path / "in" / "train-00000-of-00003").read_bytes())
    start = data.find(first)
    data[start + 100] ^= 1
    (tmp_path / "in" / "train-00000-of-00003").write_bytes(data)
    result = preset("tfrecord", tmp_path / "in", tmp_path / "out", "rejects.max_fraction=0.1")
    assert result.catalog.counts.rejected == {"corrupt": 1}
    (line,) = map(json.loads, (tmp_path / "out" / "rejects.jsonl").read_text().splitlines())
    assert (line["key"], line["stage"], line["reason"]) == ("train-00000-of-00003/0", "list", "corrupt")
    assert "train-00000-of-00003 at byte offset 0: the checksum of a record of" in line["detail"]


def test_broken_length_ends_the_run(tmp_path: pathlib.Path) -> None:
    write_tfrecords(tmp_path / "in")
    path = tmp_path / "in" / "validation-00000-of-00001"
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)
    message = (
        rf"'{path}': the checksum of a record's length .* byte offset 0, after 0 records; .* lost, {len(data):,} bytes"
    )
    with pytest.raises(errors.ConfigError, match=message):
        preset("tfrecord", tmp_path / "in", tmp_path / "out")


@pytest.mark.parametrize("kind", ["webdataset", "tfrecord"])
def test_gzip_gives_the_dataset_that_plain_files_give(tmp_path: pathlib.Path, kind: str) -> None:
    found = []
    for number, name in enumerate(("plain", "zipped")):
        if kind == "webdataset":
            write_webdataset(tmp_path / name, ".tar.gz" if number else ".tar")
        else:
            write_tfrecords(tmp_path / name, "GZIP" if number else "")
        preset(kind, tmp_path / name, tmp_path / f"{name}-out", "output.compression=" + ("gzip" if number else "none"))
        records = read_with_tensorflow(tmp_path / f"{name}-out", "*-of-*", LABEL, gzip=bool(number))
        found.append({key.replace(".gz", ""): each for key, each in records.items()})
    plain, zipped = found
    assert len(plain) == len(zipped) >= 30 and set(plain) == set(zipped)
    for key, record in plain.items():
        for name in ("image/encoded", "image/class/label"):
            assert record[name] == zipped[key][name]


@pytest.mark.parametrize("kind", ["webdataset", "tfrecord"])
def test_snippets_of_the_page_read_what_is_written(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (write_webdataset if kind == "webdataset" else write_tfrecords)(tmp_path / "in")
    preset(kind, tmp_path / "in", tmp_path / "records")
    page = (pathlib.Path(__file__).parents[2] / "docs" / "recipes" / f"{kind}.md").read_text()
    snippets = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(snippets) == 2
    for snippet in snippets:
        names: dict[str, Any] = {}
        exec(snippet, names)
        first = next(iter(names["train"]))
        images, labels = (first["image"], first["label"]) if isinstance(first, dict) else first
        assert images.shape == (10, 224, 224, 3) and labels.shape == (10,)
        assert np.asarray(images).std() > 1


@pytest.mark.parametrize(
    ("overrides", "splits", "key", "expected"),
    [
        pytest.param(["label={by: none}", "columns={txt: {}}"], {"train": 30}, "txt", b"text 7\n", id="captions"),
        pytest.param(["label.column=json.size.w"], {"train": 30}, "image/class/label", 24, id="json"),
        pytest.param(
            ["split={by: index, counts: {validation: 8, train: null}}"],
            {"train": 22, "validation": 8},
            "image/class/label",
            49,
            id="by-index",
        ),
        pytest.param(
            ["columns={txt: {}}", "features.columns/txt=caption"], {"train": 30}, "caption", b"text 7\n", id="key"
        ),
    ],
)
def test_other_shapes_of_the_page(
    tmp_path: pathlib.Path, overrides: list[str], splits: dict[str, int], key: str, expected: Any
) -> None:
    write_webdataset(tmp_path / "in")
    result = preset("webdataset", tmp_path / "in", tmp_path / "out", *overrides)
    assert {name: split.num_examples for name, split in result.catalog.splits.items()} == splits
    found = {each["image/key"]: each for split in splits for each in datasets.read(tmp_path / "out", split)}
    assert found[b"set-train-000000.tar/n1/000007"][key] == expected
    if "validation" in splits:
        assert sorted(datasets.keys(tmp_path / "out", "validation"))[-1].endswith("n2/000005")
        assert {key.rpartition("/")[2] for key in datasets.keys(tmp_path / "out", "validation")} == {
            f"{number:06d}" for number in range(8)
        }


def test_tars_in_folders_of_splits(tmp_path: pathlib.Path) -> None:
    for number, split in enumerate(("train", "test")):
        members = [("a.jpg", image_sets.make_image(number)), ("a.cls", b"1")]
        tars.write_tar(tmp_path / "in" / split / "0000.tar", members)
    preset("webdataset", tmp_path / "in", tmp_path / "out", "split.by=directory")
    for number, split in enumerate(("train", "test")):
        (record,) = datasets.read(tmp_path / "out", split)
        assert (record["image/key"], record["image/encoded"]) == (
            f"{split}/0000.tar/a".encode(),
            image_sets.make_image(number),
        )


# --- what is no such folder ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "expected"), [("webdataset", "ends in .tar"), ("tfrecord", "with .tfrecord in its")])
def test_input_that_is_no_such_file_is_refused_at_once(tmp_path: pathlib.Path, name: str, expected: str) -> None:
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(errors.ConfigError, match=f"notes.txt' is neither a folder nor a file .*{expected}"):
        preset(name, tmp_path / "notes.txt", tmp_path / "out")
    with pytest.raises(errors.ConfigError, match="cannot be read"):
        preset(name, tmp_path / "nothing", tmp_path / "out")
    (tmp_path / "empty").mkdir()
    with pytest.raises(errors.ConfigError, match=r"there is no .* \(passed over: nothing\); check --input"):
        preset(name, tmp_path / "empty", tmp_path / "out")
