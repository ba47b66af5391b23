"""Masks in trees of folders: which mask each image has, and what is left out."""

from __future__ import annotations

import pathlib
import re

import pytest

from imagebeam.pipelines import job
from imagebeam.pipelines.config import model as config_lib
from imagebeam.pipelines.recognize import recognize_folder
from imagebeam.transforms import elements
from tests import folder_shapes
from tests.folder_shapes import SHAPES, images


@pytest.mark.parametrize(
    ("shape", "image", "mask"),
    [
        pytest.param(
            "masks-of-cityscapes",
            r"leftImg8bit(/.*)_leftImg8bit\.png",
            r"gtFine\1_gtFine_labelIds.png",
            id="cityscapes",
        ),
        pytest.param(
            "masks-of-cityscapes-in-folders-of-archives",
            r"leftImg8bit(_.*)/leftImg8bit(/.*)_leftImg8bit\.png",
            r"gtFine\1/gtFine\2_gtFine_labelIds.png",
            id="cityscapes-in-folders-of-archives",
        ),
        pytest.param("masks-of-loveda", r"((?:Train|Val)/.*)/images_png/(.*)", r"\1/masks_png/\2", id="loveda"),
        pytest.param("masks-of-kitti", "training/image_2/(.*)", r"training/semantic/\1", id="kitti"),
        pytest.param("masks-of-synthia", "RGB/(.*)", r"GT/LABELS/\1", id="synthia"),
    ],
)
def test_each_image_has_its_mask(tmp_path: pathlib.Path, shape: str, image: str, mask: str) -> None:
    tree = SHAPES[shape][2]
    root = folder_shapes.write(tmp_path / "in", tree)
    found = recognize_folder.recognize(str(root))
    assert found.sure is not None
    overrides = [*recognize_folder.overrides_of(found.sure), f"source.uri={root}", f"output.uri={root}-out"]
    config = config_lib.load_config(found.sure.preset, overrides)
    listed = {
        ref.key: ref.mask and ref.mask.uri
        for each in job.make_source(config).list_all()
        for ref in elements.unpack_refs(each.packed_refs)
    }
    expected = {path: str(root / match.expand(mask)) for path in tree if (match := re.fullmatch(image, path))}
    assert listed == expected


@pytest.mark.parametrize(
    ("tree", "texts"),
    [
        pytest.param(
            SHAPES["masks-of-kitti"][2],
            [
                "8 of 16 images that were seen are not read, in training/instance, training/semantic_rgb (training/",
                "4 of 16 images that were seen are not read, in testing/image_2 (testing/image_2/00_10.png)",
            ],
            id="k",
        ),
        pytest.param(
            SHAPES["masks-of-cityscapes"][2],
            ["32 of 48 images that were seen are not read, in gtFine/train/aachen, "],
            id="c",
        ),
        pytest.param(
            SHAPES["masks-of-synthia"][2],
            ["4 of 8 images that were seen are not read, in GT/COLOR (GT/COLOR/0000.png): they may be masks"],
            id="s",
        ),
    ],
)
def test_what_is_left_out_is_said(tmp_path: pathlib.Path, tree: folder_shapes.Tree, texts: list[str]) -> None:
    found = recognize_folder.recognize(str(folder_shapes.write(tmp_path, tree)))
    assert found.sure is not None
    for text in texts:
        assert any(note.startswith(text) for note in found.sure.notes), found.sure.notes


@pytest.mark.parametrize(
    ("tree", "text"),
    [
        pytest.param(
            images("leftImg8bit/train/ulm/a_#_leftImg8bit.png", "gtFine/train/ulm/a_#_gtFine_{labelIds,trainIds}.png"),
            "each image has *_gtFine_trainIds, too: set source.masks.mask for another one",
            id="files",
        ),
        pytest.param(
            images("data/{rgb,gt_fine,gt_coarse}/set/x/#.png"),
            "gt_fine may hold the masks of rgb, too: set source.masks.mask for them",
            id="folders",
        ),
        pytest.param(
            images("a/rgb/day/x#.png", "a/mask/day/x#.png", "b/rgb/day/x#.png", "b/mask/day/x#_m.png"),
            "the files in mask are not named in one way: set source.masks.image and source.masks.mask",
            id="names",
        ),
    ],
)
def test_masks_of_several_forms_are_a_question(tmp_path: pathlib.Path, tree: folder_shapes.Tree, text: str) -> None:
    found = recognize_folder.recognize(str(folder_shapes.write(tmp_path, tree)))
    assert found.sure is None
    doubts = [doubt for each in found.candidates for doubt in each.doubts]
    assert text in doubts
