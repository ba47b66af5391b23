"""Which preset reads a folder: by its sign, and by listing the folder with that preset."""

from __future__ import annotations

import gzip
import json
import pathlib
import random
import re
import sys
import zipfile

import numpy as np
import pytest

from imagebeam import errors, storage
from imagebeam.pipelines import job
from imagebeam.pipelines.config import model as config_lib
from imagebeam.pipelines.recognize import recognize_folder
from imagebeam.storage import remote
from imagebeam.transforms.sources.folder_probe import Bounds, Folder, FolderProbe, split_meant
from tests import command_line, error_texts, folder_shapes, image_sets, odd_layouts, patience, written_files
from tests.folder_shapes import SHAPES, files, images, table


def load(found: recognize_folder.Recognition) -> config_lib.Config:
    """The config of the candidate that fits beyond doubt."""
    assert found.sure is not None, found.candidates
    overrides = [*recognize_folder.overrides_of(found.sure), f"source.uri={found.address(found.sure)}"]
    return config_lib.load_config(found.sure.preset, [*overrides, f"output.uri={found.given}-out"])


@pytest.mark.parametrize("shape", SHAPES)
def test_folder_is_recognized_and_its_preset_lists_all_images(tmp_path: pathlib.Path, shape: str) -> None:
    preset, number, tree = SHAPES[shape]
    found = recognize_folder.recognize(str(folder_shapes.write(tmp_path / "in", tree)))
    config = load(found)
    assert found.sure is not None
    assert found.sure.preset == preset
    listings = list(job.make_source(config).list_all())
    rules = job.listing_rules_of(config)
    listed = [rules.apply(each) for each in listings]
    assert sum(each.num_refs for each in listed) == number
    assert [reject for each in listed for reject in each.rejects] == []


_LISTS: dict[str, list[object]] = {"images": [[b"x", b"y"]], "views": [[{"bytes": b"x", "path": "a"}]], "ids": [[1]]}
_CAPTIONS = "the preset sidecars reads texts and JSON of the images' names (docs/recipes/sidecars.md)"
_OF_SHAPES = {name: tree for name, (_, _, tree) in SHAPES.items()}
_XML = next(text for name, text in _OF_SHAPES["voc"].items() if name.endswith(".xml"))
_SHAPE = {"label": "cat", "points": [[1, 1], [5, 5]], "shape_type": "rectangle", "flags": {}}
_RECTANGLE = {"name": "rect", "x": 1, "y": 1, "width": 5, "height": 5}
_REGION = {"shape_attributes": _RECTANGLE, "region_attributes": {}}
_POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"


def labelme(*shapes: object, **flags: bool) -> str:
    return json.dumps({"version": "5.0.1", "flags": flags, "shapes": shapes, "imagePath": "0.jpg"}, indent=2)


@pytest.mark.parametrize(
    ("tree", "evidence", "settings"),
    [
        pytest.param(_OF_SHAPES["classes"], "3 folders of images (cat, dog, owl)", [], id="classes"),
        pytest.param(
            _OF_SHAPES["classes-in-splits"],
            "train and test hold 2 folders of images each (cat, dog)",
            [],
            id="classes-in-splits",
        ),
        pytest.param(
            _OF_SHAPES["splits-under-other-names"],
            "Training and Testing hold 2 folders of images each (cat, dog)",
            ["split.rename={Training: train, Testing: test}"],
            id="splits-under-other-names",
        ),
        pytest.param(
            _OF_SHAPES["yolo"], "images is beside labels, which holds .txt files (4 in labels/train)", [], id="yolo"
        ),
        pytest.param(
            images("images/#.jpg")
            | files("", "labels/{a,b,c,d,e,f,g,h}/a.md")
            | {"labels/train/0.txt": "0 .5 .5 .2 .2", "data.yaml": "names: [cat]"},
            "images is beside labels, which holds .txt files (1 in labels/train)",
            ["source.yolo.label_folder=labels/train"],
            id="labels-behind-other-folders",
        ),
        pytest.param(
            _OF_SHAPES["masks"],
            "4 of 4 images in images have a .png file of the same name in masks",
            [
                r"source.masks.image=images/(?P<name>.*)\.jpg",
                r"source.masks.mask=masks/\g<name>.png",
                "split={by: hash, fractions: {train: 0.9, validation: 0.1}}",
            ],
            id="masks",
        ),
        pytest.param(
            _OF_SHAPES["ids"],
            "train.csv has the columns id_code, diagnosis; 20 of 20 images that it names are in train_images",
            [
                "source.manifest.path=train.csv",
                "source.manifest.image='{id_code}.*'",
                "source.manifest.root=train_images",
                "label.column=diagnosis",
            ],
            id="ids",
        ),
        pytest.param(
            images("#.jpg") | {f"{n}.json": labelme(*[_SHAPE] * (n > 2), blurred=True) for n in range(4)},
            "4 images have a .json file of LabelMe beside them",
            [],
            id="labelme-with-flags-and-shapes",
        ),
        pytest.param(
            images("JPEGImages/{train,val}/#.jpg") | files(_XML, "Annotations/{train,val}/#.xml"),
            "JPEGImages is beside Annotations, which holds .xml files",
            [],
            id="xml-in-the-folders-of-the-images",
        ),
        pytest.param(
            {"val/0.tar": folder_shapes.tar({"a.jpg": image_sets.make_image(1, "JPEG"), "a.cls": b"1"})},
            "1 tar with members such as a.jpg, a.cls",
            ["split={by: directory, rename: {val: validation}}"],
            id="tars-of-validation-alone",
        ),
        pytest.param(
            {f"{split}/00.tfrec": folder_shapes.tfrecords() for split in ("train", "val", "test")},
            "1 TFRecord file (00.tfrec)",
            ["split={by: directory, rename: {val: validation}}"],
            id="tfrecords-in-folders-of-splits",
        ),
        pytest.param(
            {f"{name}-9.tfrec": folder_shapes.tfrecords() for name in ("test00", "ld_train00", "ld_train01")},
            "3 TFRecord files (ld_train00-9.tfrec, ld_train01-9.tfrec, ...)",
            ["split.rename={test00: test, train00: train, train01: train}"],
            id="tfrecords-with-the-number-of-the-file-in-the-split",
        ),
    ],
)
def test_evidence_has_counts_and_settings_are_those_that_differ(
    tmp_path: pathlib.Path, tree: folder_shapes.Tree, evidence: str, settings: list[str]
) -> None:
    found = recognize_folder.recognize(str(folder_shapes.write(tmp_path, tree)))
    assert found.sure is not None
    assert found.sure.evidence.startswith(evidence)
    assert (recognize_folder.overrides_of(found.sure), found.remarks) == (settings, ())


def test_details_that_the_preset_needs_are_in_settings_and_notes(tmp_path: pathlib.Path) -> None:
    roots = {name: folder_shapes.write(tmp_path / name, _OF_SHAPES[name]) for name in _OF_SHAPES}
    config = load(recognize_folder.recognize(str(roots["a-column-of-splits"])))
    assert (config.split.by, config.split.column, config.split.rename) == ("column", "split", {"val": "validation"})
    for name, note in (
        ("masks", "masks/0.png is drawn in colors: if each color is a class, name them in"),
        ("tfrecords", f"to read these files where they are, without writing others: imagebeam index {tmp_path}"),
    ):
        found = recognize_folder.recognize(str(roots[name]))
        assert found.sure is not None and found.sure.notes[0].startswith(note)


def test_json_of_coco_is_known_by_its_annotations_and_not_by_its_name(tmp_path: pathlib.Path) -> None:
    bare = {key: value for key, value in json.loads(folder_shapes.coco_json()).items() if key != "annotations"}
    tree = images("train/#.jpg", "segments/#.png") | {"segments.json": folder_shapes.PANOPTIC}
    tree |= {"images_train.json": json.dumps(bare), "panoptic_coco_detection_format.json": folder_shapes.coco_json()}
    found = recognize_folder.recognize(str(folder_shapes.write(tmp_path, tree)))
    named = {each.preset: each.settings.get("source.coco.annotations") for each in found.candidates}
    assert named["coco"] == {"train": "panoptic_coco_detection_format.json"}
    assert named["coco_panoptic"] == {"train": "segments.json"}


def test_what_nothing_reads_is_named(tmp_path: pathlib.Path) -> None:
    tree = files(_POINTER, "{cat,dog}/1.jpg") | files("", "{a.mp4,b.rar,c.7z,d.mha}")
    assert recognize_folder.recognize(str(folder_shapes.write(tmp_path, tree))).remarks == (
        "cat/1.jpg is a pointer of Git LFS, not an image: run git lfs pull in the clone first (1 other .jpg file of "
        "its size)",
        "1 video, which is not read: save its frames as images (ffmpeg -i VIDEO frames/%06d.png)",
        "2 archives: unpack them",
        "1 medical image, which is not read: save it as NIfTI",
    )
    with error_texts.raises("input-not-found"):
        recognize_folder.recognize(f"{tmp_path}/none")


@pytest.mark.parametrize(
    ("tree", "presets", "texts"),
    [
        pytest.param({}, "", [], id="empty"),
        pytest.param({"notes.txt": "hello", "run.py": "print()"}, "", [], id="no-images"),
        pytest.param(images("IMG_#.jpg"), "image_folder", [], id="images-without-labels"),
        pytest.param(
            images("photos/IMG_#.jpg") | files("", "{a,b,c,d,e,f,g,h}/a.md"),
            "image_folder",
            ["4 images directly in photos, and nothing that names their classes"],
            id="in-one-folder-behind-others",
        ),
        pytest.param(images("{train,val}/#.jpg"), "imagefolder", [], id="splits-without-classes"),
        pytest.param(images("x/#.jpg") | {"t.csv": table("a,b", ["1,2", "3,4"])}, "image_folder", [], id="other-table"),
        pytest.param(
            images("#.jpg", numbers=range(20)) | {"3.json": labelme(_SHAPE)},
            "labelme image_folder",
            [
                "1 of 20 images have a .json file of LabelMe beside them",
                "images without such a file are skipped; source.labelme.without_annotations=keep takes them as images "
                "without objects",
            ],
            id="labelme-of-few-images",
        ),
        pytest.param(
            images("{train,val}/#.jpg") | files(labelme(_SHAPE), "val/#.json"),
            "labelme imagefolder",
            ["4 of 8 images have a .json file of LabelMe beside them"],
            id="labelme-of-one-split",
        ),
        *(
            pytest.param(
                images(f"{folder}#.jpg") | {f"{folder}{n}.json": labelme(cat=n < 2, dog=n > 1) for n in range(4)},
                "image_folder",
                [f"{folder}0.json and such files are of LabelMe and have flags of the whole image in place of shapes"],
                id=f"labelme-with-flags-alone-{name}",
            )
            for name, folder in (("here", ""), ("below", "photos/"))
        ),
        pytest.param(
            images("JPEGImages/#.jpg") | files(_XML, "Annotations/{a,b}/#.xml", numbers=range(2)),
            "voc image_folder",
            ["b in Annotations has .xml files, too, and is not read", "source.voc.annotation_folder=Annotations/a"],
            id="xml-in-several-folders",
        ),
        pytest.param(
            images("#.jpg") | {"via.json": json.dumps({"x9": {"filename": "x.png", "regions": [_REGION]}})},
            "image_folder",
            ["via.json is of the VGG Image Annotator, and the images that it names (x.png, ...) are not here: give"],
            id="annotations-of-via",
        ),
        *(
            pytest.param(
                images("images/#a.jpg") | {"c.json": odd_layouts.coco(name)}, "image_folder", [text], id=f"coco-{name}"
            )
            for name, text in (
                ("images\\{n}a.jpg", r"c.json is of COCO, and is not read: write / in place of \ in its file_name"),
                ("x{n}.jpg", "c.json is of COCO, and the images that it names (x0.jpg, ...) are not here: give the"),
            )
        ),
        pytest.param(
            {"a.zip": folder_shapes.packed(_OF_SHAPES["yolo"])},
            "yolo",
            ["yolo does not read archives: unpack a.zip, and plan the folder"],
            id="zip-of-boxes",
        ),
        pytest.param(
            images("train2017/#.jpg") | {"annotations/panoptic_train2017.json": folder_shapes.PANOPTIC},
            "coco_panoptic imagefolder",
            [
                "unpack annotations/panoptic_train2017.zip first: the folder annotations/panoptic_train2017 must hold "
                "the PNG files"
            ],
            id="panoptic-masks-not-unpacked",
        ),
        pytest.param(
            {"cifar-100-python.tar.gz": gzip.compress(folder_shapes.tar({"cifar-100-python/meta": b"x"}))},
            "cifar100",
            ["unpack it first, by tar xf cifar-100-python.tar.gz, and give the folder that is in it as --input"],
            id="cifar-not-unpacked",
        ),
        pytest.param(
            {"a.npz": folder_shapes.npz(x_train=np.zeros((4, 8, 8), np.float32), y_train=np.zeros(4))},
            "npz",
            ["a.npz#x_train (<f4, 4 x 8 x 8) is not of uint8, and images are taken as uint8, 0 to 255: save it so"],
            id="arrays-of-float",
        ),
        pytest.param(
            {"rgb.csv": table(f"label,{','.join(f'pixel{n}' for n in range(3072))}", ["3" + ",9" * 3072] * 2)},
            "mnist_csv",
            ["3,072 pixels are no square: set source.arrays.shape to [height, width, channels]"],
            id="pixels-of-three-channels",
        ),
        pytest.param(
            images("{p,q}/#.jpg") | {"p/1.txt": "a cat", "q/notes.txt": "of another name"},
            "image_folder",
            [f"1 of 8 images have a .txt file beside them (p/1.txt beside 1.jpg), not read: {_CAPTIONS}"],
            id="captions-in-classes",
        ),
        pytest.param(
            {"a.parquet": folder_shapes.parquet(_LISTS)},
            "parquet",
            [
                "which column has the images of an example: images, views?",
                "its other columns are not stored unless columns names them: ids",
                "source.parquet.images=images",
            ],
            id="lists-in-parquet",
        ),
        pytest.param(
            images("img/#.jpg")
            | {"a.jsonl": table('{"images": ["img/0.jpg"], "first": "img/0.jpg"}', ['{"images": ["img/1.jpg"]}'])},
            "image_lists image_folder",
            ["the column 'first' names images, too: for one image a row set source.manifest.image=first and"],
            id="list-beside-one-image",
        ),
        pytest.param(
            images("images/train/{A172,BT474}/#.jpg") | {"annotations/cells/a_train.json": odd_layouts.coco()},
            "imagefolder",
            ["annotations/cells/a_train.json is of COCO, and the images that it names (0.jpg, ...) are not here: "],
            id="coco-of-images-in-several-folders",
        ),
        pytest.param(
            images("images_training/10#.jpg", "images_test/20#.jpg")
            | {
                "all_zeros.csv": table("id,a,b,c", [f"20{n},0,0,0" for n in range(4)]),
                "training_solutions.csv": table("id,a,b,c", [f"10{n},0.{n},0.5,0.2" for n in range(4)]),
            },
            "regression imagefolder",
            ["source.manifest.path=training_solutions.csv", "all_zeros.csv (4 rows) names images, too, and is not"],
            id="table-of-placeholders-beside-another",
        ),
        pytest.param(
            images("images/00#.jpg", numbers=range(9))
            | {f"{name}.txt": table(f"00{n}.jpg 0", [f"00{n + 1}.jpg 1"]) for n, name in enumerate(["train", "test"])},
            "kaggle image_folder",
            ["train.txt has the columns image, label; 2 of 2 images that it names are in images"],
            id="lists-of-images-whose-names-state-no-class",
        ),
        pytest.param(
            images("train/images/{crazing/a,patches/b}_#.jpg") | files(_XML, "train/annotations/{a,b}_#.xml"),
            "voc",
            ["the images are in folders of train/images (crazing, patches), and their .xml files directly in "],
            id="xml-in-one-folder-of-images-in-several",
        ),
    ],
)
def test_folder_that_is_not_beyond_doubt_has_notes(
    tmp_path: pathlib.Path, tree: folder_shapes.Tree, presets: str, texts: list[str]
) -> None:
    folder_shapes.check_doubtful(recognize_folder.recognize(str(folder_shapes.write(tmp_path, tree))), presets, texts)


def test_lists_of_images_beside_single_ones_are_noted(tmp_path: pathlib.Path) -> None:
    folder_shapes.write(tmp_path, {"a.parquet": folder_shapes.parquet({"image": [b"x"], **_LISTS})})
    found = recognize_folder.recognize(str(tmp_path))
    assert found.sure is not None and found.sure.settings == {"label": {"by": "none"}}
    assert [*found.remarks] == [
        f"1 Parquet file: the column {name!r} of a.parquet holds a list of images in each row, which is not read: "
        f"source.parquet.images={name} reads it"
        for name in ("images", "views")
    ]


def test_two_data_sets_in_one_folder_are_both_named(tmp_path: pathlib.Path) -> None:
    tree = SHAPES["voc"][2]
    for year in (2007, 2012):
        folder_shapes.write(tmp_path / f"VOC{year}", tree)
    found = recognize_folder.recognize(str(tmp_path))
    own = "VOC2007 and VOC2012 may be data sets of their own: give one as --input"
    folder_shapes.check_doubtful(found, "voc", [own])
    assert found.candidates[0].settings == {
        "source.voc.images": {"train": ["VOC2007/JPEGImages", "VOC2012/JPEGImages"]}
    }
    for year in (2007, 2012):
        written_files.write(tmp_path / f"VOC{year}", {"ImageSets/Main/train.txt": "0\n"})
    found = recognize_folder.recognize(str(tmp_path))
    assert found.sure is None
    assert [found.address(each) for each in found.candidates] == [f"{tmp_path}/VOC2007", f"{tmp_path}/VOC2012"]


def test_table_itself_is_recognized_in_its_folder(tmp_path: pathlib.Path) -> None:
    folder_shapes.write(tmp_path, SHAPES["ids"][2])
    found = recognize_folder.recognize(f"{tmp_path}/train.csv")
    config = load(found)
    assert (config.source.uri, config.source.manifest.path) == (str(tmp_path), "train.csv")


@pytest.mark.parametrize(
    ("shape", "name", "preset", "number"),
    [
        ("arrays-of-numpy", "shapes.npz", "npz", 8),
        ("arrays-of-matlab", "shapes.mat", "npz", 4),
        ("arrays-of-hdf5", "train_signs.h5", "hdf5", 4),
        ("svhn", "train_32x32.mat", "svhn", 4),
        ("a-zip-of-classes", "a.zip", "image_folder", 8),
        ("a-zip-with-an-inner-folder", "a.zip", "imagefolder", 16),
        ("tars", "val-0000.tar.gz", "webdataset", 2),
        ("tfrecords", "train-00000-of-00001", "tfrecord", 2),
        ("parquet", "data/train-00000-of-00001.parquet", "parquet", 4),
        ("pixels-of-digits", "mnist_train.csv", "mnist_csv", 2),
        ("pixels-without-a-split", "digits.csv", "mnist_csv", 2),
        ("pixels-of-faces", "fer2013.csv", "fer2013", 4),
        ("table-of-tfrecorder", "t.csv", "tfrecorder", 4),
    ],
)
def test_one_file_is_recognized_and_its_preset_lists_its_images(
    tmp_path: pathlib.Path, shape: str, name: str, preset: str, number: int
) -> None:
    folder_shapes.write(tmp_path, SHAPES[shape][2])
    found = recognize_folder.recognize(f"{tmp_path}/{name}")
    config = load(found)
    assert (found.sure and found.sure.preset) == preset
    assert sum(each.num_refs for each in job.make_source(config).list_all()) == number


@pytest.mark.parametrize(
    ("shape", "name", "preset", "advice"),
    [
        ("arrays-of-numpy", "shapes.npz", "npz", "for images that are rows of arrays set source.by: arrays"),
        ("arrays-of-matlab", "shapes.mat", "npz", "for images that are rows of arrays set source.by: arrays"),
        ("arrays-of-hdf5", "train_signs.h5", "hdf5", "for images that are rows of arrays set source.by: arrays"),
        ("tars", "val-0000.tar.gz", "webdataset", "whose name ends in .tar or .tar.gz set source.by: tar"),
        ("pixels-of-digits", "mnist_train.csv", "mnist_csv", "for pixels in CSV set source.by: arrays"),
    ],
)
def test_file_given_as_a_folder_names_its_preset(
    tmp_path: pathlib.Path, shape: str, name: str, preset: str, advice: str
) -> None:
    uri = f"{folder_shapes.write(tmp_path, SHAPES[shape][2])}/{name}"
    config = config_lib.load_config("image_folder", [f"source.uri={uri}", f"output.uri={tmp_path}-out"])
    with pytest.raises(errors.ConfigError) as raised:
        job.make_source(config)
    text = str(raised.value)
    assert f"--input '{uri}' is not a folder; " in text
    assert advice in text
    assert f"looks like the preset {preset}: " in text
    assert f"use --config {preset} --input {uri}" in text


@pytest.mark.parametrize(
    "name", ["/cat/0.jpg", "../cat/0.jpg", "C:/cat/0.jpg", ".", "cat/../../0.jpg", "cat//0.jpg", "cat"]
)
def test_names_in_an_archive_may_lie(tmp_path: pathlib.Path, name: str) -> None:
    archive = tmp_path / "a.zip"
    archive.write_bytes(folder_shapes.packed(images("cat/#.jpg", "dog/#.jpg")))
    with zipfile.ZipFile(archive, "a") as packed:
        packed.writestr(name, b"x")
        packed.writestr("__MACOSX/._x", b"x")
    found = recognize_folder.recognize(str(tmp_path))
    assert [each.preset for each in found.candidates] == ["image_folder"]


def test_archive_that_is_encrypted_or_broken_is_known_by_its_names_or_not_at_all(tmp_path: pathlib.Path) -> None:
    content = folder_shapes.packed({"data.csv": table("image,label", ["0.jpg,a"]), **images("#.jpg")})
    flagged = bytearray(content)
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        for at in [each.start() for each in re.finditer(re.escape(mark), content)]:
            flagged[at + offset] |= 1
    (tmp_path / "a.zip").write_bytes(bytes(flagged))
    assert [each.preset for each in recognize_folder.recognize(f"{tmp_path}/a.zip").candidates] == ["image_folder"]
    (tmp_path / "a.zip").write_bytes(content[:-9])
    found = recognize_folder.recognize(str(tmp_path))
    assert (found.candidates, found.remarks) == ((), ("1 archive: unpack it",))


def test_other_things_to_learn_from_the_same_images_are_possible(tmp_path: pathlib.Path) -> None:
    tree = {**SHAPES["coco"][2], **SHAPES["captions-of-coco"][2], **SHAPES["keypoints-of-coco"][2]}
    found = recognize_folder.recognize(str(folder_shapes.write(tmp_path, tree)))
    assert found.sure is not None
    assert [each.preset for each in found.candidates] == ["coco", "coco_keypoints", "coco_captions"]
    both = {name: text for name, text in tree.items() if "instances" not in name}
    found = recognize_folder.recognize(str(folder_shapes.write(tmp_path / "both", both)))
    assert (found.sure, [each.preset for each in found.candidates][:2]) == (None, ["coco_keypoints", "coco_captions"])


def test_saved_listing_beside_the_folder_is_no_contradiction(tmp_path: pathlib.Path) -> None:
    root = folder_shapes.write(tmp_path / "in", images("cat/cat#x.jpg", "dog/dog#x.jpg"))
    command_line.succeed("plan", "--input", root, "--save-listing", tmp_path / "listing.jsonl")
    assert recognize_folder.recognize(str(root)).sure is not None
    (tmp_path / "boxes.json").write_text('{"cat0x.jpg": [1, 2], "cat1x.jpg": [3, 4]}')
    assert recognize_folder.recognize(str(root)).sure is None


def test_parquet_without_pyarrow_is_noted(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = folder_shapes.write(tmp_path, SHAPES["parquet"][2])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    found = recognize_folder.recognize(str(root))
    assert [(each.preset, each.evidence, each.doubts) for each in found.candidates] == [
        (
            "parquet",
            "1 Parquet file",
            ("pyarrow is not installed, reading Parquet needs it: pip install 'imagebeam[convert]'",),
        )
    ]


# --- the table of signs ----------------------------------------------------------------------------------------------

_WITHOUT_SIGN = {  # presets, with the reason
    "faces_age": "a table of images and ages is `regression`, whose columns are found",
    "flowers": "a bucket of classes is `image_folder`",
}


def test_signs_name_all_presets_and_no_others() -> None:
    named = {preset for presets in recognize_folder.SIGNS.values() for preset in presets}
    assert sorted(named) == sorted(set(config_lib.preset_names()) - set(_WITHOUT_SIGN))


def test_every_preset_has_a_shape() -> None:
    shown = {preset for preset, _, _ in SHAPES.values()}
    assert sorted(set(config_lib.preset_names()) - shown) == sorted(_WITHOUT_SIGN)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_sign_finds_only_the_presets_that_it_names(tmp_path: pathlib.Path, shape: str) -> None:
    probe = FolderProbe(str(folder_shapes.write(tmp_path, SHAPES[shape][2])))
    for sign, presets in recognize_folder.SIGNS.items():
        assert {each.preset for each in sign(probe, "")} <= {*presets}


@pytest.mark.parametrize("shape", SHAPES)
def test_no_content_of_files_breaks_a_sign(tmp_path: pathlib.Path, shape: str) -> None:
    """Each file of a shape with other bytes: random ones, its own cut short, and its own with flipped bytes."""
    rng = random.Random(shape)
    folder_shapes.write(tmp_path, SHAPES[shape][2])
    paths = [path for path in tmp_path.rglob("*") if path.is_file()]
    for kind in ("random", "cut", "flipped", "empty"):
        for path in paths:
            data = bytearray(path.read_bytes() or b"x")
            if kind == "flipped":
                for _ in range(4):
                    data[rng.randrange(len(data))] = rng.randrange(256)
            changed = {"random": rng.randbytes(200), "cut": data[: rng.randrange(len(data))], "flipped": data}
            path.write_bytes(changed.get(kind, b""))
        recognize_folder.recognize(str(tmp_path))


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(b"[" * 60_000, id="deep-json"),
        pytest.param(b'{"a":' * 10_000, id="deep-objects"),
        pytest.param(b"a," * 30_000 + b"\n" + b"1," * 1000, id="many-columns"),
        pytest.param(b'"' + b"a,\n" * 20_000, id="open-quote"),
        pytest.param(b"image,label\n" + b"x" * 70_000, id="long-line"),
        pytest.param(b"PAR1" + b"\xff" * 100 + b"PAR1", id="parquet"),
        pytest.param(b"\xff\xfea\0,\0b\0", id="utf-16"),
        pytest.param(b"image\xff,l\n1.jpg\xff,2", id="latin-1"),
        pytest.param(b"image,image\n0.jpg,0.jpg\n", id="column-twice"),
        pytest.param(b"\xff" * 300, id="tfrecord-of-a-lying-length"),
    ],
)
def test_no_head_of_a_file_breaks_a_sign(tmp_path: pathlib.Path, head: bytes) -> None:
    folder_shapes.write(tmp_path, images("#.jpg"))
    extensions = ("csv", "tsv", "json", "jsonl", "parquet", "txt", "yaml", "tar", "tfrecord", "npz", "h5", "zip")
    for name in (*(f"train.{extension}" for extension in extensions), "0.txt", "0.json", "via.json", "metadata.csv"):
        (tmp_path / name).write_bytes(head)
    recognize_folder.recognize(str(tmp_path))
    for name in ("train.csv", "train.json", "train.parquet", "train.txt"):
        recognize_folder.recognize(str(tmp_path / name))


# --- bounds ----------------------------------------------------------------------------------------------------------


def test_probe_lists_no_more_than_its_bounds(tmp_path: pathlib.Path) -> None:
    folder_shapes.write(tmp_path, {f"{n}/{m}.txt": "x" for n in range(5) for m in range(7)})
    probe = FolderProbe(str(tmp_path), Bounds(folders=3, entries=4, all_entries=100, heads=1))
    root = probe.look()
    assert (len(root.folders), root.is_whole) == (4, False)
    assert [len(probe.look(name).files) for name in root.folders] == [4, 4, 0, 0]
    assert probe.num_listed == 3
    assert probe.look("0").count(4, "text") == "4 or more texts"
    assert [probe.head(f"0/{name}") for name in probe.look("0").files][:2] == [b"x", b""]
    probe = FolderProbe(str(tmp_path), Bounds(all_entries=10))
    looked = [probe.look(), *(probe.look(str(n)) for n in range(5))]
    assert sum(len(each.folders) + len(each.files) for each in looked) == 10


def test_recognition_asks_a_bucket_for_few_folders(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder_shapes.write(tmp_path, images(*(f"{kind}/#.jpg" for kind in map(str, range(300))), numbers=[1]))
    listed = []
    found = storage.LocalStorage.list_directory
    monkeypatch.setattr(
        storage.LocalStorage, "list_directory", lambda self, uri: listed.append(uri) or found(self, uri)
    )
    assert recognize_folder.recognize(str(tmp_path)).sure is not None
    assert len(listed) <= 100


def test_output_in_the_input_is_not_looked_into(tmp_path: pathlib.Path) -> None:
    folder_shapes.write(tmp_path, {**images("cat/#.jpg", "dog/#.jpg"), "out/train-00000-of-00001.tfrecord": "x"})
    found = recognize_folder.recognize(str(tmp_path), str(tmp_path / "out"))
    assert found.sure is not None
    assert found.sure.evidence == "2 folders of images (cat, dog)"


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("train", "train"),
        ("seg_train", "train"),
        ("TrainingSet", "train"),
        ("test1", "test"),
        ("val2017", "validation"),
        ("Dev", "validation"),
        ("trainer", None),
        ("latest", None),
        ("train_test", None),
        ("cat", None),
    ],
)
def test_split_meant_by_a_name(name: str, meant: str | None) -> None:
    assert split_meant(name) == meant


def test_folder_counts_its_images_by_extension() -> None:
    folder = Folder("a", ("b",), {"1.JPG": 1, "2.txt": 1, "3": 1})
    assert (folder.images, folder.stems, folder.ending(".txt")) == (("1.JPG",), {"1"}, ("2.txt",))
    assert folder.below("b") == "a/b"


# --- the command -----------------------------------------------------------------------------------------------------


def test_plan_goes_on_with_a_preset_that_fits_beyond_doubt(tmp_path: pathlib.Path) -> None:
    root = folder_shapes.write(tmp_path / "pets", SHAPES["splits-under-other-names"][2])
    done = command_line.succeed("plan", "--input", root)
    assert done.stdout.startswith(
        "recognized  imagefolder: Training and Testing hold 2 folders of images each (cat, dog)"
    )
    assert "\n  train      8 images" in done.stdout
    *_, command, config, _ = done.stdout.split("\n")
    setting = "--set 'split.rename={Training: train, Testing: test}'"
    assert command == f"next: imagebeam convert --config imagefolder --input {root} {setting} --output OUTPUT"
    assert config == f"or: imagebeam init {root} writes these settings as a config"
    words = ("convert", "--config", "imagefolder", "--input", root, "--output", tmp_path / "out", "-q", "--set")
    command_line.succeed(*words, "split.rename={Training: train, Testing: test}")


def test_plan_lists_presets_that_fit_alike(tmp_path: pathlib.Path) -> None:
    for year in (2007, 2012):
        lists = {"ImageSets/Main/train.txt": "0\n"}
        folder_shapes.write(tmp_path / f"VOC{year}", {**SHAPES["voc"][2], **lists})
    done = command_line.end(2, "plan", "--input", tmp_path)
    assert f"  options  --config voc --input {tmp_path}/VOC2012\n" in done.stdout
    assert "4 of 8 images that were seen are not read, in VOC2012/JPEGImages (VOC2012/JPEGImages/0.jpg)" in done.stdout
    assert f"'{tmp_path}' may be voc, but not beyond doubt" in done.stderr


def test_plan_says_that_no_preset_recognizes_a_folder(tmp_path: pathlib.Path) -> None:
    folder_shapes.write(tmp_path, images("scans/deep/#.png"))
    done = command_line.call("plan", "--input", tmp_path)
    assert (done.returncode, "would be written" in done.stdout) == (2, False)
    assert f"no preset recognizes '{tmp_path}' (1 folder, 4 .png in scans/deep): name one with" in done.stderr
    assert f"in it as a class: imagebeam plan --config image_folder --input {tmp_path}" in done.stderr


def test_plan_with_settings_of_its_own_is_left_alone(tmp_path: pathlib.Path) -> None:
    root = folder_shapes.write(tmp_path, SHAPES["masks"][2])
    done = command_line.succeed("plan", "--input", root, "--set", "label.by=none")
    assert "recognized" not in done.stdout
    assert "listed       8 images" in done.stdout


@pytest.mark.parametrize("command", ["convert", "plan"])
def test_input_of_which_no_image_can_be_used_names_the_preset(tmp_path: pathlib.Path, command: str) -> None:
    tree = SHAPES["numbered-names"][2]
    root = folder_shapes.write(tmp_path / "in", tree)
    done = command_line.end(3, command, "--input", root, "--output", tmp_path / "out", "--set", "label.by=directory")
    expected = f"'{root}' looks like the preset image_folder: the names of 40 images begin with 2 names (lily, rose)"
    assert expected in done.stdout + done.stderr


def test_preset_for_another_source_names_the_one_that_fits(tmp_path: pathlib.Path) -> None:
    root = folder_shapes.write(tmp_path / "in", SHAPES["yolo"][2])
    done = command_line.end(2, "plan", "--config", "coco", "--input", root)
    assert f"'{root}' looks like the preset yolo: images is beside labels" in done.stderr
    assert f"use --config yolo --input {root}\n" in done.stderr


def test_storage_that_does_not_answer_is_given_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "time", patience.Clock())
    with error_texts.raises("file-unreadable"):
        recognize_folder.recognize("hdfs://127.0.0.1:1/photos")
