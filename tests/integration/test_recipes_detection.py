"""Converts data sets of boxes in the layouts of YOLO, Pascal VOC and TensorFlow's object detection."""

from __future__ import annotations

import io
import json
import pathlib
from typing import Any

import numpy as np
import pytest
from PIL import Image

import imagebeam
from imagebeam import catalog as catalog_lib
from imagebeam import errors, example, records
from imagebeam.pipelines.config import model as config_lib
from tests import datasets, detection_sets, image_sets

Fields = dict[str, Any]
EDGES = ("xmin", "xmax", "ymin", "ymax")


@pytest.fixture
def root(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "in"


@pytest.fixture
def output(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "out"


def preset(name: str, **source: Any) -> Fields:
    """Returns the preset's sections with `source` added, and rejects allowed as small sets need it."""
    sections = config_lib.load_config(name).model_dump(mode="json", exclude_defaults=True)
    sections["source"].setdefault(sections["source"]["by"], {}).update(source)
    return {**sections, "rejects": {"max_fraction": 0.9}}


def read(output: pathlib.Path) -> dict[str, dict[str, Fields]]:
    """Returns the examples by split and by name of the file."""
    catalog = catalog_lib.load_catalog(str(output))
    found: dict[str, dict[str, Fields]] = {}
    for split in catalog.splits:
        found[split] = {}
        for shard in catalog.splits[split].shards:
            with open(output / shard.name, "rb") as file:
                for record in records.read_records(file):
                    values = example.parse_example(record.data)
                    found[split][values["image/filename"][0].decode()] = values
    return found


def rejects(output: pathlib.Path) -> dict[str, tuple[str, str]]:
    """Returns reason and detail of every dead letter by key."""
    lines = map(json.loads, (output / "rejects.jsonl").read_text().splitlines())
    return {line["key"]: (line["reason"], line["detail"]) for line in lines}


def check_objects(values: Fields, number: int, base: int = 0) -> None:
    """Compares the objects in an example with those of image `number`."""
    objects = detection_sets.boxes(number)
    found = list(zip(*(values[f"image/object/bbox/{edge}"] for edge in EDGES), strict=True))
    assert found == [pytest.approx(each.shares, abs=2e-6) for each in objects]
    assert list(values["image/object/class/text"]) == [each.name.encode() for each in objects]
    ids = [detection_sets.CLASSES.index(each.name) + base for each in objects]
    assert list(values["image/object/class/label"]) == ids


def write_data(root: pathlib.Path, **entries: Any) -> None:
    (root / "data.yaml").write_text(json.dumps({"names": list(detection_sets.CLASSES), **entries}))


# --- YOLO ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("train", "val", "folders"),
    [
        pytest.param("images/train", "images/val", True, id="ultralytics"),
        pytest.param("train/images", "valid/images", True, id="roboflow"),
    ],
)
def test_yolo_folders_become_splits_with_boxes(
    root: pathlib.Path, output: pathlib.Path, train: str, val: str, folders: bool
) -> None:
    detection_sets.write_yolo(root, {train: 5, val: 3})
    write_data(root, train=train, val=f"../{val}")
    result = datasets.make(root, output, **preset("yolo"))
    assert result.catalog.counts.passed_over == {"annotation_file_missing": 2}
    found = read(output)
    assert {split: sorted(examples) for split, examples in found.items()} == {
        "train": [f"{number}.jpg" for number in range(5)],
        "validation": [f"{number}.jpg" for number in range(5, 8)],
    }
    for examples in found.values():
        for name, values in examples.items():
            number = int(name.removesuffix(".jpg"))
            if number in (0, 5):  # a background
                assert values["image/object/bbox/xmin"] == values["image/object/class/label"] == []
            else:
                check_objects(values, number)
    assert found["train"]["1.jpg"]["image/source_id"] == [f"{train}/1.jpg".encode()]
    assert found["train"]["1.jpg"]["image/encoded"] == [(root / train / "1.jpg").read_bytes()]


def test_yolo_flat_folder_and_lists(root: pathlib.Path, output: pathlib.Path) -> None:
    detection_sets.write_yolo(root, {"": 4})
    (root / "classes.txt").write_text("\n".join(detection_sets.CLASSES))
    datasets.make(root, output, **preset("yolo", base=1))
    found = read(output)["train"]
    assert sorted(found) == ["0.jpg", "1.jpg", "2.jpg", "3.jpg"]
    for number in (1, 2, 3):
        check_objects(found[f"{number}.jpg"], number, base=1)
    (root / "val.txt").write_text("./1.jpg\n./2.jpg\n")
    (root / "train.txt").write_text("3.jpg\n")
    write_data(root, train="train.txt", val="val.txt")
    datasets.make(root, output, overwrite=True, **preset("yolo"))
    assert {split: sorted(each) for split, each in read(output).items()} == {
        "train": ["3.jpg"],
        "validation": ["1.jpg", "2.jpg"],
    }


def test_bad_label_files_are_rejects_with_file_line_and_remedy(root: pathlib.Path, output: pathlib.Path) -> None:
    detection_sets.write_yolo(root, {"images": 7})
    write_data(root, train="images")
    labels = root / "labels"
    (labels / "1.txt").write_text("0 0.5 0.5 0.5\n")
    (labels / "2.txt").write_text("3 0.5 0.5 0.5 0.5\n")
    (labels / "3.txt").write_bytes(b"0 0.5 0.5 0 0.5\r\n0 0.5 0.5 1 1\r\n")
    (labels / "4.txt").unlink()
    (labels / "4.txt").mkdir()
    (labels / "5.txt").write_bytes(b"")
    result = datasets.make(root, output, **preset("yolo"))
    found = rejects(output)
    assert {key: reason for key, (reason, _) in found.items()} == {
        "images/1.jpg": "bad_value",
        "images/2.jpg": "unknown_label",
        "images/4.jpg": "unreadable",
    }
    assert found["images/1.jpg"][1] == (
        f"its annotations '{labels}/1.txt': line 1: 4 fields, expected class x y width height, or a class and three "
        "points or more"
    )
    assert "the class is 3, and the classes are 0 to 2" in found["images/2.jpg"][1]
    examples = read(output)["train"]
    assert examples["5.jpg"]["image/object/bbox/xmin"] == []
    assert examples["3.jpg"]["image/object/bbox/xmax"] == [1.0]
    statistics = json.loads((output / "statistics.json").read_text())
    assert statistics["train"]["dropped_objects"] == {"object_without_area": 1}
    stored = [text.decode() for each in examples.values() for text in each["image/object/class/text"]]
    assert statistics["train"]["objects"] == {name: stored.count(name) for name in set(stored)}
    assert result.catalog.object_classes == dict(enumerate(detection_sets.CLASSES))
    assert imagebeam.open_dataset(output).catalog.object_classes == result.catalog.object_classes
    items = "".join(
        f'item {{\n  id: {label}\n  name: "{name}"\n}}\n' for label, name in enumerate(detection_sets.CLASSES)
    )
    assert (output / "label_map.pbtxt").read_text() == items
    assert result.catalog.counts.written == 4


def test_yolo_boxes_of_the_upright_picture_stay_and_those_of_stored_pixels_turn(
    root: pathlib.Path, output: pathlib.Path
) -> None:
    from PIL import Image

    exif = Image.Exif()
    exif[0x0112] = 6
    detection_sets.write_yolo(root, {"images": 2})
    (root / "images" / "1.jpg").write_bytes(image_sets.make_image(1, size=(32, 16), exif=exif))
    (root / "labels" / "1.txt").write_text("0 0.25 0.5 0.5 1")  # the left half
    write_data(root, train="images")
    edges = {}
    for given in ("upright", "stored"):
        sections = {**preset("yolo"), "image": {"annotations": given, "resize": [8, 8]}}
        datasets.make(root, output, overwrite=True, **sections)
        edges[given] = [read(output)["train"]["1.jpg"][f"image/object/bbox/{edge}"] for edge in EDGES]
    assert edges == {"upright": [[0.0], [0.5], [0.0], [1.0]], "stored": [[0.0], [1.0], [0.0], [0.5]]}


def test_yolo_set_without_labels_is_an_error_and_not_a_set_of_backgrounds(
    root: pathlib.Path, output: pathlib.Path
) -> None:
    detection_sets.write_yolo(root, {"images/train": 3})
    write_data(root, train="images/train")
    (root / "labels").rename(root / "annotations")
    with pytest.raises(errors.ConfigError, match=r"no .txt file is in .*labels/train"):
        datasets.make(root, output, **preset("yolo"))


def test_changed_label_file_is_another_dataset(root: pathlib.Path, output: pathlib.Path) -> None:
    detection_sets.write_yolo(root, {"images": 3})
    write_data(root, train="images")
    first = datasets.make(root, output, **preset("yolo")).catalog.fingerprint
    (root / "labels" / "1.txt").write_text("0 0.5 0.5 0.25 0.25 \n")
    second = datasets.make(root, output, overwrite=True, **preset("yolo")).catalog.fingerprint
    (root / "data.yaml").write_text(json.dumps({"train": "images", "names": ["x", "y", "z"]}))
    third = datasets.make(root, output, overwrite=True, **preset("yolo")).catalog.fingerprint
    assert len({first, second, third}) == 3


# --- Pascal VOC ------------------------------------------------------------------------------------------------------


def check_voc(values: Fields, number: int) -> None:
    check_objects(values, number, base=1)
    count = len(detection_sets.boxes(number))
    assert list(values["image/object/difficult"]) == [index % 2 for index in range(count)]
    assert list(values["image/object/truncated"]) == [int(index == 0) for index in range(count)]
    assert list(values["image/object/view"]) == [b"Left"] * count


def test_voc_lists_become_splits_with_boxes_and_flags(root: pathlib.Path, output: pathlib.Path) -> None:
    detection_sets.write_voc(root, {"train": range(5), "val": range(5, 9)})
    detection_sets.write_image(root / "JPEGImages" / "unlisted.jpg", 1)
    datasets.make(root, output, **preset("voc"))
    found = read(output)
    assert {split: sorted(examples) for split, examples in found.items()} == {
        "train": [f"{number:06d}.jpg" for number in range(5)],
        "validation": [f"{number:06d}.jpg" for number in range(5, 9)],
    }
    for examples in found.values():
        for name, values in examples.items():
            check_voc(values, int(name.removesuffix(".jpg")))
    assert found["train"]["000001.jpg"]["image/key"] == [b"JPEGImages/000001.jpg"]


def test_voc_folders_and_rejects_with_reasons(root: pathlib.Path, output: pathlib.Path) -> None:
    detection_sets.write_voc_folders(root, {"train": range(7), "valid": range(7, 9)})
    objects = detection_sets.boxes(1)
    (root / "train" / "1.xml").write_text(detection_sets.voc_xml(objects, size=(20, 40)))
    (root / "train" / "2.xml").unlink()
    (root / "train" / "3.xml").write_text('<!DOCTYPE a [<!ENTITY x "y">]><annotation/>')
    cow = [detection_sets.Box("cow", 0, 0, 2, 2)]
    (root / "train" / "5.xml").write_text(detection_sets.voc_xml(cow))
    sections = preset("voc", classes=list(detection_sets.CLASSES))
    datasets.make(root, output, **sections)
    found = rejects(output)
    assert {key: reason for key, (reason, _) in found.items()} == {
        "train/1.jpg": "bad_value",
        "train/2.jpg": "not_found",
        "train/3.jpg": "bad_value",
        "train/5.jpg": "unknown_label",
    }
    assert found["train/1.jpg"][1] == "has 40 x 20 px, its annotations are for 20 x 40"
    assert "has a document type" in found["train/3.jpg"][1]
    examples = read(output)
    assert sorted(examples["train"]) == ["0.jpg", "4.jpg", "6.jpg"]
    assert sorted(examples["validation"]) == ["7.jpg", "8.jpg"]
    check_voc(examples["train"]["6.jpg"], 6)


# --- CSV -------------------------------------------------------------------------------------------------------------


def test_csv_files_become_splits_with_boxes(root: pathlib.Path, output: pathlib.Path) -> None:
    detection_sets.write_csv(root / "train_labels.csv", root / "images", range(5))
    detection_sets.write_csv(root / "val_labels.csv", root / "images", range(5, 9))
    datasets.make(root, output, **preset("box_csv"))
    found = read(output)
    assert {split: sorted(examples) for split, examples in found.items()} == {
        "train": [f"{number}.jpg" for number in range(5)],
        "validation": [f"{number}.jpg" for number in range(5, 9)],
    }
    values = found["validation"]["5.jpg"]
    check_objects(values, 5, base=1)  # one object: rows are in another order
    assert values["image/source_id"] == [b"images/5.jpg"]
    assert "image/object/area" not in values


# --- LabelMe ---------------------------------------------------------------------------------------------------------


def write_labelme(path: pathlib.Path, number: int, size: tuple[int, int] = detection_sets.SIZE) -> None:
    """Writes the JSON file of image `number`: rectangles and polygons of the same boxes by turns."""
    shapes = []
    for index, each in enumerate(detection_sets.boxes(number)):
        points = [[each.xmax, each.ymax], [each.xmin, each.ymin]]
        if index % 2:
            points = [[each.xmin, each.ymin], [each.xmax, each.ymin], [each.xmax, each.ymax], [each.xmin, each.ymax]]
        kind = "polygon" if index % 2 else "rectangle"
        shapes.append({"label": each.name, "points": points, "shape_type": kind, "flags": {}, "group_id": None})
    fields = {"version": "5.2.1", "imagePath": path.name, "imageData": None, "shapes": shapes}
    path.with_suffix(".json").write_text(json.dumps({**fields, "imageWidth": size[0], "imageHeight": size[1]}))


def test_labelme_files_become_boxes_and_masks(root: pathlib.Path, output: pathlib.Path) -> None:
    for split, numbers in (("train", range(5)), ("val", range(5, 8))):
        for number in numbers:
            detection_sets.write_image(root / split / f"{number}.jpg", number)
            write_labelme(root / split / f"{number}.jpg", number)
    detection_sets.write_image(root / "train/unlabeled.jpg", 1)
    write_labelme(root / "train/3.jpg", 3, size=(41, 20))
    result = datasets.make(root, output, **preset("labelme", masks=True))
    assert result.catalog.counts.passed_over == {"annotation_file": 8, "image_without_annotation_file": 1}
    assert rejects(output)["train/3.jpg"][1] == "has 40 x 20 px, its annotations are for 41 x 20"
    found = read(output)
    assert sorted(found["train"]) == ["0.jpg", "1.jpg", "2.jpg", "4.jpg"]
    width, height = detection_sets.SIZE
    for examples in found.values():
        for name, values in examples.items():
            number = int(name.removesuffix(".jpg"))
            check_objects(values, number, base=1)
            boxes = detection_sets.boxes(number)
            for each, png in zip(boxes, values["image/object/mask"], strict=True):
                expected = np.zeros((height, width), np.uint8)
                expected[each.ymin : each.ymax, each.xmin : each.xmax] = 1
                np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(png))), expected)


def test_labelme_shapes_of_an_image_that_exif_turns_are_upright(root: pathlib.Path, output: pathlib.Path) -> None:
    picture = Image.open(io.BytesIO(image_sets.make_image(1, size=(40, 20))))
    exif = Image.Exif()
    exif[0x0112] = 6
    root.mkdir()
    picture.save(root / "1.jpg", exif=exif)
    write_labelme(root / "1.jpg", 1, size=(20, 40))
    (box,) = detection_sets.boxes(1)
    datasets.make(root, output, **preset("labelme", masks=True))
    values = read(output)["train"]["1.jpg"]
    assert (values["image/height"], values["image/width"]) == ([40], [20])
    assert values["image/object/bbox/ymax"] == pytest.approx([min(box.ymax / 40, 1)])
    (png,) = values["image/object/mask"]
    mask = np.asarray(Image.open(io.BytesIO(png)))
    assert mask.shape == (40, 20)
    assert np.flatnonzero(mask.any(axis=1)).tolist() == list(range(box.ymin, box.ymax))
    stored = preset("labelme")
    stored["image"] = {"annotations": "stored"}
    with pytest.raises(errors.TooManyRejectsError, match="bad_value 1"):
        datasets.make(root, output, overwrite=True, **stored)
    assert "set image.annotations: upright" in (output / ".imagebeam/rejects.jsonl").read_text()


def test_labelme_folder_without_json_files_is_refused(root: pathlib.Path, output: pathlib.Path) -> None:
    detection_sets.write_image(root / "1.jpg", 1)
    with pytest.raises(
        errors.ConfigError, match=r"no JSON file with an object .* source.labelme.images and source.label"
    ):
        datasets.make(root, output, **preset("labelme"))
    with pytest.raises(errors.ConfigError, match=r"no .json file is in"):
        datasets.make(root, output, **preset("labelme", classes=["cat"]))
    with pytest.raises(errors.ConfigError, match=r"is no folder; give the one with the images and JSON files"):
        datasets.make(root / "1.jpg", output, **preset("labelme"))
