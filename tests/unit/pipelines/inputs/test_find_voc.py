from __future__ import annotations

import pathlib
from typing import Any

import pytest

from imagebeam import errors
from imagebeam.pipelines import open_source
from imagebeam.pipelines.config import model as config_lib
from imagebeam.pipelines.config import object_sections
from imagebeam.pipelines.inputs import find_voc
from imagebeam.transforms.sources import annotated_files
from tests import detection_sets


def find(root: pathlib.Path, **wanted: Any) -> find_voc.VocSet:
    return find_voc.find(str(root), object_sections.VocConfig.model_validate(wanted))


def parts_of(found: find_voc.VocSet) -> list[tuple[str, str]]:
    return [(part.split, part.path) for part in found.parts]


@pytest.mark.parametrize(
    ("lists", "expected"),
    [
        (["train", "val", "trainval"], ["train", "val"]),
        (["train", "val", "test"], ["train", "val", "test"]),
        (["trainval", "test"], ["trainval", "test"]),
        (["cat_train"], []),
    ],
)
def test_lists_are_splits(tmp_path: pathlib.Path, lists: list[str], expected: list[str]) -> None:
    detection_sets.write_voc(tmp_path, {name: [1] for name in lists})
    splits = [(name.replace("trainval", "train"), f"ImageSets/Main/{name}.txt") for name in expected]
    assert parts_of(find(tmp_path)) == (splits or [("train", "JPEGImages")])
    assert find(tmp_path)[1:] == ("JPEGImages", "Annotations")


@pytest.mark.parametrize(
    ("folders", "expected", "names"),
    [
        (["train", "valid"], [("train", "train"), ("valid", "valid")], ("JPEGImages", "Annotations")),
        ([], [("train", "")], ("JPEGImages", "Annotations")),
        (["images", "annotations"], [("train", "images")], ("images", "annotations")),
    ],
)
def test_folders_are_splits_without_lists(
    tmp_path: pathlib.Path, folders: list[str], expected: list[tuple[str, str]], names: tuple[str, str]
) -> None:
    for folder in folders:
        (tmp_path / folder).mkdir()
    found = find(tmp_path)
    assert (parts_of(found), found[1:]) == (expected, names)


def test_config_names_lists_and_folders(tmp_path: pathlib.Path) -> None:
    detection_sets.write_voc(tmp_path, {"day": [1]})
    (tmp_path / "more").mkdir()
    found = find(tmp_path, images={"train": ["ImageSets/Main/day.txt", "more"]})
    assert [tuple(part) for part in found.parts] == [
        ("train", "ImageSets/Main/day.txt", True),
        ("train", "more", False),
    ]
    with pytest.raises(errors.ConfigError, match=r"source.voc.images.train: 'x' is neither a folder nor a list"):
        find(tmp_path, images={"train": "x"})


def test_folder_above_or_none_is_an_error(tmp_path: pathlib.Path) -> None:
    detection_sets.write_voc(tmp_path / "VOC2007", {"train": [1]})
    with pytest.raises(errors.ConfigError, match=r"holds the data set in its folder 'VOC2007': give '.*/VOC2007'"):
        find(tmp_path)
    with pytest.raises(errors.ConfigError, match="is no folder; give the one that holds Annotations"):
        find(tmp_path / "nowhere")


def open_voc(root: pathlib.Path, **voc: Any) -> annotated_files.AnnotatedFilesSource:
    fields = {"source": {"by": "voc", "uri": str(root), "voc": voc}, "output": {"uri": f"{root}-out"}}
    found = open_source.make_source(config_lib.parse_config(fields, "test"))
    assert isinstance(found, annotated_files.AnnotatedFilesSource)
    return found


def test_classes_are_collected_from_the_files_or_given(tmp_path: pathlib.Path) -> None:
    detection_sets.write_voc(tmp_path, {"train": range(8)})
    (tmp_path / "Annotations" / "000002.xml").write_text("<broken")
    assert open_voc(tmp_path).reader.classes.names == detection_sets.CLASSES
    (tmp_path / "names.txt").write_text("zebra\ncat\n")
    assert open_voc(tmp_path, classes="names.txt").reader.classes.as_json() == [["zebra", "cat"], None, 1]
    for file in (tmp_path / "Annotations").iterdir():
        file.write_text("<annotation/>")
    with pytest.raises(errors.ConfigError, match="no XML file with an object was found"):
        open_voc(tmp_path)
    with pytest.raises(errors.ConfigError, match=r"the XML files below .* cannot be read \(No such file"):
        open_voc(tmp_path, images={"train": "ImageSets/Main/train.txt"}, annotation_folder="nowhere")
