"""The preset `mnist`, read back as TensorFlow's own tutorial reads it."""

from __future__ import annotations

import functools
import gzip
import pathlib
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import imagebeam
from imagebeam import catalog as catalog_lib
from imagebeam import errors, example_encoder
from imagebeam.pipelines import convert, open_source, verify_dataset
from imagebeam.pipelines.config import model as config_lib
from tests import command_line, datasets, idx_files

TRAIN, TEST = 1100, 60


@functools.cache
def tutorial_spec() -> dict[str, Any]:
    import tensorflow as tf

    numbers = {name: tf.io.FixedLenFeature([], tf.int64) for name in ("label", "height", "width", "depth")}
    return {"image_raw": tf.io.FixedLenFeature([], tf.string), **numbers}


def read(output: pathlib.Path, split: str, spec: Any = None) -> list[tuple[np.ndarray, int]]:
    """Returns picture and label of every record of a split, read by TensorFlow alone."""
    import tensorflow as tf

    records = tf.data.TFRecordDataset(sorted(map(str, output.glob(f"{split}-*")))).batch(TRAIN).get_single_element()
    for record in records.numpy():
        assert set(tf.train.Example.FromString(record).features.feature) == set(tutorial_spec())
    examples = tf.io.parse_example(records, spec or tutorial_spec())
    shapes = np.stack([examples[name].numpy() for name in ("height", "width", "depth")], axis=1)
    assert (shapes == [28, 28, 1]).all()
    pictures = tf.reshape(tf.io.decode_raw(examples["image_raw"], tf.uint8), [-1, 28, 28])
    return list(zip(pictures.numpy(), examples["label"].numpy().tolist(), strict=True))


def by_picture(pairs: Sequence[tuple[np.ndarray, int]]) -> dict[bytes, int]:
    """Returns labels by picture; no two pictures are equal."""
    labels = {picture.tobytes(): int(label) for picture, label in pairs}
    assert len(labels) == len(pairs)
    return labels


def convert_mnist(folder: pathlib.Path, output: pathlib.Path, *overrides: str) -> convert.ConvertResult:
    given = (f"source.uri={folder}", f"output.uri={output}", *overrides)
    return convert.convert(config_lib.load_config("mnist", given), workers=1)


Written = dict[str, tuple[np.ndarray, np.ndarray]]  # as of idx_files.write_mnist


@pytest.fixture(scope="module")
def mnist(tmp_path_factory: pytest.TempPathFactory) -> tuple[Written, pathlib.Path]:
    """What plain files hold, and a folder with their dataset, `shards`, which no test changes."""
    folder = tmp_path_factory.mktemp("mnist")
    written = idx_files.write_mnist(folder / "in", TRAIN, TEST)
    convert_mnist(folder / "in", folder / "shards")
    return written, folder


def test_mnist_preset_writes_what_the_tutorial_reads(mnist: tuple[Written, pathlib.Path]) -> None:
    written, folder = mnist
    splits = catalog_lib.load_catalog(str(folder / "shards")).splits
    assert {name: (split.num_examples, len(split.shards)) for name, split in splits.items()} == {
        "train": (100, 4),
        "test": (60, 1),
        "validation": (1000, 1),
    }
    train, test = (list(zip(*written[name])) for name in ("train", "t10k"))
    for split, expected in (("train", train[1000:]), ("validation", train[:1000]), ("test", test)):
        assert by_picture(read(folder / "shards", split)) == by_picture(expected)


@pytest.mark.parametrize("zipped", [("t",), ("train-images", "t10k-labels")], ids=["gz", "mixed"])
def test_mnist_preset_writes_the_same_records_of_plain_and_gz_files(
    mnist: tuple[Written, pathlib.Path], tmp_path: pathlib.Path, zipped: tuple[str, ...]
) -> None:
    idx_files.write_mnist(tmp_path / "in", TRAIN, TEST, zipped=zipped)
    convert_mnist(tmp_path / "in", tmp_path / "out")
    assert datasets.shard_digests(tmp_path / "out") == datasets.shard_digests(mnist[1] / "shards")


def test_mnist_preset_without_shuffle_keeps_the_order_of_the_file(tmp_path: pathlib.Path) -> None:
    written = idx_files.write_mnist(tmp_path / "in", TRAIN, TEST, zipped=("train",))
    convert_mnist(tmp_path / "in", tmp_path / "out", "output.shuffle=none", "split.carve.validation.first=7")
    for split, expected in (("train", slice(7, None)), ("validation", slice(7))):
        pictures, labels = zip(
            *read(tmp_path / "out", split, imagebeam.open_dataset(str(tmp_path / "out")).feature_spec)
        )
        np.testing.assert_array_equal(np.array(pictures), written["train"][0][expected])
        np.testing.assert_array_equal(np.array(labels), written["train"][1][expected])


def test_verify_of_bare_pixels_counts_them(mnist: tuple[Written, pathlib.Path]) -> None:
    output = str(mnist[1] / "shards")
    catalog = catalog_lib.load_catalog(output)
    assert verify_dataset.verify(output, decode=True).problems == ()
    check = verify_dataset._DecodeRecord(catalog, is_raw=True)
    sizes: dict[str, Any] = {"image/height": 28, "image/width": 28, "image/channels": 1, "image/class/label": 3}
    good, short = (
        b"".join(example_encoder.ExampleEncoder(catalog.features).encode(sizes, bytes(n))) for n in (784, 783)
    )
    complaint = "the image is 783 values, the example says 28 x 28 pixels of 1 channels"
    assert (check(good), check(short)) == (None, complaint)


def test_reader_gives_digits_as_rgb_with_their_labels(mnist: tuple[Written, pathlib.Path]) -> None:
    written, folder = mnist
    dataset = imagebeam.open_dataset(str(folder / "shards"))
    options: dict[str, Any] = {"image_size": 28, "crop": "squash", "num_epochs": 1}
    [batch] = dataset.as_numpy("test", TEST, **options)
    assert (batch["image"][..., :1] == batch["image"]).all()
    expected = by_picture(list(zip(*written["t10k"])))
    assert by_picture(list(zip(np.ascontiguousarray(batch["image"][..., 0]), batch["label"]))) == expected
    each = dataset.as_grain("test")[3]
    assert expected[np.ascontiguousarray(each["image"][..., 0]).tobytes()] == each["label"]


def test_recipe_page_reads_the_records_with_tensorflow_and_with_imagebeam(
    mnist: tuple[Written, pathlib.Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (command_line.ROOT / "docs" / "recipes" / "mnist.md").read_text(encoding="utf-8")
    plain, ours = (part.split("```")[0] for part in page.split("```python\n")[1:])
    monkeypatch.chdir(mnist[1])
    names: dict[str, Any] = {}
    exec(plain, names)
    images, labels = next(iter(names["train"]))
    assert (images.shape, labels.shape, images.dtype, labels.dtype) == ((100, 28, 28, 1), (100,), "uint8", "int32")
    exec(ours, names)
    images, labels = next(iter(names["train"]))
    assert (images.shape, labels.shape, images.dtype, labels.dtype) == ((100, 28, 28, 3), (100,), "float32", "int32")
    assert len(list(names["parsed"])) == 100
    assert set(next(iter(names["parsed"]))) == set(tutorial_spec())


def test_labels_as_classes_give_a_vocabulary(tmp_path: pathlib.Path) -> None:
    written = idx_files.write_mnist(tmp_path / "in", TRAIN, TEST)
    result = convert_mnist(tmp_path / "in", tmp_path / "out", "label.type=class", "features.image/class/text=null")
    assert result.catalog.labels == tuple("0123456789")
    test = list(zip(*written["t10k"]))
    assert by_picture(read(tmp_path / "out", "test")) == by_picture(test)


# What stops a run.


@pytest.mark.integration
def test_mnist_of_a_file_cut_short_exits_2_and_names_it(tmp_path: pathlib.Path) -> None:
    idx_files.write_mnist(tmp_path / "in", TRAIN, TEST, zipped=("train",))
    images = tmp_path / "in" / "train-images-idx3-ubyte.gz"
    images.write_bytes(images.read_bytes()[:-100])
    arguments = ("convert", "--config", "mnist", "--input", tmp_path / "in", "--output", tmp_path / "out")
    completed = command_line.run(*arguments)
    assert completed.returncode == 2
    assert "train-images-idx3-ubyte.gz' is gzip that was cut short; fetch it again" in completed.stderr
    assert not (tmp_path / "out").exists()


def test_mnist_of_too_few_pictures_to_carve_from_says_which_split_is_empty(tmp_path: pathlib.Path) -> None:
    idx_files.write_mnist(tmp_path / "in", 900, TEST)
    carved = "split.carve makes validation of the first 1,000 rows of train, which has 900: take fewer, such as --set "
    message = f"no image goes to the split train; found are test, validation; {carved}split.carve.validation.first=90"
    with pytest.raises(errors.ConfigError, match=re.escape(message)):
        convert_mnist(tmp_path / "in", tmp_path / "out")
    result = convert_mnist(tmp_path / "in", tmp_path / "out", "split.carve.validation.first=90")
    assert {name: split.num_examples for name, split in result.catalog.splits.items()} == {
        "train": 810,
        "test": 60,
        "validation": 90,
    }


def test_file_replaced_while_it_is_converted_gives_rejects(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A .gz file that another process broke between the listing and the reading."""
    idx_files.write_mnist(tmp_path / "in", TRAIN, TEST, zipped=("t10k",))
    config = config_lib.load_config("mnist", (f"source.uri={tmp_path / 'in'}", f"output.uri={tmp_path / 'out'}"))
    source = open_source.make_source(config)
    images = tmp_path / "in" / "t10k-images-idx3-ubyte.gz"
    images.write_bytes(gzip.compress(b"other"))
    monkeypatch.setattr(open_source, "make_source", lambda config: source)
    with pytest.raises(errors.TooManyRejectsError, match=r"60 of 1,160 images were rejected \(5.17%; changed 60\)"):
        convert.convert(config, workers=1)
