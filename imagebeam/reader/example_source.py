"""Examples by index: a random access source for Grain and PyTorch."""

from __future__ import annotations

import io
import operator
import struct
import sys
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from imagebeam import catalog as catalog_lib
from imagebeam import errors, example, features
from imagebeam.reader import bare_pixels, read_plan, record_selection, shard_files, shard_reader

try:
    from imagebeam import _native
except ImportError:  # installed without a compiler, or without libjpeg-turbo
    _native = None  # type: ignore[assignment]


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
        # Entry points are of use only to the decoder in C.
        own = (self._encoded, self._label, by_source.get(features.ENTRY_POINTS))
        others = [each.key for each in catalog.features if each not in own]
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
                _import_pillow()
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
        given = operator.index(index)
        if not -len(self) <= given < len(self):
            raise IndexError(f"index {given} is out of range for {len(self):,} examples")
        record = self._selection.records_at(np.array([given % len(self)], np.int64))
        [content] = self._fetcher.fetch(record, np.zeros(1, np.int64))
        if isinstance(content, shard_files.RecordFault):
            raise errors.ExampleError("example-broken", str(content))
        try:
            return self._parse(content)
        except ValueError as e:
            raise errors.ExampleError("example-broken", str(self._fetcher.fault(int(record[0]), str(e)))) from e

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
            return _to_array_of(self._pixels.read(parsed), self._form)
        if feature.many and not (self._decode and features.is_list_of_images(feature)):
            return example.to_array(feature, values)
        if not self._decode:
            return values[0]
        if feature.many:
            return self._images(parsed, values)
        sides = [value for key in self._sides for value in parsed.get(key, [])]
        size = (sides[0], sides[1]) if len(sides) == 2 else None
        return _decode_image(values[0], size) if self._form.is_usual else _decode_wide(values[0], size)

    def _images(self, parsed: dict[str, list[Any]], values: list[bytes]) -> np.ndarray:
        """Returns the images of a list in an array of arrays, which may have any sides."""
        sides = list(zip(*(parsed.get(key, []) for key in self._sides)))
        sizes = sides if len(self._sides) == 2 and len(sides) == len(values) else [None] * len(values)
        decode = _decode_image if self._form.is_usual else _decode_wide
        images: np.ndarray = np.empty(len(values), object)
        for number, (encoded, size) in enumerate(zip(values, sizes)):
            try:
                images[number] = decode(encoded, size)
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
        return (
            f"ExampleSource({self._name!r}, fingerprint={self._fingerprint!r}, split={self._selection.split!r}, "
            f"examples={self._selection.digest}, len={len(self)}, decode={self._decode})"
        )


def _values_of(parsed: Mapping[str, list[Any]], feature: features.Feature) -> list[Any]:
    """Returns the values of a feature.

    Raises:
        ValueError: if a feature with exactly one value has none or several.
    """
    values = parsed.get(feature.key, [])
    if not feature.many and len(values) != 1:
        raise ValueError(f"feature {feature.key!r} has {len(values)} values, expected 1")
    return values


def _to_array_of(pixels: bare_pixels.Pixels, form: bare_pixels.PixelForm) -> np.ndarray:
    """Returns uint8 [height, width, 3], as `_decode_image`; pixels of another form as they are stored."""
    stored = pixels.to_array(form)
    if not form.is_usual:
        return stored.astype(form.dtype)
    return stored[:, :, :3].copy() if pixels.channels >= 3 else np.repeat(stored[:, :, :1], 3, axis=2)


def _decode_image(encoded: bytes, size: tuple[int, int] | None = None) -> np.ndarray:
    """Returns the pixels of an image as RGB, uint8 [height, width, 3]; transparency is dropped, as TensorFlow does.

    Sound JPEGs in gray or color are decoded in C, to the same pixels in three quarters of the time. Pillow decodes all
    others, and says what is wrong with an image.

    Args:
        encoded: the bytes of the image.
        size: height and width that its record says; None if it says nothing.

    Raises:
        ValueError: if it cannot be decoded, or has another size.
    """
    pillow = _import_pillow()
    if _native is not None:
        found = _native.decode_whole(encoded, pillow.MAX_IMAGE_PIXELS or sys.maxsize, *(size or ()))
        if found is not None:
            pixels, height, width = found
            return np.frombuffer(pixels, np.uint8).reshape(height, width, 3)
    try:
        with pillow.open(io.BytesIO(encoded)) as picture:
            if size is not None and size != (picture.height, picture.width):  # before memory is taken for the pixels
                sides = f"{picture.height} x {picture.width} pixels"
                raise ValueError(f"the image has {sides}, its record says {size[0]} x {size[1]}")
            if picture.mode.startswith("I;16"):  # gray of 16 bits, which Pillow would clip at 255
                gray = (np.asarray(picture) >> 8).astype(np.uint8)
                return np.repeat(gray[:, :, None], 3, axis=2)
            return np.array(picture.convert("RGB"))  # a copy: PyTorch warns about read-only arrays
    except (OSError, SyntaxError, ValueError, EOFError, struct.error, zlib.error, pillow.DecompressionBombError) as e:
        # The text of UnidentifiedImageError holds a memory address.
        reason = "cannot identify the image" if isinstance(e, pillow.UnidentifiedImageError) else e
        raise ValueError(f"the image cannot be decoded, Pillow: {reason}") from e


def _decode_wide(encoded: bytes, size: tuple[int, int] | None) -> np.ndarray:
    """Returns the numbers of a PNG of 16 bits, uint16 [height, width, channels]; arguments as of `_decode_image`.

    Gray ones are decoded by Pillow, which takes the upper 8 bits of colors.
    """
    try:
        with _import_pillow().open(io.BytesIO(encoded)) as picture:
            is_gray = picture.mode.startswith("I;16")
            found = np.array(picture) if is_gray else _import_codecs().png_decode(encoded)
    except (OSError, SyntaxError, ValueError, RuntimeError, struct.error, zlib.error) as e:
        raise ValueError(f"the image cannot be decoded: {e}") from e
    if found.dtype != np.uint16 or (size is not None and found.shape[:2] != size):
        raise ValueError(f"the image is {found.dtype} of {found.shape[:2]}, its record says uint16 of {size}")
    return found if found.ndim == 3 else found[:, :, None]


def _import_codecs() -> Any:
    with errors.imports_for("as_grain, of a PNG of 16 bits a color,", "bands"):
        import imagecodecs
    return imagecodecs


def _import_pillow() -> Any:
    try:
        from PIL import Image
    except ModuleNotFoundError as e:
        raise errors.missing_package(e, "as_grain", "grain", otherwise="give decode=False") from e
    return Image
