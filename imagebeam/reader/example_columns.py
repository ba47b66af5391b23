"""The examples of a batch in columns, an array for each name that the user sees, before they are padded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from imagebeam import features
from imagebeam.reader import image_decoder, image_lists, patches, read_plan, record_order
from imagebeam.reader import options as options_lib

_OWN = "features/"  # begins the names of requested features inside the reader: a key may be "label"


class ColumnSpec(NamedTuple):
    """What a column has for each example."""

    shape: tuple[int | None, ...]
    dtype: np.dtype
    is_ragged: bool = False  # whether it is an object array of arrays of `dtype`, one for each example

    def make(self, count: int) -> np.ndarray:
        """Returns a column that is not filled."""
        if self.is_ragged:
            return np.empty(count, object)
        return np.empty((count, *(each or 0 for each in self.shape)), self.dtype)

    def zeros(self, count: int) -> np.ndarray:
        """Returns a column of zeros."""
        return np.zeros((count, *(each or 0 for each in self.shape)), self.dtype)


class ExampleColumns:
    """Makes columns of what was read.

    Attributes:
        specs: of the columns, by name.
    """

    def __init__(
        self,
        plan: read_plan.ReadPlan,
        options: options_lib.ReadOptions,
        decoder: image_decoder.ImageDecoder,
        objects: Mapping[str, ColumnSpec],
    ):
        """`objects` are the columns of objects."""
        self._plan, self._options = plan, options
        self._lists = [feature for name, feature in plan.many.items() if feature.is_list and name != read_plan.LABEL]
        # A weight by its feature is in the batch only if it was asked for.
        is_hidden = plan.weight is not None and plan.weight not in plan.extra
        self._hidden = {_OWN + plan.weight.key} if is_hidden and plan.weight is not None else set()
        self._weights: np.ndarray | None = None  # by class
        if isinstance(options.weights, Mapping):
            self._weights = np.array([options.weights[each] for each in sorted(options.weights)], np.float32)
        self._seeds_key = record_order.make_key("metadata", options.seed)
        self._blank_pixel = decoder.blank
        masks = {each.name for each in plan.images if each.form is not None}
        self._pictures = {*options.names_of_pictures, *(each.name for each in plan.images)} - masks - {patches.PATCHES}
        self.specs = {**self._make_specs(decoder.dtype), **objects}

    def of(self, read: Mapping[str, np.ndarray], records: np.ndarray, rounds: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the columns.

        Args:
            read: the image, the label, the columns of objects, and "features/KEY" of each other one.
            records: int64 [n], their numbers in the split.
            rounds: int64 [n], as of `record_order.seeds`.
        """
        columns = {name.removeprefix(_OWN): each for name, each in read.items() if name not in self._hidden}
        if self._options.list_size is not None:
            for feature in self._lists:
                columns |= _fill_up(feature, columns[feature.key], self._options.list_size)
        if self._plan.weight is not None:
            columns["weight"] = read[_OWN + self._plan.weight.key].astype(np.float32)
        elif self._weights is not None:
            columns["weight"] = self._weights[read["label"] - self._options.label_base]
        if self._options.metadata:
            seeds = record_order.seeds(records, rounds, self._seeds_key)
            epochs, copies = np.divmod(rounds, self._options.repeats)
            columns |= {"epoch": epochs, "record": records, "seed": seeds.astype("<u8")[:, None].view("<u4")}
            columns |= {"copy": copies} if self._options.repeats > 1 else {}
        return columns

    def blank(self, side: int = 1) -> dict[str, Any]:
        """Returns the example that fills up a batch: black images, zeros, no bytes, empty lists.

        Args:
            side: height and width of images of any size.
        """
        example = {}
        for name, spec in self.specs.items():
            shape = (0,) if spec.is_ragged else tuple(side if each is None else each for each in spec.shape)
            nothing = self._blank_pixel if name in self._pictures else b"" if spec.dtype == object else 0
            example[name] = np.full(shape, nothing, spec.dtype)[()]
        return example

    def _make_specs(self, pixel_dtype: np.dtype) -> dict[str, ColumnSpec]:
        plan, options = self._plan, self._options
        sides = (None, None) if options.crop is None else options.size
        listed = (options.max_images,) if plan.has_lists_of_images else ()
        picture = ColumnSpec((*listed, *sides, plan.form.channels), pixel_dtype)
        found = {"image": picture}
        if options.patches is not None:
            row, channels = options.max_patches, plan.form.channels
            found = {
                patches.PATCHES: ColumnSpec((row, options.patches**2 * channels), pixel_dtype),
                patches.COORD: ColumnSpec((row, 2), np.dtype(np.int32)),
                patches.VALID: ColumnSpec((row,), np.dtype(np.bool_)),
            }
        if options.views is not None:
            sizes = {each.name: (each.number, *each.options.size, plan.form.channels) for each in options.pictures()}
            found = {name: ColumnSpec(size, pixel_dtype) for name, size in sizes.items()}
        for name, feature in plan.columns.items():
            is_class = name == read_plan.LABEL and feature.kind == features.INT64
            found[name] = ColumnSpec((), np.dtype(np.int32) if is_class else _dtype(feature))
        for name, feature in plan.many.items():
            if name == read_plan.LABEL:
                classes = plan.num_classes if options.num_classes is None else options.num_classes
                found[name] = ColumnSpec((classes,), np.dtype(np.float32))
            elif feature.shape is not None:
                found[name] = ColumnSpec(tuple(feature.shape), _dtype(feature))
            elif options.list_size is None:
                found[name] = ColumnSpec((None,), _dtype(feature), is_ragged=True)
            else:
                found[name] = ColumnSpec((options.list_size,), _dtype(feature))
                found[f"{name}/count"] = ColumnSpec((), np.dtype(np.int64))
        if listed:
            found[image_lists.COUNT] = ColumnSpec((), np.dtype(np.int64))
        for each in plan.images:
            own = each.form and ColumnSpec((*(each.size or sides), each.form.channels), np.dtype(each.form.dtype))
            found[_OWN + each.name] = own or picture
        shown = {name.removeprefix(_OWN): each for name, each in found.items() if name not in self._hidden}
        if options.weights is not None:
            shown["weight"] = ColumnSpec((), np.dtype(np.float32))
        if options.metadata:
            number = ColumnSpec((), np.dtype(np.int64))
            shown |= {"epoch": number, "record": number, "seed": ColumnSpec((2,), np.dtype(np.uint32))}
            shown |= {"copy": number} if options.repeats > 1 else {}
        return shown


def _dtype(feature: features.Feature) -> np.dtype:
    return np.dtype(features.NUMPY_DTYPES[feature.kind])


def _fill_up(feature: features.Feature, lists: np.ndarray, size: int) -> dict[str, np.ndarray]:
    """Returns lists as an array [batch, size], filled up with zeros or empty bytes, and how long each is."""
    filled = np.full((len(lists), size), b"" if feature.kind == features.BYTES else 0, _dtype(feature))
    for row, values in enumerate(lists):
        filled[row, : len(values)] = values[:size]
    counts = np.array([len(values) for values in lists], np.int64)
    return {feature.key: filled, f"{feature.key}/count": counts}
