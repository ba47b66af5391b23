"""Images stored as bare pixels, read in every way."""

from __future__ import annotations

import dataclasses
import logging
import pathlib
import re
import sys
import tracemalloc
from typing import Any

import numpy as np
import pytest
from PIL import Image

import imagebeam
from imagebeam import catalog as catalog_lib
from imagebeam import errors, features
from imagebeam.features import ENCODED
from imagebeam.pipelines import inspect_dataset, verify_dataset
from tests import error_texts, image_sets
from tests.unit.imagebeam.reader import written

tf = pytest.importorskip("tensorflow")

pytestmark = pytest.mark.usefixtures("unchanged_graphs")

KINDS = [
    pytest.param(features.BYTES, id="bytes"),
    pytest.param(features.INT64, id="int64-list"),
    pytest.param(features.FLOAT, id="float-list"),
]
WHOLE: dict[str, Any] = {"image_size": None, "crop": None, "shuffle": None, "num_epochs": 1}
MNIST = {"image/encoded": "image_raw", "image/class/label": "label", "image/channels": "depth"}
MNIST |= {"image/height": "height", "image/width": "width"}


def picture(index: int) -> np.ndarray:
    """Pixels of 1 to 4 channels and of many sizes."""
    rng = np.random.default_rng(index)
    return rng.integers(0, 256, (9 + index % 4, 7 + index % 3, 1 + index % 4), np.uint8)


PICTURES = [picture(index) for index in range(13)]


def rgb(stored: np.ndarray) -> np.ndarray:
    return stored[:, :, :3] if stored.shape[2] >= 3 else stored[:, :, :1].repeat(3, axis=2)


def spec_of(kind: str) -> tuple[features.Feature, ...]:
    image = features.Feature(ENCODED, ENCODED, kind, kind != features.BYTES)
    return (*written.IMAGE[:-1], image)


def make(folder: pathlib.Path, kind: str = features.BYTES, **options: Any) -> imagebeam.ImageDataset:
    examples = [written.raw_values(each, index, kind) for index, each in enumerate(PICTURES)]
    return written.write(folder / "out", options.pop("wanted", spec_of(kind)), examples, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_pixels_are_read_as_they_were_stored(tmp_path: pathlib.Path, kind: str) -> None:
    dataset = make(tmp_path, kind)
    examples = list(dataset.as_tf("train", **WHOLE).as_numpy_iterator())
    source = dataset.as_grain("train")
    assert len(examples) == len(source) == len(PICTURES)
    for index, stored in enumerate(PICTURES):
        np.testing.assert_array_equal(examples[index]["image"], rgb(stored))
        image = source[index]["image"]
        np.testing.assert_array_equal(image, rgb(stored))
        assert (image.dtype, image.flags.writeable) == (np.uint8, True)
    as_stored = dataset.as_grain("train", decode=False)[3]["image"]
    if kind == features.BYTES:
        assert as_stored == PICTURES[3].tobytes()
    else:
        assert as_stored.tolist() == PICTURES[3].ravel().tolist()


@pytest.fixture(scope="module")
def encoded(tmp_path_factory: pytest.TempPathFactory) -> imagebeam.ImageDataset:
    """The pictures as PNG files."""
    files = []
    for index, stored in enumerate(PICTURES):
        encoded = image_sets.save(Image.fromarray(rgb(stored)))
        files.append({**written.raw_values(stored, index), ENCODED: encoded, "image/format": b"png"})
    return written.write(tmp_path_factory.mktemp("encoded") / "png", written.IMAGE, files)


# Pixels are one array before they are cropped, however they were stored.
@pytest.mark.parametrize(
    ("crop", "kind"), [("random", features.BYTES), ("center", features.INT64), ("squash", features.FLOAT)]
)
def test_pixels_are_cropped_resized_and_flipped_like_decoded_ones(
    tmp_path: pathlib.Path, encoded: imagebeam.ImageDataset, crop: str, kind: str
) -> None:
    options: dict[str, Any] = {"image_size": (8, 6), "crop": crop, "flip": True, "pad": True, "num_epochs": 1}
    options["features"] = ("image/key",)
    expected = list(encoded.as_numpy("train", 4, **options))
    for one, two in zip(make(tmp_path, kind).as_numpy("train", 4, **options), expected, strict=True):
        assert one["image"].shape == (4, 8, 6, 3)
        for name, value in one.items():
            np.testing.assert_array_equal(value, two[name])


def test_renamed_keys_of_mnist_are_read(tmp_path: pathlib.Path) -> None:
    kinds = dict.fromkeys(MNIST, features.INT64) | {ENCODED: features.BYTES}
    wanted = [features.Feature(key, source, kinds[source]) for source, key in MNIST.items()]
    digits = [np.random.default_rng(index).integers(0, 256, (28, 28, 1), np.uint8) for index in range(10)]
    examples = [{**written.raw_values(each, index), features.LABEL: index} for index, each in enumerate(digits)]
    dataset = written.write(tmp_path / "out", wanted, examples, labels=[str(digit) for digit in range(10)])
    batch = next(dataset.as_numpy("train", 10, image_size=28, crop="squash", shuffle=None, num_epochs=1))
    np.testing.assert_array_equal(batch["image"], np.stack(digits).repeat(3, axis=3))
    assert batch["label"].tolist() == list(range(10))
    np.testing.assert_array_equal(dataset.as_grain("train")[7]["image"], digits[7].repeat(3, axis=2))
    parsed = tf.io.parse_single_example(written.stored_in(tmp_path / "out")[3], dataset.feature_spec)
    assert parsed["image_raw"].numpy() == digits[3].tobytes()


@pytest.mark.parametrize(
    ("config", "is_raw"),
    [
        pytest.param({"image": {"encode": "raw"}}, True, id="raw"),
        pytest.param({"image": {"encode": "keep"}, "source": {"by": "idx"}}, True, id="idx"),
        pytest.param({"image": {"encode": "png"}, "source": {"by": "idx"}}, False, id="idx-as-png"),
        pytest.param({}, False, id="unknown"),
    ],
)
def test_config_decides_about_pixels_if_the_statistics_are_lost(
    tmp_path: pathlib.Path, config: dict[str, Any], is_raw: bool
) -> None:
    dataset = make(tmp_path, config=config)
    (tmp_path / "out" / catalog_lib.STATISTICS_FILE).unlink()
    again = imagebeam.open_dataset(dataset.directory)
    assert again.records("train", imagebeam.ReadOptions()).is_raw == is_raw
    if is_raw:
        np.testing.assert_array_equal(again.as_grain("train")[7]["image"], rgb(PICTURES[7]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dropped", ["image/height", "image/channels"])
def test_pixels_without_a_shape_are_refused(tmp_path: pathlib.Path, kind: str, dropped: str) -> None:
    wanted = [feature for feature in spec_of(kind) if feature.source != dropped]
    dataset = make(tmp_path, kind, wanted=wanted)
    code = "pixels-no-shape"
    for ask in (
        lambda: dataset.as_tf("train", 4),
        lambda: dataset.as_grain("train"),
        lambda: verify_dataset.verify(dataset.directory, decode=True),
        lambda: inspect_dataset.save_images(dataset.directory, dataset.catalog, "train", 1, str(tmp_path / "saved")),
    ):
        with error_texts.raises(code):
            ask()
    assert verify_dataset.verify(dataset.directory).problems == ()
    assert dataset.as_grain("train", decode=False)[0]["image/key"] == b"0"


def test_pixels_need_no_pillow(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    np.testing.assert_array_equal(make(tmp_path).as_grain("train")[2]["image"], rgb(PICTURES[2]))


BROKEN = [
    pytest.param(features.BYTES, {"image/height": 10}, r"63 values, the example says 10 x 7 pixels of 1", id="height"),
    pytest.param(features.BYTES, {"image/channels": 0}, "the example says 9 x 7 pixels of 0 channels", id="no-channel"),
    pytest.param(features.BYTES, {ENCODED: b"", "image/height": 0}, "0 values.* says 0 x 7 pixels", id="empty"),
    pytest.param(features.INT64, {ENCODED: (256,) * 63}, "a pixel is 256, expected 0 to 255", id="above"),
    pytest.param(features.FLOAT, {ENCODED: (-1.0,) * 63}, "a pixel is -1.0, expected 0 to 255", id="below"),
    pytest.param(features.FLOAT, {ENCODED: (np.inf,) * 63}, "a pixel is inf, expected 0 to 255", id="inf"),
    pytest.param(features.FLOAT, {ENCODED: (np.nan,) * 63}, "a pixel is nan, expected 0 to 255", id="nan"),
    pytest.param(features.FLOAT, {ENCODED: (255.5,) * 63}, "a pixel is 255.5, expected 0 to 255", id="above-by-half"),
    pytest.param(features.INT64, {ENCODED: ()}, "0 values, the example says 9 x 7 pixels", id="empty-list"),
]


@pytest.mark.parametrize(("kind", "change", "message"), BROKEN)
def test_pixels_that_do_not_fit_are_an_error_of_the_source_and_the_commands(
    tmp_path: pathlib.Path, kind: str, change: dict[str, Any], message: str
) -> None:
    examples = [written.raw_values(PICTURES[0], index, kind) for index in range(5)]
    examples[3] |= change
    dataset = written.write(tmp_path / "out", spec_of(kind), examples, num_shards=1)
    where = r"record 3 of shard .*, key '3', byte offset \d+: "
    with pytest.raises(errors.ExampleError, match=f"{where}.*{message}"):
        dataset.as_grain("train")[3]
    [problem] = verify_dataset.verify(dataset.directory, decode=True).problems
    assert problem.shard == "train-00000-of-00001.tfrecord"
    assert re.search(f"record 3: image '3': .*{message}", problem.detail)
    with error_texts.raises("example-broken"):
        inspect_dataset.save_images(dataset.directory, dataset.catalog, "train", 5, str(tmp_path / "saved"))


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        pytest.param(features.BYTES, {"image_size": 6, "crop": "squash", "batch_size": 4}, id="bytes-squash"),
        pytest.param(features.INT64, {"image_size": 6, "crop": "random", "batch_size": 4}, id="int64-list-random"),
        pytest.param(features.FLOAT, {"image_size": None, "crop": None}, id="float-list-single-examples"),
    ],
)
def test_pixels_that_do_not_fit_are_an_error_or_skipped_by_tensorflow(
    tmp_path: pathlib.Path, kind: str, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    changes = [each.values[1] for each in BROKEN if each.values[0] == kind]
    sound = {0, 1, 2, len(changes) + 3}
    examples = [written.raw_values(PICTURES[0], index, kind) for index in range(len(changes) + 4)]
    for index, change in enumerate(changes, 3):
        examples[index] |= change
    dataset = written.write(tmp_path / "out", spec_of(kind), examples, num_shards=len(examples))
    undecodable = r"byte offset 0: the image cannot be decoded"
    options = {**options, "num_epochs": 1, "shuffle": None, "drop_remainder": True}
    with pytest.raises(tf.errors.OpError, match=f"record 0 of shard .*, key '3', {undecodable}"):
        list(dataset.as_tf("train", **options))
    options |= {"on_error": "skip", "features": ("image/key",)}
    with caplog.at_level(logging.WARNING):  # one for each shard, which has one record
        kept = list(dataset.as_tf("train", **options).as_numpy_iterator())
    keys = np.hstack([each["image/key"] for each in kept]).tolist()
    assert set(keys) == {f"{index}".encode() for index in sound}
    for index in range(len(examples)):
        pattern = f"skipped record 0 of shard .*train-{index:05d}-.*, key '{index}', {undecodable}"
        assert bool(re.search(pattern, caplog.text)) == (index not in sound)


@pytest.mark.parametrize("kind", [features.INT64, features.FLOAT])
def test_verify_of_large_lists_of_numbers_needs_little_memory(tmp_path: pathlib.Path, kind: str) -> None:
    large = np.random.default_rng(0).integers(0, 256, (800, 600, 3), np.uint8)  # as Python's floats 46 MB
    examples = [written.raw_values(large, index, kind) for index in range(2)]
    dataset = written.write(tmp_path / "out", spec_of(kind), examples, num_shards=1)
    del examples
    tracemalloc.start()
    try:
        assert verify_dataset.verify(dataset.directory, decode=True).problems == ()
        assert tracemalloc.get_traced_memory()[1] < 16 * large.size + (8 << 20)
    finally:
        tracemalloc.stop()


# --- commands --------------------------------------------------------------------------------------------------------


# --- normalising -----------------------------------------------------------------------------------------------------


def test_counted_mean_and_deviation_are_used(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    counted = {"images": 13, "mean": [10, 20, 30], "std": [2, 4, 0]}
    dataset = make(tmp_path, statistics={"pixels": counted})
    options: dict[str, Any] = {"crop": "squash", "image_size": 8, "flip": False, "num_epochs": 1, "shuffle": None}
    stored = next(dataset.as_numpy("train", 4, **options))["image"]
    with caplog.at_level(logging.INFO, "imagebeam.dataset"):
        found = next(dataset.as_numpy("train[:50%]", 4, dtype="float32", normalize="dataset", **options))["image"]
    np.testing.assert_allclose(found, (stored - np.float32([10, 20, 30])) / np.float32([2, 4, 1e-3]), rtol=1e-4)
    assert "mean 10.00, 20.00, 30.00 and std 2.00, 4.00, 0.00, of all 13 images of train" in caplog.text


def test_mean_and_deviation_are_measured_if_they_were_not_counted(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    dataset = make(tmp_path)
    with caplog.at_level(logging.INFO, "imagebeam.dataset"):
        dataset.as_tf("train", 4, dtype="float32", normalize="dataset")
    assert "measured on 13 examples of train; convert with statistics.pixels=true" in caplog.text
    mean, std = dataset.pixel_statistics("train")
    assert np.abs(np.array(mean) - 127).max() < 15
    assert min(std) > 20


def split_in_two(tmp_path: pathlib.Path, names: tuple[str, str]) -> imagebeam.ImageDataset:
    """Writes the first shard of `make` as a split of dark images, and the second as a split of bright images."""
    examples = [
        written.raw_values(np.full((8, 8, 3), 40 + 10 * (index % 3) + 100 * (index > 4), np.uint8), index)
        for index in range(10)
    ]
    dataset = written.write(tmp_path / "out", written.IMAGE, examples, config={"image": {"encode": "raw"}})
    shards = dataset.catalog.splits["train"].shards
    splits = {name: catalog_lib.Split((shard,)) for name, shard in zip(names, shards)}
    catalog = dataclasses.replace(dataset.catalog, splits=splits)
    (tmp_path / "out" / "catalog.json").write_text(catalog.to_json())
    (tmp_path / "out" / "statistics.json").unlink()
    return imagebeam.open_dataset(str(tmp_path / "out"))


def test_every_split_is_normalised_with_the_train_split_which_is_measured_once(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    dataset = split_in_two(tmp_path, ("test", "train"))
    options: dict[str, Any] = {"crop": "squash", "image_size": 8, "num_epochs": 1, "shuffle": None}
    mean, std = (np.float32(each) for each in dataset.pixel_statistics("train"))
    with caplog.at_level(logging.INFO, "imagebeam.dataset"):
        for split in ("train", "test", "test[:2]"):
            stored = next(dataset.as_numpy(split, 2, **options))["image"]
            found = next(dataset.as_numpy(split, 2, dtype="float32", normalize="dataset", **options))["image"]
            np.testing.assert_allclose(found, (stored - mean) / std, rtol=1e-4, atol=1e-4)
    assert caplog.text.count("measured on 5 examples of train") == 1


def test_dataset_without_a_train_split_is_not_measured(tmp_path: pathlib.Path) -> None:
    dataset = split_in_two(tmp_path, ("test", "val"))
    with error_texts.raises("normalize-no-train"):
        dataset.as_tf("val", 2, shuffle=None, dtype="float32", normalize="dataset")
    assert dataset.as_tf("val", 2, shuffle=None, dtype="float32", normalize=dataset.pixel_statistics("val")) is not None
