"""Examples with further images, as a shard writer reads and checks them."""

from __future__ import annotations

import os
import pathlib

import pytest

from imagebeam import example, features
from imagebeam.transforms.elements import FurtherImage, ImageRef, Mask, Reason, Reject
from imagebeam.transforms.images import checked_image, prepare, structure
from imagebeam.transforms.shard import encode, image_hashes, read_ahead, read_images
from tests import image_sets

FIRST = image_sets.make_image(1)
SECOND = image_sets.make_image(2, "PNG", size=(10, 30))
MASK = image_sets.make_image(3, "PNG", "L")


@pytest.fixture
def refs(tmp_path: pathlib.Path) -> list[ImageRef]:
    """References of an image with a mask and two further images, of one without, and of one with one further image."""
    files = {"a.jpg": FIRST, "b.png": SECOND, "m.png": MASK}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    stats = {
        name: (str(tmp_path / name), len(data), os.stat(tmp_path / name).st_mtime_ns) for name, data in files.items()
    }
    a, b = (FurtherImage(*stats[name], column) for name, column in (("a.jpg", "left"), ("b.png", "right")))
    ref = ImageRef("a.jpg", *stats["a.jpg"])
    return [ref._replace(mask=Mask(*stats["m.png"]), further=(a, b)), ref, ref._replace(further=(b,))]


def read(refs: list[ImageRef], policy: prepare.ImagePolicy = prepare.AS_IT_IS) -> list[checked_image.Image | Reject]:
    return [image for _, image in read_images.read_images(refs, policy, read_ahead.READ_AHEAD)]


def test_each_example_gets_the_files_of_its_own_row(refs: list[ImageRef]) -> None:
    images = read(refs)
    found = [(each.data, bool(each.mask), *(other.data for other in each.further)) for each in images]  # type: ignore[union-attr]
    assert found == [(FIRST, True, FIRST, SECOND), (FIRST, False), (FIRST, False, SECOND)]


def test_further_image_is_stored_under_its_name_with_format_and_size(refs: list[ImageRef]) -> None:
    wanted = features.resolve_features({}, None, {}, further=("after",))
    [image] = read(refs[2:])
    assert isinstance(image, checked_image.Image)
    values = example.parse_example(
        b"".join(encode.ExampleRecipe(wanted, {}, further=("after",)).encode(refs[2], image))
    )
    assert {key.removeprefix("image/after/"): each for key, each in values.items() if "after" in key} == {
        "encoded": [SECOND],
        "format": [b"png"],
        "height": [30],
        "width": [10],
    }
    assert (values["image/encoded"], values["image/height"]) == ([FIRST], [16])


def test_file_that_changed_since_the_listing_is_a_reject(refs: list[ImageRef]) -> None:
    (further,) = refs[2].further
    later = refs[2]._replace(further=(further._replace(version=1),))
    [reject] = read([later])
    assert isinstance(reject, Reject)
    assert (reject.key, reject.uri, reject.stage, reject.reason) == ("a.jpg", refs[2].uri, "read", Reason.CHANGED)
    assert reject.detail.startswith(f"column 'right', {further.uri!r}: was written since it was listed")


def test_limits_hold_for_every_image(refs: list[ImageRef]) -> None:
    policy = prepare.ImagePolicy(limits=checked_image.Limits(max_side=25))
    rejects = [each for each in read(refs, policy) if isinstance(each, Reject)]
    assert [each.reason for each in rejects] == [Reason.TOO_LARGE] * 2
    assert all(each.detail.startswith("column 'right', ") for each in rejects)


def test_images_that_are_too_large_together_are_a_reject(refs: list[ImageRef], monkeypatch: pytest.MonkeyPatch) -> None:
    num_bytes = len(FIRST) + len(SECOND)
    monkeypatch.setattr(structure, "MAX_IMAGE_BYTES", num_bytes - 1)
    image, reject = read(refs[1:])
    assert not isinstance(image, Reject) and isinstance(reject, Reject)
    assert reject.reason is Reason.TOO_LARGE
    assert reject.detail == (f"its 2 images have {num_bytes:,} bytes, a tf.train.Example takes up to {num_bytes - 1:,}")


def test_duplicates_and_pixel_sums_are_of_the_first_image(refs: list[ImageRef]) -> None:
    hasher = image_hashes.Hasher(contents=True)
    policy = prepare.ImagePolicy(sum_pixels=True)
    found = [image for _, image in read_images.read_images(refs[1:], policy, read_ahead.READ_AHEAD, hasher=hasher)]
    alone, together = (each for each in found if isinstance(each, checked_image.Image))
    assert (alone.hashes, alone.sums) == (together.hashes, together.sums) and alone.sums is not None
    assert [each.sums for each in together.further] == [None]


def test_content_for_the_next_update_covers_every_file(refs: list[ImageRef]) -> None:
    kept = [ref._replace(content=b"8 bytes.") for ref in refs]
    contents = [ref.content for ref, _ in read_images.read_images(kept, prepare.AS_IT_IS, read_ahead.READ_AHEAD)]
    assert len(set(contents)) == 3
