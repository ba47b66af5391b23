"""The decoder in C against TensorFlow's and Pillow: filters, decodings, and the crop of evaluations."""

from __future__ import annotations

import os
import pathlib
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies
from PIL import Image

import imagebeam
from imagebeam import features
from imagebeam.reader import crops, image_decoder
from imagebeam.reader import options as options_lib
from tests import case_tables
from tests.image_sets import save
from tests.pictures import encode, photo, psnr
from tests.unit.imagebeam.reader import by_tensorflow, written

tf = pytest.importorskip("tensorflow")
if os.environ.get("IMAGEBEAM_CI") != "1":  # there it must be built
    pytest.importorskip("imagebeam._native", reason="was not built: docs/reader-speed.md says what it needs")

pytestmark = pytest.mark.usefixtures("unchanged_graphs")

FILTERS = {"bilinear": 1, "bicubic": 2}
PILLOW = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
# Levels from 0 to 255 by which TensorFlow's float arithmetic and that of C may differ; both round to the nearest.
MAX_DIFFERENCE, MEAN_DIFFERENCE = 1, 0.02


def decode(
    encoded: bytes, part: tuple[int, int, int, int], size: tuple[int, int], interpolation: str, antialias: bool
) -> np.ndarray:
    parts = np.array([part], np.int32)
    options = options_lib.ReadOptions(image_size=size, crop="squash", interpolation=interpolation, antialias=antialias)
    frames = crops.frames(parts[:, 2], parts[:, 3], parts, options)
    out = np.zeros((1, *size, 3), np.uint8)
    flip = np.zeros(1, bool)
    arguments = [encoded], parts, flip, out, 1, [b""], frames, FILTERS[interpolation], antialias
    assert image_decoder._native.decode(*arguments) == []
    return out[0]


def read(dataset: imagebeam.ImageDataset, decoder: str, **options: Any) -> np.ndarray:
    count = dataset.num_examples("train")
    batches = dataset.as_numpy("train", count, decoder=decoder, num_epochs=1, shuffle=None, **options)
    return next(batches)["image"]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> imagebeam.ImageDataset:
    """JPEGs of many sizes, so that all reductions, enlarging and long sides occur."""
    sides = [(300, 200), (40, 60), (640, 300), (1200, 900), (17, 13), (90, 1200), (256, 256), (33, 32)]
    examples = []
    for index, (width, height) in enumerate(sides):
        encoded = encode(photo(width, height), subsampling=index % 3)
        examples.append(written.jpeg_values(index, width, height) | {features.ENCODED: encoded})
    return written.write(tmp_path_factory.mktemp("photos") / "out", written.IMAGE, examples)


def test_filter_makes_the_pixels_of_tensorflow() -> None:
    for antialias in [False, True]:
        for interpolation in ["bilinear", "bicubic"]:
            for size in [(64, 64), (100, 37), (300, 400)]:
                for part in [(0, 0, 200, 300), (31, 57, 100, 120), (3, 250, 197, 7), (199, 299, 1, 1)]:
                    encoded = encode(photo(300, 200))
                    top, left, height, width = part
                    least = 2 if antialias else 1  # with antialias an image stays twice as large as wanted
                    reductions = [
                        each
                        for each in (1, 2, 4, 8)
                        if height >= each * least * size[0] and width >= each * least * size[1]
                    ]
                    reduction = max(reductions, default=1)
                    whole = tf.io.decode_jpeg(encoded, 3, reduction)
                    if reduction > 1:
                        assert part == (0, 0, 200, 300) and 200 % reduction == 300 % reduction == 0
                    cut = whole[
                        top // reduction : (top + height) // reduction, left // reduction : (left + width) // reduction
                    ]
                    exact = tf.image.resize(cut, size, interpolation, antialias=antialias).numpy()
                    error = decode(encoded, part, size, interpolation, antialias) - exact.clip(0, 255)
                    assert np.abs(error).max() < 0.5 + 0.1  # half a level is what rounding takes


# Each pair of two settings, and what is resized without a filter with both decodings: a graph takes 0.3 s.
@pytest.mark.parametrize(
    ("crop", "interpolation", "antialias", "dct"),
    [
        ("random", "bilinear", False, "fast"),
        ("random", "bicubic", True, "accurate"),
        ("center", "bilinear", False, "accurate"),
        ("center", "bilinear", True, "accurate"),
        ("center", "bicubic", False, "fast"),
        ("resize_shorter", "bilinear", False, "accurate"),
        ("resize_shorter", "bicubic", True, "fast"),
        ("squash", "bilinear", True, "fast"),
        ("squash", "bicubic", False, "accurate"),
    ],
)
def test_decoders_make_the_same_images(
    photos: imagebeam.ImageDataset, crop: str, interpolation: str, antialias: bool, dct: str
) -> None:
    options = {
        "crop": crop,
        "interpolation": interpolation,
        "antialias": antialias,
        "dct": dct,
        "flip": crop == "random",
    }
    native = read(photos, "native", image_size=64, **options).astype(int)
    difference = np.abs(native - by_tensorflow.read(photos, len(native), image_size=64, **options))
    if options_lib.ReadOptions(**options).filters:
        assert difference.max() <= MAX_DIFFERENCE
        assert difference.mean() < MEAN_DIFFERENCE
    else:  # TensorFlow rounds down there
        assert difference.max() <= 2 and difference.mean() < 0.6
    difference = np.abs(native - read(photos, "pillow", image_size=64, **options))
    if dct == "accurate":  # as Pillow always decodes; at the edges of a part, C has no chroma of the pixels outside
        assert difference.mean() < 0.1
        assert (difference > MAX_DIFFERENCE).mean() < 0.02
    else:
        assert difference.mean() < 1


@pytest.mark.parametrize(
    ("decoder", "interpolation", "image_size", "fraction"),
    [
        ("native", "bilinear", 56, 0.875),
        ("native", "bicubic", 56, 0.875),
        ("native", "bilinear", 56, 1.0),
        ("native", "bicubic", 56, 1.0),
        ("native", "bilinear", 224, 0.9),
        ("native", "bicubic", 224, 0.9),
        ("pillow", "bicubic", 56, 0.875),
        ("pillow", "bilinear", 56, 1.0),
        ("pillow", "bicubic", 224, 0.9),
    ],
)
def test_resize_shorter_is_pillows_resize_and_the_middle_of_it(
    photos: imagebeam.ImageDataset, decoder: str, interpolation: str, image_size: int, fraction: float
) -> None:
    options = {"interpolation": interpolation, "antialias": True, "dct": "accurate", "center_fraction": fraction}
    found = read(photos, decoder, image_size=image_size, crop="resize_shorter", **options)
    shorter = round(image_size / fraction)
    for index, picture in enumerate(photos.as_grain("train")):
        height, width = picture["image"].shape[:2]
        # As torchvision.transforms.Resize(shorter) and CenterCrop(image_size).
        if width <= height:
            size = shorter, int(shorter * height / width)
        else:
            size = int(shorter * width / height), shorter
        resized = np.asarray(Image.fromarray(picture["image"]).resize(size, PILLOW[interpolation]))
        top, left = (round((side - image_size) / 2) for side in resized.shape[:2])
        expected = resized[top : top + image_size, left : left + image_size]
        difference = np.abs(found[index].astype(int) - expected)
        is_reduced = min(height, width) >= 4 * shorter
        if is_reduced:  # by libjpeg, which averages a little differently
            assert psnr(found[index], expected) > 40
        else:  # Pillow rounds twice, and cuts off what bicubic adds beyond 0 to 255 after each side
            assert difference.max() <= (2 if interpolation == "bilinear" else 12)
            assert (difference > 2).mean() < 0.01 and difference.mean() < 0.4


def test_other_formats_are_resized_alike(tmp_path: pathlib.Path) -> None:
    values = written.jpeg_values(0, 300, 200) | {features.ENCODED: save(photo(300, 200)), "image/format": b"png"}
    dataset = written.write(tmp_path / "out", written.IMAGE, [values], num_shards=1)
    options = {"crop": "resize_shorter", "interpolation": "bicubic", "antialias": True, "dct": "accurate"}
    [found] = read(dataset, "pillow", image_size=56, **options)
    resized = np.asarray(photo(300, 200).resize((96, 64), Image.Resampling.BICUBIC))
    assert np.abs(found.astype(int) - resized[4:60, 20:76]).max() <= 2


def test_accurate_dct_makes_the_pixels_of_pillow(photos: imagebeam.ImageDataset) -> None:
    alone = photos.as_tf("train", image_size=None, crop=None, dct="accurate", num_epochs=1, shuffle=None)
    for example, expected in zip(alone.as_numpy_iterator(), photos.as_grain("train"), strict=True):
        assert (example["image"] == expected["image"]).all()


def test_batch_does_not_depend_on_threads(photos: imagebeam.ImageDataset) -> None:
    for threads in [1, 3]:
        options = {"crop": "resize_shorter", "image_size": (48, 80), "interpolation": "bicubic", "antialias": True}
        assert (
            read(photos, "native", threads=threads, **options) == read(photos, "native", threads=2, **options)
        ).all()


@hypothesis.given(
    strategies.integers(1, 5000),
    strategies.integers(1, 5000),
    strategies.tuples(strategies.integers(1, 600), strategies.integers(1, 600)),
    strategies.floats(0.05, 1),
    strategies.sampled_from(["bilinear", "bicubic"]),
)
@hypothesis.settings(max_examples=100, deadline=None)
def test_resized_frame_is_inside_its_part_and_the_part_inside_the_image(
    height: int, width: int, size: tuple[int, int], fraction: float, interpolation: str
) -> None:
    options = options_lib.ReadOptions(
        crop="resize_shorter", image_size=size, center_fraction=fraction, interpolation=interpolation
    )
    sides = np.array([height]), np.array([width])
    parts = crops.windows(*sides, np.zeros((1, crops.NUM_UNIFORMS), np.float32), options)
    [[top, left, rows, columns]] = parts.tolist()
    assert 0 <= top < top + rows <= height and 0 <= left < left + columns <= width
    [[down, row_step, right, column_step]] = crops.frames(*sides, parts, options).tolist()
    assert down >= 0 and right >= 0 and row_step > 0 and column_step > 0
    assert down + row_step * size[0] <= rows + 0.01 and right + column_step * size[1] <= columns + 0.01


def test_frame_outside_of_its_part_is_a_failure() -> None:
    for frame in [(-1, 1, 0, 1), (0, 0, 0, 1), (0, 1.2, 0, 1), (0, 1, float("nan"), 1), (0, 1, 0, 1e300)]:
        out = np.full((1, 40, 40, 3), 77, np.uint8)
        arguments = [encode(photo(40, 40))], np.array([[0, 0, 40, 40]], np.int32), np.zeros(1, bool), out, 1, [b""]
        failures = image_decoder._native.decode(*arguments, np.array([frame], np.float64))
        assert failures == [(0, "the frame is not inside of the part")]
        assert (out == 77).all()


def test_arguments_of_filters_that_do_not_fit_are_refused() -> None:
    for frames, filter, message in [
        (np.zeros((2, 4)), 1, "images and frames do not fit each other"),
        (np.zeros((1, 4), np.float32), 1, "images and frames do not fit each other"),
        (None, 3, "filter is 3, expected 1 or 2"),
    ]:
        with case_tables.named(frames, filter, message):
            out = np.zeros((1, 8, 8, 3), np.uint8)
            arguments = (
                [encode(photo(8, 8))],
                np.zeros((1, 4), np.int32),
                np.zeros(1, bool),
                out,
                1,
                [b""],
                frames,
                filter,
            )
            with pytest.raises(ValueError, match=message):
                image_decoder._native.decode(*arguments)


@pytest.mark.parametrize("deterministic", [True, False])
def test_single_examples_are_those_of_a_batch(photos: imagebeam.ImageDataset, deterministic: bool) -> None:
    options = {"image_size": 40, "shuffle": None, "num_epochs": 3, "features": ("image/key",), "decoder": "native"}
    [batch] = photos.as_tf("train", 24, **options).as_numpy_iterator()
    single = photos.as_tf("train", deterministic=deterministic, **options)
    assert single.cardinality() == 24
    assert single.element_spec["image"] == tf.TensorSpec((40, 40, 3), tf.uint8)
    found = [(each["image/key"], each["image"].tobytes()) for each in single.as_numpy_iterator()]
    expected = [(key, image.tobytes()) for key, image in zip(batch["image/key"], batch["image"], strict=True)]
    assert found == expected if deterministic else sorted(found) == sorted(expected)


@pytest.mark.parametrize("crop", ["random", "center", "squash"])
@pytest.mark.parametrize("size", [32, 200])
def test_decoders_differ_by_no_more_than_the_docs_say(tmp_path: pathlib.Path, crop: str, size: int) -> None:
    if image_decoder.library() is None:
        pytest.skip("the decoder in C was not built here: docs/reader-speed.md lists what it needs")
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
    native = next(dataset.as_numpy("train", 12, decoder="native", **options))["image"].astype(int)
    difference = np.abs(native - by_tensorflow.read(dataset, 12, image_size=size, crop=crop))
    assert difference.max() <= 2
    assert difference.mean() < 0.6
    assert (difference == 2).mean() < 1e-3
