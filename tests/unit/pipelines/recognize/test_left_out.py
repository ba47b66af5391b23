"""What a reading leaves out is a line: a doubt where it may change what is written, a note otherwise."""

from __future__ import annotations

import pathlib

import pytest

from imagebeam.pipelines.recognize import recognize_folder
from tests import folder_shapes, left_out_layouts


@pytest.mark.parametrize("layout", left_out_layouts.LAYOUTS)
def test_what_is_left_out_is_said(tmp_path: pathlib.Path, layout: str) -> None:
    preset, texts, tree = left_out_layouts.LAYOUTS[layout]
    found = recognize_folder.recognize(str(folder_shapes.write(tmp_path / "in", tree)))
    assert (found.sure.preset if found.sure else None) == preset, found.candidates
    first = found.candidates[0]
    lines = first.notes if found.sure else first.doubts
    for text in texts:
        assert any(line.startswith(text) for line in lines), lines


def test_options_name_arrays_without_names_by_their_shapes(tmp_path: pathlib.Path) -> None:
    tree = left_out_layouts.LAYOUTS["arrays-without-names"][2]
    (found,) = recognize_folder.recognize(str(folder_shapes.write(tmp_path / "in", tree))).candidates
    assert found.settings == {
        "source.arrays.images": {"train": "a.npz#arr_0"},
        "source.arrays.labels": {"train": "a.npz#arr_1"},
    }
