"""Small folders in the shapes in which data sets are downloaded: paths with their content."""

from __future__ import annotations

import functools
import json
import pathlib
from collections.abc import Iterable, Mapping, Sequence

from tests import detection_sets, image_sets

IMAGE = "an image"

Tree = Mapping[str, str]  # from the path of a file to its content; IMAGE for an image

_FORMATS = {".jpg": "JPEG", ".jpeg": "JPEG", ".JPEG": "JPEG", ".png": "PNG", ".gif": "GIF"}


def write(root: pathlib.Path, tree: Tree) -> pathlib.Path:
    """Writes the files of a tree below `root`, and returns `root`."""
    for name, content in tree.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_image(_FORMATS[path.suffix]) if content is IMAGE else content.encode())
    return root


@functools.cache
def _image(format: str) -> bytes:
    return image_sets.make_image(1, format)


def images(*patterns: str, numbers: Iterable[int] = range(4)) -> dict[str, str]:
    """Returns images whose paths are the patterns with each number in place of `#`."""
    return {pattern.replace("#", str(number)): IMAGE for pattern in patterns for number in numbers}


def table(header: str, rows: Iterable[str]) -> str:
    return "\n".join([header, *rows, ""])


def coco_json(numbers: Iterable[int] = range(4)) -> str:
    """Returns annotations of images 0.jpg, 1.jpg and so on."""
    return json.dumps(
        {
            "info": {"year": 2020},
            "images": [{"id": n, "file_name": f"{n}.jpg", "width": 64, "height": 48} for n in numbers],
            "annotations": [{"id": 1, "image_id": 1, "category_id": 3, "bbox": [1, 1, 5, 5], "area": 25, "iscrowd": 0}],
            "categories": [{"id": 3, "name": "cat"}],
        }
    )


_BOX = "0 0.5 0.5 0.2 0.2\n"
_XML = detection_sets.voc_xml([detection_sets.Box("cat", 1, 1, 5, 5)])
_BOX_ROWS = table(detection_sets.CSV_HEADER, (f"{n}.jpg,40,20,cat,1,1,5,5" for n in range(4)))
_SPLITS = ("train", "val")
_USAGES = ("Training", "Training", "PublicTest", "PrivateTest")
_NUMBERS = range(20)


def _rows(form: str, values: Sequence[object]) -> list[str]:
    """Returns a row for each of 20 images 0a.jpg to 19a.jpg, with the values in turn: `{n}a.jpg,{v}`."""
    return [form.format(n=n, v=values[n % len(values)]) for n in _NUMBERS]


# By name: the preset, the number of images that it lists, and the folder.
SHAPES: Mapping[str, tuple[str, int, Tree]] = {
    "classes": ("image_folder", 12, images("cat/#.jpg", "dog/#.png", "owl/x/#.jpg")),
    "classes-and-readme": ("image_folder", 8, {**images("cat/#.jpg", "dog/#.jpg"), "README.md": "cats and dogs"}),
    "classes-and-loose-images": ("image_folder", 8, images("cat/#.jpg", "dog/#.jpg", "#.jpg")),
    "one-folder-that-holds-all": ("image_folder", 8, images("archive/photos/cat/#.jpg", "archive/photos/dog/#.jpg")),
    "beside-a-leftover-of-macos": ("image_folder", 8, images("cat/#.jpg", "dog/#.jpg", "__MACOSX/cat/._#.jpg")),
    "classes-in-splits": (
        "imagefolder",
        16,
        images(*(f"{split}/{kind}/#.png" for split in ("train", "test") for kind in ("cat", "dog"))),
    ),
    "splits-under-other-names": (
        "imagefolder",
        16,
        images(*(f"{split}/{kind}/#.jpg" for split in ("Training", "Testing") for kind in ("cat", "dog"))),
    ),
    "splits-twice": (
        "imagefolder",
        16,
        images(*(f"seg_{split}/seg_{split}/{kind}/#.jpg" for split in ("train", "test") for kind in ("cat", "dog"))),
    ),
    "splits-and-a-test-without-labels": ("imagefolder", 8, images("train/cat/#.jpg", "train/dog/#.jpg", "test/#.jpg")),
    "splits-in-classes": (
        "image_folder",
        16,
        images(*(f"{kind}/{split}/#.jpg" for split in _SPLITS for kind in ("cat", "dog"))),
    ),
    "synsets": ("imagenet", 8, images("train/n01440764/#.JPEG", "val/n01440764/#.JPEG")),
    "cats-and-dogs": ("cats_dogs", 8, images("train/cat.#.jpg", "train/dog.#.jpg", "test1/#.jpg")),
    "numbered-names": ("image_folder", 40, images("rose_#.jpg", "lily_#.jpg", numbers=_NUMBERS)),
    "utkface": ("utkface", 4, images("UTKFace/2#_0_2_20170104023102422.jpg")),
    "lists": (
        "food101",
        8,
        images("images/cat/#.jpg", "images/dog/1#.jpg")
        | {"meta/train.txt": "cat/0\ncat/1\ndog/10\ndog/11\n", "meta/test.txt": "cat/2\ncat/3\ndog/12\ndog/13\n"},
    ),
    "yolo": (
        "yolo",
        8,
        images("images/train/#.jpg", "images/val/#.jpg")
        | {f"labels/{split}/{n}.txt": _BOX for split in _SPLITS for n in range(4)}
        | {"data.yaml": "train: images/train\nval: images/val\nnames: [cat]\n"},
    ),
    "yolo-flat": ("yolo", 4, images("#.jpg") | {f"{n}.txt": _BOX for n in range(4)} | {"classes.txt": "cat\n"}),
    "voc": ("voc", 4, images("JPEGImages/#.jpg") | {f"Annotations/{n}.xml": _XML for n in range(4)}),
    "voc-in-its-kit": (
        "voc",
        4,
        images("VOCdevkit/VOC2007/JPEGImages/#.jpg")
        | {f"VOCdevkit/VOC2007/Annotations/{n}.xml": _XML for n in range(4)},
    ),
    "boxes-in-csv": ("box_csv", 4, images("train/#.jpg") | {"train/_annotations.csv": _BOX_ROWS}),
    "boxes-in-a-table-of-another-name": ("box_csv", 4, images("images/#.jpg") | {"boxes.csv": _BOX_ROWS}),
    "coco": (
        "coco",
        8,
        images("train2017/#.jpg", "val2017/#.jpg")
        | {f"annotations/instances_{split}2017.json": coco_json() for split in _SPLITS}
        | {"annotations/captions_val2017.json": coco_json()},
    ),
    "coco-of-roboflow": (
        "coco",
        8,
        images("train/#.jpg", "valid/#.jpg") | {f"{s}/_annotations.coco.json": coco_json() for s in ("train", "valid")},
    ),
    "coco-in-one-file": ("coco", 4, images("pictures/#.jpg") | {"labels.json": coco_json()}),
    "masks": ("segmentation", 4, images("images/#.jpg", "masks/#.png")),
    "masks-in-splits": (
        "segmentation",
        8,
        images(*(f"images/{split}/#.jpg" for split in _SPLITS), *(f"masks/{split}/#.png" for split in _SPLITS)),
    ),
    "masks-below-splits": (
        "segmentation",
        8,
        images(*(f"{split}/image/#.jpg" for split in _SPLITS), *(f"{split}/mask/#.png" for split in _SPLITS)),
    ),
    "masks-of-camvid": (
        "segmentation",
        12,
        images(*(f"{split}{kind}/#.png" for split in ("train", "val", "test") for kind in ("", "annot"))),
    ),
    "masks-of-splits-with-a-suffix": (
        "segmentation",
        8,
        images(*(f"{split}/#.png" for split in _SPLITS), *(f"{split}_labels/#_L.png" for split in _SPLITS)),
    ),
    "masks-in-folders-that-end-in-splits": (
        "segmentation",
        8,
        images(
            *(f"images_prepped_{split}/#.png" for split in ("train", "test")),
            *(f"annotations_prepped_{split}/#.png" for split in ("train", "test")),
        ),
    ),
    "masks-of-short-names": (
        "segmentation",
        8,
        images(*(f"img_{split}/#.jpg" for split in _SPLITS), *(f"mask_{split}/#.png" for split in _SPLITS)),
    ),
    "masks-below-training": (
        "segmentation",
        8,
        images(
            *(f"{split}/images/#_{split}.jpg" for split in ("training", "test")),
            *(f"{split}/mask/#_{split}_mask.gif" for split in ("training", "test")),
        ),
    ),
    "masks-with-a-suffix": ("segmentation", 4, images("train/#a.jpg", "train_masks/#a_mask.gif")),
    "masks-beside-images": ("segmentation", 4, images("benign (#).png", "benign (#)_mask.png")),
    "ids": (
        "kaggle",
        20,
        images("train_images/#a.jpg", numbers=_NUMBERS)
        | {"train.csv": table("id_code,diagnosis", _rows("{n}a,{v}", (0, 1, 2)))}
        | {"sample_submission.csv": table("id_code,diagnosis", ["x,0"])},
    ),
    "paths": (
        "kaggle",
        20,
        images("data/all/#a.jpg", numbers=_NUMBERS)
        | {"data/labels.csv": table("path;kind", _rows("all/{n}a.jpg;{v}", ("cat", "dog")))},
    ),
    "a-column-of-splits": (
        "kaggle",
        20,
        images("#a.jpg", numbers=_NUMBERS)
        | {"list.csv": table("file,label,split", _rows("{n}a.jpg,{v}", ("0,train", "1,train", "1,val")))},
    ),
    "a-list-without-header": (
        "kaggle",
        20,
        images("img/#a.jpg", numbers=_NUMBERS) | {"labels.txt": "\n".join(_rows("img/{n}a.jpg {v}", (1, 2)))},
    ),
    "numbers-to-predict": (
        "regression",
        20,
        images("faces/#a.jpg", numbers=_NUMBERS)
        | {"scores.csv": table("Filename,Rating", _rows("{n}a.jpg,{v}", (0.5, 1.25, 3)))},
    ),
    "several-classes-in-a-cell": (
        "multilabel",
        20,
        images("images/#a.jpg", numbers=_NUMBERS)
        | {"data.csv": table("image,labels", _rows("{n}a.jpg,{v}", ("rust", "scab", "rust scab", "scab rust")))},
    ),
    "a-column-for-each-class": (
        "multilabel",
        8,
        images("train/#.jpg", "valid/#.jpg")
        | {
            f"{split}/_classes.csv": table("filename, cat, dog, owl", (f"{n}.jpg, {n % 2}, 1, 0" for n in range(4)))
            for split in ("train", "valid")
        },
    ),
    "captions": (
        "captions",
        20,
        images("Images/#a.jpg", numbers=_NUMBERS)
        | {"captions.txt": table("image,caption", _rows("{n}a.jpg,a dog on the road\n{n}a.jpg,{v}", ["it runs fast"]))},
    ),
    "lines-of-json": (
        "kaggle",
        20,
        images("img/#a.jpg", numbers=_NUMBERS)
        | {"data.jsonl": "\n".join(_rows('{{"image": "img/{n}a.jpg", "label": "{v}"}}', ("cat", "dog")))},
    ),
    "pixels-of-faces": (
        "fer2013",
        4,
        {
            "fer2013.csv": table(
                "emotion,pixels,Usage",
                (f"{n},{' '.join('7' * 2304)},{split}" for n, split in enumerate(_USAGES)),
            )
        },
    ),
    "pixels-of-digits": (
        "mnist_csv",
        4,
        {
            f"mnist_{split}.csv": table(f"label,{','.join(f'pixel{n}' for n in range(784))}", ["3" + ",9" * 784] * 2)
            for split in ("train", "test")
        },
    ),
    "metadata": (
        "imagefolder_metadata",
        8,
        images("train/#.png", "test/#.png")
        | {
            f"{split}/metadata.csv": table("file_name,species,age", (f"{n}.png,owl {n},{n}" for n in range(4)))
            for split in ("train", "test")
        },
    ),
    "metadata-at-the-root": (
        "imagefolder_metadata",
        4,
        images("#.png") | {"metadata.csv": table("file_name,text", (f"{n}.png,a cat" for n in range(4)))},
    ),
}
