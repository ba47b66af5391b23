"""The features of an example: their keys and types, and the source of each value.

The default keys follow the ImageNet convention, as read by TF-slim, the TPU reference models, tf-vision and keras-cv.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

# The kinds of values that a tf.train.Example holds.
BYTES = "bytes"
INT64 = "int64"
FLOAT = "float"

NUMPY_DTYPES: Mapping[str, str] = {BYTES: "object", INT64: "int64", FLOAT: "float32"}  # names: nothing here needs NumPy


class Feature(NamedTuple):
    """One feature of every example. `kind` never depends on the value in one record."""

    key: str  # the key in the tf.train.Example
    source: str  # what the value means: a key of STANDARD, or "columns/<name>"
    kind: str  # bytes, int64 or float
    many: bool = False  # whether it is a list of any length, 0 included; else it has exactly one value
    shape: tuple[int, ...] | None = None  # of the array whose values are the list, in row-major order; None: any length

    @property
    def is_list(self) -> bool:
        """True if examples may have different numbers of its values."""
        return self.many and self.shape is None

    def describe(self) -> str:
        """Returns the type of its values, for users: "float", "float list" or "float [4, 32, 32]"."""
        if self.shape is not None:
            return f"{self.kind} {list(self.shape)}"
        return f"{self.kind} list" if self.many else self.kind


class Standard(NamedTuple):
    """A feature that imagebeam can compute."""

    kind: str
    default: bool  # written unless the config drops it
    meaning: str
    many: bool = False
    needs: str = ""  # requirement that the config or the source must meet: a key of _ABSENT


ENCODED = "image/encoded"
LABEL = "image/class/label"
TEXT = "image/class/text"
ENTRY_POINTS = "image/entry_points"
DTYPE = "image/dtype"
COMPUTED = "functions/"  # begins the source of a feature that a function of the user computes
POSITION = "image/position"

STANDARD: Mapping[str, Standard] = {
    "image/format": Standard(BYTES, True, "jpeg, png, webp, or raw for pixels"),
    "image/height": Standard(INT64, True, "pixels"),
    "image/width": Standard(INT64, True, "pixels"),
    "image/channels": Standard(INT64, True, "1 to 4, as a decoder yields by default; or the number of bands"),
    "image/colorspace": Standard(BYTES, True, "GRAY, GRAY_ALPHA, RGB, RGBA or CMYK; BANDS_n of n bands"),
    DTYPE: Standard(BYTES, True, "type of the numbers: uint8, uint16 or float32", needs="typed pixels"),
    "image/filename": Standard(BYTES, True, "base name of the file"),
    "image/key": Standard(BYTES, True, "the stable id: path below the source, or the manifest's key"),
    LABEL: Standard(INT64, True, "id of the class, or the target's value", needs="labels"),
    TEXT: Standard(BYTES, True, "name of the class, or its text in label.texts", needs="classes"),
    "image/class/synset": Standard(BYTES, False, "name of the class under ImageNet's key for synsets", needs="classes"),
    "image/source_id": Standard(BYTES, False, "the key again, where tf-vision looks for it"),
    "image/object/bbox/xmin": Standard(FLOAT, True, "left edges of the boxes, 0 to 1", True, "objects"),
    "image/object/bbox/xmax": Standard(FLOAT, True, "right edges", True, "objects"),
    "image/object/bbox/ymin": Standard(FLOAT, True, "upper edges", True, "objects"),
    "image/object/bbox/ymax": Standard(FLOAT, True, "lower edges", True, "objects"),
    "image/object/class/label": Standard(
        INT64, True, "ids of the objects' categories, as in the source", True, "objects"
    ),
    "image/object/class/text": Standard(BYTES, True, "names of the categories", True, "objects"),
    "image/object/area": Standard(FLOAT, True, "pixels of the objects", True, "object areas"),
    "image/object/is_crowd": Standard(INT64, True, "1 for a crowd", True, "object areas"),
    "image/object/difficult": Standard(INT64, True, "1 for an object that is hard to recognize", True, "object flags"),
    "image/object/truncated": Standard(INT64, True, "1 for an object of which only a part shows", True, "object flags"),
    "image/object/view": Standard(BYTES, True, "the side from which an object is seen", True, "object flags"),
    "image/object/corners": Standard(
        FLOAT, True, "x and y of four corners of each object, 0 to 1, one after the other", True, "object corners"
    ),
    "image/object/keypoint/x": Standard(FLOAT, True, "keypoints of the objects, 0 to 1", True, "object keypoints"),
    "image/object/keypoint/y": Standard(FLOAT, True, "the same, from the upper edge", True, "object keypoints"),
    "image/object/keypoint/visibility": Standard(
        INT64, True, "0 not labeled, 1 hidden, 2 visible", True, "object keypoints"
    ),
    "image/object/keypoint/num": Standard(INT64, True, "labeled keypoints of each object", True, "object keypoints"),
    "image/caption": Standard(BYTES, True, "texts that describe the image", True, "captions"),
    "image/object/mask": Standard(BYTES, True, "a PNG for each object", True, "object masks"),
    "image/segmentation/class/encoded": Standard(BYTES, True, "a PNG of classes", needs="segmentation"),
    "image/segmentation/class/format": Standard(BYTES, True, "png", needs="segmentation"),
    POSITION: Standard(INT64, True, "place of each image in the list of its row, from 0", True, "lists of images"),
    ENTRY_POINTS: Standard(BYTES, False, "places in a JPEG where a decoder can begin; empty if it has none"),
    ENCODED: Standard(BYTES, True, "the image's bytes, or its pixels as numbers"),
}

# Features that are lists where an example has a list of images: one value for each image.
OF_EACH_IMAGE = (
    *("image/format", "image/height", "image/width", "image/channels", "image/colorspace", DTYPE, "image/filename"),
    ENCODED,
)

# Features of each extra image of an example, whose keys are image/<name>/<part>.
EXTRA_IMAGE_PARTS: Mapping[str, Standard] = {
    "encoded": Standard(BYTES, True, "bytes of a further image"),
    "format": Standard(BYTES, True, "format of a further image: jpeg, png or webp"),
    "height": Standard(INT64, True, "height of a further image, pixels"),
    "width": Standard(INT64, True, "width of a further image, pixels"),
}
_FURTHER_NAME = re.compile(r"[a-z][a-z0-9_]*")
_FURTHER_SOURCE = re.compile(rf"image/({_FURTHER_NAME.pattern})/({'|'.join(EXTRA_IMAGE_PARTS)})")
_RESERVED = frozenset(key.split("/")[1] for key in STANDARD)  # image/class/... and the like have other meanings

_ABSENT = {  # error text for each requirement that is not met
    "labels": "label gives no labels",
    "classes": "label gives no classes",
    "objects": "source gives no objects",
    "object areas": "source gives no objects with areas (source.coco)",
    "object flags": "source gives no flags of objects (source.voc)",
    "object corners": "source gives no corners of objects (source.annotations.syntax: dota)",
    "object keypoints": "source gives no keypoints (source.coco.keypoints)",
    "captions": "source gives no captions (source.coco.captions)",
    "object masks": "source gives no masks of objects (source.coco.masks, source.labelme.masks)",
    "lists of images": "source gives one image for each example (source.parquet.images, source.manifest.images)",
    "typed pixels": "image.dtype and image.bands are the usual ones, so pixels have 8 bits",
    "segmentation": "there are no masks (source.masks)",
}


def resolve_features(
    renamed: Mapping[str, str | None],
    label_kind: str | None,
    columns: Mapping[str, tuple[str, bool]],
    *,
    has_many_labels: bool = False,
    pixels: str | None = None,
    extra_images: Iterable[str] = (),
    given: Collection[str] = (),
    computed: Iterable[Feature] = (),
) -> tuple[Feature, ...]:
    """Returns the features of every example, `image/encoded` last so that its bytes are written without a copy.

    Args:
        renamed: from standard key (or `columns/<name>`) to the key to write; None drops the feature.
        label_kind: "class", INT64 or FLOAT; None without labels.
        columns: from the name of a column to its kind, and whether it is a list.
        has_many_labels: whether an image may have several classes.
        pixels: kind of the numbers if images are stored as lists of numbers; None if as bytes.
        extra_images: names of the extra images of each example.
        given: what the source gives of each image: "objects" (with boxes), "object areas" (and which are crowds),
            "object flags" (which are difficult or truncated, and their view), "object masks", "object keypoints",
            "captions", "segmentation" (the class of each pixel), "lists of images" (any number of images in an
            example); or the name of one feature of these. "typed pixels" is what the config asks for.
        computed: features that functions of the user compute.

    Raises:
        ValueError: if a standard key is unknown, or two features would have the same key.
    """
    known = {name: (standard.kind, standard.many) for name, standard in STANDARD.items()}
    known |= {f"columns/{name}": column for name, column in columns.items()}
    for name in extra_images:
        known |= {extra_image_source(name, part): (each.kind, False) for part, each in EXTRA_IMAGE_PARTS.items()}
    known[LABEL] = (label_kind if label_kind in (INT64, FLOAT) else INT64, has_many_labels)
    known[TEXT] = known["image/class/synset"] = (BYTES, has_many_labels)
    if pixels is not None:
        known[ENCODED] = (pixels, True)
    if "lists of images" in given:
        known |= {name: (known[name][0], True) for name in OF_EACH_IMAGE}
        del known[ENTRY_POINTS]  # of one image, for a decoder that reads one
    there = {"", *given}  # requirements, and features that are given without all others of their requirement
    if label_kind is not None:
        there |= {"labels", "classes"} if label_kind == "class" else {"labels"}
    for name in renamed:
        if name not in known:
            raise ValueError(f"features names {name!r}, which is none of {', '.join(sorted(known))}")
        needs = _needs(name)
        if renamed[name] is not None and there.isdisjoint((needs, name)):
            raise ValueError(f"features names {name!r}, but {_ABSENT[needs]}")
    chosen = []
    for name, (kind, many) in known.items():
        wanted = name in renamed or name not in STANDARD or STANDARD[name].default
        key = renamed.get(name, name.removeprefix("columns/"))
        if wanted and key is not None and not there.isdisjoint((_needs(name), name)):
            chosen.append(Feature(key, name, kind, many))
    chosen += computed
    taken: dict[str, str] = {}
    for feature in chosen:
        if feature.key in taken:
            raise ValueError(
                f"features {taken[feature.key]!r} and {feature.source!r} both have the key {feature.key!r}"
            )
        taken[feature.key] = feature.source
    return in_order(chosen)


def check_extra_image_name(name: str) -> None:
    """Checks that an extra image may have this name.

    Raises:
        ValueError: if it cannot be a part of keys, or its keys would look like those of other features.
    """
    if not _FURTHER_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name for keys such as image/after/encoded; use a to z, 0 to 9 and _")
    if name in _RESERVED:
        raise ValueError(f"{name!r} is taken: image/{name} is, or begins, the key of another feature; use another name")


def extra_image_source(name: str, part: str) -> str:
    """Returns the source of a feature of an extra image; `part` is a key of EXTRA_IMAGE_PARTS."""
    return f"image/{name}/{part}"


def extra_image_part(source: str) -> tuple[str, str] | None:
    """Returns the name of the extra image and the part that a source is of; None for any other source."""
    match = _FURTHER_SOURCE.fullmatch(source)
    return None if match is None or match[1] in _RESERVED else (match[1], match[2])


def extra_images(features: Iterable[Feature]) -> dict[str, dict[str, str]]:
    """Returns the stored extra images of an example by name: the keys of their features by part."""
    found: dict[str, dict[str, str]] = {}
    for feature in features:
        if (part := extra_image_part(feature.source)) is not None:
            found.setdefault(part[0], {})[part[1]] = feature.key
    return {name: keys for name, keys in sorted(found.items()) if "encoded" in keys}


def has_lists_of_images(features: Iterable[Feature]) -> bool:
    """Returns whether an example has any number of images, and not one, which may be a list of its pixels."""
    return any(each.source == ENCODED and is_list_of_images(each) for each in features)


def is_list_of_images(image: Feature) -> bool:
    """Returns whether the feature of the image holds any number of encoded images, and not the pixels of one."""
    return image.many and image.kind == BYTES


def meaning_of(source: str) -> str:
    """Returns what the values of a feature mean, in a few words; the source itself if it is a column."""
    if (part := extra_image_part(source)) is not None:
        return f"{part[0]}: {EXTRA_IMAGE_PARTS[part[1]].meaning}"
    return STANDARD[source].meaning if source in STANDARD else source


def in_order(features: Iterable[Feature]) -> tuple[Feature, ...]:
    """Returns the features in their order in an example: by key, `image/encoded` last."""
    return tuple(sorted(features, key=lambda feature: (feature.source == ENCODED, feature.key)))


def _needs(name: str) -> str:
    return STANDARD[name].needs if name in STANDARD else ""


def check_value(kind: str, value: Any) -> bool:
    """Returns whether one `value` can be stored as `kind`."""
    if kind == BYTES:
        return isinstance(value, bytes)
    if kind == INT64:
        return isinstance(value, int) and -(2**63) <= value < 2**63
    return isinstance(value, (int, float))
