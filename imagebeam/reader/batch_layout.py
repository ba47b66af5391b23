"""The batch as the user gets it: of its size, padded, lists filled up, with weights, by name or as (image, label)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from imagebeam import features
from imagebeam.reader import image_decoder, image_lists, read_plan
from imagebeam.reader import options as options_lib

_OWN = "features/"  # begins the names of requested features inside the reader: a key may be "label"


class ArraySpec(NamedTuple):
    """An array of a batch, for the graphs of TensorFlow."""

    shape: tuple[int | None, ...]
    dtype: np.dtype
    is_ragged: bool = False  # whether it is an object array of arrays of `dtype`, one for each example


class BatchLayout:
    """Makes batches of what was read, in arrays by their names inside the reader."""

    def __init__(self, plan: read_plan.ReadPlan, options: options_lib.ReadOptions, decoder: image_decoder.ImageDecoder):
        self._plan, self._options, self._decoder = plan, options, decoder
        self._lists = {
            name: feature for name, feature in plan.many.items() if feature.is_list and name != read_plan.LABEL
        }
        # A weight by its feature is in the batch only if it was asked for.
        self._hidden = {"position"}
        if plan.weight is not None and plan.weight not in plan.extra:
            self._hidden.add(_OWN + plan.weight.key)
        self._weights: np.ndarray | None = None  # by class
        if isinstance(options.weights, Mapping):
            self._weights = np.array([options.weights[each] for each in sorted(options.weights)], np.float32)

    def finish(self, read: dict[str, np.ndarray]) -> Any:
        """Returns the batch: arrays by name, or a tuple.

        Args:
            read: as `BatchReader.read` reads it: "image", "position", the label and the features.
        """
        size, options = self._options.batch_size, self._options
        mask = None
        if size is not None and options.pad:
            mask = np.arange(size) < len(read["position"])
            read = {name: self._pad(name, values, size) for name, values in read.items()}
        weight = self._weight(read, mask)
        if options.supervised:
            return (read["image"], read["label"]) if weight is None else (read["image"], read["label"], weight)
        batch = {name.removeprefix(_OWN): values for name, values in read.items() if name not in self._hidden}
        if options.list_size is not None:
            for feature in self._lists.values():
                batch |= _fill_up(feature, batch[feature.key], options.list_size)
        if mask is not None:
            batch["mask"] = mask
        if weight is not None:
            batch["weight"] = weight
        return batch

    def _pad(self, name: str, values: np.ndarray, size: int) -> np.ndarray:
        missing = size - len(values)
        if not missing:  # as of all batches but the last
            return values
        padded = np.zeros((size, *values.shape[1:]), values.dtype)
        padded[: len(values)] = values
        if name in self._pictures:
            padded[len(values) :] = self._decoder.blank
        elif name in self._lists:
            for row in range(len(values), size):
                padded[row] = _no_values(self._lists[name])
        elif values.dtype == object:
            padded[len(values) :] = b""
        return padded

    @property
    def _pictures(self) -> set[str]:
        """Names of the images of colors: all but masks and other numbers."""
        return {"image", *(_OWN + each.name for each in self._plan.images if each.form is None)}

    def _weight(self, read: Mapping[str, np.ndarray], mask: np.ndarray | None) -> np.ndarray | None:
        """Returns the weight of each example, float32 [batch], 0 for padding; None if the batch has none."""
        if self._plan.weight is not None:
            weight = read[_OWN + self._plan.weight.key].astype(np.float32)
        elif self._weights is not None:
            index = read["label"] - self._options.label_base
            weight = self._weights[index if mask is None else index * mask]  # padding has the label 0
        elif mask is not None and self._options.supervised:
            return mask.astype(np.float32)
        else:
            return None
        return weight if mask is None else weight * mask

    def specs(self) -> dict[str, ArraySpec]:
        """Returns what a batch consists of, by name; if it is a tuple, in its order."""
        plan, options = self._plan, self._options
        size = options.batch_size if options.pad or options.drops_remainder else None
        sides = (None, None) if options.crop is None else options.size
        listed = (options.max_images,) if plan.has_lists_of_images else ()
        picture = ArraySpec((size, *listed, *sides, plan.form.channels), self._decoder.dtype)
        found = {"image": picture}
        for name, feature in plan.columns.items():
            is_class = name == read_plan.LABEL and feature.kind == features.INT64
            found[name] = ArraySpec((size,), np.dtype(np.int32) if is_class else _dtype(feature))
        for name, feature in plan.many.items():
            if name == read_plan.LABEL:
                classes = plan.num_classes if options.num_classes is None else options.num_classes
                found[name] = ArraySpec((size, classes), np.dtype(np.float32))
            elif feature.shape is not None:
                found[name] = ArraySpec((size, *feature.shape), _dtype(feature))
            elif options.list_size is None:
                found[name] = ArraySpec((size, None), _dtype(feature), is_ragged=True)
            else:
                found[name] = ArraySpec((size, options.list_size), _dtype(feature))
                found[f"{name}/count"] = ArraySpec((size,), np.dtype(np.int64))
        if listed:
            found[image_lists.COUNT] = ArraySpec((size,), np.dtype(np.int64))
        for each in plan.images:
            own = each.form and ArraySpec((size, *sides, each.form.channels), np.dtype(each.form.dtype))
            found[_OWN + each.name] = own or picture
        weight = {"weight": ArraySpec((size,), np.dtype(np.float32))}
        has_weight = plan.weight is not None or self._weights is not None
        if options.supervised:
            return {name: found[name] for name in ("image", "label")} | (weight if has_weight or options.pad else {})
        shown = {name.removeprefix(_OWN): each for name, each in found.items() if name not in self._hidden}
        if options.pad:
            shown["mask"] = ArraySpec((size,), np.dtype(np.bool_))
        return shown | (weight if has_weight else {})


def _dtype(feature: features.Feature) -> np.dtype:
    return np.dtype(features.NUMPY_DTYPES[feature.kind])


def _no_values(feature: features.Feature) -> np.ndarray:
    return np.zeros(0, _dtype(feature))


def _fill_up(feature: features.Feature, lists: np.ndarray, size: int) -> dict[str, np.ndarray]:
    """Returns lists as an array [batch, size], filled up with zeros or empty bytes, and how long each is."""
    filled = np.full((len(lists), size), b"" if feature.kind == features.BYTES else 0, _dtype(feature))
    for row, values in enumerate(lists):
        filled[row, : len(values)] = values[:size]
    counts = np.array([len(values) for values in lists], np.int64)
    return {feature.key: filled, f"{feature.key}/count": counts}
