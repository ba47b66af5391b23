"""The preset `cats_dogs`: labels from file names, the keys of the script that it takes the place of, exact shares."""

from __future__ import annotations

import collections
import io
import pathlib

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

import imagebeam
from tests import command_line, docs_pages, image_sets, parsed_records

CATS, DOGS = 40, 60
PAGE = "recipes/cats_dogs.md"

SPEC = {
    "image_raw": tf.io.FixedLenFeature([], tf.string),
    "label": tf.io.FixedLenFeature([], tf.int64),
    "id": tf.io.FixedLenFeature([], tf.string),
}


def write_images(folder: pathlib.Path) -> None:
    folder.mkdir(parents=True)
    for name, count in (("cat", CATS), ("dog", DOGS)):
        for index in range(count):
            data = image_sets.make_image(ord(name[0]) * 1000 + index, size=(40 + index, 50))
            (folder / f"{name}.{index}.jpg").write_bytes(data)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder with train/ and the dataset that the first command of the page makes."""
    folder = tmp_path_factory.mktemp("pets")
    write_images(folder / "train")
    docs_pages.run_command(docs_pages.blocks(PAGE, "sh")[0], folder)
    return folder


def read(output: pathlib.Path, split: str, compression: str = "") -> dict[str, tuple[bytes, int]]:
    """Returns image and label by id, as the script's own reader parses them."""
    examples = parsed_records.parse(output.glob(f"{split}-*"), SPEC, compression)
    return {each["id"].decode(): (each["image_raw"], int(each["label"])) for each in examples}


def check(folder: pathlib.Path, output: pathlib.Path, compression: str = "") -> None:
    """Checks that every image has its label, and that exactly 80 % of each class are in train."""
    splits = {split: read(output, split, compression) for split in ("train", "test")}
    for split, expected in (("train", {0: 32, 1: 48}), ("test", {0: 8, 1: 12})):
        assert collections.Counter(label for _, label in splits[split].values()) == expected
    assert splits["train"].keys().isdisjoint(splits["test"])
    found = splits["train"] | splits["test"]
    assert sorted(found) == sorted(path.name for path in (folder / "train").iterdir())
    for name, (data, label) in found.items():
        assert data == (folder / "train" / name).read_bytes()
        assert label == ["cat", "dog"].index(name.split(".")[0])


def test_records_parse_with_the_keys_of_the_script(folder: pathlib.Path) -> None:
    check(folder, folder / "cats-dogs-tfrecords")
    record = next(
        tf.data.TFRecordDataset(str(next((folder / "cats-dogs-tfrecords").glob("test-*")))).as_numpy_iterator()
    )
    example = tf.train.Example.FromString(record).features.feature
    assert set(example) == {*SPEC, "image/height", "image/width"}
    width, height = Image.open(io.BytesIO(example["image_raw"].bytes_list.value[0])).size
    assert example["image/width"].int64_list.value[:] == [width]
    assert example["image/height"].int64_list.value[:] == [height]


def test_gzip_and_another_seed_keep_the_shares_and_change_the_split(
    folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    command = ("convert", "--config", "cats_dogs", "--input", folder / "train", "--output", tmp_path / "out")
    settings = ("output.compression=gzip", "split.seed=1", "features.image/height=null", "features.image/width=null")
    options = [word for setting in settings for word in ("--set", setting)]
    command_line.succeed(*command, "--workers", 1, *options, here=True)
    check(folder, tmp_path / "out", "GZIP")
    assert set(read(tmp_path / "out", "test", "GZIP")) != set(read(folder / "cats-dogs-tfrecords", "test"))
    ds = imagebeam.open_dataset(str(tmp_path / "out"))
    batch = next(iter(ds.as_tf("test", 20, image_size=32, crop="center", shuffle=None, features=("id",))))
    assert [int(label) for label in batch["label"]] == [int(name.startswith(b"dog")) for name in batch["id"].numpy()]


def test_snippets_of_the_page_read_them(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    plain, by_reader, _ = docs_pages.blocks(PAGE, "python")  # the third needs matplotlib
    names = docs_pages.run_snippet(plain)
    by_pixels = {}
    for path in (folder / "train").iterdir():
        pixels = tf.io.decode_jpeg(path.read_bytes(), channels=3)
        expected = tf.keras.applications.mobilenet_v2.preprocess_input(tf.image.resize(pixels, [160, 160])).numpy()
        by_pixels[expected.tobytes()] = ["cat", "dog"].index(path.name.split(".")[0])
    for split, count in (("train", 80), ("test", 20)):
        seen = [
            (image.tobytes(), int(label))
            for images, labels in names[split].as_numpy_iterator()
            for image, label in zip(images, labels)
        ]
        assert len({pixels for pixels, _ in seen}) == len(seen) == count
        assert all(by_pixels[pixels] == label for pixels, label in seen)
    images, labels = next(iter(docs_pages.run_snippet(by_reader)["train"]))
    assert (images.shape, images.dtype, labels.shape) == ((32, 160, 160, 3), tf.float32, (32,))
    assert -1 <= float(tf.reduce_min(images)) < float(tf.reduce_max(images)) <= 1


def test_preview_draws_a_batch(folder: pathlib.Path) -> None:
    docs_pages.run_command(docs_pages.blocks(PAGE, "sh")[1], folder)
    sheet = np.asarray(Image.open(folder / "batch.png"))
    assert sheet.shape[0] > 400
    assert sheet.shape[1] > 400
    assert len(np.unique(sheet.reshape(-1, 3), axis=0)) > 1000  # photos, not paper


def test_files_of_another_name_are_rejects_and_many_end_the_run(tmp_path: pathlib.Path) -> None:
    write_images(tmp_path / "in")
    (tmp_path / "in" / "bird.0.jpg").write_bytes(image_sets.make_image(1))
    command = ("convert", "--config", "cats_dogs", "--input", tmp_path / "in", "--output", tmp_path / "out")
    command_line.succeed(*command, "--workers", 1, here=True)  # one of 101
    (tmp_path / "in" / "Cat.1.jpg").write_bytes(image_sets.make_image(2))
    completed = command_line.call(*command, "--workers", 1, "--overwrite")
    assert completed.returncode == 3
    assert "2 of 102 images were rejected" in completed.stderr
