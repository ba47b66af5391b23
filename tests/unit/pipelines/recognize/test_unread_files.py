"""Files that no preset reads: each kind is named once, with its number and what to do, beside images and alone."""

from __future__ import annotations

import pathlib

import pytest

from imagebeam.pipelines.recognize import recognize_folder
from tests import folder_shapes
from tests.folder_shapes import files, images

_POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"
_DICOM = b"\0" * 128 + b"DICM"
_MEDICAL = "medical images, which are not read: save them as NIfTI"
_SLICES = "8 files of DICOM or NIfTI: to store their slices, set image.dtype: float32 and image.encode: raw"
_LMDB = "1 LMDB database, which is not read: save its images as files, and its labels as a table of them"


@pytest.mark.parametrize(
    ("tree", "line"),
    [
        pytest.param(files("x", "{run,walk}/#.avi"), "8 videos, which are not read: save their frames", id="videos"),
        pytest.param(files("x", "{run,walk}/#.mha"), f"8 {_MEDICAL}", id="medical"),
        pytest.param(files(_DICOM, "p/s{1,2}/IM#"), _SLICES, id="dicom-without-extension"),
        pytest.param(files("x", "train/{data,lock}.mdb"), _LMDB, id="lmdb"),
        pytest.param(files("x", "d/{a.rar,b.7z}"), "2 archives: unpack them", id="archives"),
        pytest.param(
            files(_POINTER, "data/#.parquet"),
            "data/0.parquet is a pointer of Git LFS, not the file: run git lfs pull in the clone first (3 other ",
            id="pointers",
        ),
    ],
)
def test_each_kind_is_named_once(tmp_path: pathlib.Path, tree: folder_shapes.Tree, line: str) -> None:
    alone = recognize_folder.recognize(str(folder_shapes.write(tmp_path / "alone", tree)))
    assert alone.candidates == () and len(alone.remarks) == 1
    assert alone.remarks[0].startswith(line)
    root = folder_shapes.write(tmp_path / "beside", images("in/{cat,dog}/#.jpg") | tree)
    beside = recognize_folder.recognize(str(root))
    assert [each.preset for each in beside.candidates] == ["image_folder"]
    assert beside.remarks == alone.remarks


def test_volumes_of_masks_are_a_question(tmp_path: pathlib.Path) -> None:
    for number, tree in enumerate((files("x", "{run,walk}/#.dcm"), files("x", "{imagesTr,labelsTr}/#.nii.gz"))):
        found = recognize_folder.recognize(str(folder_shapes.write(tmp_path / str(number), tree)))
        (classes,) = found.candidates
        doubts = [each for each in classes.doubts if each.startswith("4 of 8 volumes are named as masks, such as lab")]
        assert (classes.preset, len(doubts)) == ("image_folder", number)
        assert [each.startswith(_SLICES) for each in found.remarks] == [True]


def test_parquet_without_images_and_maps_of_numbers_are_named(tmp_path: pathlib.Path) -> None:
    tree = {"a.parquet": folder_shapes.parquet({"x": [1, 2]})}
    found = recognize_folder.recognize(str(folder_shapes.write(tmp_path / "a", tree)))
    assert found.candidates == ()
    assert [each[:52] for each in found.remarks] == ["1 Parquet file in which no column of images was found"[:52]]
    found = recognize_folder.recognize(str(folder_shapes.write(tmp_path / "b", files("x", "flow/#.{flo,exr,pfm}"))))
    assert found.candidates == ()
    assert found.remarks[0].startswith("12 files with numbers of pixels (flow/0.exr, flow/0.flo, ")


@pytest.mark.parametrize(
    ("tree", "line"),
    [
        pytest.param({"a.xlsx": "x"}, "a.xlsx is not read: if it says what the images show, save it as CSV", id="one"),
        pytest.param(
            {"a.xlsx": "x", "cat/b.xls": "x"},
            "2 spreadsheets (a.xlsx, cat/b.xls) are not read: if they say what the images show, save them as CSV",
            id="several",
        ),
        pytest.param({"labels.mat": "x"}, "labels.mat is not read: if it says what the images show", id="matlab"),
    ],
)
def test_files_that_may_hold_labels_are_a_question(tmp_path: pathlib.Path, tree: folder_shapes.Tree, line: str) -> None:
    found = recognize_folder.recognize(str(folder_shapes.write(tmp_path, images("{cat,dog}/#.jpg") | tree)))
    assert found.sure is None
    (classes,) = (each for each in found.candidates if each.preset == "image_folder")
    assert [doubt.startswith(line) for doubt in classes.doubts].count(True) == 1


def test_bare_numbers_are_named_where_no_preset_reads_them(tmp_path: pathlib.Path) -> None:
    found = recognize_folder.recognize(str(folder_shapes.write(tmp_path, files("x", "d/{train,test}_X.bin"))))
    assert found.candidates == () and found.remarks[0].startswith("2 files of bare numbers")
