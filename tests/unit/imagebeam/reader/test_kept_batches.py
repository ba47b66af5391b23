"""Batches that a user keeps never change, though readers write later batches into memory of earlier ones."""

from __future__ import annotations

import gc
import itertools
import pathlib
import types
from typing import Any

import numpy as np
import pytest

import imagebeam
from imagebeam import features
from imagebeam.reader import batch_reader

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.usefixtures("unchanged_graphs")

SIZE = 16
DTYPES = ["uint8", "float32", "bfloat16", "float16"]


@pytest.fixture(params=["native", "tensorflow"])
def decoder(request: pytest.FixtureRequest) -> str:
    if request.param == "native" and batch_reader.library() is None:
        pytest.skip("the decoder in C was not built here: docs/reader.md lists what it needs")
    return str(request.param)


def read(dataset: imagebeam.ImageDataset, feed: str, **options: Any) -> Any:
    asked: dict[str, Any] = {"image_size": SIZE, "seed": 5, "num_epochs": None, **options}
    if feed == "numpy":
        return (batch["image"] for batch in dataset.as_numpy("train", 8, **asked))
    return (batch["image"] for batch in dataset.as_tf("train", 8, **asked))


def content_of(image: Any) -> bytes:
    return bytes(np.asarray(image).tobytes())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("crop", ["random", "squash"])
@pytest.mark.parametrize("feed", ["tf", "numpy"])
def test_kept_batch_never_changes(
    dataset: imagebeam.ImageDataset, decoder: str, feed: str, crop: str, dtype: str
) -> None:
    options = {"decoder": decoder, "crop": crop, "dtype": dtype}
    batches = read(dataset, feed, **options)
    kept, contents, parts = [], [], []
    for number, batch in enumerate(itertools.islice(batches, 24)):  # three epochs
        if number % 3 == 0:  # the others are dropped, and their memory is free again
            kept.append(batch)
            contents.append(content_of(batch))
        elif number % 3 == 1:
            parts.append((batch[2:4], content_of(batch[2:4])))  # a part alone keeps what it needs
    del batches, batch
    gc.collect()
    for _ in itertools.islice(read(dataset, feed, **options | {"seed": 6}), 8):
        pass  # another reader, after the first was closed
    assert [content_of(batch) for batch in kept] == contents
    assert [content_of(part) for part, _ in parts] == [content for _, content in parts]
    assert len(set(contents)) == len(contents)


def test_memory_of_a_batch_is_used_again_when_nothing_refers_to_it() -> None:
    buffers = batch_reader._Buffers()
    shape, dtype = (3, 8, 8, 3), np.dtype(np.float32)
    first, second = buffers.make(shape, dtype), buffers.make(shape, dtype)
    addresses = {first.ctypes.data, second.ctypes.data}
    assert len(addresses) == 2
    assert all(address % 64 == 0 for address in addresses)  # TensorFlow copies an array that is not aligned so
    kept = second.ctypes.data
    del first
    third = buffers.make(shape, dtype)
    assert {third.ctypes.data, kept} == addresses
    larger = buffers.make((4, 8, 8, 3), dtype)
    assert larger.ctypes.data not in addresses
    del larger
    assert buffers.make((1, 8, 8, 3), np.dtype(np.uint8)).dtype == np.uint8
    many = [buffers.make(shape, dtype) for _ in range(20)]
    del many
    assert len(buffers._free) == batch_reader._MAX_FREE


@pytest.mark.parametrize("kind", ["int64", "float", "bytes"])
def test_key_that_a_record_has_twice_the_last_one_empty_has_no_value(kind: str) -> None:
    example = tf.train.Example
    if kind == "int64":
        full, empty = ({"int64_list": {"value": each}} for each in ([5], []))
    elif kind == "float":
        full, empty = ({"float_list": {"value": each}} for each in ([5.5], []))
    else:
        full, empty = ({"bytes_list": {"value": each}} for each in ([b"five"], []))
    parts = [example(features={"feature": {"x": each}}).SerializeToString() for each in (full, empty)]
    feature = features.Feature("x", "x", kind)
    reader = types.SimpleNamespace(_keys=(b"x",), _wanted=[feature], _image=feature, _needed=1)
    [values], failures = batch_reader.BatchReader._find_features(reader, [parts[0], b"".join(parts)])  # type: ignore[arg-type]
    assert np.count_nonzero(values[0]) and not np.count_nonzero(values[1])
    assert failures == {1: "feature 'x' is missing"}


@pytest.mark.parametrize("normalize", [None, "imagenet", (100.0, 50.0), ((1.0, 2.0, 3.0), (4.0, 5.0, 6.0))])
@pytest.mark.parametrize("dtype", DTYPES[1:])
def test_pixels_are_cast_as_by_tensorflow(dataset: imagebeam.ImageDataset, dtype: str, normalize: Any) -> None:
    """Bit for bit, those of blank examples too."""
    import tensorflow as tf

    from imagebeam.reader import tf_decode

    if batch_reader.library() is None:
        pytest.skip("the decoder in C was not built here: docs/reader.md lists what it needs")
    asked: dict[str, Any] = {
        "image_size": SIZE, "shuffle": None, "num_epochs": 1, "pad": True, "decoder": "native", "crop": "center"
    }  # fmt: skip
    levels = list(dataset.as_numpy("train", 20, **asked))
    batches = list(dataset.as_numpy("train", 20, dtype=dtype, normalize=normalize, **asked))
    options = imagebeam.ReadOptions(batch_size=20, dtype=dtype, normalize=normalize, image_size=SIZE)
    cast = tf.function(tf_decode.make_caster(options, dataset.records("train", options).mean_and_std))
    assert [int(batch["mask"].sum()) for batch in batches] == [20, 20, 12]
    for level, batch in zip(levels, batches, strict=True):
        assert batch["image"].dtype == tf.as_dtype(dtype).as_numpy_dtype
        assert content_of(batch["image"]) == content_of(cast(tf.constant(level["image"])))


@pytest.mark.parametrize("last", [{}, {"pad": True}, {"drop_remainder": False}], ids=["full", "pad", "smaller"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_batches_with_skipped_examples_are_cast_as_the_others(
    broken: pathlib.Path, decoder: str, dtype: str, last: dict[str, bool]
) -> None:
    import tensorflow as tf

    dataset = imagebeam.open_dataset(str(broken))
    asked: dict[str, Any] = {"image_size": SIZE, "decoder": decoder, "on_error": "skip", "num_epochs": 2, **last}
    levels = list(dataset.as_numpy("train", 12, **asked))
    batches = list(dataset.as_numpy("train", 12, dtype=dtype, **asked))
    assert [len(batch["label"]) for batch in batches] == [len(batch["label"]) for batch in levels]
    for level, batch in zip(levels, batches, strict=True):
        assert content_of(batch["image"]) == content_of(tf.cast(level["image"], dtype))
