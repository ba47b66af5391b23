"""Programs that know nothing of imagebeam read what convert wrote."""

from __future__ import annotations

import json
import pathlib

import pytest
from PIL import Image

from tests import command_line, datasets

pytestmark = pytest.mark.integration

NUM_IMAGES = 30


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    root = tmp_path_factory.mktemp("others")
    for index in range(NUM_IMAGES):
        path = root / "images" / ["cat", "dog"][index % 2] / f"{index}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 30), (index * 8, 100, 200)).save(path)
    datasets.make(root / "images", root / "out", output={"num_shards": 3})
    return root / "out"


def test_tutorial_of_tensorflow_parses_and_decodes_every_record(folder: pathlib.Path) -> None:
    tf = pytest.importorskip("tensorflow")
    description = {
        "image/height": tf.io.FixedLenFeature([], tf.int64),
        "image/width": tf.io.FixedLenFeature([], tf.int64),
        "image/class/label": tf.io.FixedLenFeature([], tf.int64),
        "image/encoded": tf.io.FixedLenFeature([], tf.string),
    }
    shards = tf.data.Dataset.list_files(str(folder / "train-*"))
    parsed = shards.interleave(tf.data.TFRecordDataset).map(
        lambda record: tf.io.parse_single_example(record, description)
    )
    shapes = [tf.io.decode_jpeg(each["image/encoded"]).shape for each in parsed]
    assert shapes == [(30, 40, 3)] * NUM_IMAGES


def test_tfds_loads_it_as_big_vision_does(folder: pathlib.Path) -> None:
    """big_vision's datasets/tfds.py: builder_from_directory, a part of a split, images left encoded."""
    tfds = pytest.importorskip("tensorflow_datasets")
    builder = tfds.builder_from_directory(str(folder))
    loaded = builder.as_dataset(
        split="train[50%:]", decoders={"image/encoded": tfds.decode.SkipDecoding()}, shuffle_files=False
    )
    images = [bytes(each["image/encoded"].numpy()) for each in loaded]
    assert len(images) == NUM_IMAGES // 2
    assert all(image.startswith(b"\xff\xd8\xff") for image in images)


READ_WITH_TFRECORD = """
import json, sys
from tfrecord.reader import tfrecord_loader
description = {"image/encoded": "byte", "image/key": "byte"}
read = [each for shard in sys.argv[1:] for each in tfrecord_loader(shard, None, description)]
assert all(bytes(each["image/encoded"])[:3] == b"\\xff\\xd8\\xff" for each in read)
print(json.dumps([bytes(each["image/key"]).decode() for each in read]))
"""


def test_package_tfrecord_reads_every_record(folder: pathlib.Path) -> None:
    """The package reads in its own process: TensorFlow and it both register tf.train.Example."""
    shards = sorted(map(str, folder.glob("train-*")))
    done = command_line.finish(command_line.start_program(READ_WITH_TFRECORD, *shards), 0)
    assert json.loads(done.stdout) == datasets.keys(folder)
