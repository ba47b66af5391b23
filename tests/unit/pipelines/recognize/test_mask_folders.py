"""Folders of masks, and folders that are one example each: an image and its mask."""

from __future__ import annotations

import pathlib

import pytest

from imagebeam.pipelines.recognize import recognize_folder
from tests import folder_shapes
from tests.folder_shapes import images

_MANUALS = images(
    "training/images/#_training.jpg", "training/1st_manual/#_manual1.gif", "training/mask/#_training_mask.gif"
)
_MANUALS |= images("test/images/#_test.jpg", "test/1st_manual/#_manual1.gif", "test/mask/#_test_mask.gif")


@pytest.mark.parametrize(
    ("tree", "image", "mask"),
    [
        pytest.param(images("p#/{image,mask}.png"), r"{f}/image\.png", r"\g<folder>/mask.png", id="same-names"),
        pytest.param(
            images("p#/p#_rgb.jpg", "p#/p#_seg.png", "p#/p#_preview.jpg"),
            r"{f}/(?P=folder)_rgb\.jpg",
            r"\g<folder>/\g<folder>_seg.png",
            id="name-of-the-folder",
        ),
        pytest.param(
            images("#_json/{img,label,label_viz}.png"), r"{f}/img\.png", r"\g<folder>/label.png", id="labelme-export"
        ),
        pytest.param(
            images("#/photo.jpg", "#/mask.png", numbers=(1, 2)) | images("#/{photo,mask}.png", numbers=(3, 4)),
            r"{f}/photo\.(?:jpg|png)",
            r"\g<folder>/mask.png",
            id="images-of-two-formats",
        ),
        pytest.param(
            images("{benign/p,malignant/q}#/{image,mask}.png"),
            r"(?P<part>[^/]+)/{f}/image\.png",
            r"\g<part>/\g<folder>/mask.png",
            id="below-other-folders",
        ),
        pytest.param(
            images("{train,val}/p#/{image,mask}.png", "test/p#/image.png"),
            r"(?P<split>train|val)/{f}/image\.png",
            r"\g<split>/\g<folder>/mask.png",
            id="below-splits",
        ),
        pytest.param(
            images("{train,val}/#.png", "{train,val}_labels/#_L.png"),
            r"(?P<split>train|val)/(?P<name>.*)\.png",
            r"\g<split>_labels/\g<name>_L.png",
            id="folders-of-splits",
        ),
        pytest.param(
            images("CamVid/{test,train,val}{,annot}/#.png") | {"Models/net.txt": "layer"},
            r"CamVid/(?P<split>test|train|val)/(?P<name>.*)\.png",
            r"CamVid/\g<split>annot/\g<name>.png",
            id="six-folders-below-another-one",
        ),
        pytest.param(
            images("{train,val}/#.jpg", "{train,val}_gtFine/#.png"),
            r"(?P<split>train|val)/(?P<name>.*)\.jpg",
            r"\g<split>_gtFine/\g<name>.png",
            id="name-of-masks-with-more-letters",
        ),
    ],
)
def test_folders_of_images_and_masks_are_pairs(
    tmp_path: pathlib.Path, tree: folder_shapes.Tree, image: str, mask: str
) -> None:
    found = recognize_folder.recognize(str(folder_shapes.write(tmp_path, tree)))
    assert found.sure is not None and found.sure.preset == "segmentation"
    assert found.sure.settings["source.masks.image"] == image.replace("{f}", "(?P<folder>[^/]+)")
    assert found.sure.settings["source.masks.mask"] == mask


_NO_CLASS = "would be a class by its name, but may hold masks of the images beside it; for masks, one for each image"
_LOSSY = "masks in JPEG have lost their exact classes and are not read: convert them to PNG from their source"


@pytest.mark.parametrize(
    ("tree", "presets", "texts"),
    [
        pytest.param(
            images("p#/{t1,t2,mask}.png"),
            "segmentation image_folder",
            ["each folder has t1 and t2, and one example has one image; only t1 is used: change"],
            id="several-images-of-a-mask",
        ),
        pytest.param(images("p#/{image,mask}.jpg"), "segmentation image_folder", [_LOSSY], id="masks-in-jpeg"),
        pytest.param(
            images("p#/{left,right}.png"),
            "image_folder",
            ["p0, p1, p2, ... hold images of the same names (left, right): pairs of images are no classes"],
            id="same-names-without-masks",
        ),
        pytest.param(
            _MANUALS,
            "segmentation imagefolder",
            [
                "*/1st_manual and */mask each have a file for each image of */images; only */mask is used: set "
                "source.masks.mask for another one"
            ],
            id="several-folders-of-masks",
        ),
        pytest.param(
            images("train/#.jpg", "train_labels/#.png", "val/#.jpg", "val_gt/#.png"),
            "segmentation imagefolder",
            ["2 pairs of folders look like splits; only train is used: set source.masks.image=..."],
            id="no-common-pattern",
        ),
        pytest.param(
            images("shapes_train2018/#.jpg", "annotations/#_{square_0,circle_1}.png"),
            "imagefolder",
            [f"annotations {_NO_CLASS}"],
            id="a-mask-for-each-object",
        ),
        pytest.param(
            images("{Original,Ground Truth}/#.jpg"),
            "segmentation image_folder",
            [f"Ground Truth {_NO_CLASS[:72]}; {_LOSSY}"],
            id="images-as-masks-in-jpeg",
        ),
        pytest.param(
            images("train/shapes_train2018/#.jpg", "train/annotations/#_square_0.png"),
            "imagefolder",
            [f"train/annotations {_NO_CLASS}"],
            id="objects-of-one-split",
        ),
        pytest.param(
            images("{train,val}/shapes/#.jpg", "{train/masks/0_a,train/masks/1_b,val/masks/0_b,val/masks/1_a}.png"),
            "imagefolder",
            ["train/masks and val/masks would be read as images, but may hold masks of the images beside them"],
            id="objects-of-two-splits",
        ),
        pytest.param(
            images("set/shapes/#.jpg", "set/labels/#_{0,1}.png"),
            "image_folder",
            [f"set/labels {_NO_CLASS}"],
            id="objects-of-no-split",
        ),
        pytest.param(
            images("id1/images/x.png", "id2/images/y.png", "id1/masks/abc#.png", "id2/masks/def#.png"),
            "",
            ["id1/masks and id2/masks would be read as images, but may hold masks of the images beside them"],
            id="folder-of-masks-for-each-image",
        ),
        pytest.param(
            images("set_train/{i1/images/x,i2/images/y}.png", "set_train/{i1/masks/abc,i2/masks/def}#.png"),
            "imagefolder",
            ["set_train/i1/masks and set_train/i2/masks would be read as images, but may hold masks of the images"],
            id="folder-of-masks-for-each-image-of-a-split",
        ),
        pytest.param(
            images("train/cans/#.jpg", "train/labels/x_1#.jpg", numbers=range(1, 5)),
            "imagefolder",
            ["labels: names of parts of a data set, not of classes"],
            id="class-named-like-masks",
        ),
    ],
)
def test_folders_that_may_hold_masks_are_never_taken_without_a_note(
    tmp_path: pathlib.Path, tree: folder_shapes.Tree, presets: str, texts: list[str]
) -> None:
    folder_shapes.check_doubtful(recognize_folder.recognize(str(folder_shapes.write(tmp_path, tree))), presets, texts)


@pytest.mark.parametrize(
    "tree",
    [
        pytest.param(images("{cat,dog,owl}/#.jpg"), id="numbers"),
        pytest.param(images("cat/a#.jpg", "dog/b#.jpg", "masked/c#.jpg"), id="class-named-like-masks"),
        pytest.param(images("{cat,dog,owl}/icon.jpg"), id="one-image-each"),
        pytest.param(images("{cat,dog,owl}/mask#.jpg"), id="images-named-like-masks"),
    ],
)
def test_classes_stay_classes(tmp_path: pathlib.Path, tree: folder_shapes.Tree) -> None:
    found = recognize_folder.recognize(str(folder_shapes.write(tmp_path, tree)))
    assert found.sure is not None
    assert found.sure.preset == "image_folder"
    assert all(" hold images of the same names" in note for note in found.sure.notes)
