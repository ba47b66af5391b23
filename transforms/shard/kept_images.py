"""Writes images whose bytes are kept in less time than other images: usual JPEGs, and bare pixels.

What is not as usual in an image, or in the config, is left to `shard_writer`, which makes the same records.
"""

from __future__ import annotations

import functools
import math

from imagebeam import example, records
from imagebeam.transforms import elements
from imagebeam.transforms.images import checked_image, image_formats, jpeg_structure, prepare, structure
from imagebeam.transforms.shard import encode, read_ahead, statistics

_MAX_LEFT = 50  # images in a row that are not usual, or values that no other image has: from then on Python has all
_MAX_CACHED = 4096  # labels
_MAX_RUN_BYTES = 16 << 20  # read at once: in larger images Python's part is small


def find_jpegs(
    writer: records.RecordWriter, recipe: encode.ExampleRecipe, policy: prepare.ImagePolicy
) -> KeptJpegs | None:
    """Returns what writes kept JPEGs into one shard; None if the config wants them otherwise."""
    layout = recipe.layout if policy.keeps_any_jpeg else None
    return None if layout is None else KeptJpegs(writer, recipe, layout)


def find_pixels(
    writer: records.RecordWriter, recipe: encode.ExampleRecipe, policy: prepare.ImagePolicy
) -> KeptPixels | None:
    """Returns what writes kept pixels into one shard; None if the config wants them otherwise."""
    shape = policy.kept_shape
    return None if shape is None or recipe.layout is None else KeptPixels(writer, recipe, shape)


class KeptJpegs:
    """Writes JPEGs whose bytes are kept into one shard: reads, checks, encodes and frames each in one call of C.

    This is the usual image, and Python's part in it would take as long as all of C's. What is not as usual in an image,
    or in the config, is left to Python, which makes the same records. Not thread-safe.
    """

    def __init__(self, writer: records.RecordWriter, recipe: encode.ExampleRecipe, layout: example.Layout):
        self._writer = writer
        self._recipe = recipe
        self._layout = layout
        self._num_left = 0  # images in a row that C has read and left to Python

    def take(self, ref: elements.ImageRef) -> tuple[elements.Measures | bytes, float] | None:
        """Reads a local file, and writes it if it is a usual JPEG.

        Returns:
            What is counted of the image, or the bytes of a file that was not written; and how many seconds it took to
            read them. None if the file was not read.
        """
        if (
            ref.mask is not None
            or ref.extra_images
            or ref.inside is not None
            or ref.expected is not None
            or ref.content
        ):
            return None
        if self._num_left == _MAX_LEFT:
            return None
        values = self._recipe.values_of(ref)
        if ref.columns:
            values.update(zip(self._recipe.columns, ref.columns))
        found = self._writer.write_jpeg(ref.uri, ref.size, ref.version, self._layout, values)
        if found is None:
            return None
        read_nsec, data, height, width, channels = found
        if data is not None:
            self._num_left += 1
            return data, read_nsec * 1e-9
        self._num_left = 0
        measures = elements.Measures(
            image_formats.JPEG,
            jpeg_structure.COLORSPACES[channels],
            checked_image.UPRIGHT,
            height,
            width,
            ref.size,
            "",
            "",
            statistics.misname(ref.uri, image_formats.JPEG),
        )
        return measures, read_nsec * 1e-9


class KeptPixels:
    """Writes bare pixels that are kept into one shard: these images differ in their bytes alone. Not thread-safe.

    Attributes:
        measures: what is counted of each image.
    """

    def __init__(self, writer: records.RecordWriter, recipe: encode.ExampleRecipe, shape: tuple[int, int, int]):
        black = structure.raw_image(bytes(math.prod(shape)), shape)
        self.measures = statistics.measure("", black)
        self._length = len(black.data)
        self._write = writer.write
        self._encode = functools.partial(recipe.encode, image=black)
        self._encode_label = functools.lru_cache(_MAX_CACHED)(self._encode_only) if recipe.is_of_label else None

    def put(self, ref: elements.ImageRef, data: bytes) -> elements.Measures | None:
        """Writes an image, and returns what is counted of it; None if it was not written."""
        is_alone = ref.mask is None and not ref.extra_images and ref.inside is None and ref.expected is None
        if len(data) != self._length or not is_alone:
            return None
        self._write(self._encode(ref)[0], data)
        return self.measures

    def put_run(self, refs: elements.RefTable) -> bool:
        """Writes images that are parts of local files, all or none; returns whether it did."""
        others = refs.mask, refs.extra_images, refs.inside, refs.expected, refs.blocks, refs.content, refs.sha256
        num_bytes = sum(refs.length)
        if num_bytes > _MAX_RUN_BYTES or refs.length.count(self._length) < len(refs.length) or any(map(any, others)):
            return False
        found = read_ahead.read_parts(refs)
        if found is None:
            return False
        of_rows = (self._encode(ref)[0] for ref in elements.rows_of(refs))
        prefixes = of_rows if self._encode_label is None else map(self._encode_label, refs.label)
        for prefix, data in zip(prefixes, found):
            self._write(prefix, data)
        return True

    def _encode_only(self, label: elements.Label) -> bytes:
        return self._encode(elements.ImageRef("", "", label=label))[0]
