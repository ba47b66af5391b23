"""The dataset of the training examples: one named on the command line, or new images of three shapes."""

from __future__ import annotations

import argparse
import contextlib
import pathlib
import tempfile
from collections.abc import Iterator

import demo

import imagebeam

PER_SHAPE = 300


def parse_arguments() -> str | None:
    """Returns the folder on the command line, if any; `--help` prints the usage and exits."""
    parser = argparse.ArgumentParser()
    parser.add_argument("dataset", nargs="?", help="folder of a dataset (default: a new one of three shapes)")
    dataset: str | None = parser.parse_args().dataset
    return dataset


@contextlib.contextmanager
def open_dataset(dataset: str | None) -> Iterator[imagebeam.ImageDataset]:
    """Yields the dataset of a folder; for None, a new dataset that is removed at the end."""
    with tempfile.TemporaryDirectory() as folder:
        yield imagebeam.open_dataset(dataset or make(pathlib.Path(folder)))


def make(folder: pathlib.Path) -> str:
    """Draws images below `folder` and converts them; returns the folder of the dataset."""
    for shape in demo.SHAPES:
        (folder / "images" / shape).mkdir(parents=True)
        for number in range(PER_SHAPE):
            demo.draw(shape, number).save(folder / "images" / shape / f"{number:03d}.jpg")
    output = str(folder / "shapes")
    addresses = ("--input", str(folder / "images"), "--output", output)
    demo.run("convert", "--config", "image_folder", *addresses, *demo.SPLIT)
    return output


def splits_of(dataset: imagebeam.ImageDataset) -> tuple[str, str]:
    """Returns the split to train on, and the split to evaluate on."""
    names = list(dataset.splits)
    return (names[0], names[1]) if len(names) > 1 else (f"{names[0]}[:90%]", f"{names[0]}[90%:]")
