"""Lists of images: any number of them in an example, which become one array of a batch.

The images of an example have one draw of the crop and the flip: the same part of each, as its own sides allow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from imagebeam import errors, example, features
from imagebeam.reader import bare_pixels
from imagebeam.reader import options as options_lib

COUNT = "image/count"  # in a batch: how many images an example has stored


class ImageList(NamedTuple):
    """The images of one example."""

    images: Sequence[memoryview]  # encoded; the first ones, as many as a batch takes
    sides: np.ndarray  # int64 [n, 2]: height and width of each, as the record says
    num_stored: int


NOTHING = ImageList([], np.zeros((0, 2), np.int64), 0)  # of a record that cannot be read


def check(directory: str, by_source: Mapping[str, features.Feature], asked: options_lib.ReadOptions) -> None:
    """Checks that the options fit a dataset with or without lists of images.

    Raises:
        ConfigError: if they do not.
    """
    if not features.is_list_of_images(by_source[features.ENCODED]):
        if asked.max_images is not None:
            raise errors.ConfigError(
                "options-conflict",
                f"max_images is {asked.max_images}, and {directory} has one image in each example: leave it out",
            )
        return
    if asked.max_images is None:
        raise errors.ConfigError(
            "max-images-missing",
            f"the examples of {directory} have any number of images, and a batch has room for one number: give "
            f"max_images, and {COUNT!r} says how many an example has; as_grain gives all of them",
        )
    if asked.crop is None:
        raise errors.ConfigError(
            "options-conflict",
            f"image_size=None keeps the size of each image, and max_images={asked.max_images} puts several into one "
            "array: give image_size",
        )
    if dropped := [side for side in bare_pixels.SHAPE[:2] if side not in by_source]:
        raise errors.ConfigError(
            "image-without-sides",
            f"max_images needs {' and '.join(dropped)} in {directory}, which the config dropped: convert again with "
            f"{'it' if len(dropped) == 1 else 'them'}",
        )


def find(content: bytes, keys: Sequence[str], max_images: int) -> ImageList:
    """Returns the images in a record, without a copy.

    Args:
        content: the record.
        keys: of the images, their heights and their widths.
        max_images: how many are taken, from the first one on.

    Raises:
        ValueError: if there is none, or they have other numbers of sides.
    """
    image, *of_sides = keys
    found = example.locate_values(content, image, of_sides)
    if not found.spans:
        raise ValueError(f"feature {image!r} has no values")
    sides = [found.values.get(key, []) for key in of_sides]
    if any(len(each) != len(found.spans) for each in sides):
        numbers = [len(found.spans), *map(len, sides)]
        raise ValueError(f"features {', '.join(keys)} have {', '.join(map(str, numbers))} values")
    view = memoryview(content)
    images = [view[start : start + length] for start, length in found.spans[:max_images]]
    return ImageList(images, np.array(sides, np.int64).T[:max_images], len(found.spans))


class Flat(NamedTuple):
    """The images of several examples, one after the other."""

    images: list[bytes | memoryview]
    owners: np.ndarray  # int64 [m]: index of the example of each
    sides: tuple[np.ndarray, np.ndarray]  # int64 [m]: heights and widths


def flatten(lists: Sequence[ImageList]) -> Flat:
    """Returns the images of examples, one after the other."""
    sides = np.concatenate([NOTHING.sides, *(each.sides for each in lists)])
    owners = np.repeat(np.arange(len(lists)), [len(each.images) for each in lists])
    return Flat([image for each in lists for image in each.images], owners, (sides[:, 0], sides[:, 1]))


def places_of(owners: np.ndarray) -> np.ndarray:
    """Returns the place of each image in its example, int64 [m], given `Flat.owners`."""
    return np.arange(len(owners)) - np.searchsorted(owners, owners)


def stack(images: np.ndarray, owners: np.ndarray, stacked: np.ndarray, blank: np.ndarray) -> np.ndarray:
    """Puts decoded images into an array of examples, and fills up with black images; returns it.

    Args:
        images: [m, height, width, channels].
        owners: as of `Flat`.
        stacked: [n, max_images, height, width, channels].
        blank: as of `ImageDecoder`.
    """
    stacked[...] = blank
    stacked[owners, places_of(owners)] = images
    return stacked
