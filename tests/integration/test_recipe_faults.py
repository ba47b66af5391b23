"""What is damaged in the inputs of the recipes: rejects with their reasons, or an error that says what to do."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pytest
from PIL import Image

from imagebeam import errors
from imagebeam.pipelines.config import model as config_lib
from tests import case_tables, command_line, detection_sets, image_sets, recipe_sets, tars
from tests.integration.test_recipes import RECIPES, read, run
from tests.recipe_sets import put

Damage = Callable[[pathlib.Path], object]  # in the folder in which the recipe has written its input
MANY = "rejects.max_fraction=0.9"


def cut(name: str, num_bytes: int = 100) -> Damage:
    """Returns what takes the last bytes of a file."""
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-num_bytes])


def remove(*names: str) -> Damage:
    return lambda folder: [(folder / name).unlink() for name in names]


def change(name: str, old: str, new: str) -> Damage:
    """Returns what replaces the first occurrence of a text in a file."""

    def replace(folder: pathlib.Path) -> None:
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new, 1))

    return replace


def append(name: str, *lines: str) -> Damage:
    return lambda folder: put(folder, name, *(folder / name).read_text().splitlines(), *lines)


def flip(name: str, offset: int) -> Damage:
    """Returns what changes one bit of a file."""

    def spoil(folder: pathlib.Path) -> None:
        data = bytearray((folder / name).read_bytes())
        data[offset] ^= 1
        (folder / name).write_bytes(data)

    return spoil


def write(name: str, content: bytes) -> Damage:
    def store(folder: pathlib.Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)

    return store


def both(*several: Damage) -> Damage:
    return lambda folder: [each(folder) for each in several]


def rows(name: str, *lines: str) -> Damage:
    return lambda folder: put(folder, name, *lines)


def in_annotations(name: str, act: Callable[[dict], object]) -> Damage:  # type: ignore[type-arg]
    """Returns what changes the content of a JSON file."""

    def edit(folder: pathlib.Path) -> None:
        fields = json.loads((folder / name).read_text())
        act(fields)
        (folder / name).write_text(json.dumps(fields))

    return edit


def voc_folders(folder: pathlib.Path) -> None:
    """Writes XML files beside their images in place of VOC's own folders, some of them broken."""
    root = folder / "VOCdevkit" / "VOC2012"
    shutil.rmtree(root)
    detection_sets.write_voc_folders(root, {"train": range(7), "valid": range(7, 9)})
    (root / "train/1.xml").write_text(detection_sets.voc_xml(detection_sets.boxes(1), size=(20, 40)))
    (root / "train/2.xml").unlink()
    (root / "train/3.xml").write_text('<!DOCTYPE a [<!ENTITY x "y">]><annotation/>')
    (root / "train/5.xml").write_text(detection_sets.voc_xml([detection_sets.Box("cow", 0, 0, 2, 2)]))


def masks_as_folders(folder: pathlib.Path) -> None:
    root = folder / "ADEChallengeData2016/annotations/training"
    (root / "0.png").unlink()
    (root / "1.png").write_bytes(recipe_sets.gray_png(np.zeros((20, 12), np.uint8)))
    cut("2.png", 20)(root)
    (root / "3.png").write_bytes(image_sets.make_image(3, size=(23, 15)))
    (root / "4.png").unlink()
    (root / "4.png").mkdir()
    cut("ADEChallengeData2016/images/training/5.jpg", 20)(folder)


WEB = "shards/set-train-000000.tar"
SYNSETS, WORDS = "imagenet_2012_validation_synset_labels.txt", "synset_words.txt"
COCO = "coco/annotations/instances_train2017.json"
PAIR = [("a.jpg", image_sets.make_image(1)), ("a.cls", b"1")]
BAD_LABELS = (b"0 0.5 0.5 0.5\n", b"3 0.5 0.5 0.5 0.5\n", b"0 0.5 0.5 0 0.5\r\n0 0.5 0.5 1 1\r\n")


class Rejected(NamedTuple):
    """A run that goes on without some images."""

    recipe: str
    damage: Damage
    rejects: Mapping[str, str]  # reasons by key
    details: Sequence[str] = ()  # parts of what is said of them
    more: Sequence[str] = ()  # settings


REJECTED = {
    "name-of-another-form": Rejected(
        "cats_dogs", write("train/bird.0.jpg", image_sets.make_image(1)), {"bird.0.jpg": "no_label"}
    ),
    "no-image": Rejected(
        "image_folder", write("photos/cat/0.jpg", b"<html>404 Not Found</html>"), {"cat/0.jpg": "not_an_image"}
    ),
    "coco": Rejected(
        "coco",
        both(
            in_annotations(COCO, lambda fields: _first_object(fields, 23).update(bbox=[1, 2, -3, 4])),
            in_annotations(COCO, lambda fields: _first_object(fields, 30).update(bbox=[50, 2, 3, 4])),
            remove("coco/train2017/000000000016.jpg"),
            write("coco/train2017/000000000037.jpg", image_sets.make_image(1, size=(30, 40))),
        ),
        {
            "train2017/000000000016.jpg": "not_found",
            "train2017/000000000023.jpg": "bad_value",
            "train2017/000000000037.jpg": "bad_value",
        },
        ["has 30 x 40 px, its annotations are for 40 x 30"],
    ),
    "panoptic": Rejected(
        "coco_panoptic",
        both(
            in_annotations(
                "coco/annotations/panoptic_val2017.json",
                lambda fields: fields["annotations"][0]["segments_info"].pop(0),
            ),
            remove("coco/annotations/panoptic_val2017/000000000146.png"),
        ),
        {"val2017/000000000139.jpg": "bad_value", "val2017/000000000146.jpg": "not_found"},
        ["which is no segment of"],
    ),
    "yolo": Rejected(
        "yolo",
        both(
            *(write(f"dataset/labels/train/{n}.txt", text) for n, text in enumerate(BAD_LABELS, 1)),
            remove("dataset/labels/train/4.txt"),
            lambda folder: (folder / "dataset/labels/train/4.txt").mkdir(),
        ),
        {"images/train/1.jpg": "bad_value", "images/train/2.jpg": "unknown_label", "images/train/4.jpg": "unreadable"},
        ["line 1: 4 fields, expected class x y width height", "the class is 3, and the classes are 0 to 2"],
    ),
    "voc": Rejected(
        "voc",
        voc_folders,
        {
            "train/1.jpg": "bad_value",
            "train/2.jpg": "not_found",
            "train/3.jpg": "bad_value",
            "train/5.jpg": "unknown_label",
        },
        ["has 40 x 20 px, its annotations are for 20 x 40", "has a document type"],
        ["source.voc.classes=[cat, dog, zebra]"],
    ),
    "labelme": Rejected(
        "labelme",
        in_annotations("dataset/train/3.json", lambda fields: fields.update(imageWidth=41)),
        {"train/3.jpg": "bad_value"},
        ["has 40 x 20 px, its annotations are for 41 x 20"],
    ),
    "masks": Rejected(
        "segmentation",
        masks_as_folders,
        {
            f"images/training/{n}.jpg": reason
            for n, reason in enumerate(
                ("not_found", "bad_value", "truncated", "unsupported_format", "unreadable", "truncated")
            )
        },
        [*(f"annotations/training/{n}.png" for n in range(5)), "20 x 12 pixels, and the image has 13 x 21 (height x w"],
    ),
    "folder-of-no-split": Rejected(
        "imagefolder",
        write("pets/junk/cat/0.jpg", image_sets.make_image(1)),
        {"junk/cat/0.jpg": "bad_split"},
        more=["split.names=[train, validation, test]"],
    ),
    "tables-of-splits": Rejected(
        "imagefolder_metadata",
        both(append("birds/train/metadata.csv", "gone.png,owl,1", "../test/0.png,owl,1")),
        {"train/gone.png": "not_found", "../test/0.png": "outside_root"},
        ["line 6 of "],
    ),
    "sample-in-part": Rejected(
        "webdataset",
        lambda folder: tars.write_tar(
            folder / "shards/x.tar", [("a.jpg", PAIR[0][1]), ("b.cls", b"1"), ("d.jpg", b"text"), ("d.cls", b"2")]
        ),
        {"x.tar/a": "no_label", "x.tar/b": "bad_row", "x.tar/d": "not_an_image"},
    ),
    "flipped-bit": Rejected(
        "tfrecord",
        flip("imagenet/train-00000-of-00003", 200),
        {"train-00000-of-00003/0": "corrupt"},
        ["train-00000-of-00003 at byte offset 0: the checksum of a record of"],
    ),
    "unknown-label": Rejected(
        "multilabel",
        rows("names.txt", "owl", "fox", "dog"),
        {f"{n:06d}.jpg": "unknown_label" for n in range(1, 40, 2)},
        ["label 'cat' is not in label.vocabulary"],
        ["label.vocabulary=names.txt"],
    ),
    "target": Rejected(
        "regression-columns",
        rows(
            "photos/targets.csv",
            "image,target,x,y",
            *(f"{n}.jpg,{text},0.5,1" for n, text in enumerate(("", "nan", "inf", "1e39", "old", "1"))),
            "6.jpg,1,nan,1",
            "7.jpg,1,,1",
            *(f"{n}.jpg,1,0.5,1" for n in range(8, 20)),
        ),
        {"0.jpg": "no_label", **{f"{n}.jpg": "bad_value" for n in (1, 2, 3, 4, 6, 7)}},
    ),
    "contradiction": Rejected(
        "captions-rows",
        rows("photos/captions.csv", "image,caption,set", "1.jpg,a,train", "1.jpg,b,test", "2.jpg,c,train"),
        {"1.jpg": "bad_row"},
        ["line 2 and line 3 are of one image, and column 'set' is 'train' in one and 'test' in the other"],
        ["split={by: column, column: set}"],
    ),
    "number-in-no-list": Rejected(
        "imagenet",
        both(
            lambda folder: (folder / "imagenet/val/ILSVRC2012_val_00000010.JPEG").rename(
                folder / "imagenet/val/ten.JPEG"
            ),
            lambda folder: put(folder, SYNSETS, *(folder / SYNSETS).read_text().splitlines()[:9]),
        ),
        {"val/ten.JPEG": "no_label"},
        ["'val/ten.JPEG' ends in no number from 1 to 9"],
    ),
}


def _first_object(fields: dict, image_id: int) -> dict:  # type: ignore[type-arg]
    return next(each for each in fields["annotations"] if each["image_id"] == image_id)


@pytest.mark.parametrize("name", REJECTED)
def test_damaged_images_are_rejects_with_their_reason(tmp_path: pathlib.Path, name: str) -> None:
    case = REJECTED[name]
    RECIPES[case.recipe].write(tmp_path)
    case.damage(tmp_path)
    settings = [word for each in (MANY, *case.more) for word in ("--set", each)]
    done, output = run(RECIPES[case.recipe], tmp_path, *settings)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (output / "rejects.jsonl").read_text().splitlines()]
    assert {line["key"]: line["reason"] for line in lines} == case.rejects
    told = "\n".join(line["detail"] for line in lines)
    assert all(detail in told for detail in case.details), told
    assert json.loads((output / "catalog.json").read_text())["counts"]["written"] >= 1


class Refused(NamedTuple):
    """A run that ends with an error, before anything is written."""

    recipe: str
    damage: Damage
    message: str  # a regular expression
    more: Sequence[str] = ()
    code: int = 2


def nothing(folder: pathlib.Path) -> None:
    pass


REFUSED = {
    "too-many-rejects": Refused(
        "cats_dogs",
        both(*(write(f"train/Cat.{n}.jpg", b"x") for n in range(2))),
        r"2 of 27 images were rejected \(7\.41%; no_label 2\)",
        code=3,
    ),
    "coco-twice": Refused(
        "coco",
        lambda folder: shutil.copy(folder / COCO, folder / COCO.replace("train", "val")),
        "two images have the key 'train2017/0",
        ["source.coco.images={train: train2017, validation: train2017}"],
    ),
    "coco-other-splits": Refused(
        "coco",
        nothing,
        "source.coco.annotations names the splits train, source.coco.images test; name the same in both",
        ["source.coco.annotations={train: a.json}", "source.coco.images={test: b}"],
    ),
    "no-table": Refused(
        "imagefolder_metadata",
        lambda folder: [path.unlink() for path in folder.glob("birds/*/metadata.*")],
        r"no table matches '\*\*/metadata\.\*' below '.*birds'; check --input",
    ),
    "column-of-one-table": Refused(
        "imagefolder_metadata",
        change("birds/train/metadata.csv", "species", "kind"),
        r"metadata\.csv' has no column 'species'; its columns are 'file_name', 'kind', 'age'",
    ),
    "absolute-glob": Refused(
        "imagefolder_metadata", nothing, r"'/\*/m\.csv' is an absolute glob", ["source.manifest.path=/*/m.csv"]
    ),
    "list-missing": Refused("imagenet", remove(SYNSETS), r"label\.lists '.*' cannot be read \(No such file"),
    "texts-missing": Refused(
        "imagenet",
        rows(WORDS, "n10000002 word", "n00000000 of no image"),
        r"5 of the 6 classes have no text in label\.texts, the first is 'n10000000'; add them there",
    ),
    "tar-cut": Refused(
        "webdataset",
        lambda folder: os.truncate(folder / WEB, 9000),
        rf"tar '.*{WEB}': .* at byte offset \d+; all examples after this point \([\d,]+ bytes\) would",
    ),
    "tar-with-one-stem-twice": Refused(
        "webdataset",
        lambda folder: tars.write_tar(folder / "shards/x.tar", [*PAIR, ("b.jpg", PAIR[0][1]), ("b.cls", b"2"), *PAIR]),
        r"two images have the key 'x\.tar/a'",
    ),
    "tfrecord-length": Refused(
        "tfrecord",
        flip("imagenet/validation-00000-of-00001", 0),
        "the checksum of a record's length .* byte offset 0, after 0 records; .* lost",
    ),
    "idx-cut": Refused("mnist", cut("mnist/train-images-idx3-ubyte"), r"train-images-idx3-ubyte'.*(cut short|bytes)"),
    "too-few-to-holdout-from": Refused(
        "mnist",
        nothing,
        "no image goes to the split train; .*split.holdout makes validation of the first 1,100 rows of train",
        ["split.holdout.validation.first=1100"],
    ),
    "faces-of-another-number": Refused(
        "faces_age", remove("faces/00003.png"), r"ages\.csv' has 40 rows, and source\.manifest\.files .* matches 39"
    ),
    "files-of-several-tables": Refused(
        "imagefolder_metadata",
        nothing,
        r"is a glob, and source\.manifest\.files goes with the rows of one",
        ["source.manifest.image=null", "source.manifest.files=*.png"],
    ),
    "faces-without-a-glob": Refused(
        "faces_age",
        nothing,
        r"source\.manifest\.files 'ages\.csv/\*\.png': .* is not a folder",
        ["source.manifest.files=ages.csv/*.png"],
    ),
    "path-of-another-form": Refused(
        "image_folder",
        nothing,
        "no_match 40.*the first paths are 'cat/",
        [r"source.pattern=(?P<x>\d+)\.png", "label={by: none}", "split={by: none}"],
        code=3,
    ),
    "lists-of-nothing": Refused(
        "food101",
        both(*(rows(f"in/meta/{split}.txt", "first", "second") for split in ("train", "test"))),
        r"10 not_in_lists.*images are 'images/.*, and the first line of the list of train, .* is 'first'",
    ),
    "root-that-fits": Refused(
        "kaggle",
        nothing,
        r"paths are relative to the table's folder, '.*/data'; '.*/data/images/00.jpg' exists: set "
        r"source\.manifest\.root: images",
        ["source.manifest.root=null"],
        code=3,
    ),
    "rows-apart": Refused(
        "captions-rows",
        rows("photos/captions.csv", "image,caption", *(f"{name}.jpg,x" for name in (1, 1, 2, 1))),
        "have the key '1.jpg': .*sort them by image and set .*merge_rows",
    ),
    "missing-is-an-error": Refused(
        "regression-columns",
        nothing,
        r"line 6 of .*targets\.csv: column 'y'.*columns\.y\.missing is error",
        ["columns={y: {type: float, missing: error}}"],
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_damage_that_concerns_all_ends_the_run_with_what_to_do(tmp_path: pathlib.Path, name: str) -> None:
    case = REFUSED[name]
    RECIPES[case.recipe].write(tmp_path)
    case.damage(tmp_path)
    done, output = run(RECIPES[case.recipe], tmp_path, *(word for each in case.more for word in ("--set", each)))
    assert re.search(case.message, done.stderr), done.stderr
    assert done.returncode == case.code
    assert not (output / "catalog.json").exists()


SETTINGS = [  # preset, settings, what is wrong with them
    ("multilabel", ["split.stratify=true", "split.seed=3"], "split.stratify needs one class for each image"),
    ("multilabel", ["label={by: columns, columns: [a, b, a]}"], "label.columns names 'a' twice"),
    ("multilabel", ["label={by: columns}"], "label.by: columns and label.columns go together"),
    ("multilabel", ["label.type=float"], "label.separator needs label.by: column and label.type: class"),
    ("regression", ["columns={x: {missing: default}}"], "missing: default and default go together"),
    ("regression", ["columns={x: {type: float, missing: default, default: a}}"], "'a' is not a finite"),
    ("regression", ["columns={x: {type: float, missing: default, default: .nan}}"], "'nan' is not a finite"),
    ("regression", ["columns={x: {list: true, missing: default, default: a}}"], "default is for single values"),
    ("regression", ["label.vocabulary=x.txt"], "need classes"),
    ("regression", ["split.stratify=true"], "split.stratify needs classes"),
    ("regression", ["source.manifest.merge_rows=true"], "merge_rows puts lists together"),
    ("segmentation", ["source.masks.mask=null"], "go together"),
    ("segmentation", ["source.masks.image=(a"], "is not a regular expression"),
    ("segmentation", [r"source.masks.mask=annotations/\g<name>\.png"], "is a path, not a regular expression"),
    ("segmentation", [r"source.masks.mask=annotations/\3.png"], "does not fit source.masks.image"),
    ("segmentation", [r"source.masks.mask=annotations/\g<nme>.png"], "does not fit source.masks.image"),
    ("segmentation", ["source.masks.mask=annotations/mask.png"], "names one mask for all images"),
    ("segmentation", [r"source.masks.mask=../annotations/\g<name>.png"], "leaves the folder"),
    ("segmentation", ["source.by=manifest", "split={by: none}"], "source.masks needs source.by: files, listing"),
    (
        "segmentation",
        [r"source.masks.image=images/(?P<name>.*)\.jpg", r"source.masks.mask=a/\1.png"],
        "split.by: source needs",
    ),
    ("coco", ["source.coco.outside=keep"], "source.coco.outside"),
]


@pytest.mark.parametrize(("preset", "settings", "message"), SETTINGS)
def test_settings_that_cannot_be_are_refused_at_once(preset: str, settings: list[str], message: str) -> None:
    with pytest.raises(errors.ConfigError, match=message):
        config_lib.load_config(preset, settings)


INPUTS = [  # preset, input in place of that of the recipe, what to do
    ("webdataset", "nothing", "cannot be read"),
    ("tfrecord", "imagenet", r"there is no .* \(skipped: .*\); check --input"),
    ("image_folder", "cats/data/train-00000-of-00002.parquet", "with the bytes of images set source.by: parquet"),
    ("kaggle", "cats/data/train-00000-of-00002.parquet", "labels.csv"),
    ("labelme", "cats/README.md", "is no folder; give the one with the images and JSON files"),
]


@pytest.mark.parametrize(("preset", "source", "message"), INPUTS)
def test_input_of_another_kind_is_refused_with_what_to_do(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, preset: str, source: str, message: str
) -> None:
    recipe_sets.parquet(tmp_path)
    (tmp_path / "imagenet").mkdir()
    monkeypatch.chdir(tmp_path)
    done = command_line.call("convert", "--config", preset, "--input", source, "--output", "out", "--workers", "1")
    assert done.returncode == 2 and re.search(message, done.stderr), done.stderr
    assert not (tmp_path / "out").exists()


# --- the same dataset, or another ------------------------------------------------------------------------------------


class Changed(NamedTuple):
    """A change of the input after a run."""

    recipe: str
    damage: Damage
    is_same: bool


CHANGED = {
    "masks-of-another-time": Changed(
        "segmentation", lambda folder: os.utime(next(folder.glob("*/annotations/*/0.png")), (1, 1)), False
    ),
    "colors-of-masks": Changed("camvid", change("in/class_dict.csv", "Sky", "Sea"), False),
    "label-file": Changed("yolo", change("dataset/labels/train/1.txt", " ", "  "), False),
    "names-of-classes": Changed("yolo", change("dataset/data.yaml", "cat", "cow"), False),
    "box": Changed(
        "coco", in_annotations(COCO, lambda fields: _first_object(fields, 16).update(bbox=[1, 1, 5, 5])), False
    ),
    "labels": Changed("multilabel", change("photos/labels.csv", "cat", "dog"), False),
    "texts": Changed("imagenet", change(WORDS, "thing 0", "thing x"), False),
    "list": Changed("imagenet", change(SYNSETS, "n10000001", "n10000002"), False),
    "lists-of-splits": Changed("food101", change("in/meta/test.txt", "pie/4", "pie/9"), False),
    "another-file": Changed("flowers", rows("bucket/README.txt", "CC-BY"), True),
    "stray-image": Changed("coco", write("coco/val2017/stray.jpg", image_sets.make_image(1)), True),
    "time-of-a-table": Changed("kaggle", lambda folder: os.utime(folder / "data/labels.csv", (1, 1)), True),
}


@pytest.mark.parametrize("name", CHANGED)
def test_changed_input_is_another_dataset_where_records_would_change(tmp_path: pathlib.Path, name: str) -> None:
    case = CHANGED[name]
    recipe = RECIPES[case.recipe]
    recipe.write(tmp_path)
    assert run(recipe, tmp_path)[0].returncode == 0
    case.damage(tmp_path)
    done, _ = run(recipe, tmp_path)
    assert done.returncode == (0 if case.is_same else 2), done.stderr
    assert case.is_same or "holds another dataset" in done.stderr


@case_tables.each_case("recipe", ["coco-masks", "segmentation", "imagenet", "webdataset"])
def test_moved_input_is_the_same_dataset(tmp_path: pathlib.Path, recipe: str) -> None:
    (tmp_path / "one").mkdir()
    RECIPES[recipe].write(tmp_path / "one")
    _, output = run(RECIPES[recipe], tmp_path / "one")
    (tmp_path / "one").rename(tmp_path / "two")
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "two" / output.name).iterdir()}
    done, output = run(RECIPES[recipe], tmp_path / "two")
    assert done.returncode == 0, done.stderr
    assert {path.name: path.stat().st_mtime_ns for path in output.iterdir()} == before


# --- pictures that EXIF turns ----------------------------------------------------------------------------------------


@case_tables.each_case("given", ["upright", "stored"])
def test_boxes_turn_with_the_picture_if_they_are_of_stored_pixels(tmp_path: pathlib.Path, given: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    recipe = RECIPES["yolo"]
    recipe.write(tmp_path)
    write("dataset/images/train/1.jpg", image_sets.make_image(1, size=(32, 16), exif=exif))(tmp_path)
    write("dataset/labels/train/1.txt", b"0 0.25 0.5 0.5 1")(tmp_path)  # the left half
    done, output = run(recipe, tmp_path, "--set", f"image.annotations={given}", "--set", "image.resize=[8, 8]")
    assert done.returncode == 0, done.stderr
    values = read(output, "image/key")["train"][b"images/train/1.jpg"]
    edges = [values[f"image/object/bbox/{edge}"] for edge in ("xmin", "xmax", "ymin", "ymax")]
    assert edges == ([[0.0], [0.5], [0.0], [1.0]] if given == "upright" else [[0.0], [1.0], [0.0], [0.5]])


def test_masks_are_scaled_with_their_picture(tmp_path: pathlib.Path) -> None:
    recipe = RECIPES["coco-masks"]
    recipe.write(tmp_path)
    done, output = run(recipe, tmp_path, "--set", "image={encode: png, resize: [15, 20]}")
    assert done.returncode == 0, done.stderr
    for values in read(output, "image/key")["train"].values():
        sizes = {recipe_sets.pixels(png).shape for png in values["image/object/mask"]}
        assert sizes <= {(15, 20)}
        width = np.array(values["image/object/bbox/xmax"]) - values["image/object/bbox/xmin"]
        area = [recipe_sets.pixels(png).sum() for png in values["image/object/mask"]]
        assert all(one > 0 for one in area) and (width * 40 > 2).all()
