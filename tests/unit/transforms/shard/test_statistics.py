from __future__ import annotations

import json
import math
import random

import numpy as np
import PIL.Image
import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagebeam.transforms.elements import ImageRef
from imagebeam.transforms.images import pixel_type, pixels
from imagebeam.transforms.images.checked_image import Image, PixelSums
from imagebeam.transforms.images.prepare import AS_IT_IS, ImagePolicy
from imagebeam.transforms.shard import statistics
from tests import image_sets


def make_image(seed: int) -> Image:
    """Returns an image of any kind and size; one number costs hypothesis a tenth of what all fields do."""
    draw = random.Random(seed)
    pixels = [[draw.randrange(256) for _ in range(3)] for _ in range(draw.randint(0, 4))]
    totals, squares = (tuple(sum(pixel[c] ** n for pixel in pixels) for c in range(3)) for n in (1, 2))
    return Image(
        data=draw.randbytes(draw.randint(0, 3)),
        format=draw.choice(["jpeg", "png"]),
        height=draw.randint(1, 100),
        width=draw.randint(1, 100),
        channels=3,
        colorspace=draw.choice(["RGB", "GRAY"]),
        sums=PixelSums(len(pixels), totals, squares) if pixels else None,
        orientation=draw.randint(1, 8),
    )


images = st.integers(0, 2**32).map(make_image)
labelled = st.lists(st.tuples(st.sampled_from(["cat", "dog", "caf\udce9"]), images), max_size=8)

NOTHING = {
    "formats": {},
    "colorspaces": {},
    "orientations": {},
    "labels": {},
    "shorter_side": {},
    "aspect_ratio": {},
    "height": {},
    "width": {},
    "bytes": {},
    "pixels": {},
}


def count(members: list[tuple[str | int | None, Image]]) -> dict[str, object]:
    builder = statistics.StatisticsBuilder()
    for label, image in members:
        builder.add(ImageRef("k", "/k", label=label).classes, statistics.measure("/k", image))
    return builder.build()


def test_build_counts_kinds_and_ranges() -> None:
    members = [
        ("dog", Image(b"12", "png", 7, 30, 4, "RGBA", orientation=6)),
        ("cat", Image(b"123", "jpeg", 5, 20, 3, "RGB")),
        ("dog", Image(b"1234", "jpeg", 9, 10, 1, "GRAY")),
    ]
    counted = count(members)
    assert counted == {
        "formats": {"jpeg": 2, "png": 1},
        "colorspaces": {"GRAY": 1, "RGB": 1, "RGBA": 1},
        "orientations": {"6": 1},
        "labels": {"cat": 1, "dog": 2},
        "shorter_side": {"4-7": 2, "8-15": 1},
        "aspect_ratio": {"1.05-1.25": 1, ">=2": 2},
        "pixels": {},
        "height": {"min": 5, "max": 9, "sum": 21},
        "width": {"min": 10, "max": 30, "sum": 60},
        "bytes": {"min": 2, "max": 4, "sum": 9},
    }
    assert list(counted["labels"]) == ["cat", "dog"]  # sorted, so that the same images give the same file


@given(st.lists(labelled, max_size=4))
def test_merge_of_parts_is_the_statistics_of_the_whole(parts: list[list[tuple[str, Image]]]) -> None:
    merged = statistics.merge_statistics(map(count, parts))
    assert NOTHING | merged == count([member for part in parts for member in part])


@given(labelled, labelled)
def test_subtraction_leaves_the_statistics_of_what_remains(
    kept: list[tuple[str, Image]], removed: list[tuple[str, Image]]
) -> None:
    found = statistics.subtract_statistics(count(kept + removed), count(removed))
    expected = count(kept)
    for name in ("height", "width", "bytes"):  # least and greatest may be those of a removed image
        of_found, of_expected = found.pop(name), expected.pop(name)
        assert of_found.get("sum") == of_expected.get("sum")
    assert found == expected


@given(labelled)
def test_build_of_large_shard_sums_up_early_and_keeps_few_values(members: list[tuple[str, Image]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statistics, "_MAX_IMAGES", 3)
        builder = statistics.StatisticsBuilder()
        for label, image in members:
            builder.add(ImageRef("k", "/k", label=label).classes, statistics.measure("/k", image))
            assert len(builder._images) == len(builder._classes) < 3
        assert builder.build() == count(members)
    assert builder.build() == count(members)  # with the default, no list fills up


# --- statistics.json -------------------------------------------------------------------------------------------------


def test_sizes_and_aspect_ratios_are_counted_in_bins() -> None:
    for height, width, side, ratio in [
        (1, 1, "1-1", "0.95-1.05"),
        (3, 2, "2-3", "0.5-0.67"),
        (375, 500, "256-511", "1.25-1.5"),
        (256, 512, "256-511", ">=2"),
        (1024, 511, "256-511", "<0.5"),
        (1024, 512, "512-1023", "0.5-0.67"),
        (65_500, 65_500, "32768-65535", "0.95-1.05"),
    ]:
        counted = count([(None, Image(b"", "png", height, width, 3, "RGB"))] * 2)
        assert (counted["shorter_side"], counted["aspect_ratio"]) == ({side: 2}, {ratio: 2})


def test_bins_are_ordered_by_their_bounds() -> None:
    sizes = [(1000, 300), (9, 9), (100, 250), (40, 50)]
    parts = [count([(None, Image(b"", "png", *size, 3, "RGB"))]) for size in sizes]
    merged = json.loads(json.dumps(statistics.merge_statistics(parts)))
    assert list(merged["shorter_side"]) == ["8-15", "32-63", "64-127", "256-511"]
    assert list(merged["aspect_ratio"]) == ["<0.5", "0.95-1.05", "1.25-1.5", ">=2"]


@given(st.lists(labelled, max_size=4))
def test_merge_of_parts_read_from_json_is_the_merge_of_the_parts(parts: list[list[tuple[str, Image]]]) -> None:
    counted = [count(part) for part in parts]
    stored = [json.loads(json.dumps(each)) for each in counted]
    described = statistics.describe_statistics(statistics.merge_statistics(stored))
    assert described == statistics.describe_statistics(statistics.merge_statistics(counted))


def test_mean_and_deviation_cover_all_pixels() -> None:
    rng = np.random.default_rng(3)
    pictures = [rng.integers(0, 256, (height, 5, 3)) for height in (1, 7, 30)]
    members = []
    for each in pictures:
        pixels = each.reshape(-1, 3)
        counted = PixelSums(len(pixels), tuple(pixels.sum(0).tolist()), tuple((pixels**2).sum(0).tolist()))
        members.append((None, Image(b"", "png", 5, len(pixels) // 5, 3, "RGB", counted)))
    described = statistics.describe_statistics(statistics.merge_statistics(map(count, ([each] for each in members))))
    pixels = np.concatenate([each.reshape(-1, 3) for each in pictures])
    assert described["pixels"]["images"] == 3
    np.testing.assert_allclose(described["pixels"]["mean"], pixels.mean(0), rtol=1e-12)
    np.testing.assert_allclose(described["pixels"]["std"], pixels.std(0), rtol=1e-12)


def test_deviation_of_very_many_pixels_loses_no_digits() -> None:
    number = 10**15  # half of them 200, half 201: a difference of floats would say 0, or no number at all
    totals, squares = (number // 2 * 401,) * 3, (number // 2 * (200**2 + 201**2),) * 3
    image = Image(b"", "png", 1, 1, 3, "RGB", PixelSums(number, totals, squares))
    described = statistics.describe_statistics(count([(None, image)]))
    assert described["pixels"] == {"images": 1, "mean": [200.5] * 3, "std": [0.5] * 3}


def test_class_weights_give_each_class_the_same_total_weight() -> None:
    image = Image(b"", "png", 1, 1, 3, "RGB")
    described = statistics.describe_statistics(count([("cat", image)] * 6 + [("dog", image)] * 2))
    assert described["class_weights"] == {"cat": 8 / (2 * 6), "dog": 8 / (2 * 2)}
    assert math.isclose(sum(described["labels"][name] * w for name, w in described["class_weights"].items()), 8)


# --- dark images -----------------------------------------------------------------------------------------------------


def encode_wide(highest: int, format: str = "TIFF") -> bytes:
    values = np.full((4, 4), highest // 2, np.uint16)
    values[1, 2] = highest
    return image_sets.save(PIL.Image.fromarray(values), format)


def count_dark(*files: bytes, policy: ImagePolicy = AS_IT_IS) -> dict[str, dict[str, int]]:
    dark = statistics.DarkImages()
    for number, data in enumerate(files):
        dark.add(str(number), policy.prepare(data), policy.narrowing_level)
    return {name: dict(counts) for name, counts in dark.counts().items()}


def test_image_of_few_bits_is_dark() -> None:
    for highest, bits in [(1, 1), (1023, 10), (4021, 12), (16_383, 14), (0, None), (16_384, None), (65_535, None)]:
        for format in ["tiff", "png"]:
            expected = {"dark": {f"{format} up to {bits} bits": 1}, "dark_files": {"0": highest}} if bits else {}
            found = count_dark(encode_wide(highest, format.upper()))
            assert found == {"wide": {format: 1}, **expected}


def test_image_is_dark_for_its_white_level() -> None:
    policy = ImagePolicy(white_level=4095)
    assert count_dark(encode_wide(4021), encode_wide(1024), policy=policy) == {}
    assert count_dark(encode_wide(1023, "PNG"), policy=policy)["dark"] == {"png up to 10 bits": 1}


def test_only_the_first_are_named_and_only_a_few_kept_pngs_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[PIL.Image.Image] = []
    find_highest = pixels.find_highest
    monkeypatch.setattr(pixels, "find_highest", lambda picture: decoded.append(picture) or find_highest(picture))
    found = count_dark(*[encode_wide(100 + n, "PNG") for n in range(9)])
    assert found == {"wide": {"png": 9}, "dark": {"png up to 7 bits": 4}, "dark_files": {"0": 100, "1": 101, "2": 102}}
    assert len(decoded) == 4
    assert count_dark(*[encode_wide(100)] * 9)["dark"] == {"tiff up to 7 bits": 9}


def test_other_images_and_broken_pngs_are_not_dark() -> None:
    assert count_dark(image_sets.make_image(1), image_sets.make_image(1, "PNG")) == {}
    dark, data = statistics.DarkImages(), encode_wide(100, "PNG")
    dark.add("cut", ImagePolicy().prepare(data)._replace(data=data[:-30]), pixels.WHITE)
    assert dark.counts() == {"wide": {"png": 1}}
    assert count_dark(encode_wide(100, "PNG"), policy=ImagePolicy(numbers=pixel_type.PixelType("uint16"))) == {}
