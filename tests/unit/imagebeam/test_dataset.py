"""Reads datasets that convert wrote, with tf.data."""

from __future__ import annotations

import itertools
import logging
import os
import pathlib
import re
import shutil
import threading
from typing import Any

import numpy as np
import pytest
from PIL import Image

import imagebeam
from imagebeam import errors, example, features, records
from imagebeam.reader import batch_stream, image_decoder, option_values, record_parser, whole_images
from tests import case_tables, datasets, error_texts, image_sets, patience, pictures
from tests.unit.imagebeam.reader import written
from tests.unit.imagebeam.reader.feeding import keys_in

tf = pytest.importorskip("tensorflow")

NUM_IMAGES = 83  # of three classes, in five shards that are not equally long


def draw(path: pathlib.Path, index: int) -> None:
    """Saves an image whose color and size depend on its index."""
    path.parent.mkdir(parents=True, exist_ok=True)
    size = (40 + index % 7 * 5, 30 + index % 5 * 9)
    Image.new("RGB", size, (index * 3 % 256, 128, 255 - index * 3 % 256)).save(path, quality=95)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    root = tmp_path_factory.mktemp("reader")
    for index in range(NUM_IMAGES):
        draw(root / "images" / ["cat", "cow", "dog"][index % 3] / f"{index}.jpg", index)
    datasets.make(root / "images", root / "out", output={"num_shards": 5})
    return root / "out"


@pytest.fixture(scope="module")
def opened(folder: pathlib.Path) -> imagebeam.ImageDataset:
    return imagebeam.open_dataset(str(folder))


@pytest.fixture(params=["native", "pillow"], autouse=True)
def decoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Runs each test with both decoders; without the code in C, Pillow decodes. "any" is the installed one."""
    if request.param == "pillow":
        for module in (image_decoder, record_parser, whole_images):
            monkeypatch.setattr(module, "_native", None)
    elif request.param == "native" and image_decoder.library() is None and os.environ.get("IMAGEBEAM_CI") != "1":
        pytest.skip("the decoder in C was not built here: docs/reader-speed.md lists what it needs")
    return request.param


# For what is decided before either decoder sees an example: TensorFlow takes 0.2 s to build each graph.
any_decoder = pytest.mark.parametrize("decoder", ["any"], indirect=True)


@pytest.fixture
def copy(folder: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    """A copy of the dataset that a test may damage."""
    return pathlib.Path(shutil.copytree(folder, tmp_path / "out"))


def read(dataset: imagebeam.ImageDataset, split: str = "train", batch_size: int = 8, **options: Any) -> list[Any]:
    options = {"image_size": 16, "features": ("image/key",), "num_epochs": 1, **options}
    return list(dataset.as_tf(split, batch_size, **options).as_numpy_iterator())


def test_batches_have_static_shapes_and_the_types_asked_for(opened: imagebeam.ImageDataset) -> None:
    spec = opened.as_tf("train", 8, image_size=(24, 32), dtype="bfloat16", features=("image/key",)).element_spec
    assert spec["image"] == tf.TensorSpec([8, 24, 32, 3], tf.bfloat16)
    assert spec["label"] == tf.TensorSpec([8], tf.int32)
    assert spec["image/key"] == tf.TensorSpec([8], tf.string)
    assert set(spec) == {"image", "label", "image/key"}
    image, label = opened.as_tf("train", 8, supervised=True).element_spec
    assert (image.shape, label.shape) == ((8, 224, 224, 3), (8,))


def test_labels_and_pixels_are_those_of_the_image(opened: imagebeam.ImageDataset) -> None:
    for batch in read(opened, batch_size=1):
        (key,) = keys_in([batch])
        index = int(key.split("/")[1].removesuffix(".jpg"))
        assert opened.labels[batch["label"][0]] == key.split("/")[0]
        expected = (index * 3 % 256, 128, 255 - index * 3 % 256)
        assert np.abs(batch["image"].astype(int) - expected).max() <= 6


@pytest.mark.parametrize("shuffle", ["stream", "global"])
def test_epochs_differ_and_the_same_seed_gives_the_same_batches(opened: imagebeam.ImageDataset, shuffle: str) -> None:
    first, again = (read(opened, shuffle=shuffle, num_epochs=2, drop_remainder=False) for _ in range(2))
    assert all((one["image"] == two["image"]).all() for one, two in zip(first, again, strict=True))
    keys = keys_in(first)
    assert sorted(keys[:NUM_IMAGES]) == sorted(keys[NUM_IMAGES:])
    assert keys[:NUM_IMAGES] != keys[NUM_IMAGES:]
    assert keys_in(read(opened, shuffle=shuffle, seed=1)) != keys[:80]


@pytest.mark.parametrize("shuffle", ["stream", "global"])
def test_iterator_of_tensorflow_is_saved_and_restored_by_a_checkpoint(
    opened: imagebeam.ImageDataset, tmp_path: pathlib.Path, shuffle: str
) -> None:
    dataset = opened.as_tf("train", 5, image_size=16, features=("image/key",), shuffle=shuffle)
    iterator = iter(dataset)
    for _ in range(20):
        next(iterator)
    path = tf.train.Checkpoint(iterator=iterator).save(str(tmp_path / "checkpoint"))
    expected = [next(iterator)["image/key"].numpy().tolist() for _ in range(5)]
    resumed = iter(dataset)
    tf.train.Checkpoint(iterator=resumed).restore(path)
    assert [next(resumed)["image/key"].numpy().tolist() for _ in range(5)] == expected


@any_decoder
def test_normalised_pixels_have_mean_zero_and_deviation_one(opened: imagebeam.ImageDataset) -> None:
    options: dict[str, Any] = {"crop": "squash", "image_size": 64, "flip": False, "dtype": "float32"}
    batches = read(opened, normalize="dataset", **options)
    pixels = np.concatenate([batch["image"] for batch in batches])
    assert np.abs(pixels.mean((0, 1, 2))).max() < 0.15
    assert np.abs(pixels.std((0, 1, 2))[[0, 2]] - 1).max() < 0.1
    raw = read(opened, **options)[0]["image"]
    given = read(opened, normalize=((10.0, 20.0, 30.0), (2.0, 4.0, 8.0)), **options)[0]["image"]
    assert np.allclose(given, (raw - [10, 20, 30]) / [2, 4, 8], atol=1e-4)
    imagenet = read(opened, normalize="imagenet", **options)[0]["image"]
    expected = (raw - option_values.IMAGENET_MEAN) / np.array(option_values.IMAGENET_STD)
    assert np.allclose(imagenet, expected, atol=1e-4)


def break_record(folder: pathlib.Path, index: int, undecodable: bool = False) -> str:
    """Damages record `index` of the first shard; returns its key."""
    path = folder / "train-00000-of-00005.tfrecord"
    offsets = records.decode_index((folder / "index" / "train-00000-of-00005.index").read_bytes())
    start, end = offsets[index] + records.HEADER_BYTES, offsets[index + 1] - records.FOOTER_BYTES
    content = bytearray(path.read_bytes())
    data = content[start:end]
    key = example.find_bytes(bytes(data), "image/key").decode()
    if undecodable:  # the record is whole, its JPEG is not: the start-of-frame marker is gone
        marker = data.rindex(b"\xff\xc0")
        data[marker : marker + 2] = b"\x00\x00"
        content[start:end] = data
        content[end : end + 4] = records.mask_crc(records.extend_crc(0, bytes(data))).to_bytes(4, "little")
    else:
        content[end - 200] ^= 1
    path.write_bytes(content)
    return key


@pytest.mark.parametrize("shuffle", ["stream", "global", None])
@pytest.mark.parametrize(
    ("undecodable", "detail"),
    [(False, "the checksum of a record of .* bytes does not match"), (True, "the image cannot be decoded")],
    ids=["checksum", "undecodable"],
)
def test_broken_record_is_named_by_shard_record_key_and_offset(
    copy: pathlib.Path, shuffle: str | None, undecodable: bool, detail: str
) -> None:
    key = break_record(copy, 3, undecodable)
    dataset = imagebeam.open_dataset(str(copy))
    message = rf"record 3 of shard {copy}/train-00000-of-00005.tfrecord, key '{key}', byte offset \d+: {detail}"
    with pytest.raises(errors.ExampleError, match=f"^{message}") as caught:
        list(dataset.as_numpy("train", 8, image_size=16, shuffle=shuffle, num_epochs=1))
    with pytest.raises(tf.errors.OpError, match=re.escape(str(caught.value))):
        list(dataset.as_tf("train", 8, image_size=16, shuffle=shuffle, num_epochs=1))


@pytest.mark.parametrize("decoder", ["native", "pillow"])
@pytest.mark.parametrize("feed", ["tf", "numpy"])
def test_reader_that_goes_on_after_an_error_blames_no_sound_record(copy: pathlib.Path, feed: str, decoder: str) -> None:
    key = break_record(copy, 3, undecodable=True)
    dataset = imagebeam.open_dataset(str(copy))
    options = {"image_size": 16, "shuffle": None, "num_epochs": 1, "decoder": decoder}
    batches = iter(dataset.as_tf("train", 8, **options) if feed == "tf" else dataset.as_numpy("train", 8, **options))
    named = []
    for _ in range(4):
        try:
            next(batches)
        except StopIteration:
            break
        except (errors.ExampleError, tf.errors.OpError) as e:
            named += re.findall(r"record \d+ of shard .*, key '(\w[^']*)'", str(e))
    assert set(named) == {key}


def test_broken_last_record_is_named_too(copy: pathlib.Path) -> None:
    dataset = imagebeam.open_dataset(str(copy))
    keys = keys_in(read(dataset, "train[:16]", shuffle=None))
    assert keys[15:] == [break_record(copy, 15, undecodable=True)]
    with pytest.raises(tf.errors.OpError, match=rf"record 15 of shard .*, key '{keys[15]}'"):
        read(dataset, "train[:16]", shuffle=None)


def test_skipped_examples_are_counted_and_logged_by_shard(copy: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    broken = {break_record(copy, 3), break_record(copy, 7, undecodable=True)}
    dataset = imagebeam.open_dataset(str(copy))
    everything = set(keys_in(read(imagebeam.open_dataset(str(copy)), on_error="skip", drop_remainder=False)))
    assert len(everything) == NUM_IMAGES - 2
    assert not everything & broken
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        batches = read(dataset, on_error="skip", drop_remainder=False, pad=True, shuffle=None)
    assert sum(batch["mask"].sum() for batch in batches) == NUM_IMAGES - 2
    assert len(batches) == 11
    warnings = [record.message for record in caplog.records if "skipped" in record.message]
    assert len(warnings) == 1
    assert "record 3 of shard" in warnings[0]


def test_decoder_is_the_requested_one_or_one_that_can_read_the_split(
    opened: imagebeam.ImageDataset, decoder: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    native, pillow, chosen = (
        lambda each=each: read(opened, shuffle=None, crop="squash", flip=False, decoder=each)[0]["image"]
        for each in ("native", "pillow", "auto")
    )
    if decoder == "pillow":
        with error_texts.raises("decoder-cannot-read"):
            native()
        assert (chosen() == pillow()).all()
    else:
        assert (chosen() == native()).all()
        options = imagebeam.ReadOptions(batch_size=8)
        assert image_decoder.ImageDecoder(opened.records("train", options), options, 1).is_native
        png = {features.ENCODED: image_sets.save(pictures.photo(40, 30)), "image/format": b"png"}
        mixed = written.write(tmp_path / "out", written.IMAGE, [written.jpeg_values(0) | png, written.jpeg_values(1)])
        assert read(mixed, batch_size=2)[0]["image"].shape == (2, 16, 16, 3)
        monkeypatch.setattr(image_decoder._native, "DECODES_PNG", 0)
        with error_texts.raises("decoder-cannot-read"):
            read(mixed, batch_size=2, decoder="native")
        assert read(mixed, batch_size=2)[0]["image"].shape == (2, 16, 16, 3)


@pytest.mark.parametrize(("threads", "calls"), [(1, 2), (2, 2), (23, 2), (24, 3), (64, 8), (200, 8)])
def test_many_threads_get_more_batches_at_once(threads: int, calls: int) -> None:
    assert batch_stream.num_calls(True, threads) == calls
    assert batch_stream.num_calls(False, threads) == 8


def test_tf_data_tunes_nothing_and_further_stages_still_run_in_parallel(opened: imagebeam.ImageDataset) -> None:
    dataset = opened.as_tf("train", 2, image_size=16, num_epochs=1, threads=2)
    assert dataset.options().autotune.enabled is False
    first_two, numbers = threading.Barrier(2), itertools.count()

    def meet(label: np.ndarray) -> np.ndarray:
        if next(numbers) < 2:
            first_two.wait(patience.HANG_SEC)  # for ever if one call waits for the end of the other
        return label

    labels = dataset.map(
        lambda batch: tf.numpy_function(meet, [batch["label"]], tf.int32), num_parallel_calls=tf.data.AUTOTUNE
    )
    assert len(list(labels.prefetch(tf.data.AUTOTUNE))) == len(list(dataset)) > 1


@any_decoder
def test_options_that_do_not_fit_are_refused_before_anything_is_read(opened: imagebeam.ImageDataset) -> None:
    for split, options, code in [
        ("test", {}, "split-unknown"),
        ("train[5:5]", {}, "split-empty"),
        ("train[x]", {}, "split-unreadable"),
        ("train", {"features": ("nose",)}, "feature-unknown"),
        ("train", {"num_classes": 2}, "labels-beyond-model"),
        ("train", {"num_classes": 3, "label_base": 1}, "labels-beyond-model"),
        ("train[:2]", {"process_index": 0, "process_count": 3}, "process-no-examples"),
        ("train", {"state": imagebeam.ReaderState(5, 0, 0)}, "state-mismatch"),
    ]:
        with case_tables.named(split, options, code), error_texts.raises(code):
            opened.as_tf(split, **{"batch_size": 8, **options})


@pytest.mark.parametrize("decoder", ["pillow"], indirect=True)  # the one that reads PNG
@pytest.mark.parametrize("dropped", [(), ("image/height", "image/width")], ids=["stored-size", "no-size"])
def test_pictures_of_all_formats_and_colours_come_as_rgb(tmp_path: pathlib.Path, dropped: tuple[str, ...]) -> None:
    colours = {"RGB": (200, 100, 50), "L": 90, "RGBA": (200, 100, 50, 255), "P": 3, "LA": (90, 255)}
    examples = []
    for mode, image_format in [*((mode, "PNG") for mode in colours), ("RGB", "JPEG"), ("L", "JPEG")]:
        encoded = image_sets.save(Image.new(mode, (50, 40), colours[mode]), image_format)
        values = {features.ENCODED: encoded, "image/format": image_format.lower().encode()}
        examples.append(written.jpeg_values(0, 50, 40) | values | {"image/key": mode.encode()})
    wanted = [feature for feature in written.IMAGE if feature.source not in dropped]
    dataset = written.write(tmp_path / "out", wanted, examples)
    for batch in read(dataset, batch_size=1):
        [mode] = keys_in([batch])
        if mode != "P":
            colour = (200, 100, 50) if mode.startswith("RGB") else (90, 90, 90)
            assert np.abs(batch["image"].astype(int) - colour).max() <= 4
    shapes = {
        each["image"].shape
        for each in dataset.as_tf("train", image_size=None, crop=None, num_epochs=1).as_numpy_iterator()
    }
    assert shapes == {(40, 50, 3)}


@pytest.fixture(scope="module")
def based_on_one(tmp_path_factory: pytest.TempPathFactory) -> imagebeam.ImageDataset:
    examples = [written.jpeg_values(index) | {features.LABEL: 1 + index % 2} for index in range(6)]
    folder = tmp_path_factory.mktemp("based-on-one") / "out"
    return written.write(folder, (*written.IMAGE, written.LABEL), examples, labels=("cat", "dog"), label_base=1)


def test_labels_of_base_one_come_from_zero(based_on_one: imagebeam.ImageDataset) -> None:
    for base in (0, 1):
        labels = np.concatenate([batch["label"] for batch in read(based_on_one, batch_size=2, label_base=base)])
        assert sorted(labels.tolist()) == [base] * 3 + [base + 1] * 3


@pytest.fixture(scope="module")
def unlabelled(tmp_path_factory: pytest.TempPathFactory) -> imagebeam.ImageDataset:
    examples = [written.jpeg_values(index) for index in range(4)]
    return written.write(tmp_path_factory.mktemp("unlabelled") / "out", written.IMAGE, examples)


@any_decoder
def test_dataset_without_labels_gives_only_images(unlabelled: imagebeam.ImageDataset) -> None:
    assert set(unlabelled.as_tf("train", 2, image_size=16).element_spec) == {"image"}
    with error_texts.raises("dataset-no-labels"):
        unlabelled.as_tf("train", 2, supervised=True)
    with error_texts.raises("dataset-no-classes"):
        unlabelled._read_labels("train")


def test_examples_in_any_order_are_complete(opened: imagebeam.ImageDataset) -> None:
    keys = keys_in(read(opened, deterministic=False, drop_remainder=False))
    assert len(keys) == len(set(keys)) == NUM_IMAGES


@any_decoder
def test_feature_spec_parses_every_record(opened: imagebeam.ImageDataset, folder: pathlib.Path) -> None:
    files = sorted(str(path) for path in folder.glob("train-*"))
    parsed = [tf.io.parse_single_example(record, opened.feature_spec) for record in tf.data.TFRecordDataset(files)]
    assert len(parsed) == NUM_IMAGES
    assert {each["image/key"].numpy().decode() for each in parsed} == set(keys_in(read(opened, drop_remainder=False)))
