"""Images of other types than 8 bits: what is stored and what every way of reading returns, against NumPy."""

from __future__ import annotations

import itertools
import json
import pathlib
from typing import Any

import jax
import numpy as np
import pytest
import tensorflow as tf

import imagebeam
from imagebeam.pipelines import convert, inspect_dataset, verify_dataset
from imagebeam.pipelines.config import model as config_lib
from tests import error_texts, number_files

SIZE, HALF = (24, 32), (12, 16)
COUNT = 3
PRODUCT = [
    (dtype, encode, bands, is_resized)
    for dtype, encode, bands, is_resized in itertools.product(
        ("uint8", "uint16", "float32"), ("png", "raw"), (1, 3, 4, 13), (False, True)
    )
    if encode == "raw" or (dtype != "float32" and bands in (1, 3))
]


def run(tmp_path: pathlib.Path, images: list[np.ndarray], *overrides: str) -> imagebeam.ImageDataset:
    """Converts images, and returns the dataset."""
    number_files.write_folder(tmp_path / "in", images)
    given = [f"source.uri={tmp_path / 'in'}", f"output.uri={tmp_path / 'out'}", "output.num_shards=1", *overrides]
    convert.convert(config_lib.load_config(None, given), workers=1)
    return imagebeam.open_dataset(str(tmp_path / "out"))


def by_key(dataset: imagebeam.ImageDataset, **options: Any) -> dict[bytes, np.ndarray]:
    """Reads all images in batches of NumPy, by the number in their key."""
    options = {"num_epochs": 1, "shuffle": None, "pad": False, "features": ["image/key"], "image_size": SIZE, **options}
    batches = list(dataset.as_numpy("train", 2, **options))
    keys, images = (np.concatenate([batch[name] for batch in batches]) for name in ("image/key", "image"))
    return dict(zip(keys.tolist(), images, strict=True))


def as_read(stored: np.ndarray, dtype: str, encode: str) -> np.ndarray:
    """Returns an image as it is read: pictures of 8 bits are always RGB."""
    is_picture = dtype == "uint8" and encode == "png"
    return np.repeat(stored, 3, axis=2) if is_picture and stored.shape[2] == 1 else stored


@pytest.mark.parametrize(("dtype", "encode", "bands", "is_resized"), PRODUCT)
def test_every_type_is_stored_and_read_exactly(
    tmp_path: pathlib.Path, dtype: str, encode: str, bands: int, is_resized: bool
) -> None:
    images = [number_files.make_numbers(dtype, bands, seed) for seed in range(COUNT)]
    chosen = list(range(bands, 0, -1))  # in another order than that of the file
    overrides = [f"image.dtype={dtype}", f"image.encode={encode}", f"image.bands={chosen}"]
    overrides += ["image.resize=[12, 16]", "image.filter=bilinear"] if is_resized else []
    dataset = run(tmp_path, images, *overrides)
    size = HALF if is_resized else SIZE
    stored = {}
    for number, numbers in enumerate(images):
        expected = numbers[:, :, ::-1]
        if is_resized:
            expected = number_files.resized(expected, HALF, "bilinear")
            expected = expected if dtype == "float32" else np.rint(expected)
        stored[b"a/%d.tif" % number] = as_read(expected, dtype, encode)
    found = {}
    for example in dataset.as_grain("train"):
        key, image = example["image/key"], example["image"]
        assert image.dtype == dtype
        found[key] = image
        if not is_resized:
            np.testing.assert_array_equal(image, stored[key])
        elif dtype == "float32":
            np.testing.assert_allclose(image, stored[key], rtol=1e-5, atol=1e-3)
        else:  # halves may be rounded to either side
            assert np.abs(image.astype(int) - stored[key]).max() <= 1
    assert found.keys() == stored.keys()
    mirrored = by_key(dataset, crop="squash", image_size=size, flip=True, seed=3)
    for key, image in found.items():
        assert mirrored[key].dtype == dtype
        assert np.array_equal(mirrored[key], image) or np.array_equal(mirrored[key], image[:, ::-1])
    if not is_resized:
        check_other_ways(dataset, found)


def check_other_ways(dataset: imagebeam.ImageDataset, stored: dict[bytes, np.ndarray]) -> None:
    """Checks crops, images made smaller, and single images of tf.data."""
    (height, width), tolerance = SIZE, 1e-3 if dataset.catalog.pixels.get("dtype") == "float32" else 1
    left = (width - height) // 2
    square = by_key(dataset, crop="center", center_fraction=1.0, image_size=height)
    small = by_key(dataset, crop="squash", image_size=HALF)
    sharp = by_key(dataset, crop="squash", image_size=HALF, antialias=True)
    for key, image in stored.items():
        np.testing.assert_array_equal(square[key], image[:, left : left + height])
        mean = image.astype(np.float64).reshape(HALF[0], 2, HALF[1], 2, -1).mean((1, 3))
        np.testing.assert_allclose(small[key], mean, rtol=1e-5, atol=tolerance)
        expected = number_files.resized(image, HALF, "bilinear")
        np.testing.assert_allclose(sharp[key], expected, rtol=1e-5, atol=tolerance)
    single = dataset.as_tf("train", shuffle=None, image_size=None, features=["image/key"])
    for example in single.as_numpy_iterator():
        np.testing.assert_array_equal(example["image"], stored[example["image/key"]])


@pytest.mark.parametrize(("dtype", "encode"), [("uint16", "png"), ("uint16", "raw"), ("float32", "raw")])
def test_metadata_say_type_and_shape_and_other_readers_read_it(tmp_path: pathlib.Path, dtype: str, encode: str) -> None:
    images = [number_files.make_numbers(dtype, 3, seed) for seed in range(COUNT)]
    dataset = run(tmp_path, images, f"image.dtype={dtype}", f"image.encode={encode}")
    assert dataset.catalog.pixels == {"dtype": dtype, "shape": [*SIZE, 3]}
    by_name = {b"a/%d.tif" % number: image for number, image in enumerate(images)}
    for record in tf.data.TFRecordDataset(str(next((tmp_path / "out").glob("train-*")))):
        features = tf.train.Example.FromString(record.numpy()).features.feature
        assert features["image/dtype"].bytes_list.value == [dtype.encode()]
        assert features["image/channels"].int64_list.value == [3]
        (data,) = features["image/encoded"].bytes_list.value
        found = tf.io.decode_png(data, dtype=tf.uint16) if encode == "png" else tf.io.decode_raw(data, dtype)
        expected = by_name[features["image/key"].bytes_list.value[0]]
        np.testing.assert_array_equal(np.reshape(found, expected.shape), expected)
    sharding = jax.sharding.SingleDeviceSharding(jax.devices("cpu")[0])
    batch = next(dataset.as_jax("train", sharding, COUNT, image_size=SIZE, crop="squash", flip=False))
    assert sorted(map(bytes, map(np.asarray, batch["image"]))) == sorted(map(bytes, images))
    scaled = by_key(dataset, crop="squash", dtype="float32", normalize=((1.0, 2.0, 3.0), 4.0))
    for key, image in scaled.items():
        np.testing.assert_allclose(image, (by_name[key].astype(np.float32) - (1, 2, 3)) / 4, rtol=1e-5)
    mean, std = dataset.pixel_statistics("train")
    assert (len(mean), len(std)) == (3, 3)
    assert not verify_dataset.verify(tmp_path / "out", decode=True).problems
    tfds = pytest.importorskip("tensorflow_datasets")
    feature = tfds.builder_from_directory(tmp_path / "out").info.features["image/encoded"]
    assert (feature.np_dtype, feature.shape[2]) == (np.dtype(dtype), 3)
    for example in tfds.builder_from_directory(tmp_path / "out").as_dataset(split="train"):
        np.testing.assert_array_equal(example["image/encoded"], by_name[example["image/key"].numpy()])
    assert (tmp_path / "out" / "report.html").read_text().count("data:image/jpeg;base64") == COUNT
    folder = tmp_path / "files"
    inspect_dataset.save_images(str(tmp_path / "out"), dataset.catalog, "train", 1, folder)
    assert [each.suffix for each in folder.iterdir()] == [".png" if encode == "png" else ".npy"]


def test_images_of_different_bands_are_read_one_by_one(tmp_path: pathlib.Path) -> None:
    images = [number_files.make_numbers("uint16", bands, bands) for bands in (2, 5)]
    dataset = run(tmp_path, images, "image.dtype=uint16", "image.encode=raw", "image.bands=all")
    assert dataset.catalog.pixels["shape"] == [*SIZE, None]
    for example in dataset.as_grain("train"):
        np.testing.assert_array_equal(example["image"], images[int(example["image/key"][2:3])])
    with error_texts.raises("pixels-channels-differ"):
        dataset.as_tf("train", 2)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"dtype": "uint8"}, "pixels-other-dtype"),
        ({"dtype": "float32", "normalize": "imagenet"}, "pixels-other-channels"),
        ({"dtype": "float32", "normalize": ((1, 2), 3)}, "pixels-other-channels"),
        ({"dtype": "uint16", "normalize": "dataset"}, "options-conflict"),
        ({"decoder": "native"}, "decoder-cannot-read"),
    ],
)
def test_options_that_do_not_fit_the_type_are_refused(
    tmp_path: pathlib.Path, options: dict[str, Any], code: str
) -> None:
    images = [number_files.make_numbers("uint16", 1)]
    dataset = run(tmp_path, images, "image.dtype=uint16")
    with error_texts.raises(code):
        dataset.as_tf("train", 1, **options)


def test_range_holds_for_all_files(tmp_path: pathlib.Path) -> None:
    heights = [number_files.make_numbers("float32", 1, seed) for seed in range(COUNT)]
    heights[0][0, 0] = np.nan
    for dtype, largest in (("uint8", 255), ("uint16", 65_535)):
        dataset = run(tmp_path / dtype, heights, f"image.dtype={dtype}", "image.range=[100, 900]")
        for key, image in by_key(dataset, crop="squash").items():
            levels = (np.nan_to_num(heights[int(key[2:3])].astype(np.float64), nan=-1e9) - 100) / 800 * largest
            expected = np.rint(levels.clip(0, largest))
            assert np.abs(image.astype(int) - expected).max() == 0
            assert image[0, 0, 0] == 0 or int(key[2:3])


def test_images_that_need_a_range_end_the_run_and_name_it(tmp_path: pathlib.Path) -> None:
    for number, (dtype, bands) in enumerate((("float32", 1), ("float64", 1), ("int32", 1), ("uint16", 13))):
        with pytest.raises(imagebeam.errors.TooManyRejectsError, match=r"image\.range .* image\.bands") as raised:
            run(tmp_path / str(number), [number_files.make_numbers(dtype, bands)])
        assert raised.value.code == "rejects-above-limit"
        [reject] = (tmp_path / str(number) / "out" / "rejects.jsonl").read_text().splitlines()
        assert json.loads(reject)["reason"] == "pixel_type"
