"""Folders of which a preset reads a part: the preset, or None where `plan` must ask, and beginnings of its lines."""

from __future__ import annotations

import json
from collections.abc import Mapping

from tests.folder_shapes import SHAPES, Tree, images
from tests.odd_layouts import LAYOUTS as _ODD
from tests.odd_layouts import coco, files_of, rows

_N = range(20)
_DARKNET = _ODD["darknet"][1]
_COCO = images("images/#.jpg") | {"annotations/a_train.json": coco()}
_KEYPOINTS = images("data/#.jpg") | {
    f"annotations/ap10k-{split}-split{n}.json": coco(keypoints=[1, 1, 2], num_keypoints=1)
    for split in ("train", "val")
    for n in (1, 2)
}

LAYOUTS: Mapping[str, tuple[str | None, tuple[str, ...], Tree]] = {
    "voc-with-masks": (
        "voc",
        (
            "8 of 12 images that were seen are not read, in SegmentationClass, SegmentationObject (Segm",
            "ImageSets/Segmentation/train.txt and 1 other .txt file name images (000000, 000001), and are not r",
        ),
        images("{JPEGImages,SegmentationClass,SegmentationObject}/00000#.png")
        | files_of("Annotations/00000#.xml", _ODD["voc-of-two-sets"][1]["A/Annotations/x_0.xml"])
        | {"ImageSets/Main/train.txt": "000000\n000001\n", "ImageSets/Main/val.txt": "000002\n000003\n"}
        | {"ImageSets/Segmentation/train.txt": "000000\n000001\n", "ImageSets/Segmentation/val.txt": "000003\n"},
    ),
    "coco-of-two-files": (
        None,
        ("annotations/b_train.json is of the same kind and splits, and not read: name those that are meant in",),
        _COCO | {"annotations/b_train.json": coco()},
    ),
    "coco-of-two-kinds": (
        "coco",
        ("annotations/captions_train.json names images (0.jpg, 1.jpg, ...), and is not read",),
        _COCO | {"annotations/captions_train.json": coco(caption="a cat")},
    ),
    "keypoints-of-several-divisions": (
        None,
        ("annotations/ap10k-train-split2.json, annotations/ap10k-val-",),
        _KEYPOINTS,
    ),
    "lists-of-a-table": (
        None,
        ("test_list.txt and 1 other .txt file name images (15a.png, 16a.png, ...), and are not read: set split={",),
        images("images/#a.png", numbers=_N)
        | {"data.csv": rows("image,label,age", "{n}a.png,{0},{n}", ("x", "y"))}
        | {"train_val_list.txt": "".join(f"{n}a.png\n" for n in range(15))}
        | {"test_list.txt": "".join(f"{n}a.png\n" for n in range(15, 20))},
    ),
    "lists-of-a-table-that-are-splits": (
        "kaggle",
        ("the splits are those of test.txt and train.txt",),
        images("images/#a.png", numbers=_N)
        | {"data.csv": rows("image,label,age", "{n}a.png,{0},{n}", ("x", "y"))}
        | {"train.txt": "".join(f"{n}a.png\n" for n in range(15))}
        | {"test.txt": "".join(f"{n}a\n" for n in range(15, 20))},
    ),
    "boxes-beside-a-table": (
        "kaggle",
        ("boxes.json names images (0a.png, 10a.png, ...), and is not read",),
        images("images/#a.png", numbers=_N)
        | {"data.csv": rows("image,label,age", "{n}a.png,{0},{n}", ("x", "y"))}
        | {"boxes.json": json.dumps({f"{n}a.png": [1, 2, 3, 4] for n in _N})},
    ),
    "darknet-with-lists-of-another-folder": (
        None,
        ("train.txt and 1 other .txt file name images (cat_0.jpg), and are not read: set split={by: lists",),
        _DARKNET | {"train.txt": "data/img/cat_0.jpg\n", "valid.txt": "data/img/cat_1.jpg\n"},
    ),
    "darknet-with-lists": (
        "yolo",
        ("the splits are those of train.txt and valid.txt",),
        _DARKNET | {"train.txt": "img/cat_0.jpg\n", "valid.txt": "img/cat_1.jpg\nimg/dog_2.jpg\n"},
    ),
    "other-files": (
        "coco",
        ("also there, and not read: a.token, b0.pkl and 3 other .pkl files, data.mdb_, x",),
        SHAPES["coco"][2] | {"a.token": "x", "x": "y", "data.mdb_": "x"} | files_of("b#.pkl", "x"),
    ),
}
