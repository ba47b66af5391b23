"""Images of one subject or example by their names, and classes that nothing contradicts."""

from __future__ import annotations

import pathlib
import shlex

import pytest

from imagebeam.pipelines import job
from imagebeam.pipelines.config import model as config_lib
from imagebeam.pipelines.recognize import recognize_folder
from imagebeam.transforms import elements
from tests import folder_shapes
from tests.folder_shapes import images

_SPLIT = "--set 'split={by: hash, fractions: {train: 0.9, validation: 0.1}, group: subject}'"

_NAMES = "names of images such as "


def lines_of(root: pathlib.Path, tree: folder_shapes.Tree) -> list[str]:
    found = recognize_folder.recognize(str(folder_shapes.write(root, tree)))
    first = found.candidates[0]
    return [line for line in (*first.notes, *first.doubts) if " subject" in line]


@pytest.mark.parametrize(
    ("tree", "note", "groups"),
    [
        pytest.param(
            images("a/p012_slice0#.png", "a/p013_slice1#.png", "b/p014_slice#.png") | images("b/other.png"),
            _NAMES + "a/p012_slice00.png state 3 subjects; to keep all images of a subject in one "
            r"split add --set 'source.pattern=(?:.*/)?(?P<subject>[^/]+?)(?:_slice\d+)?\.\w+' " + _SPLIT,
            {"p012", "p013", "p014", "other"},
            id="slices",
        ),
        pytest.param(
            images("images/v7-frame-#.jpg", "images/v8-frame-#.jpg", "masks/v7-frame-#.png", "masks/v8-frame-#.png"),
            _NAMES + "images/v7-frame-0.jpg state 2 subjects; to keep all images of a subject in one "
            r"split add --set 'source.pattern=(?:.*/)?(?P<subject>[^/]+?)(?:\-frame\-\d+)?\.\w+' " + _SPLIT,
            {"v7", "v8"},
            id="frames-with-masks",
        ),
        pytest.param(
            images("run/v1/frame#.jpg", "jump/v2/frame#.jpg"),
            _NAMES + "jump/v2/frame0.jpg state 2 subjects; to keep all images of a subject in one split "
            f"add --set 'source.pattern=(?P<subject>.*)/[^/]+' {_SPLIT}",
            {"run/v1", "jump/v2"},
            id="folders-of-frames-in-classes",
        ),
        pytest.param(
            images("v1/frame#.jpg", "v2/frame#.jpg"),
            _NAMES + "v1/frame0.jpg state 2 subjects; to keep all images of a folder (if it is one "
            f"subject, video or scan, and no class) in one split add --set 'source.pattern=(?P<subject>.*)/[^/]+' "
            f"{_SPLIT} --set 'label={{by: none}}'",
            {"v1", "v2"},
            id="folders-of-frames",
        ),
        pytest.param(
            images(*(f"TC_{n}_a/TC_{n}_a_#{end}.png" for n in range(3) for end in ("", "_mask")), numbers=range(5)),
            _NAMES + "TC_0_a/TC_0_a_0.png state 3 subjects; to keep all images of a subject in one split "
            f"add --set 'source.pattern=(?P<subject>.*)/[^/]+' {_SPLIT}",
            {"TC_0_a", "TC_1_a", "TC_2_a"},
            id="folders-of-patients-with-masks",
        ),
        pytest.param(
            images(*(f"patient{n:02}/patient{n:02}-#.jpg" for n in range(120)), numbers=range(2)),
            _NAMES
            + "patient00/patient00-0.jpg state 56 or more subjects; to keep all images of a folder (if it is one "
            f"subject, video or scan, and no class) in one split add --set 'source.pattern=(?P<subject>.*)/[^/]+' "
            f"{_SPLIT} --set 'label={{by: none}}'",
            {f"patient{n:02}" for n in range(120)},
            id="folders-of-patients",
        ),
    ],
)
def test_names_of_slices_and_frames_have_a_line_with_options_that_group_them(
    tmp_path: pathlib.Path, tree: folder_shapes.Tree, note: str, groups: set[str]
) -> None:
    assert lines_of(tmp_path, tree) == [note]
    found = recognize_folder.recognize(str(tmp_path))
    first = found.candidates[0]
    options = [each for each in shlex.split(note[note.index("--set") :]) if each != "--set"]
    overrides = [
        *recognize_folder.overrides_of(first),
        *options,
        f"source.uri={tmp_path}",
        f"output.uri={tmp_path}-out",
    ]
    config = config_lib.load_config(first.preset, overrides)
    rules = job.listing_rules_of(config)
    listed = [rules.apply(each) for each in job.make_source(config).list_all()]
    refs = [ref for each in listed for ref in elements.unpack_refs(each.packed_refs)]
    assert [reject for each in listed for reject in each.rejects] == []
    assert {ref.group for ref in refs} == groups


@pytest.mark.parametrize(
    "tree",
    [
        pytest.param(images("cat/cat_#.jpg", "dog/dog_#.jpg", "owl/owl_#.jpg"), id="numbers-alone"),
        pytest.param(images("v1/v1_#.jpg", "v2/v2_#.jpg"), id="two-folders-with-numbers"),
        pytest.param(images(*(f"n0000000{n}/n0000000{n}_#.JPEG" for n in range(4))), id="classes-of-imagenet"),
        pytest.param(images(*(f"p{n}/p{n}_#.jpg" for n in range(4)), numbers=[0]), id="one-each-in-folders"),
        pytest.param(images("a/p1_slice1.png", "b/p2_slice1.png", "b/p3_slice1.png", numbers=[0]), id="one-each"),
        pytest.param(images("a/p1_slice#.png", "b/p1_slice#.png"), id="one-subject"),
        pytest.param(images("a/p1_slice#.png", "b/p2_slice#.png", "b/x#.png"), id="other-names"),
        pytest.param(images("train/a/p1_slice#.png", "val/b/p2_slice#.png"), id="splits-of-the-input"),
    ],
)
def test_other_names_have_none(tmp_path: pathlib.Path, tree: folder_shapes.Tree) -> None:
    assert lines_of(tmp_path, tree) == []


@pytest.mark.parametrize(
    ("tree", "text"),
    [
        pytest.param(
            images("h2z/{train,test}{A,B}/#.jpg"),
            "trainA, trainB, testA and testB are of one split: if what else is in such names are classes",
            id="domains",
        ),
        pytest.param(
            images("#_{bathroom,kitchen}.jpg"),
            "each name is there with the endings _bathroom, _kitchen: if these images are one example, take the preset "
            r"pairs with source.pairs.image='(.*)_bathroom\.jpg' and source.pairs.others={kitchen: '\1_kitchen.jpg'}",
            id="rooms",
        ),
    ],
)
def test_images_that_may_belong_together_are_a_question(
    tmp_path: pathlib.Path, tree: folder_shapes.Tree, text: str
) -> None:
    found = recognize_folder.recognize(str(folder_shapes.write(tmp_path, tree)))
    assert found.sure is None
    assert any(doubt.startswith(text) for doubt in found.candidates[0].doubts), found.candidates


def test_synsets_are_classes_whatever_lists_are_beside_them(tmp_path: pathlib.Path) -> None:
    found = recognize_folder.recognize(str(folder_shapes.write(tmp_path, folder_shapes.SHAPES["tiny-imagenet"][2])))
    assert found.sure is not None
    for text in (
        "test and val have images, too, which are left out; docs/recipes/imagenet.md says how to sort",
        "val/val_annotations.txt names images (x_0.JPEG, x_1.JPEG, ...), and is not read",
        "train/n01443537/n01443537_boxes.txt names images (n01443537_0.JPEG, n01443537_1.JPEG, ...), and is not read",
    ):
        assert any(note.startswith(text) for note in found.sure.notes), found.sure.notes
