"""plan --try: what a config makes of a few images."""

from __future__ import annotations

import os
import pathlib

import numpy as np
import PIL.Image
import pytest

from imagebeam import Reference
from imagebeam.pipelines import cli, request, try_images
from tests import error_texts


def crop(pixels: np.ndarray, reference: Reference) -> np.ndarray | None:
    """Returns the left half of cats; leaves out one dog, fails for another, and ends the process of a third."""
    if reference.key == "dog/0.jpg":
        return None
    if reference.key == "dog/1.jpg":
        raise ValueError("no face")
    if reference.key == "dog/2.jpg":
        os._exit(3)
    return pixels[:, : pixels.shape[1] // 2]


def size(images: list[np.ndarray], references: list[Reference]) -> list[float]:
    """Returns the number of pixels of each image."""
    return [float(image.shape[0] * image.shape[1]) for image in images]


def test_images_are_shown_before_and_after(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    for label, color in (("cat", "blue"), ("dog", "green")):
        (tmp_path / "images" / label).mkdir(parents=True)
        for number in range(3):
            PIL.Image.new("RGB", (40, 20), color).save(tmp_path / "images" / label / f"{number}.jpg")
    sheet = tmp_path / "sheet.png"
    functions = f"{{size: {{function: '{__name__}:size'}}}}"
    options = ["--set", f"image.function={__name__}:crop", "--set", f"features.functions={functions}"]
    command = ["plan", "--input", str(tmp_path / "images"), *options, "--try", "6", "--sheet", str(sheet)]
    assert cli.main(command) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "tried 6 images: 3 stored, rejected: crashed 1, filtered 1, function 1" in shown
    assert "dog/1.jpg: function: image.function" in shown
    with PIL.Image.open(sheet) as picture:
        rows = [np.asarray(picture)[number * 280 + 12 :] for number in range(6)]
    assert [tuple(row[5, 12 + 30] // 64) for row in rows] == [(0, 0, 3)] * 3 + [(0, 2, 0)] * 3  # before
    after = [(tuple(row[5, 280 + 10] // 64), tuple(row[5, 280 + 30] // 64)) for row in rows]
    assert after == [((0, 0, 3), (3, 3, 3))] * 3 + [((3, 3, 3), (3, 3, 3))] * 3  # half as wide, or nothing


def test_what_cannot_be_tried_or_written_is_an_error(tmp_path: pathlib.Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "no-class.jpg").write_text("")
    with error_texts.raises("try-nothing"):
        try_images.try_images(request.Request({"source": {"uri": str(tmp_path / "images")}}), 2)
    (tmp_path / "file").write_text("")
    one = try_images.Tried("a", "", ("1 x 1 px",), b"", b"")
    with error_texts.raises("sheet-unwritable"):
        try_images.write_sheet([one], f"{tmp_path}/file/x.png")
