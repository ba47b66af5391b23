"""Folders that are one example each: an image and its mask."""

from __future__ import annotations

import pathlib

import pytest

from imagebeam.pipelines.recognize import recognize_folder
from tests import folder_shapes
from tests.folder_shapes import images


def recognize(root: pathlib.Path, tree: folder_shapes.Tree) -> recognize_folder.Recognition:
    return recognize_folder.recognize(str(folder_shapes.write(root, tree)))


@pytest.mark.parametrize(
    ("tree", "image", "mask"),
    [
        pytest.param(
            images("p#/image.png", "p#/mask.png"),
            r"(?P<folder>[^/]+)/image\.png",
            r"\g<folder>/mask.png",
            id="same-names",
        ),
        pytest.param(
            images("p#/p#_rgb.jpg", "p#/p#_seg.png", "p#/p#_preview.jpg"),
            r"(?P<folder>[^/]+)/(?P=folder)_rgb\.jpg",
            r"\g<folder>/\g<folder>_seg.png",
            id="name-of-the-folder",
        ),
        pytest.param(
            images("#_json/img.png", "#_json/label.png", "#_json/label_viz.png"),
            r"(?P<folder>[^/]+)/img\.png",
            r"\g<folder>/label.png",
            id="labelme-export",
        ),
        pytest.param(
            images("#/photo.jpg", "#/mask.png", numbers=(1, 2)) | images("#/photo.png", "#/mask.png", numbers=(3, 4)),
            r"(?P<folder>[^/]+)/photo\.(?:jpg|png)",
            r"\g<folder>/mask.png",
            id="images-of-two-formats",
        ),
        pytest.param(
            images("benign/p#/image.png", "benign/p#/mask.png", "malignant/q#/image.png", "malignant/q#/mask.png"),
            r"(?P<part>[^/]+)/(?P<folder>[^/]+)/image\.png",
            r"\g<part>/\g<folder>/mask.png",
            id="below-other-folders",
        ),
        pytest.param(
            images(*(f"{split}/p#/{name}.png" for split in ("train", "val") for name in ("image", "mask")))
            | images("test/p#/image.png"),
            r"(?P<split>train|val)/(?P<folder>[^/]+)/image\.png",
            r"\g<split>/\g<folder>/mask.png",
            id="below-splits",
        ),
    ],
)
def test_folders_of_one_example_each_are_pairs(
    tmp_path: pathlib.Path, tree: folder_shapes.Tree, image: str, mask: str
) -> None:
    found = recognize(tmp_path, tree)
    assert found.sure is not None
    assert found.sure.preset == "segmentation"
    assert (found.sure.settings["source.masks.image"], found.sure.settings["source.masks.mask"]) == (image, mask)


def test_several_images_of_a_mask_are_not_beyond_doubt(tmp_path: pathlib.Path) -> None:
    found = recognize(tmp_path, images("p#/t1.png", "p#/t2.png", "p#/mask.png"))
    assert found.sure is None
    assert found.candidates[0].doubts[0] == (
        "each folder has t1 and t2, and one example has one image; only t1 is used: change source.masks.image for "
        "another one"
    )


def test_masks_in_jpeg_make_no_classes_of_the_folders(tmp_path: pathlib.Path) -> None:
    found = recognize(tmp_path, images("p#/image.jpg", "p#/mask.jpg"))
    assert found.sure is None
    assert [each.preset for each in found.candidates] == ["segmentation", "image_folder"]
    assert found.candidates[0].doubts[0].startswith("masks in JPEG have lost their exact classes and are not read")


def test_folders_with_files_of_the_same_names_may_be_no_classes(tmp_path: pathlib.Path) -> None:
    found = recognize(tmp_path, images("p#/left.png", "p#/right.png"))
    assert found.sure is None
    assert [each.preset for each in found.candidates] == ["image_folder"]
    assert (
        found.candidates[0].doubts[0].startswith("p0, p1, p2, ... hold images of the same names (left, right): pairs")
    )


@pytest.mark.parametrize(
    "tree",
    [
        pytest.param(images("cat/#.jpg", "dog/#.jpg", "owl/#.jpg"), id="numbers"),
        pytest.param(images("cat/a#.jpg", "dog/b#.jpg", "masked/c#.jpg"), id="class-named-like-masks"),
        pytest.param(images("cat/icon.jpg", "dog/icon.jpg", "owl/icon.jpg"), id="one-image-each"),
        pytest.param(images("cat/mask#.jpg", "dog/mask#.jpg", "owl/mask#.jpg"), id="images-named-like-masks"),
    ],
)
def test_classes_stay_classes(tmp_path: pathlib.Path, tree: folder_shapes.Tree) -> None:
    found = recognize(tmp_path, tree)
    assert found.sure is not None
    assert (found.sure.preset, found.sure.notes) == ("image_folder", ())
