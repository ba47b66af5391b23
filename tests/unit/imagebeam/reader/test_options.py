"""Options: equal values of any type are accepted, all others are refused before anything is read."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from typing import Any

import numpy as np
import pytest

import imagebeam
from imagebeam import errors, features
from imagebeam.reader import option_values
from imagebeam.reader import options as options_lib
from tests import cases
from tests.unit.imagebeam.reader import written

STATE = imagebeam.ReaderState(0, 0, 0, "stream")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> imagebeam.ImageDataset:
    folder = tmp_path_factory.mktemp("options") / "out"
    examples = [{**written.jpeg_values(index), features.LABEL: index % 2} for index in range(10)]
    return written.write(folder, (*written.IMAGE, written.LABEL), examples, labels=("cat", "dog"))


@pytest.fixture
def unreadable(dataset: imagebeam.ImageDataset, monkeypatch: pytest.MonkeyPatch) -> imagebeam.ImageDataset:
    """The dataset, which fails a test as soon as anything is read from it."""
    opened = imagebeam.open_dataset(dataset.directory)

    def refuse(*_: object) -> None:
        raise AssertionError("read before the options were checked")

    monkeypatch.setattr(type(opened._source), "open_reader", refuse)
    monkeypatch.setattr(type(opened._source), "read", refuse)
    return opened


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"image_size": "224"}, "image_size is '224'; it must be a whole number of pixels, or two of them"),
    ({"image_size": 224.0}, "image_size is 224.0; it must be a whole number of pixels"),
    ({"image_size": (224, 0)}, r"image_size is \(224, 0\); it must be at least 1 pixel"),
    ({"image_size": 1 << 20}, "image_size is 1048576; it must be at most 65,500 pixels"),
    ({"crop": "centre"}, "crop is 'centre'; it is one of .*; did you mean 'center'"),
    (
        {"interpolation": "cubic"},
        "interpolation is 'cubic'; it is one of 'bilinear', 'bicubic'; did you mean 'bicubic'",
    ),
    ({"antialias": 1}, "antialias is 1; it must be True or False"),
    ({"dct": "slow"}, "dct is 'slow'; it is one of 'fast', 'accurate'"),
    ({"flip": "yes"}, "flip is 'yes'; it must be True or False"),
    ({"pad": "no"}, "pad is 'no'; it must be True or False"),
    ({"dtype": "bfloat"}, "dtype is 'bfloat'; it is one of .*; did you mean 'bfloat16'"),
    ({"normalize": "image_net"}, "normalize is 'image_net'; it is 'imagenet', 'dataset', or"),
    ({"normalize": 127.5}, "normalize is 127.5; it is 'imagenet', 'dataset', or"),
    ({"normalize": ((1, 2), (3, 4))}, "normalize is .*, each one number or one for each of 3 channels"),
    ({"normalize": (0, float("nan"))}, "normalize is .*, each one number or one for each of 3 channels"),
    ({"normalize": (127.5, 0)}, "normalize has the standard deviation 0; it must be above 0 in each channel"),
    ({"shuffle": "streaming"}, "did you mean 'stream'"),
    ({"seed": 1.0}, "seed is 1.0; it must be a whole number"),
    ({"num_epochs": 1.5}, "num_epochs is 1.5; it must be a whole number from 1 on"),
    ({"process_index": "0"}, "process_index is '0'; it must be a whole number"),
    ({"features": "image/key"}, r"features is 'image/key'; it must be a list of keys: give features=\['image/key'\]"),
    ({"features": [b"image/key"]}, "features is .*; it must be a list of keys, such as"),
    (
        {"supervised": True, "features": ["image/key"]},
        r"which has no room for features=\('image/key',\): leave them out",
    ),
    ({"list_size": -1}, "list_size is -1; it must be a whole number from 1 on"),
    ({"label_base": -1}, "label_base is -1; it must be a whole number from 0 on"),
    ({"on_error": "ignore"}, "on_error is 'ignore'; it is one of 'raise', 'skip'"),
    ({"max_error_fraction": 1.5}, "max_error_fraction is 1.5; it must be 0 to 1"),
    ({"state": {"seed": 0}}, r"state is a dict, .*; give imagebeam.ReaderState.from_dict of it"),
    ({"state": 5}, r"state is 5; give what state\(\) of an iterator returned"),
    ({"area": 0.5}, r"area is 0.5; it must be two numbers, \(least, greatest\)"),
    ({"area": (0.1, "1")}, "area is '1'; it must be a number"),
    ({"aspect_ratio": (0, 1)}, r"aspect_ratio is \(0.0, 1.0\); it must be 0 < least <= greatest <= 100"),
    ({"center_fraction": None}, "center_fraction is None; it must be a number"),
    ({"shuffle_bytes": 1e9}, "shuffle_bytes is 1000000000.0; it must be a whole number from 1 on"),
    ({"shuffle_records": "all"}, "shuffle_records is 'all'; it must be a whole number from 1 on"),
    ({"threads": 0}, "threads is 0; it must be a whole number from 1 on"),
    ({"decoder": "nativ"}, "did you mean 'native'"),
    ({"imagesize": 224}, "there is no option 'imagesize': did you mean 'image_size'"),
    ({"xyz": 1}, "there is no option 'xyz': there are batch_size, image_size"),
    *(({"batch_size": each}, "batch_size is .*; it must be a whole number") for each in (0, -1, 2.0, "2", True, (2,))),
]


def test_wrong_value_is_refused_by_every_feed_before_anything_is_read(unreadable: imagebeam.ImageDataset) -> None:
    tf, jax = pytest.importorskip("tensorflow"), pytest.importorskip("jax")
    feeds: dict[str, Any] = {
        "as_tf": unreadable.as_tf,
        "as_numpy": unreadable.as_numpy,
        "as_distributed": functools.partial(unreadable.as_distributed, tf.distribute.OneDeviceStrategy("cpu:0")),
        "mix": lambda split, *batch_size, **options: imagebeam.mix([(unreadable, split)], [1], *batch_size, **options),
        "as_jax": lambda split, *batch_size, **options: unreadable.as_jax(
            split, jax.sharding.SingleDeviceSharding(jax.devices()[0]), *batch_size, **options
        ),
    }
    for options, message in REFUSED:
        given = {"batch_size": 2, "dtype": "float32", **options}
        batch_size = given.pop("batch_size")
        for name, feed in feeds.items():
            if name == "as_jax" and {"process_index", "process_count", "state"} & set(options):
                continue
            with cases.named(name, options), pytest.raises(errors.ConfigError, match=message):
                feed("train", batch_size, **given)


ACCEPTED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"batch_size": np.int64(8)}, {"batch_size": 8}),
    ({"image_size": np.int32(64)}, {"image_size": 64}),
    ({"image_size": [64, np.int16(32)]}, {"image_size": (64, 32)}),
    ({"image_size": np.array([64, 32])}, {"image_size": (64, 32)}),
    ({"flip": np.bool_(False)}, {"flip": False}),
    ({"dtype": np.float32}, {"dtype": "float32"}),
    ({"dtype": np.dtype("float16")}, {"dtype": "float16"}),
    ({"dtype": np.str_("uint8")}, {"dtype": "uint8"}),
    ({"dtype": "float32", "normalize": (127.5, 1)}, {"normalize": ((127.5,) * 3, (1.0,) * 3)}),
    ({"dtype": "float32", "normalize": [[1, 2, 3], 4]}, {"normalize": ((1.0, 2.0, 3.0), (4.0, 4.0, 4.0))}),
    ({"dtype": "float32", "normalize": np.ones((2, 3))}, {"normalize": ((1.0,) * 3, (1.0,) * 3)}),
    ({"dtype": "float32", "normalize": (np.float32(1), np.array([2.0]))}, {"normalize": ((1.0,) * 3, (2.0,) * 3)}),
    ({"seed": np.uint8(7)}, {"seed": 7}),
    ({"seed": np.int64(-7)}, {"seed": -7}),
    ({"num_epochs": np.int64(3), "pad": np.bool_(True), "batch_size": 2}, {"num_epochs": 3, "pad": True}),
    (
        {"num_epochs": 1, "next_epoch_each_iteration": np.bool_(True)},
        {"num_epochs": 1, "next_epoch_each_iteration": True},
    ),
    ({"process_index": np.int64(1), "process_count": np.int64(2)}, {"process_index": 1, "process_count": 2}),
    ({"features": np.array(["a", "b"])}, {"features": ("a", "b")}),
    ({"features": iter(["a"])}, {"features": ("a",)}),
    ({"area": np.array([0.5, 1.0])}, {"area": (0.5, 1.0)}),
    ({"center_fraction": np.float32(0.5)}, {"center_fraction": 0.5}),
    ({"state": STATE}, {"state": STATE}),
]


def test_equal_value_of_another_type_is_accepted() -> None:
    for given, expected in ACCEPTED:
        options = imagebeam.ReadOptions(**given)
        for name, value in expected.items():
            found = getattr(options, name)
            assert found == value
            assert type(found) is type(value)


def test_types_of_tensorflow_and_jax_are_accepted() -> None:
    tf = pytest.importorskip("tensorflow")
    assert imagebeam.ReadOptions(dtype=tf.bfloat16).dtype == "bfloat16"
    jnp = pytest.importorskip("jax.numpy")
    assert imagebeam.ReadOptions(dtype=jnp.bfloat16).dtype == "bfloat16"
    assert imagebeam.ReadOptions(dtype=jnp.dtype("bfloat16")).dtype == "bfloat16"


def test_every_option_has_a_converter_that_accepts_its_default() -> None:
    fields = {field.name: field.default for field in dataclasses.fields(options_lib.ReadOptions)}
    assert set(options_lib._KINDS) == set(fields)
    assert option_values.plain_values(fields, options_lib._KINDS) == fields


def test_batch_size_that_fills_no_batch_is_refused(dataset: imagebeam.ImageDataset) -> None:
    for options, message in [
        (
            {"batch_size": 11, "num_epochs": 1},
            "batch_size is 11, and a process reads 10 examples of 'train' in each of 1",
        ),
        ({"batch_size": 6, "num_epochs": 1, "process_count": 2}, "batch_size is 6, and a process reads 5 examples of"),
        (
            {"batch_size": 31, "num_epochs": 3},
            "in each of 3 epochs: no batch would be full; give a smaller one, drop_rem",
        ),
    ]:
        with cases.named(options, message):
            with pytest.raises(errors.ConfigError, match=message):
                dataset.as_tf("train", **options)
            assert dataset.as_tf("train", **options, drop_remainder=False) is not None
            assert dataset.as_tf("train", **options, pad=True) is not None


def test_batch_size_above_the_split_is_a_warning_if_epochs_go_on(
    dataset: imagebeam.ImageDataset, caplog: pytest.LogCaptureFixture
) -> None:
    batch = next(dataset.as_numpy("train", 25, image_size=16, features=["image/key"]))
    assert len(batch["image/key"]) == 25
    assert "a process reads 10 examples of 'train': a batch holds some of them more than once" in caplog.text


@pytest.mark.parametrize("kind", [str, pathlib.Path])
def test_paths_of_pathlib_are_accepted(
    dataset: imagebeam.ImageDataset, tmp_path: pathlib.Path, kind: Any, far: Any
) -> None:
    assert imagebeam.open_dataset(kind(dataset.directory)).num_examples("train") == 10
    cached = imagebeam.open_dataset(f"far://{dataset.directory}", cache_dir=kind(tmp_path / "cache"))
    assert cached.as_grain("train", decode=False)[0]["image/key"] == b"0"
    assert imagebeam.load_catalog(kind(dataset.directory)) == dataset.catalog


def test_wrong_address_is_refused() -> None:
    for directory, options, message in [
        (5, {}, "directory is 5; it must be a path or an address"),
        (None, {}, "directory is None; it must be a path or an address"),
        ("", {}, "directory is ''; it must be a path or an address"),
        (b"/x", {}, "directory is b'/x'; it must be a path or an address"),
        (pathlib.Path("gs://bucket/x"), {}, "pathlib removes a slash from gs://; give the address as a string"),
        ("far://x", {"cache_dir": 7}, "cache_dir is 7; it must be a path"),
        ("far://x", {"cache_dir": "/c", "cache_bytes": 0}, "cache_bytes is 0; it must be a whole number from 1 on"),
        ("far://x", {"cache_dir": "/c", "cache_bytes": 1e9}, "cache_bytes is 1000000000.0; it must be a whole number"),
        ("far://x", {"cache_dir": "/c", "storage_options": "x"}, "storage_options is 'x'; it must be a dict"),
    ]:
        with cases.named(directory, options, message), pytest.raises(errors.ConfigError, match=message):
            imagebeam.open_dataset(directory, **options)


def test_wrong_split_is_refused(dataset: imagebeam.ImageDataset) -> None:
    for split in [5, None, ["train"], b"train"]:
        with (
            cases.named(split),
            pytest.raises(errors.ConfigError, match=r"split .* cannot be read; write for example 'train'"),
        ):
            dataset.as_grain(split)


def test_process_that_comes_from_the_context_is_not_given_twice(dataset: imagebeam.ImageDataset) -> None:
    tf = pytest.importorskip("tensorflow")
    context = tf.distribute.InputContext(2, 1, 2)
    with pytest.raises(errors.ConfigError, match="process_index comes from the input_context: leave it out"):
        dataset.as_tf("train", 2, input_context=context, process_index=0)


def test_global_batch_that_replicas_cannot_share_is_refused(dataset: imagebeam.ImageDataset) -> None:
    pytest.importorskip("tensorflow")

    class Strategy:
        num_replicas_in_sync = 3

    with pytest.raises(errors.ConfigError, match=r"global_batch_size is 8, and the strategy has 3 replicas, .* of 3"):
        dataset.as_distributed(Strategy(), "train", 8)
