"""Which images of 16 bits are counted as nearly black."""

from __future__ import annotations

import io

import numpy as np
import PIL.Image
import pytest

from imagebeam.transforms.images import pixels
from imagebeam.transforms.images.prepare import AS_IT_IS, ImagePolicy
from imagebeam.transforms.shard import statistics
from tests import image_sets


def encode(highest: int, format: str = "TIFF") -> bytes:
    values = np.full((4, 4), highest // 2, np.uint16)
    values[1, 2] = highest
    buffer = io.BytesIO()
    PIL.Image.fromarray(values).save(buffer, format)
    return buffer.getvalue()


def count(*files: bytes, policy: ImagePolicy = AS_IT_IS) -> dict[str, dict[str, int]]:
    dark = statistics.DarkImages()
    for number, data in enumerate(files):
        dark.add(str(number), policy.prepare(data), policy.white_level)
    return {name: dict(counts) for name, counts in dark.counts().items()}


def test_image_of_few_bits_is_dark() -> None:
    for highest, bits in [(1, 1), (1023, 10), (4021, 12), (16_383, 14), (0, None), (16_384, None), (65_535, None)]:
        for format in ["tiff", "png"]:
            expected = {"dark": {f"{format} up to {bits} bits": 1}, "dark_files": {"0": highest}} if bits else {}
            assert count(encode(highest, format.upper())) == expected


def test_image_is_dark_for_its_white_level() -> None:
    policy = ImagePolicy(white_level=4095)
    assert count(encode(4021), encode(1024), policy=policy) == {}
    assert count(encode(1023, "PNG"), policy=policy)["dark"] == {"png up to 10 bits": 1}


def test_only_the_first_are_named_and_only_a_few_kept_pngs_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[PIL.Image.Image] = []
    find_highest = pixels.find_highest
    monkeypatch.setattr(pixels, "find_highest", lambda picture: decoded.append(picture) or find_highest(picture))
    found = count(*[encode(100 + n, "PNG") for n in range(9)])
    assert found == {"dark": {"png up to 7 bits": 4}, "dark_files": {"0": 100, "1": 101, "2": 102}}
    assert len(decoded) == 4
    assert count(*[encode(100)] * 9)["dark"] == {"tiff up to 7 bits": 9}


def test_other_images_and_broken_pngs_are_not_dark() -> None:
    assert count(image_sets.make_image(1), image_sets.make_image(1, "PNG")) == {}
    dark, data = statistics.DarkImages(), encode(100, "PNG")
    dark.add("cut", ImagePolicy().prepare(data)._replace(data=data[:-30]), pixels.WHITE)
    assert dark.counts() == {}
