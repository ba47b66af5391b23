"""Writes JPEGs whose bytes are kept: reads, checks, encodes and frames each in one call of C.

This is the usual image, and Python's part in it would take as long as all of C's. What is not as usual in an image, or
in the config, is left to `shard_writer`, which makes the same records.
"""

from __future__ import annotations

from imagebeam import example_encoder, records
from imagebeam.transforms import elements
from imagebeam.transforms.images import checked_image, image_formats, jpeg_structure, prepare
from imagebeam.transforms.shard import encode, statistics

_MAX_LEFT = 50  # images in a row that are not usual, or values that no other image has: from then on Python has all


def find_layout(recipe: encode.ExampleRecipe, policy: prepare.ImagePolicy) -> example_encoder.Layout | None:
    """Returns how to encode JPEGs whose bytes are kept; None if the config wants them otherwise."""
    return recipe.layout if policy.keeps_any_jpeg else None


class KeptJpegs:
    """Writes JPEGs into one shard. Not thread-safe."""

    def __init__(self, writer: records.RecordWriter, recipe: encode.ExampleRecipe, layout: example_encoder.Layout):
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
        if ref.mask is not None or ref.further or ref.inside is not None or ref.expected is not None or ref.content:
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
