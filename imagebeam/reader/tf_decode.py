"""Pictures from their bytes, in TensorFlow: the part that is wanted is cut out while it is decoded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from imagebeam.reader import bare_pixels
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
    options: options_lib.ReadOptions, only_jpeg: bool, greatest_reduction: int, is_raw: bool = False
) -> Callable[[dict[str, Any]], tf.Tensor]:
    """A function from an example's "encoded", "part" and "flip" to its picture: uint8 [height, width, 3].

    Raw images, as `raw_picture` takes them, have a "shape", too.

    Args:
        options: of the reader.
        only_jpeg: whether no other format is in the split.
        greatest_reduction: of REDUCTIONS, that the largest picture of the split allows; 1 saves the choice.
        is_raw: whether images are stored as pixels.
    """

    def decode_part(example: dict[str, Any]) -> tf.Tensor:
        encoded, part = example["encoded"], example["part"]
        if is_raw:
            return _crop(raw_picture(encoded, example["shape"]), part)
        index = reductions(part[None], options.size, greatest_reduction)[0] if greatest_reduction > 1 else None
        if only_jpeg:
            return decode_jpeg_part(encoded, part, index)
        return tf.cond(
            tf.strings.substr(encoded, 0, 3) == b"\xff\xd8\xff",
            lambda: decode_jpeg_part(encoded, part, index),
            lambda: _crop(_decode_any(encoded), part),
        )

    def decode(example: dict[str, Any]) -> tf.Tensor:
        if options.crop is not None:
            image = resize(decode_part(example), options.size)
        elif is_raw:
            image = raw_picture(example["encoded"], example["shape"])
        else:
            image = tf.io.decode_jpeg(example["encoded"], 3) if only_jpeg else _decode_any(example["encoded"])
        if options.flips:
            image = tf.cond(example["flip"], lambda: tf.reverse(image, [1]), lambda: image)
        image.set_shape((*(options.size if options.crop else (None, None)), 3))
        return image

    return decode


def raw_picture(values: tf.Tensor, shape: tf.Tensor) -> tf.Tensor:
    """The picture of bare pixels: uint8 [height, width, 3]. Gray becomes RGB, transparency is left out.

    What does not fit `shape`, or is no number from 0 to 255, ends in an error of TensorFlow.

    Args:
        values: string [], one byte for each; or a list of numbers, int64 or float32.
        shape: int64 [3]: height, width, channels.
    """
    checks = [
        tf.debugging.assert_positive(shape, "the height, width or number of channels of an image is not known"),
        tf.debugging.assert_less_equal(
            shape[2], tf.constant(bare_pixels.MAX_CHANNELS, shape.dtype), "too many channels"
        ),
    ]
    if values.dtype == tf.string:
        values = tf.io.decode_raw(values, tf.uint8)
    else:
        lowest, highest = tf.constant(0, values.dtype), tf.constant(255, values.dtype)
        checks += [
            tf.debugging.assert_greater_equal(values, lowest, "a pixel is below 0"),
            tf.debugging.assert_less_equal(values, highest, "a pixel is above 255"),
        ]
    with tf.control_dependencies([check for check in checks if check is not None]):  # None: it held at once
        picture = tf.reshape(tf.cast(values, tf.uint8), shape)
    is_colored = tf.cast(shape[2] >= 3, tf.int32)
    return tf.ensure_shape(tf.gather(picture, tf.range(3) * is_colored, axis=2), (None, None, 3))


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
