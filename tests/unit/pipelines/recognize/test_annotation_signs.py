"""Which files beside images are annotations, and which images have none."""

from __future__ import annotations

import json
import pathlib

import pytest

from imagebeam.pipelines.recognize import recognize_folder
from tests import folder_shapes
from tests.folder_shapes import images

XML = next(str(text) for name, text in folder_shapes.SHAPES["voc"][2].items() if name.endswith(".xml"))
SHAPE = {"label": "cat", "points": [[1, 1], [5, 5]], "shape_type": "rectangle", "flags": {}}


def recognized(root: pathlib.Path, tree: folder_shapes.Tree) -> recognize_folder.Recognition:
    return recognize_folder.recognize(str(folder_shapes.write(root, tree)))


def labelme(*shapes: object, **flags: bool) -> str:
    return json.dumps({"version": "5.0.1", "flags": flags, "shapes": shapes, "imagePath": "0.jpg"}, indent=2)


def test_few_images_with_a_file_of_labelme_are_not_beyond_doubt(tmp_path: pathlib.Path) -> None:
    tree = images("#.jpg", numbers=range(20)) | {"3.json": labelme(SHAPE)}
    found = recognized(tmp_path, tree)
    assert found.sure is None
    assert [each.preset for each in found.candidates] == ["labelme", "image_folder"]
    first = found.candidates[0]
    assert first.evidence == "1 of 20 images have a .json file of LabelMe beside them"
    assert first.doubts == (
        "images without such a file are skipped; source.labelme.without_annotations=keep takes them as images "
        "without objects",
    )


def test_images_of_all_splits_are_counted_for_labelme(tmp_path: pathlib.Path) -> None:
    tree = images("train/#.jpg", "val/#.jpg") | {f"val/{n}.json": labelme(SHAPE) for n in range(4)}
    found = recognized(tmp_path, tree)
    assert found.sure is None  # half of the images would be left out
    assert found.candidates[0].evidence == "4 of 8 images have a .json file of LabelMe beside them"


@pytest.mark.parametrize("folder", ["", "photos/"])
def test_files_of_labelme_with_flags_alone_are_noted(tmp_path: pathlib.Path, folder: str) -> None:
    tree = images(f"{folder}#.jpg") | {f"{folder}{n}.json": labelme(cat=n < 2, dog=n > 1) for n in range(4)}
    found = recognized(tmp_path, tree)
    assert [each.preset for each in found.candidates] == ["image_folder"]
    assert found.remarks == (
        f"{folder}0.json and such files are of LabelMe and have flags of the whole image in place of shapes, which are "
        "not read: write them into a table with a row for each image (image,label), and plan that",
    )


def test_files_of_labelme_with_flags_and_shapes_are_read(tmp_path: pathlib.Path) -> None:
    tree = images("#.jpg") | {f"{n}.json": labelme(*[SHAPE] * (n > 2), blurred=True) for n in range(4)}
    found = recognized(tmp_path, tree)
    assert found.sure is not None
    assert (found.sure.preset, found.remarks) == ("labelme", ())


def test_xml_in_the_folders_that_the_images_are_in_needs_no_setting(tmp_path: pathlib.Path) -> None:
    tree = images("JPEGImages/train/#.jpg", "JPEGImages/val/#.jpg")
    tree |= {f"Annotations/{split}/{n}.xml": XML for split in ("train", "val") for n in range(4)}
    found = recognized(tmp_path, tree)
    assert found.sure is not None
    assert found.sure.settings == {}


def test_xml_in_several_folders_for_the_images_of_one_is_doubtful(tmp_path: pathlib.Path) -> None:
    tree = images("JPEGImages/#.jpg") | {f"Annotations/{split}/{n}.xml": XML for split in "ab" for n in range(2)}
    found = recognized(tmp_path, tree)
    assert found.sure is None
    assert found.candidates[0].settings == {"source.voc.annotation_folder": "Annotations/a"}
    assert found.candidates[0].doubts == ("b in Annotations has .xml files, too, and is not read",)


def test_labels_of_a_split_are_found_behind_other_folders(tmp_path: pathlib.Path) -> None:
    tree = images("images/#.jpg") | {f"labels/{name}/a.md": "" for name in "abcdefgh"}
    found = recognized(tmp_path, tree | {"labels/train/0.txt": "0 .5 .5 .2 .2", "data.yaml": "names: [cat]"})
    assert found.sure is not None
    assert found.sure.evidence == "images is beside labels, which holds .txt files (1 in labels/train)"


def test_only_folder_with_images_is_found_behind_others(tmp_path: pathlib.Path) -> None:
    tree = {f"{name}/a.md": "" for name in "abcdefgh"} | images("photos/IMG_#.jpg")
    found = recognized(tmp_path, tree)
    assert found.candidates[-1].evidence == "4 images directly in photos, and nothing that names their classes"
