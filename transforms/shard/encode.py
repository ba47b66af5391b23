"""Turns a reference and its checked image into the bytes of one tf.train.Example."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, cast

from imagebeam import example, features
from imagebeam.features import Feature
from imagebeam.transforms import elements
from imagebeam.transforms.classes import class_names
from imagebeam.transforms.images import (
    checked_image,
    image_objects,
    object_masks,
    orientations,
    reader_decoder,
    turn_upright,
)

_KEYPOINT = image_objects.KEYPOINT_COLUMNS
_BOX = tuple(f"image/object/bbox/{each}" for each in orientations.Box._fields)
_CORNERS = "image/object/corners"
_NAMES = ("image/filename", "image/key", "image/source_id")
_MAX_CACHED = 4096  # classes


@dataclasses.dataclass(frozen=True)
class ExampleRecipe:
    """The features of every example, and the ids and texts of the classes."""

    features: tuple[Feature, ...]
    label_ids: Mapping[str, int]  # by name of the class; empty if the label is a number or there is none
    columns: tuple[str, ...] = ()  # sources of the values in ImageRef.columns, in their order
    # By name of the class, where it differs from the name.
    texts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    extra_images: tuple[str, ...] = ()  # names, in the order of ImageRef.extra_images
    kept: tuple[Feature, ...] = ()  # the part of `features` that is copied from the image's record
    computed: tuple[Feature, ...] = ()  # the part of `features` that functions of the user compute

    @functools.cached_property
    def _encoder(self) -> example.ExampleEncoder:
        return example.ExampleEncoder(self.features, {feature.source for feature in (*self.kept, *self.computed)})

    @functools.cached_property
    def _kept_kinds(self) -> dict[str, str]:
        return {feature.source.removeprefix("columns/"): feature.kind for feature in self.kept}

    @functools.cached_property
    def _draws_masks(self) -> bool:
        return object_masks.FEATURE in self.columns and any(
            feature.source == object_masks.FEATURE for feature in self.features
        )

    @functools.cached_property
    def _values_of_class(self) -> dict[str, dict[str, example.Values]]:
        return {}

    @functools.cached_property
    def layout(self) -> example.Layout | None:
        """Layout of an example whose image keeps its bytes; None if more of it is needed than its size and colors."""
        needs_more = (
            self.extra_images
            or self.kept
            or self.computed
            or self._object_places
            or self._has_entry_points
            or self._draws_masks
            or self._has_dtype
            or self._has_lists
        )
        return None if needs_more else self._encoder.layout

    @functools.cached_property
    def is_of_label(self) -> bool:
        """Whether the examples of images of one label and size differ in nothing but the images' bytes."""
        # 0.0 and -0.0 are equal, and differ in an Example
        has_float = any(feature.kind == features.FLOAT for feature in self.features)
        return self.layout is not None and not (self._has_names or self.columns or has_float)

    @property
    def has_sizes(self) -> bool:
        """Whether each example has one image, and so one height and one width."""
        return any(each.source == features.ENCODED and not features.is_list_of_images(each) for each in self.features)

    @functools.cached_property
    def _has_names(self) -> bool:
        return any(feature.source in _NAMES for feature in self.features)

    @functools.cached_property
    def _has_entry_points(self) -> bool:
        return any(feature.source == features.ENTRY_POINTS for feature in self.features)

    @functools.cached_property
    def _has_dtype(self) -> bool:
        return any(feature.source == features.DTYPE for feature in self.features)

    @functools.cached_property
    def _has_lists(self) -> bool:
        return features.POSITION in self.columns

    @functools.cached_property
    def _object_places(self) -> tuple[int, int] | None:
        """Places of the ids and names of objects' classes among the columns; None without objects."""
        labels, texts = image_objects.CLASS_COLUMNS
        return (self.columns.index(labels), self.columns.index(texts)) if labels in self.columns else None

    def count_objects(self, ref: elements.ImageRef, image: checked_image.Image) -> dict[str, int] | None:
        """Returns the numbers of the objects in an image by their class; None where no objects are known."""
        if self._object_places is None:
            return None
        labels, texts = self._object_places
        values: Any = (*image.objects, *ref.columns) if image.objects else ref.columns
        return class_names.count(values[labels], values[texts])

    def encode(self, ref: elements.ImageRef, image: checked_image.Image) -> tuple[bytes, bytes]:
        """Returns the serialized example in two pieces: all before the image's bytes, and these bytes, uncopied."""
        values = self.values_of(ref)
        values["image/format"] = image.format.encode()
        values["image/height"] = image.height
        values["image/width"] = image.width
        values["image/channels"] = image.channels
        values["image/colorspace"] = image.colorspace.encode()
        if self._has_dtype:
            values[features.DTYPE] = image.dtype.encode()
        if ref.mask is not None:
            values["image/segmentation/class/encoded"] = image.mask
            values["image/segmentation/class/format"] = b"png"
        for name, extra in zip(self.extra_images, image.extra_images):
            values[features.extra_image_source(name, "encoded")] = extra.data
            values[features.extra_image_source(name, "format")] = extra.format.encode()
            values[features.extra_image_source(name, "height")] = extra.height
            values[features.extra_image_source(name, "width")] = extra.width
        for feature, computed in zip(self.computed, image.computed):
            values[feature.source] = computed
        if self._has_entry_points:
            values[features.ENTRY_POINTS] = reader_decoder.find_entry_points(image)
        if self._has_lists:
            values.update(_values_of_each(ref, image))
        for name, value in zip(self.columns, (*image.objects, *ref.columns) if image.objects else ref.columns):
            values[name] = value
        if image.annotation_turn != checked_image.UPRIGHT and _BOX[0] in values:
            _turn_boxes(values, image.annotation_turn)
            if _KEYPOINT[0] in values:
                _turn_keypoints(values, image.annotation_turn)
            if _CORNERS in values:
                _turn_corners(values, image.annotation_turn)
        if self.kept:
            copied = example.copy_features(image.record, self._kept_kinds)
            values.update((f"columns/{key}", value) for key, value in copied.items())
        if self._draws_masks:
            expected = image.annotated or ref.expected
            packed: Any = values[object_masks.FEATURE]
            assert expected is not None or not packed
            turn = image.annotation_turn
            stored = orientations.turn_size(image.height, image.width, turn)  # every turn swaps the sides or does not
            masks = [object_masks.render(each, expected, stored) for each in packed] if expected else []
            is_turned = turn != checked_image.UPRIGHT
            values[object_masks.FEATURE] = [turn_upright.turn_mask(each, turn) if is_turned else each for each in masks]
        return self._encoder.encode(values, image.data)

    def values_of(self, ref: elements.ImageRef) -> dict[str, example.Values]:
        """Returns what an example says of the name and the label of its image, by the features' sources."""
        values: dict[str, example.Values] = {}
        if self._has_names:
            values["image/filename"] = elements.encode_key(ref.uri.rpartition("/")[2])
            values["image/key"] = values["image/source_id"] = elements.encode_key(ref.key)
        if isinstance(ref.label, str):
            values.update(self._values_of_class.get(ref.label) or self._cache_class(ref.label))
        elif isinstance(ref.label, tuple):
            classes = sorted(ref.label, key=self.label_ids.__getitem__)
            names = [elements.encode_key(name) for name in classes]
            values[features.LABEL] = [self.label_ids[name] for name in classes]
            values["image/class/synset"] = names
            values[features.TEXT] = [self._text(name) for name in classes]
        elif ref.label is not None:
            values[features.LABEL] = ref.label
        return values

    def _cache_class(self, label: str) -> dict[str, example.Values]:
        if len(self._values_of_class) >= _MAX_CACHED:
            self._values_of_class.clear()
        synset = elements.encode_key(label)
        values: dict[str, example.Values]
        values = {features.LABEL: self.label_ids[label], features.TEXT: self._text(label), "image/class/synset": synset}
        self._values_of_class[label] = values
        return values

    def _text(self, label: str) -> bytes:
        return elements.encode_key(self.texts.get(label, label))


def _values_of_each(ref: elements.ImageRef, image: checked_image.Image) -> dict[str, example.Values]:
    """Returns the features of all images of an example, each as a list."""
    every = (image, *image.extra_images)
    uris = (ref.uri, *(each.uri for each in ref.extra_images))
    return {
        features.ENCODED: [each.data for each in every],
        "image/format": [each.format.encode() for each in every],
        "image/height": [each.height for each in every],
        "image/width": [each.width for each in every],
        "image/channels": [each.channels for each in every],
        "image/colorspace": [each.colorspace.encode() for each in every],
        features.DTYPE: [each.dtype.encode() for each in every],
        "image/filename": [elements.encode_key(uri.rpartition("/")[2]) for uri in uris],
    }


def _turn_keypoints(values: dict[str, example.Values], turn: int) -> None:
    """Moves the keypoints of a picture to where they are in the picture turned upright; 0, 0 is no place."""
    points = zip(*(cast(Sequence[float], values[name]) for name in _KEYPOINT[:3]), strict=True)
    turned = [orientations.turn_point(x, y, turn) if visibility else (x, y) for x, y, visibility in points]
    for index, name in enumerate(_KEYPOINT[:2]):
        values[name] = [point[index] for point in turned]


def _turn_corners(values: dict[str, example.Values], turn: int) -> None:
    """Moves corners, which are x, y, x, y, ..., as `_turn_boxes` does."""
    corners = cast(Sequence[float], values[_CORNERS])
    points = (orientations.turn_point(x, y, turn) for x, y in zip(corners[::2], corners[1::2], strict=True))
    values[_CORNERS] = [each for point in points for each in point]


def _turn_boxes(values: dict[str, example.Values], turn: int) -> None:
    """Moves the boxes of a picture to where they are in the picture turned upright."""
    boxes = zip(*(cast(Sequence[float], values[name]) for name in _BOX), strict=True)
    turned = [orientations.turn_box(orientations.Box(*box), turn) for box in boxes]
    for index, name in enumerate(_BOX):
        values[name] = [box[index] for box in turned]
