from __future__ import annotations

import pathlib

import pytest

from imagebeam.pipelines.recognize import recognize_folder
from tests import folder_shapes, odd_layouts


@pytest.mark.parametrize("layout", odd_layouts.LAYOUTS)
def test_layout_is_read_right_or_is_a_question(tmp_path: pathlib.Path, layout: str) -> None:
    preset, tree = odd_layouts.LAYOUTS[layout]
    found = recognize_folder.recognize(str(folder_shapes.write(tmp_path / "in", tree)))
    assert (found.sure.preset if found.sure else None) == preset, found.candidates
