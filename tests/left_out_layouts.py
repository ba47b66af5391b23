"""Folders of which a preset reads a part: the preset, or None where `plan` must ask, and beginnings of its lines."""

from __future__ import annotations

import gzip
import io
import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.io
from PIL import Image

from tests import animations, image_sets
from tests.folder_shapes import IMAGE, LABELME, SHAPES, Tree, hdf5, images, npz, parquet, table, tar, tfrecords
from tests.odd_layouts import CVAT, SUPERVISELY, VIA, coco, files_of, rows
from tests.odd_layouts import LAYOUTS as _ODD

_N = range(20)
_DARKNET = _ODD["darknet"][1]
_COCO = images("images/#.jpg") | {"annotations/a_train.json": coco()}
_KEYPOINTS = images("data/#.jpg") | {
    f"annotations/ap10k-{split}-split{n}.json": coco(keypoints=[1, 1, 2], num_keypoints=1)
    for split in ("train", "val")
    for n in (1, 2)
}

_YOLO = images("images/#.jpg") | {"data.yaml": "names: [a]\n"}
_KEYPOINT_LINE = "0 0.5 0.5 0.4 0.4 0.4 0.4 2 0.6 0.6 2\n"


_LABELLED = images("images/#.jpg") | {"classes.txt": "a\n"}
_XML = _ODD["voc-of-two-sets"][1]["A/Annotations/x_0.xml"]


def _voc(old: str, new: str) -> Tree:
    """Returns images with files of VOC in which a text is replaced."""
    assert isinstance(_XML, str) and old in _XML
    return images("images/00000#.jpg") | files_of("annotations/00000#.xml", _XML.replace(old, new))


_LISTED = {"train": (0, 1), "test": (2, 3), "all": (0, 1, 2, 3)}
_VIDEOS = images("frames/{1,2,3}/00000#.jpg")
_PATIENTS = images("patches/{patient_004_node_0,patient_005_node_1}/p_#.png")


def _npy(values: Any) -> bytes:
    data = io.BytesIO()
    np.save(data, values)
    return data.getvalue()


def _mat(**arrays: np.ndarray) -> bytes:
    data = io.BytesIO()
    scipy.io.savemat(data, arrays)
    return data.getvalue()


def _photo(number: int) -> bytes:
    """Returns a PNG of more colors than masks have."""
    return image_sets.make_image(number, "PNG", size=(40, 30))


def _wide_tiff(number: int) -> bytes:
    data = io.BytesIO()
    Image.fromarray(np.full((4, 4), number, np.uint16)).save(data, "TIFF")
    return data.getvalue()


def _mask(count: int, scale: int = 1) -> bytes:
    """Returns a mask with the multiples of a number from 0 on, so many."""
    data = io.BytesIO()
    Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8) % count * np.uint8(scale)).save(data, "PNG")
    return data.getvalue()


def _instances(number: int, mode: str) -> bytes:
    """Returns a mask with as many objects, in a mode of Pillow."""
    numbers = np.arange(64, dtype=np.uint8).reshape(8, 8) % (number + 1)
    picture = Image.fromarray(numbers, "P") if mode == "P" else Image.fromarray(numbers.astype(np.uint16))
    if mode == "P":
        picture.putpalette([0, 0, 0, 255, 0, 0, 0, 255, 0, 0, 0, 255, 9, 9, 9])
    return image_sets.save(picture)


def _tiff(number: int) -> bytes:
    return image_sets.make_image(number, "TIFF", size=(8, 8))


def _palette_mask(number: int) -> bytes:
    """Returns a mask whose palette begins with the colors of another number."""
    picture = Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8) % 3, "P")
    picture.putpalette([(40 * (number + each)) % 256 for each in range(9)])
    return image_sets.save(picture)


def _tar(*endings: str) -> bytes:
    """Returns a tar of two images, each with members of these endings."""
    members = {f"{n}.{ending}": b"1" for n in range(2) for ending in ("jpg", *endings)}
    return tar(
        {name: image_sets.make_image(1, "JPEG") if name.endswith("jpg") else each for name, each in members.items()}
    )


def _via_image(number: int) -> Any:
    """Returns an image of VIA with a region, which has a class but in the first."""
    shape = {"name": "rect", "x": 1, "y": 1, "width": 4, "height": 4}
    region = {"shape_attributes": shape, "region_attributes": {"kind": "cat"} if number else {}}
    return {"filename": f"{number}.jpg", "size": 1, "regions": [region], "file_attributes": {}}


_PIXELS, _COUNT = np.zeros((4, 8, 8, 3), np.uint8), np.arange(4)
_TAG = '<tag label="a"><attribute name="b">1</attribute></tag>'
_AS_SPLITS = "images of such names, too: to read them as splits set source.include='**' and split={by: directory}"
_BOXES = "filename,width,height,class,xmin,ymin,xmax,ymax,split"

LAYOUTS: Mapping[str, tuple[str | None, tuple[str, ...], Tree]] = {
    "table-of-patients": (
        None,
        ("metadata.csv may say what the images show, and is not read",),
        _PATIENTS | {"metadata.csv": rows("patient,node,tumor", "00{n},{0},1", ("0", "1"))},
    ),
    "json-of-numbered-videos": (
        None,
        ("labels/train.json may say what the images show, and is not read",),
        _VIDEOS | {"labels/train.json": json.dumps([{"id": "1", "label": "wave"}, {"id": "2", "label": "jump"}])},
    ),
    "boxes-in-yaml": (
        None,
        ("train.yaml names images (a0.png, a1.png, ...), and is not read",),
        images("rgb/train/seq{0,1}/a#.png")
        | {"train.yaml": "".join(f"- boxes: [{{label: Red}}]\n  path: ./rgb/train/seq0/a{n}.png\n" for n in range(4))},
    ),
    "set-with-a-copy-in-it": (
        None,
        ("cells/cells holds folders of the same names as beside it",),
        images("cells/{,cells/}{sick,sound}/c#.png"),
    ),
    "masks-in-inner-folders-of-classes": (
        "segmentation",
        ("the folders of images are stored in no feature (flu, none): if they are classes, set source.pattern='(",),
        images("{Train,Val}/{flu,none}/images/x#.png")
        | {
            f"{s}/{each}/masks/x{n}.png": _mask(2)
            for s in ("Train", "Val")
            for each in ("flu", "none")
            for n in range(4)
        },
    ),
    "numbers-in-lists": (
        "segmentation",
        ("the splits are those of train.txt and val.txt",),
        images("images/000#.jpg")
        | {f"masks/000{n}.png": _mask(2) for n in range(4)}
        | {"train.txt": "0000\n0001\n0002\n", "val.txt": "0003\n"},
    ),
    "previews-in-classes": (
        None,
        ("cat holds images, and its folders do, too (thumbs)",),
        images("{cat,dog}/x#.png", "{cat,dog}/thumbs/x#.png"),
    ),
    "pictures-of-a-readme": (
        None,
        ("assets: names of parts of a data set, not of classes",),
        images("{cat,dog,assets}/x#.png"),
    ),
    "masks-of-1-and-of-255": (
        None,
        ("masks/0.png and 3 other masks (no more were looked at) have 1 in some and 255 in others",),
        images("images/#.png") | {f"masks/{n}.png": _mask(2, scale=255 if n % 2 else 1) for n in range(4)},
    ),
    "table-of-sequences": (
        None,
        ("the column 'seq_id' may say where images are from, by its name",),
        images("images/#a.png", numbers=_N) | {"data.csv": rows("file,seq_id", "{n}a.png,{0}", ("x1", "y1"))},
    ),
    "names-of-classes": (
        "image_folder",
        ("also there, and not read: classes.txt",),
        images("pics/{cat,dog}/x#.jpg") | {"classes.txt": "0 cat\n1 dog\n"},
    ),
    "masks-of-two-people": (
        None,
        ("labels-ah and labels-vk each have a file for each image of stare-images",),
        images("stare-images/im000#.png", "labels-ah/im000#.ah.png", "labels-vk/im000#.vk.png"),
    ),
    "three-images-of-a-scene": (
        None,
        ("each image in hazy has the name of one in clear, and more",),
        images("clear/#.png", "hazy/#_1_0.91.png", "trans/#_1.png"),
    ),
    "strengths-of-noise": (
        None,
        ("",),
        images("set/{noise15,noise25,original}/kodim0#.png"),
    ),
    "photos-as-masks": (
        None,
        ("masks/0.png is drawn in colors: is it the picture that is wanted",),
        {f"{folder}/{n}.png": _photo(n + 9 * k) for n in range(4) for k, folder in enumerate(("images", "masks"))},
    ),
    "numbers-as-masks": (
        None,
        ("train/annotations/0_aro.npy is no array of rows and columns",),
        images("{train,val}/images/#.jpg")
        | {f"{s}/annotations/{n}_aro.npy": _npy(np.array("0.5")) for s in ("train", "val") for n in range(4)},
    ),
    "two-validation-splits": (
        None,
        ("several values of 'split' would become one split",),
        images("images/#a.png", numbers=_N)
        | {"data.csv": rows("image,label,split", "{n}a.png,{0},{1}", ("x", "y"), ("train", "val", "id_val"))},
    ),
    "lists-of-ids-of-two-numbers": (
        "segmentation",
        ("the splits are those of ImageSets/train.txt and ImageSets/val.txt",),
        images("images/2008_00000#.png")
        | {f"masks/2008_00000{n}.png": _mask(2) for n in range(4)}
        | {"ImageSets/train.txt": "2008_000000\n2008_000001\n2008_000002\n", "ImageSets/val.txt": "2008_000003\n"},
    ),
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
    "yolo-of-keypoints": (
        "yolo",
        ("the keypoints after each box (kpt_shape) are not stored",),
        _YOLO | files_of("labels/#.txt", _KEYPOINT_LINE) | {"data.yaml": "names: [a]\nkpt_shape: [2, 3]\n"},
    ),
    "yolo-of-keypoints-that-nothing-says": (
        None,
        ("the 11 numbers on each line may be a box and keypoints: name them as kpt_shape in data.yaml",),
        _YOLO | files_of("labels/#.txt", _KEYPOINT_LINE),
    ),
    "yolo-of-turned-boxes": (
        "yolo",
        ("each line has four points, as turned boxes have: the upright boxes around them are stored",),
        _YOLO | files_of("labels/#.txt", "0 0.1 0.1 0.5 0.1 0.5 0.6 0.1 0.6\n"),
    ),
    "yolo-of-outlines": (
        "yolo",
        ("the outlines of objects are not stored: lines of polygons become the boxes around them",),
        _YOLO | files_of("labels/#.txt", "0 0.1 0.1 0.5 0.1 0.5 0.6\n0 0.1 0.1 0.5 0.1 0.5 0.6 0.1 0.6\n"),
    ),
    "yolo-of-corners": (
        None,
        ("4 of 4 boxes that were looked at leave their images, read as a center and a size",),
        _LABELLED | files_of("labels/#.txt", "0 0.6 0.5 0.9 0.9\n"),
    ),
    "yolo-in-pixels": (
        None,
        ("most numbers of boxes are above 1",),
        _LABELLED | files_of("labels/#.txt", "0 50 50 9 8\n"),
    ),
    "yolo-with-classes-beside-the-images-of-splits": (
        "yolo",
        (),
        images("d/{train,test}/#.jpg")
        | {f"d/{s}/{n}.txt": "0 0.5 0.5 0.2 0.2\n" for s in ("train", "test") for n in range(4)}
        | {f"d/{s}/classes.txt": "a\n" for s in ("train", "test")},
    ),
    "yolo-in-folders-that-a-yaml-names": (
        "yolo",
        (),
        images("{A,B,C}/images/#.jpg")
        | {f"{s}/labels/{n}.txt": "0 0.5 0.5 0.2 0.2\n" for s in "ABC" for n in range(4)}
        | {"x.yaml": "train: [A/images, B/images]\nval: C/images\nnames: [a]\n"},
    ),
    "coco-of-corners": (
        None,
        ("4 of 4 boxes that were looked at leave their images, read as a corner and a size",),
        images("data/#.jpg") | {"annotations/a_train.json": coco(bbox=[10, 8, 20, 14])},
    ),
    "coco-of-shares": (
        None,
        ("all numbers of boxes are from 0 to 1",),
        images("data/#.jpg") | {"annotations/a_train.json": coco(bbox=[0.1, 0.2, 0.5, 0.5])},
    ),
    "coco-of-boxes-in-another-form": (
        None,
        ("the field bbox_mode of objects is 0",),
        images("data/#.jpg") | {"annotations/a_train.json": coco(bbox_mode=0)},
    ),
    "coco-with-a-box-outside": (
        "coco",
        ("1 of 4 boxes that were looked at leave their images: they are clipped at the edge; source.coco.outside=rej",),
        images("data/#.jpg") | {"annotations/a.json": coco().replace("[1, 1, 5, 5]", "[20, 1, 9, 5]", 1)},
    ),
    "coco-with-fields-of-images": (
        "coco",
        ("the fields weather of images are not stored unless columns names them",),
        images("data/#.jpg") | {"annotations/a_train.json": coco().replace('"width"', '"weather": "sun", "width"')},
    ),
    "coco-with-a-field-of-splits": (
        "coco",
        ("the splits are those of the field split of images (train)",),
        images("data/#.jpg") | {"annotations/a.json": coco().replace('"width"', '"split": "train", "width"')},
    ),
    "coco-with-a-field-that-may-be-splits": (
        None,
        ("the field subset of images may be the split (x)",),
        images("data/#.jpg") | {"annotations/a.json": coco().replace('"width"', '"subset": "x", "width"')},
    ),
    "keypoints-with-outlines": (
        "coco_keypoints",
        ("outlines of objects are not stored unless source.coco.masks=true",),
        images("data/#.jpg")
        | {"a.json": coco(keypoints=[1, 1, 2], num_keypoints=1, segmentation=[[1, 1, 5, 1, 5, 5]])},
    ),
    "voc-of-shares": (
        None,
        ("all numbers of boxes are from 0 to 1",),
        images("images/00000#.jpg")
        | files_of("annotations/00000#.xml", re.sub(r"(<[xy](?:min|max)>)\d+", r"\g<1>0.5", str(_XML))),
    ),
    "voc-with-further-elements": (
        "voc",
        ("the elements part, polygon of objects and weather of images are not stored",),
        _voc("</object>", "<polygon><x1>1</x1></polygon></object><weather>sun</weather>"),
    ),
    "voc-with-corners-in-boxes": (
        "voc",
        ("the elements part of objects and x1, y1 of boxes are not stored",),
        _voc("</bndbox>", "<x1>1</x1><y1>1</y1></bndbox>"),
    ),
    "boxes-of-four-corners": (
        None,
        ("a.csv: the columns x3, y3, x4, y4 are further corners of the objects",),
        images("images/#.jpg")
        | {"a.csv": "path,x1,y1,x2,y2,x3,y3,x4,y4,label\n" + "".join(f"{n}.jpg,1,1,9,1,9,5,1,5,a\n" for n in range(4))},
    ),
    "voc-with-an-element-of-splits": (
        None,
        ("subset of images may be the split (train), which is not read",),
        _voc("<size>", "<subset>train</subset><size>"),
    ),
    "voc-with-lists-of-two-paths": (
        "voc",
        ("the splits are those of train.txt and valid.txt",),
        _voc("<size>", "<size>")
        | {"train.txt": "".join(f"./images/00000{n}.jpg ./annotations/00000{n}.xml\n" for n in range(3))}
        | {"valid.txt": "./images/000003.jpg ./annotations/000003.xml\n"},
    ),
    "voc-with-splits-in-json": (
        None,
        ("parts.json names images (a000000.xml, a000001.xml), and is not read: set split={by: lists",),
        images("a/a00000#.jpg")
        | files_of("a/a00000#.xml", str(_XML))
        | {"parts.json": json.dumps({"train": ["a000000.xml"], "test": ["a000001.xml"]})},
    ),
    "createml-of-left-upper-corners": (
        None,
        ("4 of 4 boxes that were looked at leave their images, read as a center and a size",),
        {f"{n}.jpg": _photo(n) for n in range(4)}
        | {
            "a.json": json.dumps(
                [
                    {
                        "image": f"{n}.jpg",
                        "annotations": [{"label": "a", "coordinates": dict(x=2, y=2, width=9, height=9)}],
                    }
                    for n in range(4)
                ]
            )
        },
    ),
    "via-with-splits": (
        None,
        ("via.json: split of images may be the split (test)",),
        images("#.jpg") | {"via.json": VIA.replace('"regions"', '"file_attributes": {"split": "test"}, "regions"')},
    ),
    "kitti-of-larger-images": (
        None,
        ("3 of 3 boxes that were looked at leave their images",),
        {f"image_2/{n}a.png": _photo(n) for n in range(4)}
        | files_of(
            "label_2/#a.txt", "Car 0.00 0 1.55 614.24 181.78 727.31 284.77 1.57 1.73 4.15 1.00 1.75 13.22 1.62\n"
        ),
    ),
    "masks-below-splits-of-their-names": (
        "segmentation",
        ("8 of 16 images that were seen are not read, in C/mask-train, C/mask-val",),
        images("F/train/train-org/6#.jpg", "F/val/val-org/7#.jpg", "C/mask-train/6#_lab.png", "C/mask-val/7#_lab.png")
        | {f"F/{s}/{s}-label/{k}{n}_lab.png": _mask(2) for s, k in (("train", 6), ("val", 7)) for n in range(4)},
    ),
    "masks-but-for-tests": (
        "segmentation",
        ("4 of 8 images that were seen are not read, in test/images",),
        images("{train,test}/images/0#.jpg") | {f"train/masks/0{n}.png": _mask(2) for n in range(4)},
    ),
    "aligned-folders-beside-another": (
        None,
        ("raw-4, reference-4 hold images of the same names (0_img, 1_img, ...): pairs of images are no classes",),
        images("raw-4/#_img.png", "reference-4/#_img.png", "hard-2/5#.png"),
    ),
    "objects-of-another-xml": (
        None,
        ("the .xml files have objects, but not directly in <annotation>, as those of Pascal VOC",),
        images("images/00000#.jpg")
        | files_of("annotations/00000#.xml", "<annotation><size></size><objects><object/></objects></annotation>"),
    ),
    "voc-of-two-cameras": (
        None,
        ("Vis has images of the same names: set source.voc.image_folder",),
        images("{Ir,Vis}/00#.png") | files_of("Annotation/00#.xml", str(_XML)),
    ),
    "boxes-beside-a-table-of-splits": (
        None,
        ("images.csv names images (0a.jpg, 1a.jpg, ...), and is not read: set split={by: lists",),
        images("images/#a.jpg")
        | {"boxes.csv": rows("filename,class,xmin,ymin,xmax,ymax", "{n}a.jpg,a,1,1,5,5", numbers=range(4))}
        | {"images.csv": rows("filename,site,split", "{n}a.jpg,A,{0}", ("train", "test"), numbers=range(4))},
    ),
    "lists-of-tiles": (
        None,
        ("train.txt and 1 other .txt file name parts of images (M-33_0, M-34_0), and are not read",),
        images("images/M-3#.png", numbers=range(5))
        | {f"masks/M-3{n}.png": _mask(2) for n in range(5)}
        | {"train.txt": "M-33_0\nM-34_0\n", "val.txt": "M-31_1\n"},
    ),
    "mot": ("annotations", ("tracks and visibility are not stored",), _ODD["mot"][1]),
    "masks-beside-classes": (
        None,
        ("1 image may be further masks, and not read (cat/c_0_mask_1.png): if an image has several, merge",),
        images("cat/c_#.png", "cat/c_#_mask.png", "dog/d_#.png", "dog/d_#_mask.png", "cat/c_0_mask_1.png"),
    ),
    "masks-of-people": (
        None,
        ("PedMasks/P00000_mask.png and 3 other masks (no more were looked at) have the numbers from 0 to that of",),
        images("PNGImages/P0000#.png") | {f"PedMasks/P0000{n}_mask.png": _mask(2 + n % 3) for n in range(4)},
    ),
    "masks-in-folders-of-classes": (
        "segmentation",
        ("the folders of images are stored in no feature (1.Owl, 2.Tit): if they are classes, set",),
        images(*(f"{k}/{c}/{c}_#.{e}" for k, e in (("images", "jpg"), ("masks", "png")) for c in ("1.Owl", "2.Tit"))),
    ),
    "annotations-as-a-split": (
        None,
        ("Annotation-Training/Cups may hold masks of images, by the name",),
        images("{Annotation-Training/Cups,REFUGE-Training/All}/{Glaucoma/g#.png,Normal/n#.png}"),
    ),
    "numbered-parts": (
        None,
        ("2. All Groundtruths/train and 2. All Groundtruths/test may hold masks of images, by the name",),
        images("1. Original Images/{train,test}/a_#.jpg", "2. All Groundtruths/{train,test}/{MA,EX}/a_#.png"),
    ),
    "lists-of-masks": (
        "segmentation",
        ("the splits are those of train.txt and val.txt",),
        images("images/a0#.jpg", "masks/a0#.png") | {"train.txt": "a00\na01\na02\n", "val.txt": "a03.jpg\n"},
    ),
    "pages-of-books": (
        None,
        ("names of images such as Emma/page_00.png state 2 subjects; to keep all images of a folder (if it is one su",),
        images("{Emma,Persuasion}/page_0#.png"),
    ),
    "photos-of-months": (
        None,
        ("2023-01, 2023-05: names of parts of a data set, not of classes",),
        images("{2023-01,2023-05}/IMG_#.jpg"),
    ),
    "sides-of-a-camera": (
        None,
        ("cam_front, cam_left: names of parts of a data set, not of classes",),
        images("{cam_front,cam_left}/a#.jpg"),
    ),
    "classes-beside-their-tests": (
        None,
        ("rps-test: names of a split, not of classes",),
        images("{rps,rps-test}/{rock,paper}/x#.png"),
    ),
    "column-of-tests": (
        None,
        ("the column 'is_test' may be the split (False, True)",),
        images("images/#a.png", numbers=_N)
        | {"data.csv": rows("image,label,is_test", "{n}a.png,{0},{1}", ("x", "y"), ("True", "False", "False"))},
    ),
    "several-classes-with-blanks": (
        None,
        ("cells of 'labels' may have several classes with ' ' between them",),
        images("images/#a.png", numbers=_N)
        | {"data.csv": rows("image,labels", "{n}a.png,{0}", (*("rust", "scab") * 9, "spot", "rust scab"))},
    ),
    "addresses-of-images-that-are-there": (
        None,
        ("images are there, too, which the table does not name",),
        images("train/a/b#.png", numbers=_N) | {"data.csv": rows("url,label", "https://x.org/{n}.jpg,{0}", ("x", "y"))},
    ),
    "further-fields-of-coco": (
        "coco",
        ("the fields attribute_ids, ignore of objects are not stored",),
        images("data/#.jpg") | {"annotations/a_train.json": coco(attribute_ids=[1], ignore=True)},
    ),
    "coco-in-two-folders": (
        None,
        ("4 of 8 images that were seen are not read, in B/images (B/images/0.jpg)",),
        images("{A,B}/images/#.jpg") | {f"{each}/annotations.json": coco() for each in "AB"},
    ),
    "keypoints-in-a-folder-of-json": (
        "coco_keypoints",
        (),
        images("images/#.jpg") | {"json/crowd_train.json": coco(keypoints=[1, 1, 2], num_keypoints=1)},
    ),
    "run-lengths-beside-masks": (
        "annotations",
        ("8 of 12 images that were seen are not read, in train/0a/masks, train/1a/masks, train/2a/masks, ... (train",),
        {f"train/{n}a/{name}.png": IMAGE for n in range(4) for name in (f"images/{n}a", "masks/x1", "masks/y2")}
        | {"labels.csv": rows("ImageId,EncodedPixels", "{n}a,1 2", numbers=range(4))},
    ),
    "masks-in-colors-of-tiff": (
        None,
        ("masks/0.tif is drawn in colors: is it the picture that is wanted",),
        images("images/#.png") | {f"masks/{n}.tif": _tiff(n) for n in range(4)},
    ),
    "metadata-of-objects": (
        None,
        ("the column 'objects' holds objects, which the preset does not read",),
        images("train/#.png")
        | {
            "train/metadata.jsonl": "".join(
                f'{{"file_name": "{n}.png", "objects": {{"bbox": []}}}}\n' for n in range(4)
            )
        },
    ),
    "metadata-of-classes": (
        None,
        ("the folders in file_name (cat, dog) would be splits: are they classes?",),
        images("{cat,dog}/#.png")
        | {"metadata.csv": rows("file_name,text", "{0}/{n}.png,x", ("cat", "dog"), numbers=range(4))},
    ),
    "metadata-of-texts": (
        "imagefolder_metadata",
        ("its other columns are not stored unless columns names them: text",),
        images("train/#.png") | {"train/metadata.csv": rows("file_name,text", "{n}.png,x", numbers=range(4))},
    ),
    "boxes-as-shares": (
        None,
        ("boxes.csv: all edges of boxes are from 0 to 1, where pixels are expected",),
        images("imgs/#.jpg")
        | {"boxes.csv": rows("image,xmin,ymin,xmax,ymax,label", "{n}.jpg,0.1,0.2,0.5,0.9,a", numbers=range(4))},
    ),
    "boxes-with-splits": (
        None,
        ("the column 'split' may be the split, which is not read",),
        images("imgs/#.jpg")
        | {"boxes.csv": rows(_BOXES, "{n}.jpg,24,16,a,1,2,5,9,{0}", ("train", "test"), numbers=range(4))},
    ),
    "one-box-an-image": (
        None,
        ("it has columns of boxes under other names than box_csv reads",),
        images("imgs/#.jpg") | {"boxes.csv": rows("image,x,y,w,h,class", "{n}.jpg,1,2,5,9,a", numbers=range(4))},
    ),
    "voc-of-some-images": (
        None,
        ("2 of 4 images have no file of annotations, such as images/2.jpg (no annotations/2.xml): source.voc.without",),
        images("images/#.jpg")
        | files_of("annotations/#.xml", _ODD["voc-of-two-sets"][1]["A/Annotations/x_0.xml"], numbers=range(2)),
    ),
    "voc-below-folders-of-classes": (
        None,
        ("4 of 4 images have no file of annotations, such as images/a/0.jpg (no annotations/a/0.xml)",),
        images("images/a/#.jpg") | files_of("annotations/#.xml", _ODD["voc-of-two-sets"][1]["A/Annotations/x_0.xml"]),
    ),
    "yolo-of-points-outside-of-boxes": (
        None,
        ("the 11 numbers on each line may be a box and keypoints",),
        _YOLO | files_of("labels/#.txt", "0 0.8 0.1 0.2 0.1 0.1 0.2 0.3 0.4 0.5 0.6\n"),
    ),
    "lists-with-and-without-labels": (
        None,
        ("10 of 40 images that were seen are not read, in val/a (val/a/0.jpg)",),
        images("train/a/#.jpg", numbers=range(30))
        | images("val/a/#.jpg", numbers=range(10))
        | {"train/list.txt": "".join(f"a/{n}.jpg {n % 2}\n" for n in range(30))}
        | {"val/list.txt": "".join(f"a/{n}.jpg\n" for n in range(10))},
    ),
    "table-of-images-in-several-levels": (
        "kaggle",
        (),
        images("part1/images/#a.jpg", numbers=range(10))
        | images("part2/images/#a.jpg", numbers=range(10, 20))
        | {"data.csv": rows("image,label", "{n}a.jpg,{0}", ("x", "y"))},
    ),
    "coco-of-a-split-without-objects": (
        None,
        ("test.json has no annotations, and its images would be ones without objects: if nobody",),
        images("train/#.jpg", "test/#.jpg")
        | {"train.json": coco(), "test.json": json.dumps(json.loads(coco()) | {"annotations": []})},
    ),
    "cvat-with-tags": (
        "annotations",
        ("tags of images and attributes are not stored",),
        images("images/#.jpg")
        | {"annotations.xml": f"<annotations>{CVAT}</annotations>".replace("</image>", _TAG + "</image>")},
    ),
    "supervisely-with-tags": (
        "annotations",
        ("tags are not stored",),
        images("ds0/img/a#.jpg")
        | files_of(
            "ds0/ann/a#.jpg.json",
            SUPERVISELY.replace("{", '{"tags": [{"name": "b"}], ', 1),
        ),
    ),
    "vott-of-more-columns": (
        "annotations",
        ("the columns rad, score are not stored",),
        images("#.jpg")
        | {"a.csv": rows("image,xmin,ymin,xmax,ymax,label,rad,score", "{n}.jpg,1,2,9,9,cat,R1,3", numbers=range(4))},
    ),
    "labelme-with-flags": (
        "labelme",
        ("groups of shapes are not stored",),
        images("#.jpg") | files_of("#.json", LABELME.replace('"points"', '"group_id": 1, "points"')),
    ),
    "labels-of-numbers-with-blanks": (
        None,
        ("cells of 'ids' may have several classes with ' ' between them",),
        images("p/#.jpg") | {"a.csv": rows("image,ids", "{n}.jpg,{0}", ("147 61", "147 8"), numbers=range(4))},
    ),
    "labels-with-plus": (
        None,
        ("cells of 'label' may have several classes with '+' between them",),
        images("p/#.jpg")
        | {"a.csv": rows("image,label", "{n}.jpg,{0}", ("rust", "scab", "rust+scab"), numbers=range(4))},
    ),
    "flags-and-a-number": (
        "multilabel",
        ("each column of 0 and 1 is a class", "its other columns are not stored unless columns names them: age"),
        images("p/#.jpg") | {"a.csv": rows("image,a,b,c,age", "{n}.jpg,{0},1,0,{n}", ("0", "1"), numbers=range(4))},
    ),
    "first-line-is-a-row": (
        None,
        ("the first line of a.csv names an image, x0: if it is a row, name the columns in source.manifest.header",),
        images("p/x#.jpg") | {"a.csv": "".join(f"x{n},a text of {n}\n" for n in range(4))},
    ),
    "table-of-two-folders-of-equal-names": (
        None,
        ("other folders have images of these names: for those set source.manifest.root=rgb",),
        images("{nir,rgb}/#.png") | {"a.csv": rows("id,label", "{n},{0}", ("a", "b"), numbers=range(4))},
    ),
    "table-of-each-class": (
        None,
        ("b.csv have the same columns, of other images: a glob in source.manifest.path reads them, too",),
        images("p/a#.jpg", "p/b#.jpg")
        | {f"{c}.csv": rows("file,label", f"{c}{{n}}.jpg,{{0}}", ("x", "y"), numbers=range(4)) for c in "ab"},
    ),
    "compressed-table": (
        None,
        ("labels.csv.gz is not read: if it says what the images show, save it as CSV",),
        images("{site_a,site_b}/#.jpg") | {"labels.csv.gz": "x"},
    ),
    "splits-below-cameras-above-classes": (
        None,
        ("the images are in the folders cat, dog of canon/train: for these as the classes set source.pattern=",),
        images("{canon,nikon}/{train,test}/{cat,dog}/#.jpg"),
    ),
    "class-beside-folders-of-classes": (
        None,
        ("Defect holds no images, but the folders dent, scratch: are these classes?",),
        images("Good/g#.jpg", "Defect/{dent,scratch}/d#.jpg"),
    ),
    "folders-of-one-folder-each": (
        None,
        ("the classes may be five, ten, or the folders in them",),
        images("five/five/{a,b}/x#.jpg", "ten/ten/y#.jpg"),
    ),
    "metadata-with-splits": (
        None,
        ("the column 'phase' may be the split: set split={by: column, column: phase}",),
        images("#.png") | {"metadata.csv": rows("file_name,phase", "{n}.png,{0}", ("train", "test"), numbers=range(4))},
    ),
    "metadata-beside-folders-of-classes": (
        None,
        ("the folders in file_name (cat, dog) are not stored: if they are classes, take the preset imagefolder",),
        images("{train,test}/{cat,dog}/#.png")
        | {
            f"{s}/metadata.csv": rows("file_name,by", "{0}/{n}.png,x", ("cat", "dog"), numbers=range(4))
            for s in ("train", "test")
        },
    ),
    "columns-of-points": (
        None,
        ("eye_x, nose_x and their _y may be points",),
        images("p/#.jpg")
        | {"a.csv": rows("image,label,eye_x,eye_y,nose_x,nose_y", "{n}.jpg,a,1,2,3,4", numbers=range(4))},
    ),
    "a-word-of-its-own-in-each-row": (
        None,
        ("each row has a value of its own in 'words': if it is a text, take the preset captions",),
        images("p/#.jpg") | {"a.csv": rows("filename,words", "{n}.jpg,w{n}", numbers=range(4))},
    ),
    "column-of-which-one-value-is-a-split": (
        None,
        ("the column 'mode' may be the split (predict, train): set split={by: column, column: mode",),
        images("p/#.jpg")
        | {"a.csv": rows("image,label,mode", "{n}.jpg,a,{0}", ("train", "predict"), numbers=range(4))},
    ),
    "column-of-a-few-values": (
        "kaggle",
        ("the label is the column 'label' (2 different values in 4 rows: a, b); its others are part (wild, zoo)",),
        images("p/#.jpg")
        | {"a.csv": rows("image,label,part", "{n}.jpg,{0},{1}", "ab", ("zoo", "wild"), numbers=range(4))},
    ),
    "names-of-classes-in-the-readme": (
        "imagefolder_metadata",
        ("README.md names the classes of these numbers",),
        images("train/#.png")
        | {"README.md": "dataset_info:\n  class_label:\n    names: {'0': cat}\n"}
        | {"train/metadata.csv": rows("file_name,label", "{n}.png,{0}", ("0", "1"), numbers=range(4))},
    ),
    "metadata-of-several-labels": (
        None,
        ("cells of 'label' may have several classes with ", "test/metadata.csv has other labels (cat) than train/"),
        images("train/#.png", "test/#.png")
        | {"train/metadata.csv": rows("file_name,label", "{n}.png,{0}", ("a|b", "a"), numbers=range(4))}
        | {"test/metadata.csv": rows("file_name,label", "{n}.png,cat", numbers=range(4))},
    ),
    "labels-with-numbers": (
        None,
        ("cells of 'label' hold numbers or codes such as 'cat:0.9': are these classes?",),
        images("p/#.jpg") | {"a.csv": rows("image,label", "{n}.jpg,{0}", ("cat:0.9", "dog:0.7"), numbers=range(4))},
    ),
    "labels-joined-by-and": (
        None,
        ("cells of 'label' may have several classes with ' and ' between them",),
        images("p/#.jpg") | {"a.csv": rows("image,label", "{n}.jpg,{0}", ("a", "b", "a and b"), numbers=range(4))},
    ),
    "pairs-by-the-beginning-of-names": (
        None,
        ("input, target: names of parts of an example, not of classes",),
        images("input_#.png", "target_#.png", numbers=range(12)),
    ),
    "cats-and-dogs-in-all-splits": (
        None,
        (f"val has {_AS_SPLITS}",),
        images("{train,val}/{cat,dog}.#.jpg"),
    ),
    "names-of-classes-in-all-splits": (
        None,
        (f"valid has {_AS_SPLITS}",),
        images("{train,valid}/hotdog_#.jpg", "{train,valid}/pizza_#.jpg", numbers=range(12)),
    ),
    "table-of-two-images-a-row": (
        None,
        ("the column 'b' names images, too: to take it instead set source.manifest.image, and to store both in one",),
        images("p/{a,b}#.jpg") | {"t.csv": rows("a,b,label", "a{n}.jpg,b{n}.jpg,{0}", ("0", "1"), numbers=range(4))},
    ),
    "folders-of-modalities-with-more-words": (
        None,
        ("opt_256_oc, sar_256_oc: names of parts of a data set, not of classes",),
        images("{opt,sar}_256_oc/#.png"),
    ),
    "table-of-a-folder-of-several": (
        None,
        ("fold_0, fold_1, fold_2, ...: names of parts", "kaggle may be meant, which reads more than images: p.csv"),
        images("a/fold_{0,1,2}/x/#a.png", "a/validation/p/#.png")
        | {"a/validation/p.csv": rows("name,labels", "{n}.png,{0}", ("0", "1"), numbers=range(4))},
    ),
    "table-of-images-in-inner-folders-of-splits": (
        None,
        ("the images are in the folders train, valid, and no column names",),
        images("im/{train,valid}/#.jpg")
        | {
            "a.csv": "path,label\n"
            + "".join(f"im/{s}/{n}.jpg,{'ab'[n % 2]}\n" for s in ("train", "valid") for n in range(4))
        },
    ),
    "corners-by-the-areas": (
        None,
        ("the areas of objects are those of boxes of two corners (x1 y1 x2 y2), and they are read as a corner",),
        images("images/#.jpg") | {"a.json": coco(bbox=[2, 2, 9, 8], area=42)},
    ),
    "corners-by-the-outlines": (
        None,
        ("the outlines of objects fit boxes of two corners (x1 y1 x2 y2), and they are read as a corner",),
        images("images/#.jpg") | {"a.json": coco(bbox=[8, 5, 16, 12], segmentation=[[8, 5, 16, 5, 16, 12]])},
    ),
    "outlines-elsewhere": (
        None,
        ("outlines of 4 of 4 objects are not in their boxes: what do these mean?",),
        images("images/#.jpg") | {"a.json": coco(bbox=[1, 1, 4, 4], segmentation=[[18, 10, 23, 10, 23, 15]])},
    ),
    "objects-of-the-image-before": (
        None,
        ("image_id of objects are 0 to 3, and id of images 1 to 4: do both count from the same number?",),
        images("images/#.jpg")
        | {"a.json": re.sub(r'"id": (\d), "file_name"', lambda m: f'"id": {int(m[1]) + 1}, "file_name"', coco())},
    ),
    "shares-in-roboflow": (
        None,
        ("all numbers of boxes are from 0 to 1, where pixels are expected",),
        images("train/#.jpg") | {"train/_annotations.coco.json": coco(bbox=[0.1, 0.1, 0.5, 0.5], area=0.25)},
    ),
    "keypoints-in-roboflow": (
        "coco_keypoints",
        (),
        images("train/#.jpg") | {"train/_annotations.coco.json": coco(keypoints=[1, 1, 2], num_keypoints=1)},
    ),
    "csv-of-roboflow-without-a-header": (
        None,
        ("train/_annotations.csv has no line with the names of its columns",),
        images("train/#a.jpg") | {"train/_annotations.csv": rows("0a.jpg,1,1,5,5,cat", "{n}a.jpg,1,1,5,5,cat")},
    ),
    "darknet-of-two-splits": (
        "yolo",
        ("train.txt and 1 other .txt file name images (a0.jpg, a1.jpg, ...), and are not read",),
        images("obj_train_data/a#.jpg", "obj_valid_data/b#.jpg")
        | files_of("obj_train_data/a#.txt", "0 0.5 0.5 0.2 0.2\n")
        | files_of("obj_valid_data/b#.txt", "0 0.5 0.5 0.2 0.2\n")
        | {"obj.names": "cat\n"}
        | {
            f"{s}.txt": "".join(f"data/obj_{s}_data/{i}{n}.jpg\n" for n in _N[:4])
            for s, i in (("train", "a"), ("valid", "b"))
        },
    ),
    "list-of-another-folder": (
        None,
        ("train.txt names data/images/train/0.jpg, which is not here: for all images set source.yolo.images={train:",),
        images("images/train/#.jpg")
        | files_of("labels/train/#.txt", "0 0.5 0.5 0.2 0.2\n")
        | {"data.yaml": "train: train.txt\nnames: [a]\n", "train.txt": "data/images/train/0.jpg\n"},
    ),
    "labelme-of-another-image": (
        None,
        ("0.json names 1.jpg as imagePath, and would be read for the image of its name",),
        images("#.jpg")
        | {f"{n}.json": LABELME.replace("{", f'{{"imagePath": "{(n + 1) % 4}.jpg", ', 1) for n in range(4)},
    ),
    "palettes-that-differ": (
        None,
        ("the palettes of masks/0.png and 3 other masks (no more were looked at) differ",),
        images("images/#.png") | {f"masks/{n}.png": _palette_mask(n) for n in range(4)},
    ),
    "a-class-called-test": (None, ("test: names of a split, not of classes",), images("{cat,dog,test}/#.png")),
    "a-class-called-predict": (None, ("predict: names of parts of a data set",), images("{cat,dog,predict}/#.png")),
    "another-version-of-a-split": (
        None,
        ("train and train_old would be one split: if one is a copy or another version, leave it out by",),
        images("{train,train_old,val}/{cat,dog}/x#.png"),
    ),
    "an-empty-class": (
        "imagefolder",
        (),
        images("{train,val}/{cat,dog}/x#.png", "train/owl/x#.png") | {"val/owl/.keep": ""},
    ),
    "aligned-out": ("pairs", ("the first image is that of A",), images("{train,val}/{A,B,OUT}/0000#.jpg")),
    "labels-that-are-no-value": (
        None,
        ("10 cells of 'label' are 'NaN', which would be a class: empty cells have no label",),
        images("#a.jpg", numbers=_N) | {"t.csv": rows("file,label", "{n}a.jpg,{0}", ("a", "NaN"))},
    ),
    "paths-of-another-machine": (
        "kaggle",
        ("the label is the column 'label'",),
        images("im/#a.jpg", numbers=_N) | {"t.csv": rows("file,label", "/home/bob/im/{n}a.jpg,{0}", "ab")},
    ),
    "tars-in-folders-of-splits": (
        "webdataset",
        ("the texts in .txt are stored as columns",),
        {f"{split}/0000.tar": _tar("cls", "txt") for split in ("train", "val")},
    ),
    "tars-of-a-split-and-another-word": (
        None,
        ("tars may be of several splits, more, train, by their name",),
        {f"{name}-0000.tar": _tar("cls") for name in ("train", "more")},
    ),
    "tars-with-texts-alone": (
        "webdataset",
        ("no member names the label", "the texts in .txt are stored", "members in .json are not stored unless columns"),
        {"0000.tar": _tar("txt", "json")},
    ),
    "arrays-of-unknown-names": (
        None,
        ("a.npz#ans (<i8, 4) may be labels or splits of the images, and are not read; to name the labels set",),
        {"a.npz": npz(images=_PIXELS, ans=_COUNT)},
    ),
    "arrays-without-names": (
        None,
        ("no array of images was found in ",),
        {"a.npz": npz(arr_0=_PIXELS, arr_1=_COUNT)},
    ),
    "arrays-without-labels-of-the-test": (
        None,
        ("a.npz#y_train (<i8, 4) may be labels, and the split test has none, so none is stored",),
        {"a.npz": npz(x_train=_PIXELS, y_train=_COUNT, x_test=_PIXELS)},
    ),
    "arrays-with-a-split": (
        None,
        ("a.npz#split (<i8, 4) may be labels or splits of the images",),
        {"a.npz": npz(x=_PIXELS, y=_COUNT, split=_COUNT)},
    ),
    "arrays-with-more": (
        "npz",
        ("further arrays are not stored: a.npz#age (<i8, 4)",),
        {"a.npz": npz(x=_PIXELS, y=_COUNT, age=_COUNT)},
    ),
    "arrays-of-a-split-and-of-none": (
        None,
        ("a.npz#x (|u1, 4 x 8 x 8 x 3) is of no split by its name, and others are",),
        {"a.npz": npz(x=_PIXELS, y=_COUNT, x_test=_PIXELS, y_test=_COUNT)},
    ),
    "parquet-of-two-versions": (
        None,
        ("Parquet files are in several folders (full, small), and all would be read",),
        {f"{name}/train-0.parquet": parquet({"image": [{"bytes": b"x"}], "label": [1]}) for name in ("full", "small")},
    ),
    "table-in-utf-16": (
        "kaggle",
        ("the label is the column 'label' (2 different values in 20 rows: a, b)",),
        images("#.jpg", numbers=_N) | {"t.csv": rows("file,label", "{n}.jpg,{0}", "ab").encode("utf-16")},
    ),
    "splits-in-short": (
        "kaggle",
        ("the label is the column 'label' (2 different values in 20 rows: a, b)",),
        images("#.jpg", numbers=_N)
        | {"t.csv": rows("file,label,tvt", "{n}.jpg,{0},{1}", "ab", ("tr", "tr", "tr", "va", "te"))},
    ),
    "pairs-with-splits-in-each-folder": (
        None,
        ("HE, IHC hold images of the same names (0000_train_1, 0001_train_1, ...): pairs of images are no classes",),
        images("{HE,IHC}/{train,test}/000#_train_1.png"),
    ),
    "numbered-views": (
        None,
        ("depth-map, left-image hold images of the same names (2018-07-0, 2018-07-1, ...)",),
        images("left-image/2018-07-#.jpg", "depth-map/2018-07-#.png"),
    ),
    "numbered-frames-of-two-sensors": (
        None,
        ("crop_visible, cropinfrared hold images of the same names (FLIR_0000, FLIR_0001, ...)",),
        images("{crop_visible,cropinfrared}/FLIR_000#.jpg"),
    ),
    "instances-with-a-palette": (
        None,
        ("PedMasks/P00000_mask.png and 3 other masks (no more were looked at) have the numbers from 0 to that of",),
        images("PNGImages/P0000#.png") | {f"PedMasks/P0000{n}_mask.png": _instances(n + 1, "P") for n in range(4)},
    ),
    "instances-of-16-bits": (
        None,
        ("masks/P00000.png and 3 other masks (no more were looked at) have the numbers from 0 to that of",),
        images("images/P0000#.png") | {f"masks/P0000{n}.png": _instances(n + 1, "I;16") for n in range(4)},
    ),
    "masks-beside-images-two-levels-down": (
        None,
        ("f_0_endo_color_mask.png has the name of f_0_endo.png beside it, and more",),
        images("{video1,video2}/clip/f_#_{endo,endo_mask,endo_color_mask}.png"),
    ),
    "scores-before-names-in-another-case": (
        None,
        (
            "distorted_images, reference_images: names of parts of a data set, not of classes",
            "mos.txt names images (I00_A_1.png, I01_A_1.png, ...), and is not read",
        ),
        images("distorted_images/i0#_a_1.png", "reference_images/i0#.png")
        | {"mos.txt": "".join(f"5.{n} I0{n}_A_1.png\n" for n in range(4))},
    ),
    "lists-of-folders-with-masks": (
        None,
        ("train.txt, val.txt name folders of images, each some of them, and are not read",),
        images("data/{1_a,2_b,3_c}/origin/0#.jpg")
        | {f"data/{clip}/mask/0{n}.png": _mask(2) for clip in ("1_a", "2_b", "3_c") for n in range(4)}
        | {"train.txt": "1_a\n2_b\n", "val.txt": "3_c\n"},
    ),
    "two-columns-that-number-images": (
        None,
        ("the column 'photo_no' names images, too: to take it instead set source.manifest.image",),
        images("images/#.jpg", numbers=_N)
        | {"a.csv": "id,photo_no,label\n" + "".join(f"{n},{19 - n},{'ab'[n % 2]}\n" for n in _N)},
    ),
    "folders-of-the-beginnings-of-names": (
        None,
        ("images in a1, b2 begin with the name of their folder: the names divide them, and no classes?",),
        images("a1/a1f#.jpg", "b2/b2c#.jpg"),
    ),
    "folders-of-a-thousand-each": (
        None,
        ("images in 00000, 01000 begin with the name of their folder",),
        images("00000/0000#.png", "01000/0100#.png"),
    ),
    "copies-of-classes": (
        None,
        ("Copy of dog, cat_old, dog - Copy: a copy of another class, by the name",),
        images("cat/c#.jpg", "dog/d#.jpg", "{cat_old,dog - Copy,Copy of dog}/x#.jpg"),
    ),
    "labels-in-other-files": (
        None,
        ("a.dat names images (c0.jpg, c1.jpg), and is not read", "b.yaml names images (C0.jpg, C1.jpg), and"),
        images("Canon/c#.jpg", "Nikon/n#.jpg") | {"a.dat": "c0.jpg 1\nc1.jpg 2\n", "b.yaml": "C0.jpg: 1\nC1.jpg: 2\n"},
    ),
    "folder-for-the-image-and-one-for-its-mask": (
        None,
        ("IMD1_Image, IMD1_lesion, IMD2_Image, ... begin with the name of the folder above: parts of an example",),
        images("{IMD1/IMD1,IMD2/IMD2}_{Image,lesion}/x.png"),
    ),
    "rooms-with-folders-of-color-and-depth": (
        None,
        ("0001, 0002 hold images of the same names (depth, rgb)",),
        images("{kitchen,office}/{0001,0002}/{rgb,depth}.png"),
    ),
    "classes-of-names-that-differ-in-the-number-of-the-folder": (
        "image_folder",
        ("clear, snow-1 hold images of the same names but for what is the same in each folder (1_00_0, 1_00_1, ...)",),
        images("clear/{1,2}_00_#.png") | images("snow-1/{1,2}_07_#.png"),
    ),
    "folder-of-images-without-labels": (
        None,
        ("_unlabeled: names of parts of a data set, not of classes",),
        images("{_unlabeled,cat,dog}/a_#.png"),
    ),
    "classes-beside-a-tool": (
        None,
        ("venv: names of parts of a data set, not of classes",),
        images("{cat,dog,venv/lib/py/site/plots/images}/a_#.png"),
    ),
    "subsets": (
        None,
        ("subset-1, subset-2: names of parts of a data set, not of classes",),
        images("{subset-1,subset-2}/00#_ear.png"),
    ),
    "parts-below-the-splits-of-places": (
        None,
        ("a/train/crops has folders for the parts of an example (image, mask)",),
        images("{a,b}/{train,test}/crops/{image,mask}/x_#.png"),
    ),
    "pairs-of-names-that-differ-in-a-word": (
        "imagefolder",
        ("dark, lit hold images of the same names but for what is the same in each folder (a0_short_0, a0_short_1",),
        images("{train,val}/dark/{a0,a1}_short_#.png") | images("{train,val}/lit/{a0,a1}_long_#.png"),
    ),
    "masks-of-two-sizes": (
        "segmentation",
        ("the folders of images are stored in no feature (256, 512)",),
        images("{256,512}/{train,test}/images/#.jpg", "{256,512}/{train,test}/masks/#.png"),
    ),
    "masks-of-images-whose-names-say-splits": (
        None,
        ("the names of images begin with those of splits (train, val), and all would be divided by hash",),
        images("images/{train,val}_0#.jpg", "masks/{train,val}_0#.png"),
    ),
    "pages-of-tiff": (
        "image_folder",
        ("cat/0.tif holds 2 images: of such files the first is stored, and all with image.frames=each",),
        {
            f"{name}/{n}.tif": animations.save(animations.draw(n, 2), "tiff")
            for name in ("cat", "dog")
            for n in range(3)
        },
    ),
    "images-beside-arrays": (
        "hdf5",
        ("4 of 4 images that were seen are not read, in new (new/0.jpg)",),
        images("new/#.jpg") | {"train.h5": hdf5(images=_PIXELS, labels=_COUNT)},
    ),
    "boxes-of-one-of-two-folders": (
        None,
        ("4 of 8 images that were seen are not read, in images/b (images/b/0.jpg)",),
        images("images/{a,b}/#.jpg")
        | {"annotations.xml": f"<annotations>{CVAT}</annotations>".replace('name="', 'name="a/')},
    ),
    "classes-of-yolo-with-numbers": (
        None,
        ("the names of classes have numbers before them, such as '0: cat'",),
        images("images/#.jpg") | files_of("labels/#.txt", "0 0.5 0.5 0.2 0.2\n") | {"classes.txt": "0: cat\n1: dog\n"},
    ),
    "shards-of-two-runs": (
        None,
        ("a-train.tfrecord-00000-of-00001, a-train.tfrecord-00000-of-00002 are of other numbers of shards",),
        {f"a-train.tfrecord-{shard}": tfrecords() for shard in ("00000-of-00001", "00000-of-00002", "00001-of-00002")},
    ),
    "shards-numbered-in-two-ways": (
        None,
        ("train-000000.tar, train-0001.tar are numbered in two ways",),
        {f"train-{number}.tar": _tar("cls") for number in ("0001", "000000")},
    ),
    "shards-of-another-writing": (
        None,
        ("train_mini.tfrecord may repeat examples of train.tfrecord, by the names",),
        {f"{name}.tfrecord": tfrecords() for name in ("train", "train_mini")},
    ),
    "shards-that-are-missing": (
        "tfrecord",
        ("1 of the 2 files of a-train.tfrecord is not there, the first is a-train.tfrecord-00001-of-00002",),
        {"a-train.tfrecord-00000-of-00002": tfrecords()},
    ),
    "flags-with-two-negatives": (
        None,
        ("a, b hold 1, 0 and -1, and only 1 is taken for the class",),
        images("#.jpg", numbers=_N)
        | {"t.csv": rows("image,a,b,c", "{n}.jpg,{0},{1},{2}", (1, 0, -1), (0, -1, 1), (0, 1))},
    ),
    "parquet-of-a-delta-table": (
        None,
        ("the files are those of a Delta table, and _delta_log",),
        {"part-0.parquet": parquet({"image": [{"bytes": b"x"}]}), "_delta_log/0.json": "{}"},
    ),
    "annotations-of-a-test-without-objects": (
        None,
        ("the files for the images of test/images name no object",),
        images("{train,test}/images/#.png")
        | files_of("train/annfiles/#.txt", "1 1 5 1 5 5 1 5 ship 0\n")
        | files_of("test/annfiles/#.txt", ""),
    ),
    "pairs-of-names-with-the-folder-at-the-end": (
        "image_folder",
        ("BF, DAPI hold images of the same names but for what is the same in each folder (well_0_BF, well_1_BF",),
        images("BF/well_#_BF.png", "DAPI/well_#_DAPI.png"),
    ),
    "folder-of-all-images-beside-their-classes": (
        None,
        ("All/images has the images of Benign/images and Malignant/images again, by their names",),
        images("All/{images,masks}/00#.png", numbers=range(8))
        | images("Benign/{images,masks}/00#.png", numbers=range(4))
        | images("Malignant/{images,masks}/00#.png", numbers=range(4, 8)),
    ),
    "copy-in-splits-among-classes": (
        None,
        ("Master holds no images, but the folders train, valid: are these classes?",),
        images("{Angry,Other,Sad,happy}/x_#.jpg", "Master/{train,valid}/{Angry,Other,Sad,happy}/x_#.jpg"),
    ),
    "texts-of-another-encoding": (
        None,
        ("0.txt is not UTF-8, and bytes are stored as they are",),
        images("#.jpg") | {f"{n}.txt": f"caf\xe9 au lait {n}".encode("latin-1") for n in range(4)},
    ),
    "class-far-below-the-others": (
        None,
        ("images further down in owl would be of a class of this name",),
        images("{cat,dog,owl/x/y/z/images}/a_#.png"),
    ),
    "captions-with-quotes": (
        "captions",
        ("the column 'caption' has 20 different texts in 20 rows (\"A dog\", a sign 1",),
        images("#.jpg", numbers=_N)
        | {"captions.txt": table('0.jpg\t"A dog"', (f"{n}.jpg\ta sign {n}" for n in _N[1:]))},
    ),
    "boxes-of-codes-without-names": (
        "annotations",
        ("the classes are codes, such as /m/01, and no file was seen that names them: source.annotations.class_names",),
        images("#.jpg")
        | {"boxes.csv": rows("ImageID,LabelName,XMin,XMax,YMin,YMax", "{n},/m/01,0.1,0.4,0.1,0.4", numbers=range(4))},
    ),
    "classes-of-the-same-numbers": (
        "image_folder",
        ("fixed, moving hold images of the same names (img_0, img_1, ...), and are taken for classes",),
        images("{fixed,moving}/img_#.png"),
    ),
    "table-of-train-with-images-of-tests": (
        None,
        ("train.csv is of train by its name, and test of test: are they the same images?",),
        images("test/#.jpg") | {"train.csv": rows("id,label", "{n},{0}", ("a", "b"), numbers=range(4))},
    ),
    "submission-alone": (
        None,
        ("sample_submission.csv is a submission by its name",),
        images("test/#.jpg") | {"sample_submission.csv": rows("id,label", "{n},0", numbers=range(4))},
    ),
    "pixels-with-other-columns": (
        None,
        ("its other columns, age, gender, are not stored: for one as the label set label={by: column, column: NAME}",),
        {"a.csv": "age,gender,pixels\n" + "".join(f"{n},1,{' '.join(['7'] * 16)}\n" for n in range(4))},
    ),
    "parquet-of-two-images-a-row": (
        None,
        ("which column has the images of an example: a, b? One alone is read",),
        {"a.parquet": parquet({"a": [{"bytes": b"x"}], "b": [{"bytes": b"x"}], "label": [1]})},
    ),
    "parquet-of-captions": (
        "parquet",
        ("the texts in 'text' are stored as a column",),
        {"a.parquet": parquet({"image": [{"bytes": b"x"}], "text": ["a cat"]})},
    ),
    "metadata-of-captions": (
        "imagefolder_metadata",
        ("the texts in 'text' are stored as a column",),
        images("train/#.png")
        | {"train/metadata.csv": rows("file_name,text", "{n}.png,a photo of {n} cats", numbers=range(4))},
    ),
    "metadata-of-tests-alone": (
        None,
        ("the images in train have no metadata, and are not read",),
        images("train/{cat,dog}/#.png", "test/#.png")
        | {"test/metadata.csv": rows("file_name,label", "{n}.png,{0}", ("a", "b"), numbers=range(4))},
    ),
    "arrays-in-several-folders": (
        None,
        ("arrays are in fog, identity, too, and only brightness is read",),
        {
            f"{folder}/{split}_{name}.npy": _npy(array)
            for folder in ("brightness", "fog", "identity")
            for split in ("train", "test")
            for name, array in (("images", _PIXELS), ("labels", _COUNT))
        },
    ),
    "tables-of-splits-with-other-columns": (
        None,
        ("test.json may be the other splits: to read all set source.manifest.path to a glob",),
        images("{train,test}/x#.jpg")
        | {
            "train.json": json.dumps([{"name": f"train/x{n}.jpg", "label": n % 2, "label_A": n % 2} for n in range(4)]),
            "test.json": json.dumps([{"name": f"test/x{n}.jpg", "label": n % 2} for n in range(4)]),
        },
    ),
    "two-sets-of-arrays": (
        None,
        ("arrays are in cifar-100-python, too, and only cifar-10-batches-py is read",),
        dict.fromkeys(("cifar-10-batches-py/data_batch_1", "cifar-10-batches-py/test_batch"), "x")
        | {f"cifar-100-python/{name}": "x" for name in ("train", "test", "meta")},
    ),
    "arrays-of-a-folder-and-of-one-in-it": (
        None,
        ("arrays are in data/extra, too, and only data is read",),
        {f"data/{each}.npy": _npy(_PIXELS) for each in ("train_images", "extra/extra_images")},
    ),
    "classes-beside-arrays": (
        None,
        ("8 of 8 images that were seen are not read, in images/cat, images/dog (images/cat/0.png)",),
        images("images/{cat,dog}/#.png") | {"arrays/a.npz": npz(x_train=_PIXELS, y_train=_COUNT)},
    ),
    "tfrecords-of-two-versions": (
        None,
        ("TFRecord files are in several folders (0.1.0, 1.0.0), and all would be read",),
        {f"{version}/a-train.tfrecord-00000-of-00001": tfrecords() for version in ("0.1.0", "1.0.0")},
    ),
    "parquet-of-tests-without-labels": (
        "parquet",
        ("its other columns are not stored unless columns names them: id",),
        {"test-0.parquet": parquet({"image": [{"bytes": b"x"}]})}
        | {"train-0.parquet": parquet({"image": [{"bytes": b"x"}], "label": [1], "id": [1]})},
    ),
    "pixels-of-matlab-in-one-axis": (
        None,
        ("the pixels of an image are one axis in a.mat#train_data (|u1, 4 x 64), and MATLAB counts down the columns",),
        {"a.mat": _mat(train_data=_PIXELS[..., 0].reshape(4, 64), train_labels=_COUNT)},
    ),
    "labels-beside-rows-of-pixels": (
        None,
        ("no column is a label, and the rows of y_train.csv are not read",),
        {"X_train.csv": "\n".join([",".join(["9"] * 64)] * 4), "y_train.csv": "1,0\n0,1\n1,0\n0,1\n"},
    ),
    "table-beside-tfrecords": (
        "tfrecord",
        ("also there, and not read: labels.csv",),
        {"a-train.tfrecord-00000-of-00001": tfrecords(), "labels.csv": "id,label\n1,a\n"},
    ),
    "masks-in-splits-of-splits": (
        None,
        ("the splits may be test, train or test, training, validation: the latter would be taken",),
        {
            path: content
            for kind, ending in (("images", "jpg"), ("masks", "png"))
            for folder, name in (("train/{training,validation}", "a"), ("test/test", "b"))
            for path, content in images(f"{kind}/{folder}/{name}_#.{ending}").items()
        },
    ),
    "tfrecords-in-gzip": ("tfrecord", (), {"a-train.tfrecord.gz": gzip.compress(tfrecords())}),
    "tfrecords-of-pixels": (
        None,
        ("the feature image/encoded of the first record holds 192 bytes in no image format that is known",),
        {"a-train.tfrecord-00000-of-00001": tfrecords(_PIXELS[0].tobytes())},
    ),
    "classes-two-folders-below-beside-tests": (
        None,
        ("scans/scans holds no images, but the folders benign, malignant: are these classes?",),
        images("scans/scans/{benign,malignant}/#.png", "Test cases/t#.png"),
    ),
    "frames-beside-their-flow": (
        None,
        ("flow, jpegs all hold the folders v_Bow_g01, v_Bow_g02: for these as the classes set",),
        images("jpegs/{v_Bow_g01,v_Bow_g02}/frame#.jpg", "flow/{u,v}/{v_Bow_g01,v_Bow_g02}/frame#.jpg"),
    ),
    "images-six-folders-below-beside-masks": (
        None,
        ("4 of 8 images that were seen are not read, in new/a/b/c/d/e (new/a/b/c/d/e/0.jpg)",),
        images("old/{images,masks}/#.png", "new/a/b/c/d/e/#.jpg"),
    ),
    "masks-of-16-bits-in-tiff": (
        None,
        ("masks/0.tif has 16 bits, or more numbers than classes: is it depth, a picture, or the number of an object?",),
        images("images/#.png") | {f"masks/{n}.tif": _wide_tiff(300 + n) for n in range(4)},
    ),
    "tars-in-further-folders": (
        None,
        ("shards/old/0.tar in further folders would be read, too: set source.include",),
        {f"{path}/0.tar": tar({"a.jpg": b"x", "a.cls": b"0"}) for path in ("shards", "shards/old")},
    ),
    "arrays-in-further-folders": (
        None,
        ("old/v1/a.npz in further folders are not read",),
        {f"{path}a.npz": npz(x_train=_PIXELS, y_train=_COUNT) for path in ("", "old/v1/")},
    ),
    "two-versions-of-images": (
        None,
        ("proc, unproc hold images of the same names (obj1__0, obj1__1, ...)",),
        images("proc/obj{1,2}__#.png", "unproc/obj1__#.png"),
    ),
    "classes-of-several-cameras": (
        None,
        ("many, one all hold the folders cam_a, cam_b: for these as the classes set",),
        images("many/cam_a/c#.jpg", "many/cam_b/d#.jpg", "one/cam_a/a#.jpg", "one/cam_b/b#.jpg"),
    ),
    "lists-of-splits-with-classes": (
        "voc",
        (
            "the further columns of lists/test.txt, lists/train.txt are not stored",
            "also with names of images, and not read: lists/all.txt",
        ),
        _voc("<pose>", "<pose>")
        | {f"lists/{name}.txt": "".join(f"00000{n} {n} 1\n" for n in numbers) for name, numbers in _LISTED.items()},
    ),
    "cameras-by-letters": (
        None,
        ("cam_a, cam_b: names of parts of a data set, not of classes",),
        images("cam_a/00#_45.png", "cam_b/00#_90.png"),
    ),
    "boxes-turned-in-cvat": (
        "coco",
        ("boxes are turned by the attribute rotation: the box around each is stored, and not its angle",),
        images("images/#.jpg") | {"annotations/a_train.json": coco(attributes={"occluded": False, "rotation": 35.5})},
    ),
    "json-that-names-images-that-are-not-there": (
        None,
        ("1 of 4 images of annotations/a_train.json that were looked up are not in images (3.jpg)",),
        images("images/#.jpg", numbers=range(3)) | {"annotations/a_train.json": coco()},
    ),
    "table-of-zeros-alone": (
        None,
        ("a, b, c have the same value in all rows: placeholders, and no labels?",),
        images("images/20#.jpg") | {"labels.csv": rows("id,a,b,c", "20{n},0,0,0", numbers=range(4))},
    ),
    "table-of-one-class": (
        None,
        ("cells of 'label' have the same value in all rows: placeholders, and no labels?",),
        images("images/20#.jpg") | {"labels.csv": rows("image,label", "20{n}.jpg,0", numbers=range(4))},
    ),
    "labels-beside-splits-of-pixels": (
        None,
        ("no column is a label, and the rows of csvTestLabel 4x1.csv, csvTrainLabel 4x1.csv are not read",),
        {f"csv{split}Images 4x64.csv": "\n".join([",".join(["9"] * 64)] * 4) for split in ("Train", "Test")}
        | {f"csv{split}Label 4x1.csv": "1\n0\n1\n0\n" for split in ("Train", "Test")},
    ),
    "names-of-classes-after-pixels": (
        None,
        ("its other columns, kind, are not stored: for one as the label set label={by: column, column: kind}",),
        {"data.csv": rows(",".join([*(f"pixel_{n:04}" for n in range(64)), "kind"]), "9," * 64 + "ka")},
    ),
    "table-of-labels-beside-arrays": (
        None,
        ("no array holds labels, and the rows of train_labels.csv are not read: save labels in the order of",),
        {"train_images.npy": _npy(_PIXELS), "train_labels.csv": rows("id,label", "{n},{n}", numbers=range(4))},
    ),
    "parts-of-examples-in-classes": (
        None,
        ("left, right in seq1 hold as many images each: parts of an example, not of a class (docs/recipes/pairs.md)?",),
        images(*(f"{seq}/{side}/{side}_00#.png" for seq in ("seq1", "seq2") for side in ("left", "right"))),
    ),
    "more-augmented-images-in-classes": (
        "image_folder",
        ("the images are in further folders (augmented, original), and the first folder is the class",),
        images("{cat,dog}/original/o#.png") | images("{cat,dog}/augmented/a#.png", numbers=range(9)),
    ),
    "parts-two-levels-below-classes": (
        None,
        ("s/quant has folders for the parts of a data set (GT)",),
        images("s/quant/{v1,v2}/{GT,input}/0#.jpg", "s/qual/alley/input/0#.jpg"),
    ),
    "masks-in-folders-of-longer-names": (
        None,
        ("seqA_masks, seqB_masks: masks of the images in the folder of the rest of the name, by the name",),
        images("seqA/a#.jpg", "seqA_masks/m#.png", "seqB/b#.jpg", "seqB_masks/k#.png"),
    ),
    "depth-in-folders-of-longer-names": (
        None,
        ("chair_depth, sofa_depth: parts of the examples in the folder of the rest of the name, by the name",),
        images("chair/a#.jpg", "chair_depth/b#.png", "sofa/c#.jpg", "sofa_depth/d#.png"),
    ),
    "classes-in-names-in-folders": (
        None,
        ("the names of images in clean, noisy begin with several words (dog, owl): if these are the classes set",),
        images("{clean,noisy}/{dog,owl} (#).jpg") | images("bare/x#.jpg"),
    ),
    "other-classes-in-names-in-folders": (
        "image_folder",
        ("the names of images in cats, dogs begin with several words (beagle, birman, persian, ...): if these",),
        images("cats/{birman,persian}_#.jpg", "dogs/{beagle,pug}_#.jpg"),
    ),
    "folders-of-a-camera": (
        None,
        ("100CANON, 101CANON: names of parts of a data set, not of classes",),
        images("DCIM/100CANON/IMG_000#.jpg", "DCIM/101CANON/IMG_010#.jpg"),
    ),
    "ids-as-classes": (
        None,
        ("TCGA-A1-A0SB, TCGA-BH-A0B3, TCGA-E2-A14P may be ids of slides, videos or subjects, and no classes",),
        images("TCGA-A1-A0SB/1#.png", "TCGA-BH-A0B3/2#.png", "TCGA-E2-A14P/3#.png"),
    ),
    "a-mask-among-the-images-of-a-class": (
        "image_folder",
        ("2 images may be masks by the name (Boot/hand_segmented_7.png, Wave/hand_segmented_9.png), and would be",),
        images("{Boot,Wave}/b#.png") | {"Boot/hand_segmented_7.png": IMAGE, "Wave/hand_segmented_9.png": IMAGE},
    ),
    "strips-in-an-array": (
        None,
        ("d.mat#data (|u1, 64 x 9 x 8) would be 8 images of 64 x 9 pixels: if its axes are others, save",),
        {"d.mat": _mat(data=np.zeros((64, 9, 8), np.uint8))},
    ),
    "one-image-in-an-array": (
        None,
        ("d.mat#img (|u1, 8 x 9 x 3) would be 3 images of 8 x 9 pixels: if its axes are others, save",),
        {"d.mat": _mat(img=np.zeros((8, 9, 3), np.uint8))},
    ),
    "table-beside-a-table-of-pixels": (
        "mnist_csv",
        ("the rows of split.csv are not read",),
        {
            "data.csv": rows(",".join(["label", *(f"pixel{n}" for n in range(64))]), "{n}" + ",9" * 64),
            "split.csv": rows("id,split", "{n},{0}", ("train", "test")),
        },
    ),
    "further-images-in-tars": (
        "webdataset",
        ("examples have several images, and of these members in .seg.png are not read",),
        {"0.tar": _tar("cls", "seg.png")},
    ),
    "images-of-other-names-in-tars": (
        None,
        ("examples have several images (.a.jpg, .b.jpg), and none of them is one that is read, such as .jpg",),
        {
            "0.tar": tar(
                {f"{n}.{e}.jpg": image_sets.make_image(1, "JPEG") for n in range(2) for e in "ab"} | {"0.cls": b"1"}
            )
        },
    ),
    "objects-without-a-class": (
        "annotations",
        ("1 of 4 objects that were looked at have no class, and become the class 'object'",),
        images("#.jpg") | {"via.json": json.dumps({f"{n}.jpg1": _via_image(n) for n in range(4)})},
    ),
    "labels-of-tests-that-are-placeholders": (
        None,
        ("all rows of test-0.parquet have the same 'label', 0: placeholders, and no labels? source.include leaves",),
        {
            f"data/{split}-0.parquet": parquet({"image": [{"bytes": b"x"}] * 2, "label": labels})
            for split, labels in (("test", [0, 0]), ("train", [0, 1]))
        },
    ),
    "table-of-folders-of-short-splits": (
        None,
        ("the images are in the folders imagesTr, imagesTs, and no column names their splits: add a column",),
        images("imagesTr/a#.png", "imagesTs/b#.png")
        | {"labels.csv": "image,label\n" + "".join(f"{k}{n}.png,{'xy'[n % 2]}\n" for k in "ab" for n in range(4))},
    ),
    "other-masks-beside-masks": (
        "segmentation",
        ("4 masks of no image that is read (annotations/train/0_labelTrainIds.png, ",),
        images("images/{train,val}/#.jpg", numbers=range(2))
        | {
            f"annotations/{s}/{n}{e}.png": _mask(2)
            for s in ("train", "val")
            for n in range(2)
            for e in ("", "_labelTrainIds")
        },
    ),
    "shard-of-an-older-version": (
        None,
        ("train-00000-of-00001-1a.parquet and train-00000-of-00001-2b.parquet are the same shard by their names",),
        {
            f"data/train-00000-of-00001-{mark}.parquet": parquet({"image": [{"bytes": b"x"}], "label": [1]})
            for mark in ("1a", "2b")
        },
    ),
    "classes-of-another-challenge": (
        "annotations",
        ("tracks and visibility are not stored; classes are the challenge's, and pedestrian where lines have none",),
        _ODD["mot"][1],
    ),
    "tests-among-classes": (
        None,
        ("alien_test: name of a split, not of a class?",),
        images("{alien_test/x,cloudy/c,foggy/f}#.jpg"),
    ),
    "short-names-of-splits-above-masks": (
        None,
        ("DIS-TE1, DIS-TR may be splits, and all images would be divided by hash",),
        images("DIS-{TR,TE1}/im/x#.jpg") | {f"DIS-{s}/gt/x{n}.png": _mask(2) for s in ("TR", "TE1") for n in range(4)},
    ),
    "numbers-to-predict-in-arrays": (
        "npz",
        ("the values of 'label' are numbers to predict, stored as float",),
        {"a.npz": npz(x_train=_PIXELS, y_train=_COUNT / 4)},
    ),
    "several-numbers-for-an-image-in-arrays": (
        None,
        ("a.npz#y_train (<f8, 4 x 3) has several numbers for an image, and they are no one-hot classes",),
        {"a.npz": npz(x_train=_PIXELS, y_train=np.full((4, 3), 0.5))},
    ),
    "numbers-to-predict-in-parquet": (
        "parquet",
        ("the values of 'label' are numbers to predict, stored as float",),
        {"a.parquet": parquet({"image": [{"bytes": b"x"}] * 4, "label": [0.5, 1.0, 1.5, 2.0]})},
    ),
    "texts-called-label-in-parquet": (
        "parquet",
        ("most rows have a text of their own in 'label', stored as a column, and no class",),
        {"a.parquet": parquet({"image": [{"bytes": b"x"}] * 20, "label": [f"word{n}" for n in range(20)]})},
    ),
    "lists-of-answers-in-parquet": (
        None,
        ("most values in the lists of 'label' occur once (word0, word1, word10, ...): for texts set label={by: none}",),
        {"a.parquet": parquet({"image": [{"bytes": b"x"}] * 20, "label": [[f"word{n}"] for n in range(20)]})},
    ),
    "parquet-without-a-label": (
        None,
        ("no column is called label: name it in label.column (image_id, objects), or those to store in columns",),
        {"a.parquet": parquet({"image_id": [1], "image": [{"bytes": b"x"}], "objects": [[{"bbox": [1, 1, 2, 2]}]]})},
    ),
    "parquet-with-addresses": (
        None,
        ("no column is called label: name it in label.column (name, url), or those to store in columns",),
        {"a.parquet": parquet({"image": [{"bytes": b"x"}], "name": ["a"], "url": ["http://images.example.org/a.jpg"]})},
    ),
    "masks-of-the-names-in-a-table": (
        "kaggle",
        ("8 of 12 images that were seen are not read, in Seg-set/A_Masks, Seg-set/B_Masks",),
        {f"Seg-set/A_Masks/{n}.png": _mask(2) for n in range(4)}
        | {f"Seg-set/B_Masks/{n}.png": _mask(2) for n in range(4)}
        | {f"Seg-set/Original_Images/{n}.png": _photo(n) for n in range(4)}
        | {"Seg-set/a.csv": "image,label\n" + "".join(f"{n}.png,{n % 2}\n" for n in range(4))},
    ),
    "images-in-a-folder-called-segmentation": (
        None,
        ("4 of 8 images that were seen are not read, in segmentation/photos (segmentation/photos/0.jpg)",),
        images("segmentation/{images,photos}/#.jpg") | {f"segmentation/masks/{n}.png": _mask(2) for n in range(4)},
    ),
    "masks-of-several-pages": (
        None,
        ("masks/0.tif holds 2 pictures, and a mask is one: split such files",),
        {
            f"{folder}/{n}.tif": animations.save(animations.draw(n, 2), "tiff")
            for folder in ("images", "masks")
            for n in range(4)
        },
    ),
    "points-of-labelme": (
        "labelme",
        ("points and lines are not stored",),
        images("#.jpg") | files_of("#.json", LABELME.replace('"rectangle"', '"point"').replace(", [9, 9]", "")),
    ),
    "names-of-splits-before-numbers": (
        None,
        ("test, train, val: names of splits, not of classes",),
        images("images/{train,val,test}_#.jpg", numbers=range(6)),
    ),
    "two-eyes-of-a-patient": (
        None,
        ("OD, OS: names of parts of an example, not of classes",),
        images("{OD,OS}_#.jpg", numbers=range(6)),
    ),
    "classes-in-names-of-one-folder": (
        "image_folder",
        ("the names of images in fruits begin with several words (apple, kiwi): if these are the classes set",),
        images("background/bg_#.jpg", "fruits/{apple,kiwi}_#.jpg"),
    ),
    "scores-in-lists-of-splits": (
        None,
        ("lines of train.txt say more than names (dog_0.jpg 0.5), which is not read: is it the label?",),
        images("images/{dog,owl}_#.jpg")
        | {
            f"{split}.txt": "".join(f"{k}_{n}.jpg 0.{n + 5}\n" for k in ("dog", "owl") for n in numbers)
            for split, numbers in (("train", (0, 1)), ("test", (2, 3)))
        },
    ),
    "splits-of-sites-in-yaml": (
        None,
        ("splits.yaml names beginnings of images' names (farmA1, farmB2), and is not read",),
        images("JPEGImages/{farmA1,farmB2}_#.jpg")
        | files_of("Annotations/farmA1_#.xml", _XML)
        | files_of("Annotations/farmB2_#.xml", _XML)
        | {"splits.yaml": "train: [farmA1]\nval: [farmB2]\n"},
    ),
    "classes-below-two-sets": (
        None,
        ("the classes may be First Set, Second Set, or the folders in them: the images are in further folders",),
        images("First Set/{100x Normal,100x Cancer}/a#.jpg", "Second Set/{400x Normal,400x Cancer}/b#.jpg"),
    ),
    "two-folders-of-one-split-in-classes": (
        None,
        ("low_train, normal_train, low_test and normal_test are of one split: if what else is in such names are",),
        images("{syn,real}/{low,normal}_{train,test}/#.jpg"),
    ),
    "inputs-and-truths-by-longer-names": (
        None,
        ("Set1_ground_truth_images, Set1_input_images: names of parts of a data set, not of classes",),
        images("Set1_input_images/a#_{C,D}.png", "Set1_ground_truth_images/a#_G.png")
        | {"Set1_input_images_meta/a.md": "x"},
    ),
    "classes-in-numbered-parts": (
        "image_folder",
        ("Normal 1, Normal 2 differ in a number alone, and each is a class of its own",),
        images("Fire/f#.jpg", "Normal 1/n#.jpg", "Normal 2/n1#.jpg"),
    ),
    "lists-of-splits-with-other-names": (
        None,
        ("split/test.txt, split/train.txt are lists of splits by their names, and name the images in another way",),
        images("images/{vid4,vid6}/frame_#.jpg")
        | {f"masks/{video}/frame_{n}.png": _mask(2) for video in ("vid4", "vid6") for n in range(4)}
        | {"split/train.txt": "vid4_frame_0.jpg\nvid4_frame_1.jpg\n", "split/test.txt": "vid6_frame_0.jpg\n"},
    ),
    "masks-in-a-format-that-is-not-read": (
        None,
        ("masks in .pgm are not read: convert them to PNG",),
        {f"a/{n}{end}.pgm": b"P5 2 2 255 \0\1\2\3" for n in range(4) for end in ("", "_gt")},
    ),
    "other-files": (
        "coco",
        ("also there, and not read: a.token, b0.pkl and 3 other .pkl files, data.mdb_, x",),
        SHAPES["coco"][2] | {"a.token": "x", "x": "y", "data.mdb_": "x"} | files_of("b#.pkl", "x"),
    ),
}
