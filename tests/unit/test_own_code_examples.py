"""The functions of examples/own_code, with the configs that docs/own_code.md prints."""

from __future__ import annotations

import io
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import PIL.Image
import PIL.ImageFilter
import pytest
import yaml

import imagebeam
from tests import command_line, datasets, docs_pages, image_sets, pictures

EXAMPLES = command_line.ROOT / "examples" / "own_code"
NAMES = ("faces", "sharpness", "embeddings", "species")


@pytest.fixture(autouse=True)
def _examples(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(EXAMPLES)
    yield
    for name in NAMES:
        sys.modules.pop(name, None)


def config(name: str) -> dict[str, Any]:
    """Returns the config of the page that names a module."""
    (found,) = [text for text in docs_pages.blocks("own_code.md", "yaml") if f'"{name}:' in text]
    sections: dict[str, Any] = yaml.safe_load(found)
    return sections


def decoded(example: datasets.Example) -> np.ndarray:
    return np.asarray(PIL.Image.open(io.BytesIO(example["image/encoded"])))


@pytest.mark.parametrize("name", NAMES)
def test_page_prints_the_example(name: str) -> None:
    assert (EXAMPLES / f"{name}.py").read_text() in docs_pages.blocks("own_code.md", "python")


def test_faces_are_cropped_by_the_table(tmp_path: pathlib.Path) -> None:
    photo = pictures.photo(120, 90)
    photo.save(tmp_path / "a.png")
    rows = ["image,x,y,width,height", "a.png,10,20,40,30"]
    (tmp_path / "faces.csv").write_text("\n".join(rows))
    sections = config("faces")
    del sections["image"]["resize"]
    datasets.make(tmp_path, tmp_path / "out", **sections)
    (example,) = datasets.read(tmp_path / "out")
    np.testing.assert_array_equal(decoded(example), np.asarray(photo)[20:50, 10:50])
    (tmp_path / "faces.csv").write_text("\n".join([*rows, "b.png,0,0,0,0", "c.png,100,0,21,4"]))
    for name in "bc":
        photo.save(tmp_path / f"{name}.png")
    datasets.make(tmp_path, tmp_path / "all", **config("faces"), rejects={"max_fraction": 0.9})
    assert datasets.rejects(tmp_path / "all") == {"b.png": "filtered", "c.png": "function"}
    (example,) = datasets.read(tmp_path / "all")
    assert decoded(example).shape == (112, 112, 3)


def test_blurred_images_are_left_out(tmp_path: pathlib.Path) -> None:
    photo = pictures.photo(120, 90)
    (tmp_path / "in" / "cat").mkdir(parents=True)
    (tmp_path / "in" / "cat" / "sharp.jpg").write_bytes(sharp := image_sets.save(photo, "JPEG"))
    photo.filter(PIL.ImageFilter.GaussianBlur(6)).save(tmp_path / "in" / "cat" / "blurred.jpg")
    datasets.make(tmp_path / "in", tmp_path / "out", **config("sharpness"))
    assert [each["image/encoded"] for each in datasets.read(tmp_path / "out")] == [sharp]
    assert datasets.rejects(tmp_path / "out") == {"cat/blurred.jpg": "filtered"}


def test_embeddings_are_those_of_the_model(tmp_path: pathlib.Path) -> None:
    import tensorflow as tf

    layers = [tf.keras.layers.Input((32, 32, 3)), tf.keras.layers.AveragePooling2D(16), tf.keras.layers.Flatten()]
    model = tf.keras.Sequential([*layers, tf.keras.layers.Dense(4, kernel_initializer=tf.keras.initializers.Ones())])
    model.save(tmp_path / "model.keras")
    image_sets.write_folder(tmp_path / "in", per_label=5)
    sections = config("embeddings")
    sections["features"]["functions"]["image/embedding"]["options"]["model"] = str(tmp_path / "model.keras")
    datasets.make(tmp_path / "in", tmp_path / "out", **sections)
    expected = {}
    for path in (tmp_path / "in").rglob("*.*"):
        values = np.asarray(PIL.Image.open(path))
        expected[path.relative_to(tmp_path / "in").as_posix()] = model(
            tf.image.resize(values, (32, 32))[tf.newaxis] / 255
        ).numpy()[0]
    for example in datasets.read_lists(tmp_path / "out"):
        found = example["image/embedding"]
        np.testing.assert_allclose(found, expected[example["image/key"][0].decode()], rtol=1e-5)


def test_species_are_those_of_the_table(tmp_path: pathlib.Path) -> None:
    (tmp_path / "in").mkdir()
    for number, animal in enumerate(["tom", "rex", "tom", "eve"]):
        (tmp_path / "in" / f"{animal}_{number}.jpg").write_bytes(image_sets.make_image(number))
    (tmp_path / "species.csv").write_text("animal,species\ntom,cat\nrex,dog\n")
    sections = config("species")
    sections["label"]["function"]["options"]["table"] = str(tmp_path / "species.csv")
    made = datasets.make(tmp_path / "in", tmp_path / "out", **sections, rejects={"max_fraction": 0.5})
    labels = {each["image/key"].decode()[:3]: each["image/class/label"] for each in datasets.read(tmp_path / "out")}
    assert labels == {"tom": 0, "rex": 1}
    assert made.catalog.counts.rejected == {"no_label": 1}
    assert datasets.rejects(tmp_path / "out") == {"eve_3.jpg": "no_label"}


def test_argument_of_functions_is_public() -> None:
    assert imagebeam.Reference._fields == ("key", "uri", "label", "split", "columns")
