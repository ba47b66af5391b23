"""docs/recipes/bands.md as it is printed: numbers beyond 8 bits and images of many bands, read back exactly."""

from __future__ import annotations

import io
import pathlib
import shlex
from collections.abc import Callable
from typing import Any

import numpy as np
import PIL.Image
import pytest
import tensorflow as tf
import tifffile

import imagebeam
from tests import command_line, datasets, docs_pages, number_files

PAGE = "recipes/bands.md"
COUNT = 4


def run(number: int, folder: pathlib.Path) -> tuple[str, pathlib.Path]:
    """Runs a command of the page in `folder`; returns what it prints, and its output."""
    text = "\n".join(docs_pages.blocks(PAGE, "sh")).replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.startswith("imagebeam convert ")]
    arguments = shlex.split(lines[number])[1:]
    done = command_line.call(*arguments, "--workers", "1")
    assert done.returncode == 0, done.stderr
    output = folder / arguments[arguments.index("--output") + 1]
    command_line.succeed("verify", output, "--decode")
    return done.stdout + done.stderr, output


def write(folder: pathlib.Path, make: Callable[[int], tuple[str, bytes]]) -> None:
    folder.mkdir(parents=True)
    for number in range(COUNT):
        name, data = make(number)
        (folder / name).write_bytes(data)


def stored(output: pathlib.Path) -> dict[str, dict[str, Any]]:
    return {values["image/key"].decode(): values for values in datasets.read(output)}


def test_depth_maps_keep_their_bytes(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    depth = [number_files.make_numbers("uint16", 1, seed, (80, 64))[:, :, 0] // 8 for seed in range(COUNT)]

    def make(number: int) -> tuple[str, bytes]:
        file = io.BytesIO()
        PIL.Image.fromarray(depth[number]).save(file, "PNG")
        return f"{number}.png", file.getvalue()

    write(tmp_path / "depth" / "kitchen", make)
    _, output = run(0, tmp_path)
    for key, values in stored(output).items():
        assert values["image/encoded"] == (tmp_path / "depth" / key).read_bytes()
    found = docs_pages.run_snippet(docs_pages.blocks(PAGE, "python")[0])["depth"]
    assert (found.dtype, found.shape) == (np.uint16, (2, 64, 64, 1))
    ds = imagebeam.open_dataset(str(output))
    options: dict[str, Any] = {"crop": "squash", "image_size": (80, 64), "shuffle": None, "features": ["image/key"]}
    for dtype in ("uint16", "float32"):
        for batch in ds.as_numpy("train", 1, dtype=dtype, **options):
            number = int(batch["image/key"][0].decode().rpartition("/")[2][0])
            np.testing.assert_array_equal(batch["image"][0, :, :, 0], depth[number].astype(dtype))


def test_heights_are_read_by_plain_tensorflow(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    heights = [number_files.make_numbers("float32", 1, seed, (20 + seed, 30)) for seed in range(COUNT)]
    heights[0][2, 3] = np.nan
    write(tmp_path / "heights" / "alps", lambda number: (f"{number}.tif", number_files.to_tiff(heights[number])))
    run(1, tmp_path)
    images = docs_pages.run_snippet(docs_pages.blocks(PAGE, "python")[1])["images"]
    found = sorted(images.as_numpy_iterator(), key=len)
    for image, expected in zip(found, heights, strict=True):
        np.testing.assert_array_equal(image, expected)


def test_bands_of_satellites_are_stored_whole_or_chosen(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    bands = [number_files.make_numbers("uint16", 13, seed, (64, 64)) // 8 for seed in range(COUNT)]
    write(
        tmp_path / "eurosat" / "AnnualCrop",
        lambda number: (f"AnnualCrop_{number}.tif", number_files.to_tiff(bands[number], compression="lzw")),
    )
    _, output = run(2, tmp_path)
    for key, values in stored(output).items():
        number = int(key.partition("_")[2][0])
        assert values["image/encoded"] == bands[number].tobytes()
        assert (values["image/channels"], values["image/colorspace"]) == (13, b"BANDS_13")
    found = docs_pages.run_snippet(docs_pages.blocks(PAGE, "python")[2])["bands"]
    assert (found.dtype, found.shape) == (np.uint16, (2, 32, 32, 13))
    _, colors = run(3, tmp_path)
    for key, values in stored(colors).items():
        image = tf.io.decode_png(values["image/encoded"], dtype=tf.uint16)
        np.testing.assert_array_equal(image, bands[int(key.partition("_")[2][0])][:, :, [3, 2, 1]])
    _, pictures = run(4, tmp_path)
    for key, values in stored(pictures).items():
        chosen = bands[int(key.partition("_")[2][0])][:, :, [3, 2, 1]]
        expected = np.rint(np.minimum(chosen, 3000) * 255.0 / 3000)
        np.testing.assert_array_equal(tf.io.decode_png(values["image/encoded"]), expected)


def test_each_page_of_a_stack_is_an_example(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    stacks = [np.stack([number_files.make_numbers("uint16", 1, 10 * seed + page)[:, :, 0] for page in range(3)])
              for seed in range(COUNT)]  # fmt: skip

    def make(number: int) -> tuple[str, bytes]:
        file = io.BytesIO()
        tifffile.imwrite(file, stacks[number], photometric="minisblack", compression="deflate")
        return f"{number}.tif", file.getvalue()

    write(tmp_path / "stacks" / "cells", make)
    _, output = run(5, tmp_path)
    found = stored(output)
    assert len(found) == 3 * COUNT
    for key, values in found.items():
        name, _, page = key.partition("#")
        expected = stacks[int(name.rpartition("/")[2][0])][int(page)]
        np.testing.assert_array_equal(tf.io.decode_png(values["image/encoded"], dtype=tf.uint16)[:, :, 0], expected)


def test_wide_images_that_are_read_with_8_bits_are_counted(tmp_path: pathlib.Path) -> None:
    wide = number_files.make_numbers("uint16", 1)[:, :, 0]
    (tmp_path / "in" / "a").mkdir(parents=True)
    PIL.Image.fromarray(wide).save(tmp_path / "in" / "a" / "0.png")
    PIL.Image.fromarray(wide).save(tmp_path / "in" / "a" / "1.tif")
    done = command_line.call(
        "convert", "--config", "image_folder", "--input", str(tmp_path / "in"), "--output", str(tmp_path / "out")
    )
    assert (
        "2 images (png: 1, tiff: 1), of which readers get the upper 8: image.dtype: uint16" in done.stdout + done.stderr
    )
