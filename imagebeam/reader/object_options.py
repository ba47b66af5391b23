"""What a batch has of the objects in its images, and of the masks of classes."""

from __future__ import annotations

import dataclasses
import difflib
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from imagebeam import catalog as catalog_lib
from imagebeam import errors, features
from imagebeam.reader import option_values

_LOGGER = logging.getLogger("imagebeam.dataset")
BOX = tuple(f"image/object/bbox/{edge}" for edge in ("ymin", "xmin", "ymax", "xmax"))
LABEL, MASK = "image/object/class/label", "image/object/mask"
KEYPOINT = tuple(f"image/object/keypoint/{each}" for each in ("x", "y", "visibility"))
NAMES = ("boxes", "labels", "masks", "keypoints", "valid", "num_objects", "transform")
_OF_SEVERAL_VALUES = (*KEYPOINT, "image/object/corners")  # for each object
BOXES = ("yxyx", "xyxy", "xywh", "cxcywh")


def _is_whole(value: object, least: int) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, bool) and value.__index__() >= least


def _check_size(name: str, size: object) -> None:
    is_size = isinstance(size, tuple) and len(size) == 2 and all(_is_whole(side, 1) for side in size)
    if size is not None and not is_size:
        raise option_values.bad_value(name, size, "it must be (height, width) in pixels")


@dataclasses.dataclass(frozen=True)
class Objects:
    """The objects in a batch, moved with the pixels of their images: cropped, resized, padded and mirrored alike.

    A batch then has, by name:

    | name | array |
    |---|---|
    | boxes | float32 [batch, max, 4], in pixels of the batch's images |
    | labels | int32 [batch, max] |
    | masks | uint8 [batch, max, height, width] of 0 and 1, with `masks` |
    | keypoints | float32 [batch, max, K, 3]: x, y and visibility, with `keypoints` |
    | valid | bool [batch, max]: which objects there are; all else is 0 |
    | num_objects | int32 [batch]: how many objects the image shows, also if they are more than `max` |
    | transform | float32 [batch, 3, 3]: times (x, y, 1) in the batch's image it is (x, y, 1) in the stored image |

    Attributes:
        boxes: the four numbers of a box: "yxyx" (top, left, bottom, right), "xyxy" (left, top, right, bottom), "xywh"
            (left, top, width, height, as COCO), "cxcywh" (middle, width, height, as YOLO and DETR).
        normalized: whether boxes and keypoints are in 0 to 1 of the image instead of pixels.
        labels: by the stored id of a category, its id in the batch: {1: 0, 18: 1}. Objects of other categories are
            left out. By default all ids are as stored.
        masks: height and width of the objects' masks, which show what the image shows; None for none.
        keypoints: whether there are keypoints.
        flip_pairs: keypoints that change places in a mirrored image, by name or number: [("left_eye", "right_eye")].
            By default those whose names differ in "left" and "right" alone.
        features: keys of further features with a number for each object, such as "image/object/is_crowd"; each comes
            under its key, [batch, max].
        max: number of objects in a batch for each image; the first ones are taken.
        min_visible: least part of a box's area that is inside of the image; objects of which less is visible are left
            out.
        clip: whether boxes end at the edges of the image. Without it they keep the part that is outside.

    Examples:
        >>> ds = imagebeam.open_dataset("coco-shards")  # doctest: +SKIP
        >>> objects = imagebeam.Objects(masks=(56, 56), max=100)
        >>> ds.as_numpy("train", 32, image_size=512, objects=objects)  # doctest: +SKIP
    """

    boxes: str = "yxyx"
    normalized: bool = False
    labels: Mapping[int, int] | None = None
    masks: tuple[int, int] | None = None
    keypoints: bool = False
    flip_pairs: Sequence[tuple[str, str] | tuple[int, int]] | None = None
    features: Sequence[str] = ()
    max: int = 100
    min_visible: float = 0.25
    clip: bool = True

    def __post_init__(self) -> None:
        if self.boxes not in BOXES:
            raise option_values.bad_value("Objects.boxes", self.boxes, f"it is one of {', '.join(map(repr, BOXES))}")
        option_values.whole(1)("Objects.max", self.max)
        for name in ("normalized", "keypoints", "clip"):
            if not isinstance(getattr(self, name), bool):
                raise option_values.bad_value(f"Objects.{name}", getattr(self, name), "it must be True or False")
        if isinstance(self.min_visible, (bool, str)) or not 0 <= self.min_visible <= 1:
            raise option_values.bad_value("Objects.min_visible", self.min_visible, "it must be 0 to 1")
        if isinstance(self.features, str):
            raise option_values.bad_value("Objects.features", self.features, "it must be a list of keys")
        ids: list[Any] = [None]
        if isinstance(self.labels, Mapping):
            ids = [each for pair in self.labels.items() for each in pair]
        if self.labels is not None and not all(_is_whole(each, 0) and each < 1 << 31 for each in ids):
            raise option_values.bad_value(
                "Objects.labels", self.labels, "it must be {stored id: id in the batch}, below 2**31"
            )
        _check_size("Objects.masks", self.masks)


@dataclasses.dataclass(frozen=True)
class Segmentation:
    """The mask of classes of each image in a batch, moved with its pixels: "segmentation", [batch, height, width, 1].

    Each pixel is that of the stored mask which is nearest to its middle.

    Attributes:
        ignore: class of the pixels beside the stored image, as crop="letterbox" and "pad" have them.
        size: height and width, of what the image shows; by default those of the image.
        dtype: "uint8", or "uint16" for masks that were stored with `source.masks.bits: 16`.

    Examples:
        >>> ds = imagebeam.open_dataset("cityscapes-shards")  # doctest: +SKIP
        >>> segmentation = imagebeam.Segmentation(ignore=255)
        >>> ds.as_numpy("train", 32, image_size=512, segmentation=segmentation)  # doctest: +SKIP
    """

    ignore: int = 255
    size: tuple[int, int] | None = None
    dtype: str = "uint8"

    def __post_init__(self) -> None:
        if self.dtype not in ("uint8", "uint16"):
            raise option_values.bad_value("Segmentation.dtype", self.dtype, "it is 'uint8' or 'uint16'")
        highest = 255 if self.dtype == "uint8" else 65_535
        if not _is_whole(self.ignore, 0) or self.ignore > highest:
            raise option_values.bad_value("Segmentation.ignore", self.ignore, f"it must be 0 to {highest}")
        _check_size("Segmentation.size", self.size)


def choose_stored(catalog: catalog_lib.Catalog, asked: Objects | None) -> dict[str, features.Feature]:
    """Returns the features of objects that are read, by their sources, and further ones by their keys.

    Raises:
        ConfigError: if the dataset lacks one.
    """
    if asked is None:
        return {}
    by_source = {feature.source: feature for feature in catalog.features}
    by_key = {feature.key: feature for feature in catalog.features}
    wanted = [*BOX, *([MASK] if asked.masks else []), *(KEYPOINT if asked.keypoints else [])]
    if asked.labels is not None or LABEL in by_source:  # boxes may be of one class without a name
        wanted.append(LABEL)
    if missing := [each for each in wanted if each not in by_source]:
        is_known = missing[0] in (MASK, *KEYPOINT)
        boxes = "; docs/recipes/coco.md says how masks and keypoints are stored" if is_known else ""
        raise errors.ConfigError(
            "objects-missing", f"objects needs {', '.join(missing)}, which the dataset does not have{boxes}"
        )
    classes = catalog.object_classes
    unknown = sorted(set(asked.labels or ()) - set(classes)) if classes else []
    if unknown:
        names = [f"{label} ({name})" for label, name in sorted(classes.items())]
        known = ", ".join(names[:10] + (["..."] if len(names) > 10 else []))
        text = f"Objects.labels names {', '.join(map(str, unknown))}, and the dataset has the categories {known}"
        if len(unknown) == len(asked.labels or ()):
            raise errors.ConfigError("objects-missing", f"{text}: give ids as they are stored")
        _LOGGER.warning("%s", text)
    for key in asked.features:
        feature = by_key.get(key)
        is_single = feature is not None and feature.is_list and feature.source not in _OF_SEVERAL_VALUES
        if feature is None or not is_single or feature.kind == features.BYTES:
            [nearest] = difflib.get_close_matches(key, by_key, 1) or [""]
            hint = f"; did you mean {nearest!r}?" if nearest and nearest != key else ""
            raise errors.ConfigError(
                "feature-unknown",
                f"Objects.features asks for {key!r}, which is no list with a number for each object{hint}",
            )
    return {source: by_source[source] for source in wanted} | {key: by_key[key] for key in asked.features}
