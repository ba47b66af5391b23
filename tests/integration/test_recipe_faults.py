"""Damaged inputs of the recipes: golden/faults.json has the rejects with their reasons, or the error of the command.

Each error there says what to do.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from imagebeam import errors
from imagebeam.pipelines.config import model as config_lib
from tests import case_tables, command_line, detection_sets, golden_texts, image_sets, recipe_sets, tars, written_files
from tests.integration.test_recipes import RECIPES, pixels, read, run
from tests.recipe_sets import put

Damage = Callable[[pathlib.Path], object]  # in the folder in which the recipe has written its input


def edit(name: str, change: Callable[[bytes], bytes]) -> Damage:
    """Returns what changes the content of a file."""
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


def change(name: str, old: str, new: str) -> Damage:
    """Returns what replaces the first occurrence of a text in a file."""
    return edit(name, lambda data: data.replace(old.encode(), new.encode(), 1))


def flip(name: str, offset: int) -> Damage:
    """Returns what changes one bit of a file."""
    return edit(name, lambda data: data[:offset] + bytes([data[offset] ^ 1]) + data[offset + 1 :])


def change_json(name: str, act: Callable[[dict[str, Any]], object]) -> Damage:
    def changed(data: bytes) -> bytes:
        fields = json.loads(data)
        act(fields)
        return json.dumps(fields).encode()

    return edit(name, changed)


def remove(*names: str) -> Damage:
    return lambda folder: [(folder / name).unlink() for name in names]


def write(name: str, content: bytes) -> Damage:
    return lambda folder: written_files.write(folder, {name: content})


def rows(name: str, *lines: str) -> Damage:
    return lambda folder: put(folder, name, *lines)


def all_of(*several: Damage) -> Damage:
    return lambda folder: [each(folder) for each in several]


def nothing(folder: pathlib.Path) -> None:
    pass


def first_object(fields: dict[str, Any], image_id: int) -> dict[str, Any]:
    return next(each for each in fields["annotations"] if each["image_id"] == image_id)


def voc_folders(folder: pathlib.Path) -> None:
    """Writes XML files beside their images in place of VOC's own folders, some of them broken."""
    root = folder / "VOCdevkit" / "VOC2012"
    shutil.rmtree(root)
    detection_sets.write_voc_folders(root, {"train": range(7), "valid": range(7, 9)})
    (root / "train/1.xml").write_text(detection_sets.voc_xml(detection_sets.boxes(1), size=(20, 40)))
    (root / "train/2.xml").unlink()
    (root / "train/3.xml").write_text('<!DOCTYPE a [<!ENTITY x "y">]><annotation/>')
    (root / "train/5.xml").write_text(detection_sets.voc_xml([detection_sets.Box("cow", 0, 0, 2, 2)]))


def broken_masks(folder: pathlib.Path) -> None:
    root = folder / "ADEChallengeData2016/annotations/training"
    (root / "0.png").unlink()
    (root / "1.png").write_bytes(recipe_sets.gray_png(np.zeros((20, 12), np.uint8)))
    edit("2.png", lambda data: data[:-20])(root)
    (root / "3.png").write_bytes(image_sets.make_image(3, size=(23, 15)))
    (root / "4.png").unlink()
    (root / "4.png").mkdir()
    edit("ADEChallengeData2016/images/training/5.jpg", lambda data: data[:-20])(folder)


WEB = "shards/set-train-000000.tar"
SYNSETS, WORDS = "imagenet_2012_validation_synset_labels.txt", "synset_words.txt"
COCO, PANOPTIC = "coco/annotations/instances_train2017.json", "coco/annotations/panoptic_val2017"
TABLE = "birds/train/metadata.csv"
IMAGE = image_sets.make_image(1)
PAIR = [("a.jpg", IMAGE), ("a.cls", b"1")]
PARTS = [("a.jpg", IMAGE), ("b.cls", b"1"), ("d.jpg", b"text"), ("d.cls", b"2")]
BAD_LABELS = (b"0 0.5 0.5 0.5\n", b"3 0.5 0.5 0.5 0.5\n", b"0 0.5 0.5 0 0.5\r\n0 0.5 0.5 1 1\r\n")
MANY = "rejects.max_fraction=0.9"
PATTERN = r"source.pattern=(?P<x>\d+)\.png"

Fault = tuple[str, Damage, list[str]]  # a recipe, what damages its input, settings
FAULTS: dict[str, Fault] = {
    # images are rejected
    "name-of-another-form": ("cats_dogs", write("train/bird.0.jpg", IMAGE), [MANY]),
    "no-image": ("image_folder", write("photos/cat/0.jpg", b"<html>404 Not Found</html>"), [MANY]),
    "coco": (
        "coco",
        all_of(
            change_json(COCO, lambda fields: first_object(fields, 23).update(bbox=[1, 2, -3, 4])),
            change_json(COCO, lambda fields: first_object(fields, 30).update(bbox=[50, 2, 3, 4])),
            remove("coco/train2017/000000000016.jpg"),
            write("coco/train2017/000000000037.jpg", image_sets.make_image(1, size=(30, 40))),
        ),
        [MANY],
    ),
    "panoptic": (
        "coco_panoptic",
        all_of(
            change_json(f"{PANOPTIC}.json", lambda fields: fields["annotations"][0]["segments_info"].pop(0)),
            remove(f"{PANOPTIC}/000000000146.png"),
        ),
        [MANY],
    ),
    "yolo": (
        "yolo",
        all_of(
            *(write(f"dataset/labels/train/{n}.txt", text) for n, text in enumerate(BAD_LABELS, 1)),
            remove("dataset/labels/train/4.txt"),
            lambda folder: (folder / "dataset/labels/train/4.txt").mkdir(),
        ),
        [MANY],
    ),
    "voc": ("voc", voc_folders, [MANY, "source.voc.classes=[cat, dog, zebra]"]),
    "labelme": ("labelme", change_json("dataset/train/3.json", lambda fields: fields.update(imageWidth=41)), [MANY]),
    "annotations": (
        "annotations-kitti",
        all_of(
            write("kitti/training/label_2/000001.txt", b"Car 0 0 0 1 1 5 x 1 1 1 1 1 1 1\n"),
            write("kitti/training/label_2/000002.txt", b"Car 1 1 5 5\n"),
            remove("kitti/training/label_2/000003.txt"),
        ),
        [MANY],
    ),
    "annotations-of-many": (
        "annotations-severstal",
        edit("severstal/train.csv", lambda data: data + b"0003a.jpg,1,1 900\nx.jpg,1,1 2\n"),
        [MANY],
    ),
    "masks": ("segmentation", broken_masks, [MANY]),
    "folder-of-no-split": (
        "imagefolder",
        write("pets/junk/cat/0.jpg", IMAGE),
        [MANY, "split.names=[train, validation, test]"],
    ),
    "tables-of-splits": (
        "imagefolder_metadata",
        edit(TABLE, lambda data: data + b"gone.png,owl,1\n../test/0.png,owl,1\n"),
        [MANY],
    ),
    "sample-in-part": ("webdataset", lambda folder: tars.write_tar(folder / "shards/x.tar", PARTS), [MANY]),
    "flipped-bit": ("tfrecord", flip("imagenet/train-00000-of-00003", 200), [MANY]),
    "unknown-label": ("multilabel", rows("names.txt", "owl", "fox", "dog"), [MANY, "label.vocabulary=names.txt"]),
    "target": (
        "regression-columns",
        rows(
            "photos/targets.csv",
            "image,target,x,y",
            *(f"{n}.jpg,{text},0.5,1" for n, text in enumerate(("", "nan", "inf", "1e39", "old", "1"))),
            "6.jpg,1,nan,1",
            "7.jpg,1,,1",
            *(f"{n}.jpg,1,0.5,1" for n in range(8, 20)),
        ),
        [MANY],
    ),
    "contradiction": (
        "captions-rows",
        rows("photos/captions.csv", "image,caption,set", "1.jpg,a,train", "1.jpg,b,test", "2.jpg,c,train"),
        [MANY, "split={by: column, column: set}"],
    ),
    "number-in-no-list": (
        "imagenet",
        all_of(
            lambda folder: (folder / "imagenet/val/ILSVRC2012_val_00000010.JPEG").rename(
                folder / "imagenet/val/ten.JPEG"
            ),
            edit(SYNSETS, lambda data: b"".join(data.splitlines(keepends=True)[:9])),
        ),
        [MANY],
    ),
    # the run ends
    "too-many-rejects": ("cats_dogs", all_of(write("train/Cat.0.jpg", b"x"), write("train/Cat.1.jpg", b"x")), []),
    "coco-twice": (
        "coco",
        lambda folder: shutil.copy(folder / COCO, folder / COCO.replace("train", "val")),
        ["source.coco.images={train: train2017, validation: train2017}"],
    ),
    "coco-other-splits": ("coco", nothing, ["source.coco.annotations={train: a.json}", "source.coco.images={test: b}"]),
    "no-table": (
        "imagefolder_metadata",
        lambda folder: [path.unlink() for path in folder.glob("birds/*/metadata.*")],
        [],
    ),
    "column-of-one-table": ("imagefolder_metadata", change(TABLE, "species", "kind"), []),
    "absolute-glob": ("imagefolder_metadata", nothing, ["source.manifest.path=/*/m.csv"]),
    "list-missing": ("imagenet", remove(SYNSETS), []),
    "texts-missing": ("imagenet", rows(WORDS, "n10000002 word", "n00000000 of no image"), []),
    "tar-cut": ("webdataset", lambda folder: os.truncate(folder / WEB, 9000), []),
    "tar-with-one-stem-twice": (
        "webdataset",
        lambda folder: tars.write_tar(folder / "shards/x.tar", [*PAIR, ("b.jpg", IMAGE), ("b.cls", b"2"), *PAIR]),
        [],
    ),
    "tfrecord-length": ("tfrecord", flip("imagenet/validation-00000-of-00001", 0), []),
    "idx-cut": ("mnist", edit("mnist/train-images-idx3-ubyte", lambda data: data[:-100]), []),
    "too-few-to-holdout-from": ("mnist", nothing, ["split.holdout.validation.first=1100"]),
    "faces-of-another-number": ("faces_age", remove("faces/00003.png"), []),
    "files-of-several-tables": (
        "imagefolder_metadata",
        nothing,
        ["source.manifest.image=null", "source.manifest.files=*.png"],
    ),
    "faces-without-a-glob": ("faces_age", nothing, ["source.manifest.files=ages.csv/*.png"]),
    "path-of-another-form": ("image_folder", nothing, [PATTERN, "label={by: none}", "split={by: none}"]),
    "lists-of-nothing": (
        "food101",
        all_of(*(rows(f"in/meta/{split}.txt", "first", "second") for split in ("train", "test"))),
        [],
    ),
    "root-that-fits": ("kaggle", nothing, ["source.manifest.root=null"]),
    "rows-apart": (
        "captions-rows",
        rows("photos/captions.csv", "image,caption", *(f"{name}.jpg,x" for name in (1, 1, 2, 1))),
        [],
    ),
    "missing-is-an-error": ("regression-columns", nothing, ["columns={y: {type: float, missing: error}}"]),
    # the preset is for another kind of input
    "no-tar": ("parquet", nothing, ["webdataset", "nothing"]),
    "no-tfrecord": ("parquet", nothing, ["tfrecord", "cats"]),
    "parquet-as-folder": ("parquet", nothing, ["image_folder", "cats/data/train-00000-of-00002.parquet"]),
    "parquet-as-table": ("parquet", nothing, ["kaggle", "cats/data/train-00000-of-00002.parquet"]),
    "file-as-labelme": ("parquet", nothing, ["labelme", "cats/README.md"]),
}


@pytest.mark.parametrize("name", FAULTS)
def test_damage_is_rejected_or_ends_the_run_with_what_to_do(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    recipe, damage, settings = FAULTS[name]
    RECIPES[recipe].write(tmp_path)
    damage(tmp_path)
    if settings and settings[0] in config_lib.preset_names():
        monkeypatch.chdir(tmp_path)
        output = tmp_path / "out"
        done = command_line.call(
            "convert", "--config", settings[0], "--input", settings[1], "--output", output, "--workers", 1
        )
    else:
        done, output = run(RECIPES[recipe], tmp_path, *(word for each in settings for word in ("--set", each)))
    found: dict[str, Any] = {"exit code": done.returncode}
    if done.returncode == 0:
        lines = sorted(map(json.loads, (output / "rejects.jsonl").read_text().splitlines()), key=lambda e: e["key"])
        found["rejects"] = {
            line["key"]: [line["reason"], line["detail"].replace(str(tmp_path), "TMP")] for line in lines
        }
        assert json.loads((output / "catalog.json").read_text())["counts"]["written"] >= 1
    else:
        (error,) = [line for line in done.stderr.splitlines() if line.startswith("imagebeam: ")]
        found["error"] = error.removeprefix("imagebeam: ").replace(str(tmp_path), "TMP")
        assert not (output / "catalog.json").exists()
    golden_texts.check(golden_texts.FAULTS, name, found)


SETTINGS = [
    ("multilabel", ["split.stratify=true", "split.seed=3"]),
    ("multilabel", ["label={by: columns, columns: [a, b, a]}"]),
    ("multilabel", ["label={by: columns}"]),
    ("multilabel", ["label.type=float"]),
    ("regression", ["columns={x: {missing: default}}"]),
    ("regression", ["columns={x: {type: float, missing: default, default: a}}"]),
    ("regression", ["columns={x: {type: float, missing: default, default: .nan}}"]),
    ("regression", ["columns={x: {list: true, missing: default, default: a}}"]),
    ("regression", ["label.vocabulary=x.txt"]),
    ("regression", ["split.stratify=true"]),
    ("regression", ["source.manifest.merge_rows=true"]),
    ("segmentation", ["source.masks.mask=null"]),
    ("segmentation", ["source.masks.image=(a"]),
    ("segmentation", [r"source.masks.mask=annotations/\g<name>\.png"]),
    ("segmentation", [r"source.masks.mask=annotations/\3.png"]),
    ("segmentation", [r"source.masks.mask=annotations/\g<nme>.png"]),
    ("segmentation", ["source.masks.mask=annotations/mask.png"]),
    ("segmentation", [r"source.masks.mask=../annotations/\g<name>.png"]),
    ("segmentation", ["source.by=manifest", "split={by: none}"]),
    ("segmentation", [r"source.masks.image=images/(?P<name>.*)\.jpg", r"source.masks.mask=a/\1.png"]),
    ("coco", ["source.coco.outside=keep"]),
]


def test_settings_that_cannot_be_are_refused_at_once() -> None:
    found = {}
    for preset, settings in SETTINGS:
        with pytest.raises(errors.ConfigError) as e:
            config_lib.load_config(preset, settings)
        found[f"{preset}: {', '.join(settings)}"] = str(e.value)
    golden_texts.check(golden_texts.FAULTS, "settings", found)


# --- the same dataset, or another ------------------------------------------------------------------------------------


CHANGED: dict[str, tuple[str, Damage, bool]] = {  # a recipe, the change after a run, whether the dataset is the same
    "time-of-a-mask": (
        "segmentation",
        lambda folder: os.utime(next(folder.glob("*/annotations/*/0.png")), (1, 1)),
        False,
    ),
    "colors-of-masks": ("camvid", change("in/class_dict.csv", "Sky", "Sea"), False),
    "label-file": ("yolo", change("dataset/labels/train/1.txt", " ", "  "), False),
    "names-of-classes": ("yolo", change("dataset/data.yaml", "cat", "cow"), False),
    "box": ("coco", change_json(COCO, lambda fields: first_object(fields, 16).update(bbox=[1, 1, 5, 5])), False),
    "labels": ("multilabel", change("photos/labels.csv", "cat", "dog"), False),
    "texts": ("imagenet", change(WORDS, "thing 0", "thing x"), False),
    "list": ("imagenet", change(SYNSETS, "n10000001", "n10000002"), False),
    "lists-of-splits": ("food101", change("in/meta/test.txt", "pie/4", "pie/9"), False),
    "another-file": ("flowers", rows("bucket/README.txt", "CC-BY"), True),
    "stray-image": ("coco", write("coco/val2017/stray.jpg", IMAGE), True),
    "time-of-a-table": ("kaggle", lambda folder: os.utime(folder / "data/labels.csv", (1, 1)), True),
}


@pytest.mark.parametrize("name", CHANGED)
def test_changed_input_is_another_dataset_where_records_would_change(tmp_path: pathlib.Path, name: str) -> None:
    recipe, damage, is_same = CHANGED[name]
    RECIPES[recipe].write(tmp_path)
    assert run(RECIPES[recipe], tmp_path)[0].returncode == 0
    damage(tmp_path)
    done, _ = run(RECIPES[recipe], tmp_path)
    assert done.returncode == (0 if is_same else 2), done.stderr
    assert is_same or "holds another dataset" in done.stderr


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
    recipe = RECIPES["yolo"]
    recipe.write(tmp_path)
    write("dataset/images/train/1.jpg", image_sets.make_image(1, size=(32, 16), exif=image_sets.turned()))(tmp_path)
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
        sizes = {pixels(png).shape for png in values["image/object/mask"]}
        assert sizes <= {(15, 20)}
        width = np.array(values["image/object/bbox/xmax"]) - values["image/object/bbox/xmin"]
        area = [pixels(png).sum() for png in values["image/object/mask"]]
        assert all(one > 0 for one in area) and (width * 40 > 2).all()
