"""Recipes whose images lie in a bucket: a glob of folders, and tables beside the images."""

from __future__ import annotations

import csv
import pathlib
from collections.abc import Iterator

import pytest
import tensorflow as tf

from tests import command_line, image_sets, parquet_files, parsed_records
from tests.servers import gcs

pytestmark = pytest.mark.integration

FLOWERS = ("daisy", "roses")
PER_FLOWER = 10


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[gcs.Emulator]:
    """An emulator with buckets: flowers, birds with a table for each split, Parquet files with images."""
    folder = tmp_path_factory.mktemp("recipes")
    image_sets.write_folder(folder / "flowers", FLOWERS, PER_FLOWER)
    for split in ("train", "test"):
        names = [key.rpartition("/")[2] for key in image_sets.write_folder(folder / "birds", (split,), 5)]
        with open(folder / "birds" / split / "metadata.csv", "w", newline="") as file:
            csv.writer(file).writerows([("file_name", "age"), *((name, index) for index, name in enumerate(names))])
    for split, compression in (("train", "snappy"), ("test", "none"), ("dev", "zstd")):
        images = [image_sets.make_image(index) for index in range(8)]
        path = folder / "hub" / "data" / f"{split}-00000-of-00001.parquet"
        parquet_files.write(path, images, {"label": range(8)}, list("hgfedcba"), compression=compression)
    with gcs.run(folder) as emulator:
        for name in ("flowers", "birds", "hub"):
            bucket = emulator.bucket(name)
            bucket.blob("LICENSE.txt").upload_from_string("CC-BY")
            for below in (folder / name).iterdir():
                gcs.upload(below, bucket, below.name)
        yield emulator


def convert(emulator: gcs.Emulator, preset: str, source: str, output: pathlib.Path, *settings: str) -> None:
    options = [word for setting in settings for word in ("--set", setting)]
    command = ("convert", "--config", preset, "--input", source, "--output", output, "--workers", "1", *options)
    completed = command_line.run(*command, environment=emulator.environment)
    assert completed.returncode == 0, completed.stderr


def read(output: pathlib.Path, split: str, feature: str) -> dict[str, int]:
    """Returns an integer feature of each example by key."""
    spec = {"image/key": tf.io.FixedLenFeature([], tf.string), feature: tf.io.FixedLenFeature([], tf.int64)}
    examples = parsed_records.parse(output.glob(f"{split}-*"), spec)
    return {each["image/key"].decode(): int(each[feature]) for each in examples}


def test_flowers_are_found_by_a_glob(emulator: gcs.Emulator, tmp_path: pathlib.Path) -> None:
    convert(emulator, "flowers", "gs://flowers/*/*.jpg", tmp_path / "out")
    train, validation = (read(tmp_path / "out", split, "image/class/label") for split in ("train", "validation"))
    jpegs = [index for index in range(PER_FLOWER) if index % 5 != 4]  # the others are PNGs
    expected = {f"{name}/{index}.jpg": number for number, name in enumerate(FLOWERS) for index in jpegs}
    assert train | validation == expected
    assert (len(train), len(validation)) == (13, 3)  # of sixteen: 12.8 and 3.2, rounded


def test_tables_are_found_beside_the_images(emulator: gcs.Emulator, tmp_path: pathlib.Path) -> None:
    convert(emulator, "imagefolder_metadata", "gs://birds", tmp_path / "out", "columns.age={type: int}")
    for split in ("train", "test"):
        expected = {f"{split}/{index}.{'png' if index == 4 else 'jpg'}": index for index in range(5)}
        assert read(tmp_path / "out", split, "age") == expected


def test_images_in_parquet_files_are_read_in_place(emulator: gcs.Emulator, tmp_path: pathlib.Path) -> None:
    convert(emulator, "parquet", "gs://hub/data", tmp_path / "out")
    for split in ("train", "test", "dev"):
        expected = {f"{split}-00000-of-00001.parquet/{index}": index for index in range(8)}
        assert read(tmp_path / "out", split, "image/class/label") == expected


def test_bucket_without_a_table_is_refused(emulator: gcs.Emulator, tmp_path: pathlib.Path) -> None:
    command = ("convert", "--config", "imagefolder_metadata", "--input", "gs://flowers", "--output", tmp_path / "out")
    completed = command_line.run(*command, environment=emulator.environment)
    assert completed.returncode == 2
    assert "no table matches '**/metadata.*' below 'gs://flowers'" in completed.stderr
