"""Small folders in the shapes in which data sets are downloaded: paths with their content."""

from __future__ import annotations

import functools
import gzip
import io
import json
import pathlib
import pickle
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence

import h5py
import numpy as np
import pyarrow
import pyarrow.parquet
import scipy.io

from imagebeam import example, features, records
from tests import array_sets, detection_sets, idx_files, image_sets

IMAGE = "an image"

Tree = Mapping[str, str | bytes]  # from the path of a file to its content; IMAGE for an image

_FORMATS = {".jpg": "JPEG", ".jpeg": "JPEG", ".JPEG": "JPEG", ".png": "PNG", ".gif": "GIF"}


def write(root: pathlib.Path, tree: Tree) -> pathlib.Path:
    """Writes the files of a tree below `root`, and returns `root`."""
    for name, content in tree.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is IMAGE:
            content = _image(_FORMATS[path.suffix])
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return root


@functools.cache
def _image(format: str) -> bytes:
    return image_sets.make_image(1, format)


def images(*patterns: str, numbers: Iterable[int] = range(4)) -> dict[str, str | bytes]:
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


def _annotated(more: Mapping[str, object] | None = None, **fields: object) -> str:
    """Returns COCO's JSON of the images 0.jpg to 3.jpg; `fields` of all annotations, `more` of the category."""
    found = json.loads(coco_json())
    found["annotations"] = [{"id": n, "image_id": n, **fields} for n in range(4)]
    found["categories"][0] |= more or {}
    return json.dumps(found)


_OBJECT = {"category_id": 3, "bbox": [1, 1, 5, 5], "area": 25, "iscrowd": 0}
_POINTS = _annotated({"keypoints": ["nose"], "skeleton": []}, **_OBJECT, keypoints=[2, 2, 2], num_keypoints=1)
_SEGMENT = {"id": 7, "category_id": 3, "iscrowd": 0, "bbox": [0, 0, 5, 5], "area": 25}
PANOPTIC = json.dumps(
    json.loads(coco_json())
    | {"annotations": [{"image_id": n, "file_name": f"{n}.png", "segments_info": [_SEGMENT]} for n in range(4)]}
)
_LABELME = json.dumps(
    {
        "version": "5.0",
        "imageHeight": 48,
        "imageWidth": 64,
        "shapes": [{"label": "cat", "shape_type": "rectangle", "points": [[1, 1], [9, 9]]}],
    }
)


def _lvis(split: str) -> str:
    """Returns LVIS's JSON of the images of a folder of COCO."""
    found = json.loads(coco_json())
    for each in found["images"]:
        each["coco_url"] = f"http://images.example.org/{split}2017/{each.pop('file_name')}"
        each |= {"neg_category_ids": [], "not_exhaustive_category_ids": []}
    return json.dumps(found)


def _saved(save: Callable[..., None], *arguments: object, **arrays: object) -> bytes:
    """Returns what a function writes into a file."""
    file = io.BytesIO()
    save(file, *arguments, **arrays)
    return file.getvalue()


def parquet(columns: Mapping[str, Sequence[object]]) -> bytes:
    """Returns a Parquet file with these columns."""
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(dict(columns)), file)
    return file.getvalue()


def _hdf5(**arrays: np.ndarray) -> bytes:
    file = io.BytesIO()
    with h5py.File(file, "w") as opened:
        for name, array in arrays.items():
            opened[name] = array
    return file.getvalue()


def packed(tree: Tree) -> bytes:
    """Returns a zip archive of a tree."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive, tempfile.TemporaryDirectory() as folder:
        for path in sorted(write(pathlib.Path(folder), tree).rglob("*.*")):
            archive.write(path, path.relative_to(folder), zipfile.ZIP_DEFLATED)
    return file.getvalue()


def tar(members: Mapping[str, bytes]) -> bytes:
    """Returns a tar of files."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return file.getvalue()


def npz(**arrays: np.ndarray) -> bytes:
    """Returns an .npz file."""
    return _saved(np.savez, **arrays)


def _records() -> bytes:
    """Returns a TFRecord file of two images."""
    label, image = "image/class/label", features.ENCODED
    encoder = example.ExampleEncoder(
        [features.Feature(label, label, features.INT64), features.Feature(image, image, features.BYTES)]
    )
    file = io.BytesIO()
    writer = records.RecordWriter(file)
    for n in range(2):
        writer.write(*encoder.encode({label: n}, _image("JPEG")))
    writer.flush()
    return file.getvalue()


_WEB = tar({f"{n}.{ending}": content for n in range(2) for ending, content in (("jpg", _image("JPEG")), ("cls", b"1"))})
_X, _Y = array_sets.pictures(1, 4, 8, 8, 3), array_sets.numbers(1, 4).astype(np.uint8)
_MAT = functools.partial(_saved, scipy.io.savemat)
_BATCH = pickle.dumps({b"data": array_sets.planar(array_sets.pictures(1, 4, 32, 32, 3)), b"labels": [1] * 4}, 2)
_FINE = pickle.dumps(
    {
        b"data": array_sets.planar(array_sets.pictures(1, 4, 32, 32, 3)),
        b"fine_labels": [0] * 4,
        b"coarse_labels": [0] * 4,
    },
    2,
)
_IDX = {"images": idx_files.encode(_X[..., 0]), "labels": idx_files.encode(_Y)}
_COLORS = "name,r,g,b\nVoid,0,0,0\ncar,64,0,128\n"
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
    "a-zip-of-classes": ("image_folder", 8, {"a.zip": packed(images("cat/#.jpg", "dog/#.jpg"))}),
    "a-zip-with-an-inner-folder": (
        "imagefolder",
        16,
        {"a.zip": packed(images(*(f"x/{s}/{kind}/#.jpg" for s in ("train", "val") for kind in ("cat", "dog"))))},
    ),
    "a-zip-for-each-split": (
        "imagefolder",
        16,
        {
            "train.zip": packed(images("train/cat/#.jpg", "train/dog/#.jpg")),
            "test.zip": packed(images("cat/#.jpg", "dog/#.jpg")),
        },
    ),
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
    "files-of-synsets": ("imagenet_files", 8, images("n01440764_#.JPEG", "n01443537_1#.JPEG")),
    "names-in-lists": (
        "oxford_pets",
        8,
        images("images/cat_#.jpg", "images/dog_#.jpg")
        | {"annotations/trainval.txt": "cat_0 1\ncat_1 1\ndog_0 2\ndog_1 2\n"}
        | {"annotations/test.txt": "cat_2 1\ncat_3 1\ndog_2 2\ndog_3 2\n"},
    ),
    "tables-of-numbers": (
        "cub200",
        4,
        images("images/001.Owl/#.jpg")
        | {"images.txt": "".join(f"{n} 001.Owl/{n}.jpg\n" for n in range(4))}
        | {"image_class_labels.txt": "".join(f"{n} 1\n" for n in range(4))}
        | {"train_test_split.txt": "".join(f"{n} {n % 2}\n" for n in range(4))},
    ),
    "tars": ("webdataset", 4, {"train-0000.tar": _WEB, "val-0000.tar.gz": gzip.compress(_WEB)}),
    "tfrecords": ("tfrecord", 4, {f"{s}-00000-of-00001": _records() for s in ("train", "test")}),
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
    "voc-in-folders-of-other-names": ("voc", 4, images("images/#.jpg") | {f"annots/{n}.xml": _XML for n in range(4)}),
    "voc-in-a-folder-of-annotations": (
        "voc",
        4,
        images("images/#.jpg") | {f"annotations/xmls/{n}.xml": _XML for n in range(4)} | {"annotations/README": ""},
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
    "captions-of-coco": (
        "coco_captions",
        8,
        images("train2017/#.jpg", "val2017/#.jpg")
        | {f"annotations/captions_{split}2017.json": _annotated(caption="a cat") for split in _SPLITS},
    ),
    "keypoints-of-coco": (
        "coco_keypoints",
        8,
        images("train2017/#.jpg", "val2017/#.jpg")
        | {f"annotations/person_keypoints_{split}2017.json": _POINTS for split in _SPLITS},
    ),
    "panoptic-masks-of-coco": (
        "coco_panoptic",
        8,
        images(*(f"{split}2017/#.jpg" for split in _SPLITS))
        | images(*(f"annotations/panoptic_{split}2017/#.png" for split in _SPLITS))
        | {f"annotations/panoptic_{split}2017.json": PANOPTIC for split in _SPLITS},
    ),
    "lvis": (
        "lvis",
        8,
        images("train2017/#.jpg", "val2017/#.jpg") | {f"lvis_v1_{split}.json": _lvis(split) for split in _SPLITS},
    ),
    "labelme": ("labelme", 4, images("#.jpg") | {f"{n}.json": _LABELME for n in range(4)}),
    "labelme-in-splits": (
        "labelme",
        8,
        images("train/#.jpg", "val/#.jpg") | {f"{split}/{n}.json": _LABELME for split in _SPLITS for n in range(4)},
    ),
    "cars": ("carvana", 4, images("train/0ab_0#.jpg", "train_masks/0ab_0#_mask.gif", "test/1ab_0#.jpg")),
    "masks-in-gif-beside-images": ("segmentation", 4, images("#a.jpg", "#a_mask.gif")),
    "masks-in-colors": (
        "camvid",
        12,
        images(*(f"{split}/#.png" for split in ("train", "val", "test")))
        | images(*(f"{split}_labels/#_L.png" for split in ("train", "val", "test")))
        | {"class_dict.csv": _COLORS},
    ),
    "masks-in-colors-without-splits": (
        "camvid",
        4,
        images("stills/#.png", "LabeledApproved/#_L.png") | {"label_colors.txt": "64 128 64\tAnimal\n0 0 0\tVoid\n"},
    ),
    "masks-beside-splits": (
        "segmentation",
        8,
        images("train/#.jpg", "train_masks/#.png", "val/#.jpg", "val_masks/#.png"),
    ),
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
    "masks-in-a-folder-for-each-example": ("segmentation", 4, images("p#/image.jpg", "p#/mask.png")),
    "masks-beside-images": ("segmentation", 4, images("benign (#).png", "benign (#)_mask.png")),
    "a-table-of-images-in-several-folders": (
        "kaggle",
        20,
        images("pictures_part_1/#.jpg", numbers=_NUMBERS[::2])
        | images("pictures_part_2/#.jpg", numbers=_NUMBERS[1::2])
        | {"data.csv": table("lesion,image_id,dx", _rows("{n},{n},{v}", ("nv", "mel")))},
    ),
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
    "pixels-without-a-split": ("mnist_csv", 2, {"digits.csv": "\n".join(["3" + ",9" * 784] * 2)}),
    "digits": (
        "mnist",
        8,
        {
            f"{split}-{kind}-idx{number}-ubyte": _IDX[kind]
            for split in ("train", "t10k")
            for kind, number in (("images", 3), ("labels", 1))
        },
    ),
    "digits-under-other-names": (
        "mnist",
        8,
        {
            f"digits-{split}-{kind}.idx{number}-ubyte": _IDX[kind]
            for split in ("train", "test")
            for kind, number in (("images", 3), ("labels", 1))
        },
    ),
    "letters": (
        "emnist",
        8,
        {
            f"gzip/emnist-{kinds}-{split}-{kind}-idx{number}-ubyte.gz": gzip.compress(_IDX[kind])
            for kinds in ("letters", "digits")
            for split in ("train", "test")
            for kind, number in (("images", 3), ("labels", 1))
        },
    ),
    "other-set-of-emnist": (
        "emnist",
        8,
        {
            f"emnist-balanced-{split}-{kind}-idx{number}-ubyte": _IDX[kind]
            for split in ("train", "test")
            for kind, number in (("images", 3), ("labels", 1))
        },
    ),
    "letters-plain-and-packed": (
        "emnist",
        8,
        {
            f"emnist-letters-{split}-{kind}-idx{number}-ubyte{end}": gzip.compress(_IDX[kind]) if end else _IDX[kind]
            for split in ("train", "test")
            for kind, number in (("images", 3), ("labels", 1))
            for end in ("", ".gz")
        },
    ),
    "cifar10": (
        "cifar10",
        24,
        {f"cifar-10-batches-py/{name}": _BATCH for name in (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch")}
        | {"cifar-10-batches-py/batches.meta": pickle.dumps({b"label_names": [b"car", b"cat"]}, 2)},
    ),
    "cifar100": (
        "cifar100",
        8,
        {"train": _FINE, "test": _FINE}
        | {"meta": pickle.dumps({b"fine_label_names": [b"cat"], b"coarse_label_names": [b"animal"]}, 2)},
    ),
    "svhn": (
        "svhn",
        8,
        {f"{s}_32x32.mat": _MAT({"X": _X.transpose(1, 2, 3, 0), "y": _Y[:, None] + 1}) for s in ("train", "test")},
    ),
    "arrays-of-numpy": (
        "npz",
        8,
        {"shapes.npz": npz(x_train=_X, y_train=_Y, x_test=_X, y_test=_Y), "readme.md": "shapes"},
    ),
    "arrays-without-splits": ("npz", 4, {"data/x.npy": _saved(np.save, _X), "data/y.npy": _saved(np.save, _Y)}),
    "arrays-without-labels": ("npz", 4, {"images.npz": npz(train_images=_X)}),
    "arrays-of-matlab": ("npz", 4, {"shapes.mat": _MAT({"images": _X.transpose(1, 2, 3, 0), "labels": _Y})}),
    "arrays-of-hdf5": (
        "hdf5",
        8,
        {f"{split}_signs.h5": _hdf5(**{f"{split}_set_x": _X, f"{split}_set_y": _Y}) for split in ("train", "test")},
    ),
    "parquet": (
        "parquet",
        4,
        {
            "data/train-00000-of-00001.parquet": parquet(
                {"image": [{"bytes": _image("JPEG"), "path": None}] * 4, "label": [0, 1, 0, 1]}
            )
        },
    ),
    "table-of-tfrecorder": (
        "tfrecorder",
        4,
        images("pictures/#.jpg")
        | {
            "t.csv": table(
                "split,image_uri,label", (f"{('TRAIN', 'TEST')[n % 2]},pictures/{n}.jpg,cat" for n in range(4))
            )
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
