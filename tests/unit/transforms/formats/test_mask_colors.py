from __future__ import annotations

import pathlib
from typing import Any

import pytest

from imagebeam import errors
from imagebeam.transforms.formats import masks
from imagebeam.transforms.images import class_masks

TWO = (("road", (128, 64, 128)), ("traffic light", (1, 2, 255)))


def read(root: pathlib.Path, colors: Any, **settings: Any) -> class_masks.MaskColors:
    if isinstance(colors, dict):
        colors = {name: tuple(color) for name, color in colors.items()}
    options = masks.Masks(image="(.*)", mask=r"\1.png", colors=colors, **settings)
    found = options.policy(str(root)).colors
    assert found is not None
    return found


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("name,r,g,b\nroad,128,64,128\ntraffic light,1,2,255\n", id="class_dict.csv"),
        pytest.param("\ufeffname, r, g, b\r\nroad, 128, 64, 128\r\n\r\ntraffic light, 1, 2, 255", id="with blanks"),
        pytest.param(
            "id,Label,Red,Green,Blue,eval\n0,road,128,64,128,1\n1,traffic light,1,2,255,0\n", id="more columns"
        ),
        pytest.param("128 64 128\troad\n1 2 255\t\ttraffic light\n", id="label_colors.txt"),
        pytest.param("128,64,128,road\n1,2,255,traffic light", id="csv without a header"),
        pytest.param("# label:color_rgb:parts:actions\nroad:128,64,128::\ntraffic light:1,2,255::\n", id="cvat"),
        pytest.param("road 128 64 128\ntraffic light 1 2 255\n", id="blanks"),
    ],
)
def test_colors_are_read_in_the_order_of_the_file(tmp_path: pathlib.Path, text: str) -> None:
    (tmp_path / "colors.txt").write_text(text)
    assert read(tmp_path, "colors.txt").colors == TWO
    assert read(tmp_path / "elsewhere", str(tmp_path / "colors.txt")).names == ("road", "traffic light")


def test_colors_of_the_config_keep_their_order_and_leave_out_what_is_ignored(tmp_path: pathlib.Path) -> None:
    found = read(tmp_path, {"road": [128, 64, 128], "traffic light": [1, 2, 255]}, ignore=("road",))
    assert (found.colors, found.names) == (TWO, ("traffic light",))
    other = read(tmp_path, {"traffic light": [1, 2, 255], "road": [128, 64, 128]}, ignore=("road",))
    assert other.as_json() != found.as_json()


@pytest.mark.parametrize(
    ("colors", "settings", "message"),
    [
        ({"a": [0, 0, 0], "b": [0, 0, 0]}, {}, r"gives 'a' and 'b' the same color \[0, 0, 0\]; remove one"),
        ({}, {}, "has no color; write NAME"),
        ({" ": [0, 0, 0]}, {}, "has the name ' ' twice, or an empty one"),
        ({"a": [0, 0, 0]}, {"ignore": ("b",)}, "source.masks.ignore names 'b', and source.masks.colors has a"),
        ({str(n): [n % 256, n // 256, 0] for n in range(257)}, {}, "has 257 classes: set source.masks.bits: 16"),
        ({str(n): [n % 256, n // 256, 0] for n in range(5000)}, {"bits": 16}, "has 5,000 colors, expected up to 4,096"),
        ("none.csv", {}, r"none.csv' cannot be read \(No such file.*give a file below --input, or a mapping"),
        ("latin.csv", {}, "latin.csv' is not UTF-8 text"),
        ("long.csv", {}, "long.csv' has more than 1 MiB"),
        ("bad.csv", {}, r"bad.csv', line 3: 'sky,1,2'; expected name,r,g,b or r g b name"),
        ("high.csv", {}, r"high.csv', line 1: 'sky,1,2,256'"),
        ("twice.csv", {}, "has the name 'a' twice"),
    ],
)
def test_colors_that_cannot_be_used_are_refused(
    tmp_path: pathlib.Path, colors: Any, settings: dict[str, Any], message: str
) -> None:
    (tmp_path / "latin.csv").write_bytes(b"a,1,2,\xff")
    (tmp_path / "long.csv").write_bytes(b"#" * (1 << 20) + b"#")
    (tmp_path / "bad.csv").write_text("name,r,g,b\na,1,2,3\nsky,1,2\n")
    (tmp_path / "high.csv").write_text("sky,1,2,256\n")
    (tmp_path / "twice.csv").write_text("a,1,2,3\na,1,2,4\n")
    with pytest.raises(errors.ConfigError, match=message):
        read(tmp_path, colors, **settings)


def test_masks_without_colors_hold_numbers(tmp_path: pathlib.Path) -> None:
    assert masks.Masks().policy(str(tmp_path)).colors is None
