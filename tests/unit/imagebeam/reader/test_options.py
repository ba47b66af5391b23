"""Options: equal values of any type are accepted, all others are refused before anything is read."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import pathlib
import re
from typing import Any

import numpy as np
import pytest

import imagebeam
from imagebeam import features
from imagebeam.reader import crops, record_order
from imagebeam.reader import options as options_lib
from tests import case_tables, error_texts
from tests.unit.imagebeam.reader import written
from tests.unit.imagebeam.reader.feeding import one_device

STATE = imagebeam.ReaderState(0, 0, 0, "stream")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> imagebeam.ImageDataset:
    folder = tmp_path_factory.mktemp("options") / "out"
    examples = [{**written.jpeg_values(index), features.LABEL: index % 2} for index in range(10)]
    return written.write(folder, (*written.IMAGE, written.LABEL), examples, labels=("cat", "dog"))


@pytest.fixture
def unreadable(dataset: imagebeam.ImageDataset, monkeypatch: pytest.MonkeyPatch) -> imagebeam.ImageDataset:
    """The dataset, which fails a test as soon as anything is read from it."""
    opened = imagebeam.open_dataset(dataset.directory)

    def refuse(*_: object) -> None:
        raise AssertionError("read before the options were checked")

    monkeypatch.setattr(type(opened._source), "open_reader", refuse)
    monkeypatch.setattr(type(opened._source), "read", refuse)
    return opened


REFUSED: dict[str, list[dict[str, Any]]] = {
    "option-bad-value": [
        *({"batch_size": each} for each in (0, -1, 2.0, "2", True, (2,))),
        *({"image_size": each} for each in ("224", 224.0, 0, (224, 0), 1 << 20, (True, 8))),
        *({"normalize": each} for each in ("image_net", 127.5, ((1, 2), ()), (0, float("nan")), (127.5, 0))),
        *({"seed": each} for each in (1.0, "1", None)),
        *({"features": each} for each in ("image/key", [b"image/key"])),
        *({"state": each} for each in ({"seed": 0}, 5)),
        *({"area": each} for each in (0.5, (0.1, "1"), (0.5, 0.1))),
        *({"center_fraction": each} for each in (None, 2)),
        {"crop": "centre"},
        {"interpolation": "cubic"},
        {"antialias": 1},
        {"dct": "slow"},
        {"flip": "yes"},
        {"dtype": "bfloat"},
        {"shuffle": "streaming"},
        {"num_epochs": 1.5},
        {"process_index": "0"},
        {"process_index": 1},
        {"list_size": -1},
        {"label_base": -1},
        {"on_error": "ignore"},
        {"max_error_fraction": 1.5},
        {"shuffle_bytes": 1e9},
        {"shuffle_records": "all"},
        {"threads": 0},
        {"decoder": "nativ"},
    ],
    "option-unknown": [{"imagesize": 224}, {"xyz": 1}],
    "options-conflict": [
        {"image_size": None},
        {"crop": None},
        {"pad": True, "num_epochs": None},
        {"next_epoch_each_iteration": True},
        {"next_epoch_each_iteration": True, "num_epochs": 1, "state": STATE},
        {"dtype": "uint8", "normalize": "imagenet"},
        {"supervised": True, "features": ["image/key"]},
    ],
}


def test_wrong_value_is_refused_by_every_feed_before_anything_is_read(unreadable: imagebeam.ImageDataset) -> None:
    tf = pytest.importorskip("tensorflow")
    feeds: dict[str, Any] = {
        "as_tf": unreadable.as_tf,
        "as_numpy": unreadable.as_numpy,
        "as_distributed": functools.partial(unreadable.as_distributed, tf.distribute.OneDeviceStrategy("cpu:0")),
        "mix": lambda split, *batch_size, **options: imagebeam.mix([(unreadable, split)], [1], *batch_size, **options),
        "as_jax": lambda split, *batch_size, **options: unreadable.as_jax(split, one_device(), *batch_size, **options),
    }
    for code, options in [(code, each) for code, every in REFUSED.items() for each in every]:
        given = {"batch_size": 2, "dtype": "float32", **options}
        batch_size = given.pop("batch_size")
        for name, feed in feeds.items():
            if name == "as_jax" and {"process_index", "process_count", "state"} & set(options):
                continue
            with case_tables.named(name, options), error_texts.raises(code):
                feed("train", batch_size, **given)
    for filtered in ({"antialias": True}, {"interpolation": "bicubic"}):
        with case_tables.named(filtered), error_texts.raises("options-conflict"):
            unreadable.as_tf("train", image_size=None, crop=None, **filtered)


ACCEPTED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"batch_size": np.int64(8)}, {"batch_size": 8}),
    ({"image_size": np.int32(64)}, {"image_size": 64}),
    ({"image_size": [64, np.int16(32)]}, {"image_size": (64, 32)}),
    ({"image_size": np.array([64, 32])}, {"image_size": (64, 32)}),
    ({"flip": np.bool_(False)}, {"flip": False}),
    ({"dtype": np.float32}, {"dtype": "float32"}),
    ({"dtype": np.dtype("float16")}, {"dtype": "float16"}),
    ({"dtype": np.str_("uint8")}, {"dtype": "uint8"}),
    ({"dtype": "float32", "normalize": (127.5, 1)}, {"normalize": ((127.5,), (1.0,))}),
    ({"dtype": "float32", "normalize": [[1, 2, 3], 4]}, {"normalize": ((1.0, 2.0, 3.0), (4.0,))}),
    ({"dtype": "float32", "normalize": np.ones((2, 3))}, {"normalize": ((1.0,) * 3, (1.0,) * 3)}),
    ({"dtype": "float32", "normalize": (np.float32(1), np.array([2.0]))}, {"normalize": ((1.0,), (2.0,))}),
    ({"seed": np.uint8(7)}, {"seed": 7}),
    ({"seed": np.int64(-7)}, {"seed": -7}),
    ({"num_epochs": np.int64(3), "pad": np.bool_(True), "batch_size": 2}, {"num_epochs": 3, "pad": True}),
    (
        {"num_epochs": 1, "next_epoch_each_iteration": np.bool_(True)},
        {"num_epochs": 1, "next_epoch_each_iteration": True},
    ),
    ({"process_index": np.int64(1), "process_count": np.int64(2)}, {"process_index": 1, "process_count": 2}),
    ({"features": np.array(["a", "b"])}, {"features": ("a", "b")}),
    ({"features": iter(["a"])}, {"features": ("a",)}),
    ({"area": np.array([0.5, 1.0])}, {"area": (0.5, 1.0)}),
    ({"center_fraction": np.float32(0.5)}, {"center_fraction": 0.5}),
    ({"state": STATE}, {"state": STATE}),
]


def test_equal_value_of_another_type_is_accepted() -> None:
    for given, expected in ACCEPTED:
        options = imagebeam.ReadOptions(**given)
        for name, value in expected.items():
            found = getattr(options, name)
            assert found == value
            assert type(found) is type(value)


def test_types_of_tensorflow_and_jax_are_accepted() -> None:
    tf = pytest.importorskip("tensorflow")
    assert imagebeam.ReadOptions(dtype=tf.bfloat16).dtype == "bfloat16"
    jnp = pytest.importorskip("jax.numpy")
    assert imagebeam.ReadOptions(dtype=jnp.bfloat16).dtype == "bfloat16"
    assert imagebeam.ReadOptions(dtype=jnp.dtype("bfloat16")).dtype == "bfloat16"


def test_batch_size_that_fills_no_batch_is_refused(dataset: imagebeam.ImageDataset) -> None:
    for options, code in [
        ({"batch_size": 11, "num_epochs": 1}, "batch-never-full"),
        ({"batch_size": 6, "num_epochs": 1, "process_count": 2}, "batch-never-full"),
        ({"batch_size": 31, "num_epochs": 3}, "batch-never-full"),
    ]:
        with case_tables.named(options, code):
            with error_texts.raises(code):
                dataset.as_tf("train", **options)
            assert dataset.as_tf("train", **options, drop_remainder=False) is not None
            assert dataset.as_tf("train", **options, pad=True) is not None


def test_batch_size_above_the_split_is_a_warning_if_epochs_go_on(
    dataset: imagebeam.ImageDataset, caplog: pytest.LogCaptureFixture
) -> None:
    batch = next(dataset.as_numpy("train", 25, image_size=16, features=["image/key"]))
    assert len(batch["image/key"]) == 25
    assert "a process reads 10 examples of 'train': a batch holds some of them more than once" in caplog.text


@pytest.mark.parametrize("kind", [str, pathlib.Path])
def test_paths_of_pathlib_are_accepted(
    dataset: imagebeam.ImageDataset, tmp_path: pathlib.Path, kind: Any, far: Any
) -> None:
    assert imagebeam.open_dataset(kind(dataset.directory)).num_examples("train") == 10
    cached = imagebeam.open_dataset(f"far://{dataset.directory}", cache_dir=kind(tmp_path / "cache"))
    assert cached.as_grain("train", decode=False)[0]["image/key"] == b"0"
    assert imagebeam.load_catalog(kind(dataset.directory)) == dataset.catalog


def test_wrong_address_is_refused() -> None:
    for directory, options, code in [
        (5, {}, "option-bad-value"),
        (None, {}, "option-bad-value"),
        ("", {}, "option-bad-value"),
        (b"/x", {}, "option-bad-value"),
        (pathlib.Path("gs://bucket/x"), {}, "option-bad-value"),
        ("far://x", {"cache_dir": 7}, "option-bad-value"),
        ("far://x", {"cache_dir": "/c", "cache_bytes": 0}, "option-bad-value"),
        ("far://x", {"cache_dir": "/c", "cache_bytes": 1e9}, "option-bad-value"),
        ("far://x", {"cache_dir": "/c", "storage_options": "x"}, "option-bad-value"),
    ]:
        with case_tables.named(directory, options, code), error_texts.raises(code):
            imagebeam.open_dataset(directory, **options)


def test_process_that_comes_from_the_context_is_not_given_twice(dataset: imagebeam.ImageDataset) -> None:
    tf = pytest.importorskip("tensorflow")
    context = tf.distribute.InputContext(2, 1, 2)
    with error_texts.raises("options-conflict"):
        dataset.as_tf("train", 2, input_context=context, process_index=0)


def test_global_batch_that_replicas_cannot_share_is_refused(dataset: imagebeam.ImageDataset) -> None:
    pytest.importorskip("tensorflow")

    class Strategy:
        num_replicas_in_sync = 3

    with error_texts.raises("batch-size-indivisible"):
        dataset.as_distributed(Strategy(), "train", 8)


# --- crops -----------------------------------------------------------------------------------------------------------


HEIGHTS = np.array([375, 500, 1, 3000, 20, 7])
WIDTHS = np.array([500, 333, 400, 20, 3000, 7])


def uniforms(count: int, seed: int = 0) -> np.ndarray:
    return record_order.uniforms(
        np.arange(count), np.zeros(count, np.int64), record_order.make_key(seed), crops.NUM_UNIFORMS
    )


@pytest.mark.parametrize("crop", ["random", "center", "resize_shorter", "squash"])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_window_is_inside_an_image_of_any_shape(crop: str, dtype: type) -> None:
    height, width = np.repeat(HEIGHTS, 200).astype(dtype), np.repeat(WIDTHS, 200).astype(dtype)
    options = options_lib.ReadOptions(crop=crop, image_size=(224, 160))
    found = crops.windows(height, width, uniforms(len(height)), options)
    top, left, rows, columns = found.T
    assert found.dtype == np.int32 and found.flags.c_contiguous
    assert (top >= 0).all() and (left >= 0).all() and (rows >= 1).all() and (columns >= 1).all()
    assert (top + rows <= height).all() and (left + columns <= width).all()
    if crop == "squash":
        assert (rows == height).all() and (columns == width).all()


@pytest.mark.parametrize("crop", ["random", "center", "resize_shorter", "squash"])
def test_windows_of_no_images_are_empty(crop: str) -> None:
    nothing = np.zeros(0, np.int64)
    options = options_lib.ReadOptions(crop=crop)
    assert crops.windows(nothing, nothing, uniforms(0), options).shape == (0, 4)


def test_random_windows_have_the_requested_areas_ratios_and_places() -> None:
    count = 20_000
    height, width = np.full(count, 400), np.full(count, 500)
    top, left, rows, columns = crops.random_windows(height, width, uniforms(count), (0.08, 1.0), (0.75, 4 / 3)).T
    areas, ratios = rows * columns / 200_000, columns / rows
    assert 0.079 < areas.min() < 0.09 and 0.95 < areas.max() <= 1.0
    assert 0.74 < ratios.min() < 0.76 and 1.32 < ratios.max() < 1.35
    assert abs(np.log(ratios[areas < 0.5]).mean()) < 0.02
    free = rows < 400
    assert abs((top[free] / (400 - rows[free])).mean() - 0.5) < 0.02
    assert (left == 0).any() and (left + columns == 500).any()


def test_image_too_narrow_for_a_random_window_gives_its_middle() -> None:
    part = crops.random_windows(np.array([10]), np.array([1000]), uniforms(1), (0.9, 1.0), (0.75, 4 / 3))
    assert part.tolist() == [[0, 493, 10, 13]]


def test_center_window_is_the_middle_of_the_shorter_side() -> None:
    part = crops.center_windows(np.array([375]), np.array([500]), (224, 224), 224 / 256)
    assert part.tolist() == [[23, 86, 328, 328]]


@pytest.mark.parametrize(
    ("part", "reduction", "of_antialias"),
    [
        ((448, 448), 2, 1),
        ((447, 2000), 1, 1),
        ((896, 900), 4, 2),
        ((1792, 1792), 8, 4),
        ((9999, 9999), 8, 8),
        ((224, 224), 1, 1),
        ((7, 9), 1, 1),
    ],
)
def test_reduction_leaves_a_part_as_large_as_wanted(part: tuple[int, int], reduction: int, of_antialias: int) -> None:
    for antialias, expected in [(False, reduction), (True, of_antialias)]:
        options = options_lib.ReadOptions(crop="squash", antialias=antialias)
        parts = np.array([[0, 0, *part]], np.int32)
        frames = crops.frames(*parts[:, 2:].T, parts, options) if options.filters else None
        [index] = crops.reductions(parts, frames, options)
        assert crops.REDUCTIONS[index] == expected


def test_help_describes_every_option_once() -> None:
    described = re.findall(r"^    (\w+): ", inspect.getdoc(imagebeam.ReadOptions) or "", re.MULTILINE)
    assert described == [field.name for field in dataclasses.fields(imagebeam.ReadOptions)]
