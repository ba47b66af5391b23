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
from PIL import Image

from imagebeam import example, features, records
from imagebeam.pipelines.recognize import recognize_folder
from tests import array_sets, detection_sets, idx_files, image_sets, written_files

IMAGE = "an image"

Tree = Mapping[str, str | bytes]  # from the path of a file to its content; IMAGE for an image

_FORMATS = {".jpg": "JPEG", ".jpeg": "JPEG", ".JPEG": "JPEG", ".png": "PNG", ".PNG": "PNG", ".gif": "GIF"}


def write(root: pathlib.Path, tree: Tree) -> pathlib.Path:
    """Writes the files of a tree below `root`, and returns `root`."""
    made = {name: _image(_FORMATS[pathlib.Path(name).suffix]) for name, content in tree.items() if content is IMAGE}
    return written_files.write(root, {**tree, **made})


@functools.cache
def _image(format: str) -> bytes:
    if format != "PNG":
        return image_sets.make_image(1, format)
    picture = Image.open(io.BytesIO(image_sets.make_image(1, format)))
    return image_sets.save(picture.quantize(16).convert("RGB"))  # of few colors, as masks have


def images(*patterns: str, numbers: Iterable[int] = range(4)) -> dict[str, str | bytes]:
    """Returns images whose paths are the patterns: with each number in place of `#`, and each word of `{cat,dog}`."""
    return files(IMAGE, *patterns, numbers=numbers)


def files(content: str | bytes, *patterns: str, numbers: Iterable[int] = range(4)) -> dict[str, str | bytes]:
    """Returns files of one content whose paths are the patterns, as those of `images`."""
    paths = [path for pattern in patterns for path in _expand(pattern)]
    return {path.replace("#", str(number)): content for path in paths for number in numbers}


def _expand(pattern: str) -> list[str]:
    before, brace, rest = pattern.partition("{")
    words, _, after = rest.partition("}")
    return [before + word + each for word in words.split(",") for each in _expand(after)] if brace else [pattern]


def check_doubtful(found: recognize_folder.Recognition, presets: str, texts: Iterable[str]) -> None:
    """Checks that nothing is beyond doubt: the presets of the candidates, and the beginnings of what is said."""
    assert found.sure is None
    assert [each.preset for each in found.candidates] == presets.split()
    said = [*found.remarks]
    for each in found.candidates:
        said += [each.evidence, *each.doubts, *each.notes, *recognize_folder.overrides_of(each)]
    for text in texts:
        assert any(each.startswith(text) for each in said), (text, said)


def table(header: str, rows: Iterable[str]) -> str:
    return "\n".join([header, *rows, ""])


def coco_json(numbers: Iterable[int] = range(4)) -> str:
    """Returns annotations of images 0.jpg, 1.jpg and so on."""
    numbers = [*numbers]
    box = {"id": 1, "image_id": numbers[-1], "category_id": 3, "bbox": [1, 1, 5, 5], "area": 25, "iscrowd": 0}
    return json.dumps(
        {
            "info": {"year": 2020},
            "images": [{"id": n, "file_name": f"{n}.jpg", "width": 64, "height": 48} for n in numbers],
            "annotations": [box],
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
LABELME = json.dumps(
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


def hdf5(**arrays: np.ndarray) -> bytes:
    """Returns an .h5 file."""
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


def tfrecords(image_data: bytes | None = None, text: bytes | None = None) -> bytes:
    """Returns a TFRecord file of two images, of a JPEG or given bytes, with numbers or a text as labels."""
    label, image = "image/class/label", features.ENCODED
    kind = features.INT64 if text is None else features.BYTES
    encoder = example.ExampleEncoder(
        [features.Feature(label, label, kind), features.Feature(image, image, features.BYTES)]
    )
    file = io.BytesIO()
    writer = records.RecordWriter(file)
    for n in range(2):
        writer.write(*encoder.encode({label: n if text is None else text}, image_data or _image("JPEG")))
    writer.flush()
    return file.getvalue()


_WEB = tar({f"{n}.{ending}": content for n in range(2) for ending, content in (("jpg", _image("JPEG")), ("cls", b"1"))})
_X, _Y = array_sets.pictures(1, 4, 8, 8, 3), array_sets.numbers(1, 4).astype(np.uint8)
_MAT = functools.partial(_saved, scipy.io.savemat)
_PIXELS = array_sets.planar(array_sets.pictures(1, 4, 32, 32, 3))
_BATCH = pickle.dumps({b"data": _PIXELS, b"labels": [1] * 4}, 2)
_FINE = pickle.dumps({b"data": _PIXELS, b"fine_labels": [0] * 4, b"coarse_labels": [0] * 4}, 2)
_IDX = {"images": idx_files.encode(_X[..., 0]), "labels": idx_files.encode(_Y)}
_COLORS = "name,r,g,b\nVoid,0,0,0\ncar,64,0,128\n"
_BOX = "0 0.5 0.5 0.2 0.2\n"
_XML = detection_sets.voc_xml([detection_sets.Box("cat", 1, 1, 5, 5)])
_BOX_ROWS = table(detection_sets.CSV_HEADER, (f"{n}.jpg,40,20,cat,1,1,5,5" for n in range(4)))
_USAGES = ("Training", "Training", "PublicTest", "PrivateTest")
_COLUMNS = {"image": [{"bytes": _image("JPEG"), "path": None}] * 4, "label": [0, 1, 0, 1]}
_NUMBERS = range(20)


def _rows(form: str, values: Sequence[object], header: str = "") -> str:
    """Returns a table of 20 images 0a.jpg to 19a.jpg, with the values in turn: `{n}a.jpg,{v}`."""
    rows = [form.format(n=n, v=values[n % len(values)]) for n in _NUMBERS]
    return table(header, rows) if header else "\n".join(rows)


def _idx(before: str, after: str, end: str = "") -> dict[str, str | bytes]:
    """Returns IDX files of images and of labels, whose names are patterns."""
    found: dict[str, str | bytes] = {}
    for kind, number in (("images", 3), ("labels", 1)):
        data = gzip.compress(_IDX[kind]) if end else _IDX[kind]
        found |= files(data, f"{before}{kind}{after}{number}-ubyte{end}")
    return found


# By name: the preset, the number of images that it lists, and the folder.
_HALVES = {"train": range(4), "val": range(4, 8)}

SHAPES: Mapping[str, tuple[str, int, Tree]] = {
    "classes": ("image_folder", 12, images("cat/#.jpg", "dog/#.png", "owl/x/#.jpg")),
    "a-zip-of-classes": ("image_folder", 8, {"a.zip": packed(images("{cat,dog}/#.jpg"))}),
    "a-zip-with-an-inner-folder": ("imagefolder", 16, {"a.zip": packed(images("x/{train,val}/{cat,dog}/#.jpg"))}),
    "a-zip-for-each-split": (
        "imagefolder",
        16,
        {"train.zip": packed(images("train/{cat,dog}/#.jpg")), "test.zip": packed(images("{cat,dog}/#.jpg"))},
    ),
    "classes-and-readme": ("image_folder", 8, images("{cat,dog}/#.jpg") | {"README.md": "cats and dogs"}),
    "classes-and-loose-images": ("image_folder", 8, images("{cat,dog}/#.jpg", "#.jpg")),
    "one-folder-that-holds-all": ("image_folder", 8, images("archive/photos/{cat,dog}/#.jpg")),
    "beside-a-leftover-of-macos": ("image_folder", 8, images("{cat,dog}/#.jpg", "__MACOSX/cat/._#.jpg")),
    "classes-in-splits": ("imagefolder", 16, images("{train,test}/{cat,dog}/#.png")),
    "splits-under-other-names": ("imagefolder", 16, images("{Training,Testing}/{cat,dog}/#.jpg")),
    "splits-twice": ("imagefolder", 16, images("seg_{train/seg_train,test/seg_test}/{cat,dog}/#.jpg")),
    "splits-and-a-test-without-labels": ("imagefolder", 8, images("train/{cat,dog}/#.jpg", "test/#.jpg")),
    "splits-in-classes": ("image_folder", 16, images("{cat,dog}/{train,val}/#.jpg")),
    "synsets": ("imagenet", 8, images("{train,val}/n01440764/#.JPEG")),
    "tiny-imagenet": (
        "imagenet",
        8,
        images("train/n01443537/images/n01443537_#.JPEG", "train/n01629819/images/n01629819_#.JPEG")
        | images("{val,test}/images/x_#.JPEG")
        | {"val/val_annotations.txt": "".join(f"x_{n}.JPEG\tn01443537\t0\t32\t44\t62\n" for n in range(4))}
        | {"train/n01443537/n01443537_boxes.txt": "".join(f"n01443537_{n}.JPEG\t0\t10\t63\t58\n" for n in range(4))},
    ),
    "cats-and-dogs": ("cats_dogs", 8, images("train/{cat,dog}.#.jpg", "test1/#.jpg")),
    "numbered-names": ("image_folder", 40, images("{rose,lily}_#.jpg", numbers=_NUMBERS)),
    "files-of-synsets": ("imagenet_files", 8, images("n01440764_#.JPEG", "n01443537_1#.JPEG")),
    "names-in-lists": (
        "oxford_pets",
        8,
        images("images/{cat,dog}_#.jpg")
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
    "tfrecords": ("tfrecord", 4, files(tfrecords(), "{train,test}-00000-of-00001")),
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
        images("images/{train,val}/#.jpg")
        | files(_BOX, "labels/{train,val}/#.txt")
        | {"data.yaml": "train: images/train\nval: images/val\nnames: [cat]\n"},
    ),
    "yolo-flat": ("yolo", 4, images("#.jpg") | files(_BOX, "#.txt") | {"classes.txt": "cat\n"}),
    "voc": ("voc", 4, images("JPEGImages/#.jpg") | files(_XML, "Annotations/#.xml")),
    "voc-in-its-kit": (
        "voc",
        4,
        images("VOCdevkit/VOC2007/JPEGImages/#.jpg") | files(_XML, "VOCdevkit/VOC2007/Annotations/#.xml"),
    ),
    "voc-in-folders-of-splits": (
        "voc",
        8,
        images("{train,test}/images/#.jpg") | files(_XML, "{train,test}/annotations/#.xml"),
    ),
    "voc-in-folders-of-other-names": ("voc", 4, images("images/#.jpg") | files(_XML, "annots/#.xml")),
    "voc-in-a-folder-of-annotations": (
        "voc",
        4,
        images("images/#.jpg") | files(_XML, "annotations/xmls/#.xml") | {"annotations/README": ""},
    ),
    "voc-of-sets-by-split": (
        "voc",
        8,
        images("{Training,Testing}/JPEGImages/#.jpg") | files(_XML, "{Training,Testing}/Annotations/#.xml"),
    ),
    "boxes-in-csv": ("box_csv", 4, images("train/#.jpg") | {"train/_annotations.csv": _BOX_ROWS}),
    "boxes-in-a-table-of-another-name": ("box_csv", 4, images("images/#.jpg") | {"boxes.csv": _BOX_ROWS}),
    "coco-in-a-folder-of-its-name": (
        "coco",
        8,
        images("core/PNG/#.jpg", numbers=range(8))
        | {f"core/COCO/{split}.json": coco_json(numbers) for split, numbers in _HALVES.items()},
    ),
    "texts-in-folders-of-splits": (
        "sidecars",
        8,
        images("{train,val}/#.jpg")
        | {f"{split}/{n}.txt": f"a dog {n}" for split in ("train", "val") for n in range(4)},
    ),
    "coco-in-folders-of-any-names": (
        "coco",
        8,
        images("pic/#.jpg", numbers=range(8))
        | {f"own_ANN/instances_{split}.json": coco_json(numbers) for split, numbers in _HALVES.items()},
    ),
    "coco": (
        "coco",
        8,
        images("{train,val}2017/#.jpg")
        | files(coco_json(), "annotations/{instances_train,instances_val,captions_val}2017.json"),
    ),
    "coco-of-roboflow": (
        "coco",
        8,
        images("{train,valid}/#.jpg") | files(coco_json(), "{train,valid}/_annotations.coco.json"),
    ),
    "coco-in-one-file": ("coco", 4, images("pictures/#.jpg") | {"labels.json": coco_json()}),
    "captions-of-coco": (
        "coco_captions",
        8,
        images("{train,val}2017/#.jpg")
        | files(_annotated(caption="a cat"), "annotations/captions_{train,val}2017.json"),
    ),
    "keypoints-of-coco": (
        "coco_keypoints",
        8,
        images("{train,val}2017/#.jpg") | files(_POINTS, "annotations/person_keypoints_{train,val}2017.json"),
    ),
    "panoptic-masks-of-coco": (
        "coco_panoptic",
        8,
        images("{train,val}2017/#.jpg", "annotations/panoptic_{train,val}2017/#.png")
        | files(PANOPTIC, "annotations/panoptic_{train,val}2017.json"),
    ),
    "lvis": (
        "lvis",
        8,
        images("{train,val}2017/#.jpg") | {f"lvis_v1_{split}.json": _lvis(split) for split in ("train", "val")},
    ),
    "labelme": ("labelme", 4, images("#.jpg") | files(LABELME, "#.json")),
    "labelme-in-splits": ("labelme", 8, images("{train,val}/#.jpg") | files(LABELME, "{train,val}/#.json")),
    "annotations-of-kitti": (
        "annotations",
        4,
        images("training/image_2/00#.png", "testing/image_2/00#.png")
        | files("Car 0.00 0 1.55 1.0 2.0 7.0 9.0 1.57 1.73 4.15 1.00 1.75 13.22 1.62\n", "training/label_2/00#.txt"),
    ),
    "annotations-of-open-images": (
        "annotations",
        4,
        images("data/#ab.jpg")
        | {
            "labels/detections.csv": table(
                "ImageID,LabelName,XMin,XMax,YMin,YMax", (f"{n}ab,/m/01,0.1,0.5,0.2,0.6" for n in range(4))
            )
        },
    ),
    "cars": ("carvana", 4, images("train/0ab_0#.jpg", "train_masks/0ab_0#_mask.gif", "test/1ab_0#.jpg")),
    "masks-in-gif-beside-images": ("segmentation", 4, images("#a.jpg", "#a_mask.gif")),
    "masks-in-colors": (
        "camvid",
        12,
        images("{train,val,test}/#.png", "{train,val,test}_labels/#_L.png") | {"class_dict.csv": _COLORS},
    ),
    "masks-in-colors-without-splits": (
        "camvid",
        4,
        images("stills/#.png", "LabeledApproved/#_L.png") | {"label_colors.txt": "64 128 64\tAnimal\n0 0 0\tVoid\n"},
    ),
    "masks-beside-splits": ("segmentation", 8, images("{train,val}/#.jpg", "{train,val}_masks/#.png")),
    "masks": ("segmentation", 4, images("images/#.jpg", "masks/#.png")),
    "pairs": ("pairs", 8, images("{train,val}/{input,target}/#.png")),
    "masks-in-splits": ("segmentation", 8, images("images/{train,val}/#.jpg", "masks/{train,val}/#.png")),
    "masks-below-splits": ("segmentation", 8, images("{train,val}/image/#.jpg", "{train,val}/mask/#.png")),
    "masks-of-camvid": ("segmentation", 12, images("{train,val,test}{,annot}/#.png")),
    "masks-of-splits-with-a-suffix": ("segmentation", 8, images("{train,val}/#.png", "{train,val}_labels/#_L.png")),
    "masks-in-folders-that-end-in-splits": (
        "segmentation",
        8,
        images("{images,annotations}_prepped_{train,test}/#.png"),
    ),
    "masks-of-short-names": ("segmentation", 8, images("img_{train,val}/#.jpg", "mask_{train,val}/#.png")),
    "masks-below-training": (
        "segmentation",
        8,
        images(
            *(f"{s}/{name}" for s in ("training", "test") for name in (f"images/#_{s}.jpg", f"mask/#_{s}_mask.gif"))
        ),
    ),
    "masks-with-a-suffix": ("segmentation", 4, images("train/#a.jpg", "train_masks/#a_mask.gif")),
    "masks-of-cityscapes": (
        "segmentation",
        16,
        images(
            "leftImg8bit/{train,val}/{aachen,bochum}/a_#_leftImg8bit.png",
            "gtFine/{train,val}/{aachen,bochum}/a_#_gtFine_{labelIds,instanceIds,color}.png",
        )
        | files("{}", "gtFine/{train,val}/{aachen,bochum}/a_#_gtFine_polygons.json"),
    ),
    "masks-of-cityscapes-in-folders-of-archives": (
        "segmentation",
        16,
        images(
            "leftImg8bit_trainvaltest/leftImg8bit/{train,val}/{aachen,bochum}/a_#_leftImg8bit.png",
            "gtFine_trainvaltest/gtFine/{train,val}/{aachen,bochum}/a_#_gtFine_labelIds.png",
        ),
    ),
    "masks-of-mmsegmentation": ("segmentation", 8, images("img_dir/{train,val}/#.jpg", "ann_dir/{train,val}/#.png")),
    "masks-of-loveda": (
        "segmentation",
        16,
        images("{Train,Val}/{Rural,Urban}/{images,masks}_png/#.png", "Test/{Rural,Urban}/images_png/#.png"),
    ),
    "masks-of-kitti": (
        "segmentation",
        4,
        images("training/{image_2,instance,semantic,semantic_rgb}/0#_10.png", "testing/image_2/0#_10.png"),
    ),
    "masks-of-synthia": ("segmentation", 4, images("RGB/000#.png", "GT/{LABELS,COLOR}/000#.png")),
    "masks-in-a-folder-for-each-example": ("segmentation", 4, images("p#/image.jpg", "p#/mask.png")),
    "masks-of-names-with-another-word": ("segmentation", 4, images("img/#_img_front.jpg", "semseg/#_semseg_front.png")),
    "masks-beside-images": ("segmentation", 4, images("benign (#){,_mask}.png")),
    "a-table-of-images-in-several-folders": (
        "kaggle",
        20,
        images("pictures_part_1/#.jpg", numbers=_NUMBERS[::2])
        | images("pictures_part_2/#.jpg", numbers=_NUMBERS[1::2])
        | {"data.csv": _rows("{n},{n},{v}", ("nv", "mel"), "lesion,image_id,dx")},
    ),
    "ids": (
        "kaggle",
        20,
        images("train_images/#a.jpg", numbers=_NUMBERS)
        | {"train.csv": _rows("{n}a,{v}", (0, 1, 2), "id_code,diagnosis")}
        | {"sample_submission.csv": table("id_code,diagnosis", ["x,0"])},
    ),
    "numbers-without-zeros": (
        "kaggle",
        10,
        images("head/00#.png", numbers=range(10))
        | {"labels.csv": table("id, hemorrhage", (f"{n}, {n % 2}" for n in range(10)))},
    ),
    "paths": (
        "kaggle",
        20,
        images("data/all/#a.jpg", numbers=_NUMBERS)
        | {"data/labels.csv": _rows("all/{n}a.jpg;{v}", ("cat", "dog"), "path;kind")},
    ),
    "a-column-of-splits": (
        "kaggle",
        20,
        images("#a.jpg", numbers=_NUMBERS)
        | {"list.csv": _rows("{n}a.jpg,{v}", ("0,train", "1,train", "1,val"), "file,label,split")},
    ),
    "a-list-without-header": (
        "kaggle",
        20,
        images("img/#a.jpg", numbers=_NUMBERS) | {"labels.txt": _rows("img/{n}a.jpg {v}", (1, 2))},
    ),
    "numbers-to-predict": (
        "regression",
        20,
        images("faces/#a.jpg", numbers=_NUMBERS)
        | {"scores.csv": _rows("{n}a.jpg,{v}", (0.5, 1.25, 3), "Filename,Rating")},
    ),
    "several-classes-in-a-cell": (
        "multilabel",
        20,
        images("images/#a.jpg", numbers=_NUMBERS)
        | {"data.csv": _rows("{n}a.jpg,{v}", ("rust", "scab", "rust;scab", "scab;rust"), "image,labels")},
    ),
    "a-column-for-each-class": (
        "multilabel",
        8,
        images("{train,valid}/#.jpg")
        | files(
            table("filename, cat, dog, owl", (f"{n}.jpg, {n % 2}, 1, 0" for n in range(4))),
            "{train,valid}/_classes.csv",
        ),
    ),
    "captions": (
        "captions",
        20,
        images("Images/#a.jpg", numbers=_NUMBERS)
        | {"captions.txt": _rows("{n}a.jpg,a dog on the road\n{n}a.jpg,{v}", ["it runs fast"], "image,caption")},
    ),
    "texts-beside-images": (
        "sidecars",
        20,
        images("#a.jpg", numbers=_NUMBERS) | {f"{n}a.txt": f"a dog on road {n}" for n in _NUMBERS},
    ),
    "addresses": (
        "urls",
        20,
        {"list.csv": _rows("{n},https://x.org/{n}.jpg,https://x.org/{n}.html,{v}", ["a dog"], "id,URL,page,TEXT")},
    ),
    "aligned-columns": (
        "multilabel",
        20,
        images("img/#a.jpg", numbers=_NUMBERS)
        | {"list.txt": "20\nred  big old\n" + _rows("{n}a.jpg  {v}  -1 1", ["1", "-1"])},
    ),
    "numbered-captions": (
        "captions",
        20,
        images("img/#a.jpg", numbers=_NUMBERS) | {"token.txt": _rows("{n}a.jpg#0\t{v} runs fast", ["a dog", "a cat"])},
    ),
    "paths-of-windows": (
        "kaggle",
        20,
        images("img/#a.jpg", numbers=_NUMBERS)
        | {"labels.csv": _rows("C:\\me\\{n}a.jpg,{v}", ["dog", "cat"], "path,label")},
    ),
    "pairs-by-their-endings": ("pairs", 4, images("img_#_LR.png", "img_#_HR.png")),
    "lines-of-json": (
        "kaggle",
        20,
        images("img/#a.jpg", numbers=_NUMBERS)
        | {"data.jsonl": _rows('{{"image": "img/{n}a.jpg", "label": "{v}"}}', ("cat", "dog"))},
    ),
    "lists-of-images": (
        "image_lists",
        20,
        images("img/#a.jpg", numbers=_NUMBERS)
        | {"data.jsonl": _rows('{{"id": {n}, "images": ["img/{n}a.jpg", null], "texts": [null, "{v}"]}}', ("a", "b"))},
    ),
    "pixels-of-faces": (
        "fer2013",
        4,
        {"fer2013.csv": table("emotion,pixels,Usage", (f"{n},{'7 ' * 2304},{s}" for n, s in enumerate(_USAGES)))},
    ),
    "pixels-of-digits": (
        "mnist_csv",
        4,
        files(
            table(f"label,{','.join(f'pixel{n}' for n in range(784))}", ["3" + ",9" * 784] * 2),
            "mnist_{train,test}.csv",
        ),
    ),
    "pixels-without-a-split": ("mnist_csv", 2, {"digits.csv": "\n".join(["3" + ",9" * 784] * 2)}),
    "digits": ("mnist", 8, _idx("{train,t10k}-", "-idx")),
    "digits-under-other-names": ("mnist", 8, _idx("digits-{train,test}-", ".idx")),
    "letters": ("emnist", 8, _idx("gzip/emnist-{letters,digits}-{train,test}-", "-idx", ".gz")),
    "other-set-of-emnist": ("emnist", 8, _idx("emnist-balanced-{train,test}-", "-idx")),
    "letters-plain-and-packed": (
        "emnist",
        8,
        _idx("emnist-letters-{train,test}-", "-idx") | _idx("emnist-letters-{train,test}-", "-idx", ".gz"),
    ),
    "cifar10": (
        "cifar10",
        24,
        files(_BATCH, "cifar-10-batches-py/{data_batch_#,test_batch}", numbers=range(1, 6))
        | {"cifar-10-batches-py/batches.meta": pickle.dumps({b"label_names": [b"car", b"cat"]}, 2)},
    ),
    "cifar100": (
        "cifar100",
        8,
        {"train": _FINE, "test": _FINE}
        | {"meta": pickle.dumps({b"fine_label_names": [b"cat"], b"coarse_label_names": [b"animal"]}, 2)},
    ),
    "svhn": ("svhn", 8, files(_MAT({"X": _X.transpose(1, 2, 3, 0), "y": _Y[:, None] + 1}), "{train,test}_32x32.mat")),
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
        {f"{split}_signs.h5": hdf5(**{f"{split}_set_x": _X, f"{split}_set_y": _Y}) for split in ("train", "test")},
    ),
    "parquet": ("parquet", 4, {"data/train-00000-of-00001.parquet": parquet(_COLUMNS)}),
    "tfrecords-with-texts-as-labels": ("tfrecord", 2, {"a-train.tfrecord-00000-of-00001": tfrecords(text=b"cat")}),
    "parquet-of-several-classes-a-row": (
        "parquet",
        4,
        {"data/train-00000-of-00001.parquet": parquet(_COLUMNS | {"label": [[0], [1, 2], [], [2]]})},
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
        images("{train,test}/#.png")
        | files(
            table("file_name,species,age", (f"{n}.png,owl {n},{n}" for n in range(4))), "{train,test}/metadata.csv"
        ),
    ),
    "metadata-at-the-root": (
        "imagefolder_metadata",
        4,
        images("#.png") | {"metadata.csv": table("file_name,text", (f"{n}.png,a cat" for n in range(4)))},
    ),
}
