"""Boxes, masks and keypoints of the objects in a batch, moved with the pixels of their images."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from imagebeam import errors, features
from imagebeam.reader import bare_pixels, geometry, image_decoder, whole_images
from imagebeam.reader.example_columns import ColumnSpec
from imagebeam.reader.object_options import BOX, KEYPOINT, LABEL, MASK, Objects

_INT32 = np.iinfo(np.int32).max
_ROUNDED = 1 - 1e-6  # an edge of the image may be moved to just outside of it
_NEAR = 1e-6  # pixels, likewise of keypoints
_MASK_FORM = bare_pixels.PixelForm("uint8", 1, is_usual=False)


def mirrored_keypoints(names: Sequence[str], asked: Objects) -> np.ndarray:
    """Returns for each keypoint the number of the one whose place it takes in a mirrored image, int64 [K].

    Raises:
        ConfigError: if a pair names no keypoints, or the pairs are not given and the names do not tell them.
    """
    pairs = asked.flip_pairs
    if pairs is None:
        others = {name.lower().replace("left", "right"): name for name in names if "left" in name.lower()}
        pairs = [(others[name.lower()], name) for name in names if name.lower() in others and "right" in name.lower()]
        if not pairs:
            raise errors.ConfigError(
                "flip-pairs-missing",
                f"the names of the keypoints, {', '.join(names) or 'none'}, do not say which of them change places "
                "in a mirrored image: give Objects.flip_pairs, () if none does, or flip=False",
            )
    order: np.ndarray = np.arange(len(names))
    for pair in pairs:
        found = [names.index(each) for each in pair if each in names] or [*pair]
        are_free = all(each in range(len(names)) and order[each] == each for each in found)
        if len({*found}) != 2 or not are_free:
            raise errors.ConfigError(
                "option-bad-value",
                f"Objects.flip_pairs has {pair!r}; give two of the keypoints {', '.join(names)}, each in one pair",
            )
        order[found] = found[::-1]
    return order


class _Found(NamedTuple):
    """The objects of several images, one after the other, that are in a batch."""

    rows: np.ndarray  # int64 [m]: the image of each
    places: np.ndarray  # int64 [m]: its place among the objects of the batch's image
    stored: np.ndarray  # int64 [m]: its place among the stored ones of all images
    boxes: np.ndarray  # float64 [m, 4]: top, left, bottom, right in pixels of the batch's image


class MovedObjects:
    """Makes the columns of objects. Thread-safe.

    Attributes:
        specs: of the columns, by name.
    """

    def __init__(
        self,
        asked: Objects,
        stored: Mapping[str, features.Feature],
        keypoints: Sequence[str],
        decoder: image_decoder.ImageDecoder,
        flips: bool,
    ):
        """Takes the features of `choose_stored`, the names of the keypoints, and whether images may be mirrored.

        Raises:
            ConfigError: if it is not known which keypoints change places.
        """
        self._asked, self._stored, self._decoder = asked, stored, decoder
        self._num_keypoints = len(keypoints)
        self._mirrored: np.ndarray = np.arange(len(keypoints))
        if asked.keypoints and flips:
            self._mirrored = mirrored_keypoints(keypoints, asked)
        size = asked.max
        self.specs = {"boxes": ColumnSpec((size, 4), np.dtype(np.float32))}
        if LABEL in stored:
            self.specs["labels"] = ColumnSpec((size,), np.dtype(np.int32))
        if asked.masks is not None:
            self.specs["masks"] = ColumnSpec((size, *asked.masks), np.dtype(np.uint8))
        if asked.keypoints:
            self.specs["keypoints"] = ColumnSpec((size, len(keypoints), 3), np.dtype(np.float32))
        for key in asked.features:
            self.specs[key] = ColumnSpec((size,), np.dtype(features.NUMPY_DTYPES[stored[key].kind]))
        self.specs["valid"] = ColumnSpec((size,), np.dtype(np.bool_))
        self.specs["num_objects"] = ColumnSpec((), np.dtype(np.int32))
        self.specs["transform"] = ColumnSpec((3, 3), np.dtype(np.float32))

    def move(
        self, lists: Mapping[str, np.ndarray], moved: geometry.Geometry
    ) -> tuple[dict[str, np.ndarray], image_decoder.Failures]:
        """Returns the columns, and the row and fault of each image whose objects cannot be used.

        Args:
            lists: of each stored feature, object [n] of an array for each image.
            moved: where the pixels of the images come from.
        """
        count = len(moved.start)
        columns = {name: spec.zeros(count) for name, spec in self.specs.items()}
        columns["transform"] = moved.matrices()
        failures = list(self._check(lists, count))
        unusable = {row for row, _ in failures}
        numbers = [0 if row in unusable else len(each) for row, each in enumerate(lists[BOX[0]])]

        def joined(source: str, each: int = 1) -> np.ndarray:
            usable = [values[: each * numbers[row]] for row, values in enumerate(lists[source])]
            return np.concatenate(usable) if usable else np.zeros(0)

        found = self._find(joined, np.repeat(np.arange(count), numbers), moved, columns["num_objects"])
        at = found.rows, found.places
        columns["valid"][at] = True
        columns["boxes"][at] = self._scaled(_as_format(found.boxes, self._asked.boxes), moved)
        if LABEL in self._stored:
            columns["labels"][at] = self._labels(joined(LABEL)[found.stored])
        for key in self._asked.features:
            columns[key][at] = joined(key)[found.stored]
        if self._asked.keypoints:
            stored = [joined(each, self._num_keypoints).reshape(-1, self._num_keypoints) for each in KEYPOINT]
            columns["keypoints"][at] = self._keypoints([each[found.stored] for each in stored], found.rows, moved)
        if self._asked.masks is not None:
            failures += self._draw(joined(MASK)[found.stored], found, moved, columns["masks"])
        return columns, failures

    def _check(self, lists: Mapping[str, np.ndarray], count: int) -> Iterator[tuple[int, str]]:
        """Yields the row of each image whose lists do not fit each other, and why."""
        for row in range(count):
            expected = len(lists[BOX[0]][row])
            for name, feature in self._stored.items():
                wanted = expected * (self._num_keypoints if name in KEYPOINT else 1)
                if len(lists[name][row]) != wanted:
                    found = f"has {len(lists[name][row]):,} values for {expected:,} objects, expected {wanted:,}"
                    yield row, f"feature {feature.key!r} {found}"
                    break
            else:
                if LABEL in self._stored and np.abs(lists[LABEL][row]).max(initial=0) > _INT32:
                    yield row, f"feature {self._stored[LABEL].key!r} holds an id beyond int32"

    def _find(
        self,
        joined: Callable[[str], np.ndarray],
        rows: np.ndarray,
        moved: geometry.Geometry,
        num_objects: np.ndarray,
    ) -> _Found:
        """Returns the objects that are visible, at most `max` of an image, and counts the visible ones."""
        top, left, bottom, right = (joined(each).astype(np.float64) for each in BOX)
        corners = [moved.move(np.stack(each, axis=1), rows) for each in ((top, left), (bottom, right))]
        boxes = np.concatenate([np.minimum(*corners), np.maximum(*corners)], axis=1)
        clipped = np.clip(boxes, 0, [*moved.size, *moved.size])
        whole, visible = _areas(boxes), _areas(clipped)
        is_kept = (visible > 0) & (visible >= self._asked.min_visible * whole * _ROUNDED)
        if self._asked.labels is not None:
            is_kept &= np.isin(joined(LABEL), [*self._asked.labels])
        stored = np.flatnonzero(is_kept)
        kept = rows[stored]
        num_objects += np.bincount(kept, minlength=len(num_objects)).astype(np.int32)
        places = np.arange(len(kept)) - np.searchsorted(kept, kept)
        fits = places < self._asked.max
        stored = stored[fits]
        return _Found(kept[fits], places[fits], stored, (clipped if self._asked.clip else boxes)[stored])

    def _scaled(self, values: np.ndarray, moved: geometry.Geometry) -> np.ndarray:
        height, width = moved.size
        yx = [height, width] if self._asked.boxes == "yxyx" else [width, height]
        return values / [*yx, *yx] if self._asked.normalized else values

    def _labels(self, stored: np.ndarray) -> np.ndarray:
        if self._asked.labels is None:
            return stored
        return np.array([self._asked.labels[each] for each in stored.tolist()], np.int32)

    def _keypoints(self, stored: Sequence[np.ndarray], rows: np.ndarray, moved: geometry.Geometry) -> np.ndarray:
        """Returns float64 [m, K, 3]; zeros for what is not labeled, or not inside of the image."""
        x, y, visibility = stored
        places = np.stack([y, x], axis=-1).reshape(-1, 2).astype(np.float64)
        height, width = moved.size
        y, x = moved.move(places, np.repeat(rows, self._num_keypoints)).T.reshape(2, *x.shape)
        found = np.stack([x, y, visibility], axis=-1)
        found[(visibility == 0) | (x < -_NEAR) | (y < -_NEAR) | (x > width + _NEAR) | (y > height + _NEAR)] = 0
        if self._asked.normalized:
            found[..., :2] /= [width, height]
        mirrored = moved.flips[rows]
        found[mirrored] = found[mirrored][:, self._mirrored]
        return found

    def _draw(
        self, encoded: np.ndarray, found: _Found, moved: geometry.Geometry, masks: np.ndarray
    ) -> image_decoder.Failures:
        """Decodes the masks of objects, and returns the row and fault of each image of which one cannot be decoded."""
        assert self._asked.masks is not None
        rows, columns = moved.nearest(self._asked.masks)
        is_whole = np.concatenate([rows, columns], axis=1).min(axis=1) >= 0

        def draw(number: int) -> None:
            row = found.rows[number]
            height, width = moved.sides[row].tolist()
            whole = whole_images.decode_numbers(encoded[number], _MASK_FORM, (height, width))[:, :, 0]
            drawn: np.ndarray = whole.take(rows[row], axis=0).take(columns[row], axis=1) != 0
            if not is_whole[row]:  # index -1 took the last pixel
                drawn &= (rows[row] >= 0)[:, None] & (columns[row] >= 0)
            masks[row, found.places[number]] = drawn

        failed = self._decoder.decode_each(range(len(encoded)), draw)
        return [(int(found.rows[each]), f"the mask of an object cannot be decoded: {fault}") for each, fault in failed]


def _areas(boxes: np.ndarray) -> np.ndarray:
    return np.prod(np.maximum(boxes[:, 2:] - boxes[:, :2], 0), axis=1)


def _as_format(boxes: np.ndarray, name: str) -> np.ndarray:
    """Returns boxes, given as top, left, bottom, right."""
    top, left, bottom, right = boxes.T
    if name == "yxyx":
        return boxes
    if name == "xyxy":
        return np.stack([left, top, right, bottom], axis=1)
    first = [left, top] if name == "xywh" else [(left + right) / 2, (top + bottom) / 2]
    return np.stack([*first, right - left, bottom - top], axis=1)
