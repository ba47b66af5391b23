"""Several views of each image: their pixels and random numbers, the same in any process and after any restart."""

from __future__ import annotations

import functools
import hashlib
import io
import itertools
import math
import pathlib
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from PIL import Image

import imagebeam
from imagebeam import features
from tests import case_tables, docs_pages, error_texts
from tests.unit.imagebeam.reader import sized_sets, written
from tests.unit.imagebeam.reader.restarts import WAYS, values_around_a_restart, values_of

pytest.importorskip("imagebeam._native")

Example = dict[str, Any]
SIZE = 20
SEED = 5
SETS: dict[str, dict[str, Any]] = {
    "crops": {
        "global": (2, 16, {"area": (0.4, 1), "color_jitter": {"brightness": 0.3, "hue": 0.1}}),
        "local": (3, 8, {"area": (0.05, 0.4), "erasing": 0.5}),
    },
    "kinds": {
        "first": (1, 16),
        "second": (1, (8, 12), {"crop": "letterbox", "flip": True}),
        "third": (2, 7, {"crop": "center", "center_fraction": 0.5}),
        "fourth": (1, 20, {"crop": "pad", "pad_pixels": 3}),
    },
    "one name": {"image": (2, 9)},
}
BASE: dict[str, Any] = {"seed": SEED, "metadata": True, "features": ("image/key",)}
Values = dict[tuple[int, int], Any]  # by record and round


def draw(example: Example, rng: np.random.Generator) -> Example:
    return {**example, "draw": rng.integers(1 << 62)}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> imagebeam.ImageDataset:
    """JPEGs of several sizes, with colors of half the resolution."""
    examples = [
        {**written.jpeg_values(index, width=30 + 5 * index, height=40), features.LABEL: index % 2}
        for index in range(SIZE)
    ]
    folder = tmp_path_factory.mktemp("views") / "out"
    return written.write(folder, (*written.IMAGE, written.LABEL), examples, labels=("cat", "dog"))


@pytest.fixture(scope="module")
def in_one_process(dataset: imagebeam.ImageDataset) -> Any:
    @functools.cache
    def read(name: str, repeats: int) -> Values:
        options = {**BASE, "views": SETS[name], "repeats": repeats, "shuffle": "global", "num_epochs": 2, "map": draw}
        found: Values = {}
        for batch in dataset.as_numpy("train", 7, **options, drop_remainder=False, crop="random"):
            found |= values_of(batch, repeats)
        assert len(found) == 2 * repeats * SIZE
        return found

    return read


@hypothesis.settings(max_examples=50)
@hypothesis.given(
    data=st.data(),
    name=st.sampled_from(sorted(SETS)),
    shuffle=st.sampled_from(["stream", "global", None]),
    way=st.sampled_from(sorted(WAYS)),
    repeats=st.integers(1, 3),
    count=st.integers(1, 4),
    size=st.integers(1, 7),
)
def test_views_are_the_same_in_any_process_and_after_any_restart(
    dataset: imagebeam.ImageDataset,
    in_one_process: Any,
    data: st.DataObject,
    name: str,
    shuffle: str | None,
    way: str,
    repeats: int,
    count: int,
    size: int,
) -> None:
    repeats = repeats if shuffle else 1
    options = {**BASE, **WAYS[way], "views": SETS[name], "repeats": repeats, "shuffle": shuffle}
    options |= {"num_epochs": 2, "map": draw, "crop": "random"}
    seen = values_around_a_restart(
        dataset, data, options, size, count, 2 * repeats * SIZE, lambda batch: values_of(batch, repeats)
    )
    expected = in_one_process(name, repeats)
    assert seen.items() <= expected.items() if way == "drop" else seen == expected


# --- pixels, computed again as the page says --------------------------------------------------------------

MASK = (1 << 64) - 1


def mix(value: int) -> int:
    """One step of splitmix64."""
    value = (value + 0x9E3779B97F4A7C15) & MASK
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & MASK
    return value ^ value >> 31


def uniforms(record: int, rounds: int, view: tuple[str, int]) -> list[float]:
    key = hashlib.blake2b(repr(("pixels", SEED, *view)).encode(), digest_size=8).digest()
    seed = mix((mix(record ^ int.from_bytes(key, "little")) + rounds) & MASK)
    return [(mix((seed + number * 0x9E3779B97F4A7C15) & MASK) >> 40) / 2**24 for number in range(23)]


def random_window(height: int, width: int, drawn: list[float], area: tuple[float, float]) -> tuple[int, int, int, int]:
    """Returns top, left, height and width as torchvision's RandomResizedCrop finds them."""
    for part, position in zip(drawn[:10], drawn[10:20], strict=True):
        wanted = height * width * (area[0] + (area[1] - area[0]) * part)
        ratio = math.exp(math.log(3 / 4) + (math.log(4 / 3) - math.log(3 / 4)) * position)
        rows, columns = round(math.sqrt(wanted / ratio)), round(math.sqrt(wanted * ratio))
        if 1 <= rows <= height and 1 <= columns <= width:
            return int(drawn[20] * (height - rows + 1)), int(drawn[21] * (width - columns + 1)), rows, columns
    rows, columns = round(min(height, width / (3 / 4))), round(min(width, height * (4 / 3)))
    return (height - rows) // 2, (width - columns) // 2, rows, columns


def bilinear(pixels: np.ndarray, side: int) -> np.ndarray:
    """Resizes from the four nearest pixels."""
    for axis in (0, 1):
        at = np.clip((np.arange(side) + 0.5) * pixels.shape[axis] / side - 0.5, 0, pixels.shape[axis] - 1)
        low, share = np.floor(at).astype(int), (at % 1).reshape((-1, 1, 1) if axis == 0 else (1, -1, 1))
        high = np.minimum(low + 1, pixels.shape[axis] - 1)
        pixels = np.take(pixels, low, axis) * (1 - share) + np.take(pixels, high, axis) * share
    return pixels


@pytest.mark.parametrize("repeats", [1, 2])
def test_pixels_of_a_view_are_those_of_its_window_in_the_whole_image(
    dataset: imagebeam.ImageDataset, repeats: int
) -> None:
    areas = {"large": (0.4, 1.0), "small": (0.1, 0.4)}
    views = {"large": (2, 30, {"area": areas["large"]}), "small": (3, 20, {"area": areas["small"]})}
    sources = {
        record: np.asarray(Image.open(io.BytesIO(example["image"])).convert("RGB"))
        for record, example in enumerate(dataset.as_grain("train", decode=False))
    }
    options = {"seed": SEED, "views": views, "metadata": True, "dct": "accurate", "num_epochs": 2, "repeats": repeats}
    num_checked = 0
    for batch in dataset.as_numpy("train", 10, **options):
        for row, record in enumerate(batch["record"].tolist()):
            rounds = int(batch["epoch"][row]) * repeats + (int(batch["copy"][row]) if repeats > 1 else 0)
            for name, (number, side, _) in views.items():
                for index in range(number):
                    drawn = uniforms(record, rounds, (name, index))
                    source = sources[record].astype(float)
                    top, left, rows, columns = random_window(*source.shape[:2], drawn, areas[name])
                    if min(rows, columns) >= 2 * side:
                        continue  # decoded at half of its size
                    expected = bilinear(source[top : top + rows, left : left + columns], side)
                    expected = expected[:, ::-1] if drawn[22] < 0.5 else expected
                    assert np.abs(batch[name][row, index] - expected).max() <= 2
                    num_checked += 1
    assert num_checked > 2 * repeats * SIZE * 4


def test_view_does_not_depend_on_the_others(dataset: imagebeam.ImageDataset) -> None:
    options: dict[str, Any] = {"seed": SEED, "num_epochs": 1}
    every, alone, reordered = (
        next(dataset.as_numpy("train", SIZE, **options, views=views))
        for views in (
            SETS["crops"],
            {"local": SETS["crops"]["local"], "other": (1, 5)},
            {"local": (5, 8, SETS["crops"]["local"][2]), "global": SETS["crops"]["global"]},
        )
    )
    np.testing.assert_array_equal(every["local"], alone["local"])
    np.testing.assert_array_equal(every["local"], reordered["local"][:, :3])
    np.testing.assert_array_equal(every["global"], reordered["global"])
    for first, second in itertools.combinations(range(3), 2):
        assert (every["local"][:, first] != every["local"][:, second]).any(axis=(1, 2, 3)).all()


@case_tables.each_case("views", SETS)
def test_levels_of_views_become_values_and_padding_is_black(
    dataset: imagebeam.ImageDataset, views: dict[str, Any]
) -> None:
    options: dict[str, Any] = {"views": views, "shuffle": None}
    levels = list(dataset.as_numpy("train", 13, **options))
    floats = list(dataset.as_numpy("train", 13, **options, dtype="float32", normalize=(128, 2)))
    for one, other in zip(levels, floats, strict=True):
        assert one["mask"].tolist() == other["mask"].tolist()
        for each in views:
            np.testing.assert_array_equal((one[each].astype(np.float32) - 128) / 2, other[each])
    assert not levels[1][next(iter(views))][7:].any()  # black, where the mask is False


def test_pillow_makes_the_same_views(dataset: imagebeam.ImageDataset) -> None:
    views = {"large": (2, 24, {"area": (0.4, 1)}), "small": (3, 9, {"crop": "center"})}
    in_c, by_pillow = (
        next(
            dataset.as_numpy("train", SIZE, num_epochs=1, views=views, dct="accurate", antialias=True, decoder=decoder)
        )
        for decoder in ("native", "pillow")
    )
    for name in views:
        difference = np.abs(in_c[name].astype(int) - by_pillow[name])
        assert difference.max() <= 2 and difference.mean() < 0.05


def test_views_of_the_page_have_its_shapes(dataset: imagebeam.ImageDataset) -> None:
    snippet = docs_pages.blocks("augmentation.md", "python")[0].replace("64,", "4,")
    batch = docs_pages.run_snippet(f"ds = __import__('imagebeam').open_dataset({dataset.directory!r})\n{snippet}")[
        "batch"
    ]
    assert {name: each.shape for name, each in batch.items()} == {
        "global": (4, 2, 224, 224, 3),
        "local": (4, 8, 96, 96, 3),
        "label": (4,),
    }


# --- functions and feeds --------------------------------------------------------------


def blur_first(example: Example, rng: np.random.Generator) -> Example:
    """Changes the first of the global views, and joins the local ones."""
    views = example["global"].copy()
    views[0] = views[0] // 2 + rng.integers(100)
    return {**example, "global": views, "mean": example["local"].mean(axis=(1, 2))}


def double(batch: Example, rng: np.random.Generator) -> Example:
    return {**batch, "twice": 2 * batch["label"]}


@pytest.mark.slow
def test_processes_call_map_on_all_views(dataset: imagebeam.ImageDataset) -> None:
    options = {"views": SETS["crops"], "num_epochs": 1, "map": blur_first, "batch_map": double}
    here, there = (list(dataset.as_numpy("train", 5, **options, map_workers=workers)) for workers in (0, 2))
    assert len(here) == len(there) == 4
    for one, other in zip(here, there, strict=True):
        assert list(one) == list(other) == ["global", "local", "label", "mean", "twice"]
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])
    assert here[0]["mean"].shape == (5, 3, 3)


def test_every_feed_gives_views(dataset: imagebeam.ImageDataset) -> None:
    sized_sets.check_feeds(sized_sets.OfSplit(dataset), 5, views=SETS["kinds"], num_epochs=1, seed=SEED)


def test_mixture_gives_views(dataset: imagebeam.ImageDataset) -> None:
    mixture = imagebeam.Mixture([(dataset, "train"), (dataset.filter(["dog"]), "train")], [1, 1])
    options: dict[str, Any] = {"views": SETS["crops"], "shuffle": "global", "metadata": True, "num_epochs": 2}
    whole = [each for batch in mixture.as_numpy(4, **options) for each in batch["local"]]
    parts = [list(mixture.as_numpy(2, **options, process_count=2, process_index=index)) for index in range(2)]
    dealt = [each for pair in zip(*parts, strict=True) for batch in pair for each in batch["local"]]
    np.testing.assert_array_equal(whole, dealt)


def test_broken_image_is_skipped_with_all_of_its_views(tmp_path: pathlib.Path) -> None:
    examples = [{**written.jpeg_values(index), features.LABEL: index} for index in range(4)]
    examples[2][features.ENCODED] = examples[2][features.ENCODED][:-150]
    made = written.write(tmp_path / "out", (*written.IMAGE, written.LABEL), examples, labels=tuple("abcd"))
    options: dict[str, Any] = {"views": {"all": (3, 8, {"crop": "squash"})}, "shuffle": None}
    with error_texts.raises("example-broken"):
        list(made.as_numpy("train", 2, **options))
    for decoder in ("native", "pillow"):
        batches = made.as_numpy("train", 2, **options, decoder=decoder, on_error="skip", max_error_fraction=1)
        labels = [label for batch in batches for label in batch["label"][batch["mask"]].tolist()]
        assert labels == [0, 1, 3]


REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "no names": ("option-bad-value", {"views": {}}),
    "a list": ("option-bad-value", {"views": [(2, 224)]}),
    "no size": ("option-bad-value", {"views": {"a": (2,)}}),
    "no number": ("option-bad-value", {"views": {"a": (0, 8)}}),
    "no side": ("option-bad-value", {"views": {"a": (1, 0)}}),
    "empty name": ("option-bad-value", {"views": {"": (1, 8)}}),
    "no options": ("option-bad-value", {"views": {"a": (1, 8, "crop")}}),
    "unknown option": ("option-unknown", {"views": {"a": (1, 8, {"dtype": "uint8"})}}),
    "bad option": ("option-bad-value", {"views": {"a": (1, 8, {"area": (1, 0)})}}),
    "no crop": ("options-conflict", {"views": {"a": (1, 8, {"crop": None})}}),
    "two sizes": ("options-conflict", {"views": {"a": (1, 8)}, "image_size": 8}),
    "filter of one": ("options-conflict", {"views": {"a": (1, 8), "b": (1, 8, {"crop": "resize_shorter"})}}),
    "a pair": ("options-conflict", {"views": {"a": (1, 8)}, "supervised": True}),
    "other images": ("options-conflict", {"views": {"a": (1, 8)}, "images": ["target"]}),
    "the label": ("options-conflict", {"views": {"label": (1, 8)}}),
    "a feature": ("feature-name-taken", {"views": {"image/key": (1, 8)}, "features": ["image/key"]}),
    "pillow": ("decoder-cannot-change", {"views": {"a": (1, 8, {"erasing": 0.5})}, "decoder": "pillow"}),
    "map without them": ("map-bad-result", {"views": {"a": (1, 8)}, "map": lambda example, rng: {"label": 1}}),
}


@case_tables.each_case("code, options", REFUSED)
def test_wrong_views_are_refused(dataset: imagebeam.ImageDataset, code: str, options: dict[str, Any]) -> None:
    with error_texts.raises(code):
        next(dataset.as_numpy("train", 2, **options))
