from __future__ import annotations

import pathlib
from typing import Any

import pytest

from imagebeam.pipelines import job
from imagebeam.pipelines.config import model as config_lib
from imagebeam.pipelines.recognize import recognize_folder
from imagebeam.transforms.sources import image_source
from tests import annotation_sets, detection_sets, error_texts, folder_shapes, image_sets, odd_layouts, written_files


def open_folder(root: pathlib.Path, **sections: Any) -> image_source.ImageSource:
    fields = {"source": {"uri": str(root)}, "output": {"uri": f"{root}-out"}} | sections
    return job.make_source(config_lib.parse_config(fields, "test"))


def write(root: pathlib.Path, kind: str) -> None:
    if kind == "yolo":
        detection_sets.write_yolo(root, {"images/train": 2})
    elif kind == "yolo-roboflow":
        detection_sets.write_yolo(root, {"train/images": 2})
    elif kind == "voc":
        detection_sets.write_voc(root, {"train": [1]})
    elif kind == "voc-kaggle":
        detection_sets.write_voc(root, {"train": [1]})
        (root / "JPEGImages").rename(root / "images")
        (root / "Annotations").rename(root / "annotations")
    elif kind == "voc-roboflow":
        detection_sets.write_voc_folders(root, {"valid": [1]})
    elif kind == "csv":
        detection_sets.write_csv(root / "train" / "_annotations.csv", root / "train", [1])
    elif kind == "kitti":
        annotation_sets.SETS["kitti"].write(root)
    elif kind == "coco":
        detection_sets.write_image(root / "train" / "1.jpg", 1)
        (root / "train" / "_annotations.coco.json").write_text("{}")


@pytest.mark.parametrize("kind", ["yolo", "yolo-roboflow", "voc", "voc-kaggle", "voc-roboflow", "csv", "kitti", "coco"])
@pytest.mark.parametrize("split", ["none", "directory"])
def test_data_set_of_boxes_is_refused_as_classes(tmp_path: pathlib.Path, kind: str, split: str) -> None:
    write(tmp_path, kind)
    with error_texts.raises("boxes-as-classes"):
        open_folder(tmp_path, split={"by": split})
    (listing,) = open_folder(tmp_path, label={"by": "none"}).list_all()
    included = open_folder(tmp_path, source={"uri": str(tmp_path), "include": "**"})
    assert listing.num_refs == sum(each.num_refs for each in included.list_all()) > 0


@pytest.mark.parametrize(
    "folders",
    [
        pytest.param(["images", "labels"], id="classes-of-these-names"),
        pytest.param(["train/cat", "val/cat"], id="splits"),
        pytest.param(["images", "annotations"], id="masks"),
        pytest.param(["cat"], id="classes"),
    ],
)
def test_folders_of_images_are_classes(tmp_path: pathlib.Path, folders: list[str]) -> None:
    written_files.write(tmp_path, {f"{folder}/x.png": image_sets.make_image(1, "PNG") for folder in folders})
    (listing,) = open_folder(tmp_path).list_all()
    assert listing.num_refs == len(folders)


def test_classes_whose_images_have_xml_beside_them_stay_classes(tmp_path: pathlib.Path) -> None:
    for folder in ("cat", "dog"):
        written_files.write(tmp_path / folder, {"x.png": image_sets.make_image(1, "PNG"), "x.xml": "<annotation/>"})
    (listing,) = open_folder(tmp_path).list_all()
    assert listing.num_refs == 2


# --- odd layouts -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", odd_layouts.LAYOUTS)
def test_layout_is_read_right_or_is_a_question(tmp_path: pathlib.Path, layout: str) -> None:
    preset, tree = odd_layouts.LAYOUTS[layout]
    found = recognize_folder.recognize(str(folder_shapes.write(tmp_path / "in", tree)))
    assert (found.sure.preset if found.sure else None) == preset, found.candidates
