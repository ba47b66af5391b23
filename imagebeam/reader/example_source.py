"""Examples by index: a random access source for Grain and PyTorch."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from imagebeam import catalog as catalog_lib
from imagebeam import errors, example, features
from imagebeam.reader import (
    bare_pixels,
    mixture_pattern,
    read_plan,
    record_selection,
    shard_files,
    shard_reader,
    whole_images,
)

OWN = {features.ENCODED, features.LABEL, features.ENTRY_POINTS}  # entry points are of use only to the decoder in C


class ExampleSource:
    """The examples of a selection by index: Grain calls it a data source, PyTorch a map-style dataset.

    Each is {"image": uint8 [height, width, 3] RGB, or as it is stored; "label": as in the batches of `as_tf`, classes
    from 0}, and all other features, or the requested ones, under their own keys: int, float or bytes, and a list as an
    array of them, in its shape if it has one. Pixels of `image.dtype` are [height, width, channels] of that type. The
    order is that of the shards, the same on every machine. Thread-safe, and small to pickle: a worker process opens the
    shards by itself.

    Args:
        selection: the records.
        fetcher: reads the records of their split.
        catalog: catalog of the dataset.
        decode: whether "image" is pixels, decoded in C or with Pillow; else it comes as it is stored.
        is_raw: whether images are stored as bare pixels.
        wanted: keys of the features besides "image" and "label"; None for all others.

    Raises:
        ConfigError: if the shards are compressed; or images are to be decoded and there are none, or they are bare
            pixels without a shape, or Pillow is not installed.
    """

    def __init__(
        self,
        selection: record_selection.RecordSelection,
        fetcher: shard_reader.ShardReader,
        catalog: catalog_lib.Catalog,
        decode: bool = True,
        is_raw: bool = False,
        wanted: Sequence[str] | None = None,
    ):
        self._selection = selection
        self._fetcher = fetcher
        self._name = catalog.name
        self._fingerprint = selection.fingerprint
        self._decode = decode
        by_source = {feature.source: feature for feature in catalog.features}
        self._encoded = by_source.get(features.ENCODED)
        self._label = by_source.get(features.LABEL)
        self._sides = [by_source[name].key for name in ("image/height", "image/width") if name in by_source]
        others = [each.key for each in catalog.features if each.source not in OWN]
        self._features = read_plan.choose_features(
            catalog, others if wanted is None else wanted, read_plan.own_names(catalog)
        )
        self._arrays = frozenset(each.key for each in self._features if each.many)
        self._num_classes = len(catalog.labels)
        self._pixels = bare_pixels.PixelReader(catalog) if decode and is_raw else None
        self._form = bare_pixels.form_of(catalog)
        self._first_label = catalog.label_base if catalog.label_kind == "class" else 0
        if catalog.compression != "none":
            raise errors.ConfigError(
                "shards-compressed",
                "as_grain needs records that can be read alone, and the shards are compressed: "
                "convert with output.compression=none",
            )
        if decode:
            if not is_raw:
                whole_images.import_pillow()
            if self._encoded is None:
                raise errors.ConfigError(
                    "dataset-no-images",
                    f"{catalog.name} was written without images: features drops image/encoded; give decode=False",
                )

    def __len__(self) -> int:
        return len(self._selection)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Returns the example at `index`, counted from the end if it is negative.

        Raises:
            IndexError: if there is no such example.
            ExampleError: if it cannot be read or decoded.
        """
        [found] = self.__getitems__([index])
        return found

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Returns several examples, read together, as `__getitem__` each."""
        wanted = self._selection.records_at(_checked(indices, len(self)))
        contents = self._fetcher.fetch(wanted, np.zeros(len(wanted), np.int64))
        return [self._example(record, content) for record, content in zip(wanted.tolist(), contents)]

    def _example(self, record: int, content: bytes | shard_files.RecordFault) -> dict[str, Any]:
        if isinstance(content, shard_files.RecordFault):
            raise errors.ExampleError("example-broken", str(content))
        try:
            return self._parse(content)
        except ValueError as e:
            raise errors.ExampleError("example-broken", str(self._fetcher.fault(record, str(e)))) from e

    def _parse(self, content: bytes) -> dict[str, Any]:
        parsed = example.parse_example(content, self._arrays)
        named: dict[str, Any] = {}
        for feature in self._features:
            values = _values_of(parsed, feature)
            named[feature.key] = example.to_array(feature, values) if feature.many else values[0]
        if self._label is not None:
            values = _values_of(parsed, self._label)
            named["label"] = self._multi_hot(values) if self._label.many else values[0] - self._first_label
        if self._encoded is not None:
            named["image"] = self._image(parsed, self._encoded, _values_of(parsed, self._encoded))
        return named

    def _image(self, parsed: dict[str, list[Any]], feature: features.Feature, values: list[Any]) -> Any:
        if self._pixels is not None:
            return whole_images.of_pixels(self._pixels.read(parsed), self._form)
        if feature.many and not (self._decode and features.is_list_of_images(feature)):
            return example.to_array(feature, values)
        if not self._decode:
            return values[0]
        if feature.many:
            return self._images(parsed, values)
        sides = [value for key in self._sides for value in parsed.get(key, [])]
        size = (sides[0], sides[1]) if len(sides) == 2 else None
        return self._decode_one(values[0], size)

    def _decode_one(self, encoded: bytes, size: tuple[int, int] | None) -> np.ndarray:
        try:
            if self._form.is_usual:
                return whole_images.decode_rgb(encoded, size)
            return whole_images.decode_numbers(encoded, self._form, size)
        except ValueError as e:
            raise ValueError(f"the image cannot be decoded, {e}") from e

    def _images(self, parsed: dict[str, list[Any]], values: list[bytes]) -> np.ndarray:
        """Returns the images of a list in an array of arrays, which may have any sides."""
        sides = list(zip(*(parsed.get(key, []) for key in self._sides)))
        sizes = sides if len(self._sides) == 2 and len(sides) == len(values) else [None] * len(values)
        images: np.ndarray = np.empty(len(values), object)
        for number, (encoded, size) in enumerate(zip(values, sizes)):
            try:
                images[number] = self._decode_one(encoded, size)
            except ValueError as e:
                raise ValueError(f"image {number} of its list: {e}") from e
        return images

    def _multi_hot(self, ids: list[int]) -> np.ndarray:
        vector = np.zeros(self._num_classes, np.float32)
        classes = np.array(ids, np.int64) - self._first_label
        if len(classes) and not 0 <= classes.min() <= classes.max() < self._num_classes:
            raise ValueError(f"labels are {ids}, and the dataset has {self._num_classes:,} classes")
        vector[classes] = 1
        return vector

    def __repr__(self) -> str:
        """Names all that decides which example is at an index, not the folder: Grain compares it when it restores."""
        split = "+".join(self._selection.splits)
        return (
            f"ExampleSource({self._name!r}, fingerprint={self._fingerprint!r}, split={split!r}, "
            f"examples={self._selection.digest}, len={len(self)}, decode={self._decode})"
        )


class MixedExamples:
    """The examples of several sources by index, in fixed proportions. Thread-safe, and small to pickle.

    Each source is read in its order, and again from its start. Which source an index belongs to is a pure function of
    it.
    """

    def __init__(self, sources: Sequence[ExampleSource], weights: Sequence[float], size: int):
        """Reads nothing yet.

        Args:
            sources: of each dataset.
            weights: proportion of each.
            size: number of examples.
        """
        self._given = tuple(sources), tuple(weights), size
        self._pattern = mixture_pattern.Pattern(weights, 0)

    def __len__(self) -> int:
        return self._given[2]

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Returns the example at `index`, as `ExampleSource.__getitem__`."""
        [found] = self.__getitems__([index])
        return found

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Returns several examples, those of each source read together."""
        sources, numbers = self._pattern.locate(_checked(indices, len(self)))
        found: list[Any] = [None] * len(sources)
        for source in np.unique(sources).tolist():
            rows = np.flatnonzero(sources == source)
            examples = self._given[0][source]
            for row, each in zip(rows.tolist(), examples.__getitems__((numbers[rows] % len(examples)).tolist())):
                found[row] = each
        return found

    def __repr__(self) -> str:
        """Names all that decides which example is at an index, as that of `ExampleSource`."""
        return f"MixedExamples{self._given!r}"

    def __reduce__(self) -> tuple[type[MixedExamples], tuple[Any, ...]]:
        return MixedExamples, self._given


def _checked(indices: Sequence[int], size: int) -> np.ndarray:
    """Returns indexes from 0 on: int64 [n].

    Raises:
        IndexError: if there is no such example.
    """
    given = [operator.index(index) for index in indices]
    for index in given:
        if not -size <= index < size:
            raise IndexError(f"index {index} is out of range for {size:,} examples")
    return np.array(given, np.int64) % size


def _values_of(parsed: Mapping[str, list[Any]], feature: features.Feature) -> list[Any]:
    """Returns the values of a feature.

    Raises:
        ValueError: if a feature with exactly one value has none or several.
    """
    values = parsed.get(feature.key, [])
    if not feature.many and len(values) != 1:
        raise ValueError(f"feature {feature.key!r} has {len(values)} values, expected 1")
    return values
