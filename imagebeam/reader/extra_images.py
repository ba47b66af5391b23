"""Extra images of an example, which get the crop, flip and size of its first image: pairs, and masks of classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from imagebeam import catalog as catalog_lib
from imagebeam import errors, features
from imagebeam.reader import bare_pixels, crops, object_options

SEGMENTATION = "image/segmentation/class/encoded"  # source of the mask of an example


class ExtraImage(NamedTuple):
    """An image of each example that gets the geometry of the first one."""

    name: str  # in a batch
    stored: tuple[features.Feature, ...]  # encoded, height, width; a mask has the sides of the first image
    # Of numbers that are resized to the nearest pixel and keep their type: classes, depth. None of colors, which become
    # like the first image.
    form: bare_pixels.PixelForm | None = None
    size: tuple[int, int] | None = None  # height and width of numbers in a batch, if they are not those of the image
    fill: int = 0  # beside the stored image, of numbers


_CLASSES = bare_pixels.PixelForm("uint8", 1, is_usual=False)


def choose_image(
    catalog: catalog_lib.Catalog, name: str, own: Mapping[str, str], form: bare_pixels.PixelForm
) -> ExtraImage:
    """Returns the extra image with this name; `own` as of `choose_features`.

    Raises:
        ConfigError: if there is none, or it cannot be decoded with the geometry of the first image.
    """
    by_key = {feature.key: feature for feature in catalog.features}
    by_source = {feature.source: feature for feature in catalog.features}
    stored = features.extra_images(catalog.features)
    masks = ["segmentation"] if SEGMENTATION in by_source else []
    if name not in (*stored, *masks):
        known = ", ".join((*stored, *masks)) or "none"
        raise errors.ConfigError("image-unknown", f"there is no extra image {name!r}; the dataset has {known}")
    if name in own:
        raise errors.ConfigError(
            "feature-name-taken",
            f"the extra image {name!r} has the name of {own[name]} in a batch: convert again with another name for it",
        )
    first = [by_source.get(side) for side in bare_pixels.SHAPE[:2]]
    if name in masks and None not in first:
        return ExtraImage(name, (by_source[SEGMENTATION],), _CLASSES)
    keys = stored.get(name, {})
    if None in first or not {"height", "width"} <= keys.keys():
        raise errors.ConfigError(
            "image-without-sides",
            f"images asks for {name!r}, and the config dropped the height or width of it or of the first image: "
            "convert again with them",
        )
    own_form = bare_pixels.forms_of_extra_images(catalog).get(name)
    if not form.is_usual and own_form is None:
        raise errors.ConfigError(
            "image-other-form",
            f"images decodes RGB of 8 bits, and the dataset holds pixels of {form.dtype}: convert again with "
            f"image.extra_images: {{{name}: {{dtype: {form.dtype}}}}}, or take the bytes, "
            f'features=["{keys["encoded"]}"], and decode them',
        )
    return ExtraImage(name, tuple(by_key[keys[part]] for part in ("encoded", "height", "width")), own_form)


def unlike(images: Sequence[ExtraImage], sides: Sequence[tuple[np.ndarray, np.ndarray]]) -> dict[int, str]:
    """Returns by its row why the images of an example have no common crop.

    Args:
        images: the extra images.
        sides: height and width of the first image and of each extra one, int [n].
    """
    names = ["the image", *(f"image {each.name!r}" for each in images)]
    failures = {}
    for row in np.flatnonzero(~crops.are_alike(sides)).tolist():
        shown = (f"{name} has {at[0][row]} x {at[1][row]} pixels" for name, at in zip(names, sides, strict=True))
        failures[row] = (
            f"{', '.join(shown)}: a common crop needs equal sides, or sides that differ by a whole factor; give "
            'crop="squash", or convert with image.resize'
        )
    return failures


def choose_segmentation(
    catalog: catalog_lib.Catalog, asked: object_options.Segmentation, own: Mapping[str, str]
) -> ExtraImage:
    """Returns the mask of classes; `own` as of `choose_image`.

    Raises:
        ConfigError: if there is none.
    """
    if SEGMENTATION not in {feature.source for feature in catalog.features}:
        of_objects = object_options.MASK in {feature.source for feature in catalog.features}
        other = "; Objects(masks=(height, width)) gives those of its objects" if of_objects else ""
        raise errors.ConfigError(
            "objects-missing",
            f"segmentation needs masks of classes, which the dataset does not have{other}; "
            "docs/recipes/segmentation.md says how they are stored",
        )
    found = choose_image(catalog, "segmentation", own, bare_pixels.USUAL)
    form = bare_pixels.PixelForm(asked.dtype, 1, is_usual=False)
    return found._replace(form=form, size=asked.size, fill=asked.ignore)
