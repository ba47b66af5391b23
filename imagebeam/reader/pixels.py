"""Pictures from their bytes, in TensorFlow: the part that is wanted is cut out while it is decoded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from imagebeam.reader import options as options_lib

REDUCTIONS = (1, 2, 4, 8)  # by which libjpeg can scale a picture down while it decodes


def reductions(part: tf.Tensor, size: tuple[int, int], greatest: int) -> tf.Tensor:
    """Which of REDUCTIONS leaves a part still as large as wanted: int32 [n], an index.

    Args:
        part: int32 [n, 4], as `windows.windows` gives it.
        size: height and width wanted.
        greatest: of REDUCTIONS.
    """
    index = tf.zeros_like(part[:, 0])
    for reduction in REDUCTIONS[1:]:
        if reduction <= greatest:
            enough = (part[:, 2] >= reduction * size[0]) & (part[:, 3] >= reduction * size[1])
            index += tf.cast(enough, tf.int32)
    return index


def decode_jpeg_part(encoded: tf.Tensor, part: tf.Tensor, reduction_index: tf.Tensor | None) -> tf.Tensor:
    """A part of a JPEG: uint8 [height, width, 3], RGB; of a reduced picture where `reduction_index` is given."""
    if reduction_index is None:
        return tf.image.decode_and_crop_jpeg(encoded, part, channels=3)

    def reduced(reduction: int) -> Callable[[], tf.Tensor]:
        def decode() -> tf.Tensor:
            return tf.image.decode_and_crop_jpeg(encoded, tf.maximum(part // reduction, [0, 0, 1, 1]), 3, reduction)

        return decode

    return tf.switch_case(reduction_index, [reduced(reduction) for reduction in REDUCTIONS])


def resize(image: tf.Tensor, size: tuple[int, int]) -> tf.Tensor:
    """Bilinear, with half-pixel centers, rounded down as most readers do (rounding takes 45 us): uint8 [*size, 3]."""
    resized = tf.raw_ops.ResizeBilinear(images=image[None], size=size, half_pixel_centers=True)[0]
    return tf.cast(resized, tf.uint8)


def make_decoder(
    options: options_lib.ReadOptions, only_jpeg: bool, greatest_reduction: int
) -> Callable[[dict[str, Any]], tf.Tensor]:
    """A function from an example's "encoded", "part" and "flip" to its picture: uint8 [height, width, 3].

    Args:
        options: of the reader.
        only_jpeg: whether no other format is in the split.
        greatest_reduction: of REDUCTIONS, that the largest picture of the split allows; 1 saves the choice.
    """

    def decode_part(example: dict[str, Any]) -> tf.Tensor:
        encoded, part = example["encoded"], example["part"]
        index = reductions(part[None], options.size, greatest_reduction)[0] if greatest_reduction > 1 else None
        if only_jpeg:
            return decode_jpeg_part(encoded, part, index)
        return tf.cond(
            tf.strings.substr(encoded, 0, 3) == b"\xff\xd8\xff",
            lambda: decode_jpeg_part(encoded, part, index),
            lambda: _crop(_decode_any(encoded), part),
        )

    def decode(example: dict[str, Any]) -> tf.Tensor:
        if options.crop is None:
            image = tf.io.decode_jpeg(example["encoded"], 3) if only_jpeg else _decode_any(example["encoded"])
        else:
            image = resize(decode_part(example), options.size)
        if options.flips:
            image = tf.cond(example["flip"], lambda: tf.reverse(image, [1]), lambda: image)
        image.set_shape((*(options.size if options.crop else (None, None)), 3))
        return image

    return decode


def _decode_any(encoded: tf.Tensor) -> tf.Tensor:
    image = tf.io.decode_image(encoded, channels=3, expand_animations=False)
    image.set_shape((None, None, 3))
    return image


def _crop(image: tf.Tensor, part: tf.Tensor) -> tf.Tensor:
    return tf.image.crop_to_bounding_box(image, part[0], part[1], part[2], part[3])


def make_caster(
    options: options_lib.ReadOptions, mean_and_std: options_lib.MeanAndStd | None
) -> Callable[[tf.Tensor], tf.Tensor]:
    """A function from uint8 pixels to `options.dtype`, normalised where `mean_and_std` is given."""

    def cast(images: tf.Tensor) -> tf.Tensor:
        if options.dtype == "uint8":
            return images
        if mean_and_std is None:
            return tf.cast(images, options.dtype)
        mean, std = (tf.constant(values, tf.float32) for values in mean_and_std)
        return tf.cast((tf.cast(images, tf.float32) - mean) / std, options.dtype)

    return cast
