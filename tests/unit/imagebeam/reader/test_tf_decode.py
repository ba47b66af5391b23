"""TensorFlow's decoder: how little each shortcut changes an image."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
from PIL import Image

from imagebeam import features
from imagebeam.reader import batch_reader
from tests.pictures import encode, photo, psnr
from tests.unit.imagebeam.reader import written

tf = pytest.importorskip("tensorflow")
pixels = pytest.importorskip("imagebeam.reader.tf_decode")


@pytest.mark.parametrize(
    ("part", "reduction"),
    [((448, 448), 2), ((447, 2000), 1), ((896, 900), 4), ((1792, 1792), 8), ((9999, 9999), 8), ((224, 224), 1)],
)
def test_reduction_leaves_a_part_as_large_as_wanted(part: tuple[int, int], reduction: int) -> None:
    (index,) = pixels.reductions(tf.constant([[0, 0, *part]]), (224, 224), greatest=8).numpy()
    assert pixels.REDUCTIONS[index] == reduction


@pytest.mark.parametrize("reduction", [2, 4, 8])
def test_reduced_decode_looks_like_the_whole_one_scaled_down(reduction: int) -> None:
    """It is nearer to Pillow's filtered scaling than the unfiltered crop it replaces (at 1/2, about as near)."""
    side = 64 * reduction
    original = photo(side * 2, side * 2)
    encoded = tf.constant(encode(original))
    part = tf.constant([side // 2, side // 4, side, side])
    index = tf.constant(pixels.REDUCTIONS.index(reduction))
    reduced = pixels.resize(pixels.decode_jpeg_part(encoded, part, index), (64, 64)).numpy()
    unfiltered = pixels.resize(pixels.decode_jpeg_part(encoded, part, None), (64, 64)).numpy()
    box = (side // 4, side // 2, side // 4 + side, side // 2 + side)
    expected = np.asarray(original.resize((64, 64), Image.Resampling.BILINEAR, box=box))
    assert reduced.shape == (64, 64, 3)
    assert psnr(reduced, expected) > 28
    assert psnr(reduced, expected) > psnr(unfiltered, expected) - (2 if reduction == 2 else 0)


def test_part_is_the_same_as_cropped_from_the_whole_image() -> None:
    encoded = tf.constant(encode(photo(300, 200)))
    part = tf.constant([31, 57, 100, 120])
    cut = tf.io.decode_jpeg(encoded, 3)[31:131, 57:177]
    assert (pixels.decode_jpeg_part(encoded, part, None).numpy() == cut.numpy()).all()


@pytest.mark.parametrize("crop", ["random", "center", "squash"])
@pytest.mark.parametrize("size", [32, 200])
def test_decoders_differ_by_no_more_than_the_docs_say(tmp_path: pathlib.Path, crop: str, size: int) -> None:
    if batch_reader.library() is None:
        pytest.skip("the decoder in C was not built here: docs/reader.md lists what it needs")
    rng = np.random.default_rng(0)
    examples = []
    for index in range(12):
        height, width = rng.integers(20, 500, 2).tolist()
        picture = photo(width, height)
        if index % 2:
            picture = Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8))
        encoded = encode(picture, subsampling=index % 3, quality=40 + 5 * index)
        examples.append(written.jpeg_values(index, width, height) | {features.ENCODED: encoded})
    dataset = written.write(tmp_path / "out", written.IMAGE, examples)
    options: dict[str, Any] = {"image_size": size, "crop": crop, "num_epochs": 1, "shuffle": None}
    native, tensorflow = (
        next(dataset.as_numpy("train", 12, decoder=decoder, **options))["image"].astype(int)
        for decoder in ("native", "tensorflow")
    )
    difference = np.abs(native - tensorflow)
    assert difference.max() <= 2
    assert difference.mean() < 0.6
    assert (difference == 2).mean() < 1e-3
