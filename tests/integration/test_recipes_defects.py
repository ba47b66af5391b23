"""MVTec AD's folders by the commands of the page: kinds of defects as classes, and the masks of images with defects."""

from __future__ import annotations

import io
import pathlib
import shlex

import numpy as np
import pytest
from PIL import Image

import imagebeam
from imagebeam.pipelines import cli
from imagebeam.pipelines.recognize import recognize_folder
from tests import datasets, docs_pages, folder_shapes, image_sets


@pytest.fixture
def root(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    tree = folder_shapes.images("bottle/train/good/00#.png", "bottle/test/{good,broken_large,broken_small}/00#.png")
    with Image.open(io.BytesIO(image_sets.make_image(1, "PNG"))) as image:
        mask = np.zeros(image.size[::-1], np.uint8)
    mask[2:5, 3:7] = 255
    png = image_sets.save(Image.fromarray(mask), "PNG")
    tree |= folder_shapes.files(png, "bottle/ground_truth/{broken_large,broken_small}/00#_mask.png")
    monkeypatch.chdir(folder_shapes.write(tmp_path, tree))
    return tmp_path


def test_commands_of_the_page_give_the_kinds_and_the_masks(root: pathlib.Path) -> None:
    assert recognize_folder.recognize("bottle").sure is None
    commands = [block for block in docs_pages.blocks("recipes/segmentation.md", "sh") if "--input bottle" in block]
    for command in commands:
        assert cli.main(shlex.split(command.replace("\\\n", ""))[1:]) == 0
    kinds = imagebeam.open_dataset(root / "kinds")
    assert kinds.labels == ("broken_large", "broken_small", "good")
    assert {name: split.num_examples for name, split in kinds.splits.items()} == {"train": 4, "test": 12}
    found = datasets.read(root / "defects", "test")
    assert len(found) == 8 and all(b"/broken_" in values["image/key"] for values in found)
    for values in found:
        classes = np.asarray(Image.open(io.BytesIO(values["image/segmentation/class/encoded"])))
        assert classes[2:5, 3:7].min() == 1 and classes.sum() == 12
