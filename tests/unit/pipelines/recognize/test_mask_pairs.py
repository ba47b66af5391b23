"""Folders of masks that look like folders of classes."""

from __future__ import annotations

import pathlib

import pytest

from imagebeam.pipelines.recognize import recognize_folder
from tests import folder_shapes
from tests.folder_shapes import images


@pytest.mark.parametrize(
    "tree",
    [
        pytest.param(images("train/shapes_train2018/#.jpg", "train/annotations/#_square_0.png"), id="one-split"),
        pytest.param(
            images("train/shapes/#.jpg", "val/shapes/#.jpg")
            | images("train/masks/0_a.png", "train/masks/1_b.png", "val/masks/0_b.png", "val/masks/1_a.png"),
            id="two-splits",
        ),
        pytest.param(images("set/shapes/#.jpg", "set/labels/#_0.png", "set/labels/#_1.png"), id="no-split"),
        pytest.param(
            images("id1/images/x.png", "id2/images/y.png", "id1/masks/abc#.png", "id2/masks/def#.png"),
            id="folder-of-masks-for-each-image",
        ),
        pytest.param(
            images("set_train/i1/images/x.png", "set_train/i2/images/y.png")
            | images("set_train/i1/masks/abc#.png", "set_train/i2/masks/def#.png"),
            id="folder-of-masks-for-each-image-of-a-split",
        ),
    ],
)
def test_folder_of_masks_below_another_one_is_no_class_without_a_note(
    tmp_path: pathlib.Path, tree: folder_shapes.Tree
) -> None:
    found = recognize_folder.recognize(str(folder_shapes.write(tmp_path, tree)))
    masks = " and ".join(
        sorted({name.rpartition("/")[0] for name in tree if "shapes" not in name and "images" not in name})
    )
    assert found.sure is None
    would_be = "would be read as images" if " and " in masks else "would be a class by its name"
    start = f"{masks} {would_be}, but may hold masks of the images beside"
    notes = [*found.remarks, *(doubt for each in found.candidates for doubt in each.doubts)]
    assert any(each.startswith(start) for each in notes)


def test_folder_named_like_masks_is_never_taken_as_a_class(tmp_path: pathlib.Path) -> None:
    tree = images("train/cans/#.jpg", "train/labels/x_1#.jpg", numbers=range(1, 5))
    found = recognize_folder.recognize(str(folder_shapes.write(tmp_path, tree)))
    assert found.sure is None
    assert found.candidates[0].doubts == ("labels: names of parts of a data set, not of classes",)
