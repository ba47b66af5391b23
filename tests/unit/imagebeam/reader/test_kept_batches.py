"""Batches that a user keeps never change, though readers write later batches into memory of earlier ones."""

from __future__ import annotations

import gc
import itertools
import pathlib
from typing import Any

import numpy as np
import pytest

import imagebeam
from imagebeam.reader import image_decoder

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.usefixtures("unchanged_graphs")

SIZE = 16
DTYPES = ["uint8", "float32", "bfloat16", "float16"]


def read(dataset: imagebeam.ImageDataset, feed: str, **options: Any) -> Any:
    asked: dict[str, Any] = {"image_size": SIZE, "seed": 5, "num_epochs": None, **options}
    if feed == "numpy":
        return (batch["image"] for batch in dataset.as_numpy("train", 8, **asked))
    return (batch["image"] for batch in dataset.as_tf("train", 8, **asked))


def content_of(image: Any) -> bytes:
    return bytes(np.asarray(image).tobytes())


# Each pair of two settings.
@pytest.mark.parametrize(
    ("feed", "crop", "dtype"),
    [
        ("tf", "random", "uint8"),
        ("tf", "squash", "float32"),
        ("numpy", "random", "bfloat16"),
        ("numpy", "squash", "uint8"),
        ("numpy", "random", "float16"),
    ],
)
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


def cast(image: np.ndarray, dtype: str, mean_and_std: Any) -> Any:
    if mean_and_std is None:
        return tf.cast(image, dtype)
    mean, std = (tf.constant(each, tf.float32) for each in mean_and_std)
    return tf.cast((tf.cast(image, tf.float32) - mean) / std, dtype)


def test_pixels_are_cast_as_by_tensorflow(dataset: imagebeam.ImageDataset) -> None:
    """Bit for bit, those of blank examples too."""
    for normalize in [None, "imagenet", (100.0, 50.0), ((1.0, 2.0, 3.0), (4.0, 5.0, 6.0))]:
        for dtype in DTYPES[1:]:
            import tensorflow as tf

            if image_decoder.library() is None:
                pytest.skip("the decoder in C was not built here: docs/reader-speed.md lists what it needs")
            asked: dict[str, Any] = {
                "image_size": SIZE, "shuffle": None, "num_epochs": 1, "pad": True, "decoder": "native", "crop": "center"
            }  # fmt: skip
            levels = list(dataset.as_numpy("train", 20, **asked))
            batches = list(dataset.as_numpy("train", 20, dtype=dtype, normalize=normalize, **asked))
            options = imagebeam.ReadOptions(batch_size=20, dtype=dtype, normalize=normalize, image_size=SIZE)
            mean_and_std = dataset.records("train", options).mean_and_std
            assert [int(batch["mask"].sum()) for batch in batches] == [20, 20, 12]
            for level, batch in zip(levels, batches, strict=True):
                assert batch["image"].dtype == tf.as_dtype(dtype).as_numpy_dtype
                assert content_of(batch["image"]) == content_of(cast(level["image"], dtype, mean_and_std))


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
