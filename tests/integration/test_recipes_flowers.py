"""The preset `flowers`: a folder for each class, found by a glob, and the reader for whatever accelerator is there."""

from __future__ import annotations

import io
import pathlib

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tests import datasets, docs_pages, image_sets

FLOWERS = ("daisy", "dandelion", "roses", "sunflowers", "tulips")
PER_FLOWER = 30
PAGE = "recipes/flowers.md"

SPEC = {  # as in TF-slim's datasets/flowers.py
    "image/encoded": tf.io.FixedLenFeature((), tf.string, default_value=""),
    "image/format": tf.io.FixedLenFeature((), tf.string, default_value="png"),
    "image/class/label": tf.io.FixedLenFeature([], tf.int64, default_value=tf.zeros([], dtype=tf.int64)),
    "image/height": tf.io.FixedLenFeature([], tf.int64),
    "image/width": tf.io.FixedLenFeature([], tf.int64),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder with bucket/ and the dataset that the command of the page makes."""
    folder = tmp_path_factory.mktemp("flowers")
    for number, flower in enumerate(FLOWERS):
        (folder / "bucket" / flower).mkdir(parents=True)
        for index in range(PER_FLOWER):
            path = folder / "bucket" / flower / f"{index:04d}_{number}a_n.jpg"
            path.write_bytes(image_sets.make_image(number * 100 + index, size=(60 + index, 90 - index)))
    (folder / "bucket" / "LICENSE.txt").write_text("CC-BY")
    (folder / "bucket" / "at the root.jpg").write_bytes(image_sets.make_image(999))
    (folder / "bucket" / "roses" / "deeper").mkdir()
    (folder / "bucket" / "roses" / "deeper" / "x.jpg").write_bytes(image_sets.make_image(998))
    (command,) = docs_pages.blocks(PAGE, "sh")
    docs_pages.run_command(command, folder, {"gs://bucket/*/*.jpg": f"{folder}/bucket/*/*.jpg"})
    return folder


def test_records_parse_with_the_keys_of_slim(folder: pathlib.Path) -> None:
    output = folder / "flowers-tfrecords"
    keys: dict[str, set[str]] = {}
    for split, per_flower in (("train", 24), ("validation", 6)):
        records = tf.data.Dataset.list_files(str(output / f"{split}-*.tfrecord")).interleave(tf.data.TFRecordDataset)
        counts = [0] * len(FLOWERS)
        for record in records.as_numpy_iterator():
            features = tf.train.Example.FromString(record).features.feature
            assert set(features) == {*SPEC, "image/key"}
            key = features["image/key"].bytes_list.value[0].decode()
            keys.setdefault(split, set()).add(key)
            example = tf.io.parse_single_example(record, SPEC)
            data = (folder / "bucket" / key).read_bytes()
            assert example["image/encoded"].numpy() == data
            assert example["image/format"].numpy() == b"jpeg"
            assert example["image/class/label"].numpy() == FLOWERS.index(key.split("/")[0])
            assert (example["image/width"], example["image/height"]) == Image.open(io.BytesIO(data)).size
            counts[int(example["image/class/label"])] += 1
        assert counts == [per_flower] * len(FLOWERS)
    assert keys["train"].isdisjoint(keys["validation"])
    everything = {str(path.relative_to(folder / "bucket")) for path in (folder / "bucket").glob("*/*.jpg")}
    assert keys["train"] | keys["validation"] == everything
    assert (output / "labels.txt").read_text().split() == list(FLOWERS)


def test_snippets_of_the_page_train_and_read(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    training, plain = docs_pages.blocks(PAGE, "python")
    names = docs_pages.run_snippet(training)
    assert names["strategy"].num_replicas_in_sync == 1  # this machine's CPU
    assert names["steps"] == 24 * 5 // 32
    history = names["history"].history
    assert len(history["loss"]) == 2
    assert np.isfinite([*history["loss"], *history["val_loss"]]).all()
    assert sum(len(labels) for _, labels in names["validation"]) == 6 * 5
    images, labels = next(iter(docs_pages.run_snippet(plain)["batches"]))
    assert (images.shape, images.dtype, labels.dtype) == ((32, 64, 64, 3), tf.float32, tf.int32)
    assert 0 <= float(tf.reduce_min(images)) < float(tf.reduce_max(images)) <= 1


def test_file_that_is_no_jpeg_is_named(folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    for flower in FLOWERS[:2]:
        (tmp_path / "in" / flower).mkdir(parents=True)
        for index in range(10):
            (tmp_path / "in" / flower / f"{index}.jpg").write_bytes(image_sets.make_image(index))
    (tmp_path / "in" / "daisy" / "0.jpg").write_bytes(b"<html>404 Not Found</html>")
    datasets.make(tmp_path / "in", tmp_path / "out", rejects={"max_fraction": 0.1})
    assert datasets.rejects(tmp_path / "out") == {"daisy/0.jpg": "not_an_image"}
