"""Pictures from their bytes, in TensorFlow: the part that is wanted is cut out while it is decoded."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from imagebeam.reader import options as options_lib

NUM_TRIALS = 10  # for a random part that lies inside the picture; torchvision's RandomResizedCrop
NUM_UNIFORMS = 2 * NUM_TRIALS + 3  # random numbers that one example takes
REDUCTIONS = (1, 2, 4, 8)  # by which libjpeg can scale a picture down while it decodes


def random_windows(
    height: tf.Tensor, width: tf.Tensor, uniforms: tf.Tensor, area: tuple[float, float], ratio: tuple[float, float]
) -> tf.Tensor:
    """A part of each picture, of random area, aspect ratio and place.

    Ten tries, and if none fits the largest part in the middle of an allowed ratio. Source: Szegedy et al., Going
    Deeper with Convolutions, 2014; torchvision.transforms.RandomResizedCrop.

    Args:
        height: int32 [n], pixels.
        width: int32 [n], pixels.
        uniforms: float32 [n, NUM_UNIFORMS] in [0, 1).
        area: least and greatest, as a fraction of the picture's.
        ratio: least and greatest, width over height.

    Returns:
        int32 [n, 4]: top, left, height, width.
    """
    rows, columns = tf.cast(height, tf.float32)[:, None], tf.cast(width, tf.float32)[:, None]
    areas = rows * columns * (area[0] + (area[1] - area[0]) * uniforms[:, :NUM_TRIALS])
    log_low, log_high = math.log(ratio[0]), math.log(ratio[1])
    ratios = tf.exp(log_low + (log_high - log_low) * uniforms[:, NUM_TRIALS : 2 * NUM_TRIALS])
    fallback_width = tf.minimum(columns, rows * ratio[1])
    fallback_height = tf.minimum(rows, columns / ratio[0])
    heights = tf.concat([tf.round(tf.sqrt(areas / ratios)), tf.round(fallback_height)], axis=1)
    widths = tf.concat([tf.round(tf.sqrt(areas * ratios)), tf.round(fallback_width)], axis=1)
    fits = (heights >= 1) & (widths >= 1) & (heights <= rows) & (widths <= columns)
    first = tf.argmax(tf.cast(fits, tf.int32), axis=1)
    first = tf.where(tf.reduce_any(fits[:, :-1], axis=1), first, NUM_TRIALS)
    part_height = tf.maximum(tf.gather(heights, first, batch_dims=1), 1.0)
    part_width = tf.maximum(tf.gather(widths, first, batch_dims=1), 1.0)
    inside = first < NUM_TRIALS
    down = tf.where(inside, uniforms[:, 2 * NUM_TRIALS], 0.5)
    right = tf.where(inside, uniforms[:, 2 * NUM_TRIALS + 1], 0.5)
    top = tf.floor(down * (rows[:, 0] - part_height + 1 - tf.cast(~inside, tf.float32)))
    left = tf.floor(right * (columns[:, 0] - part_width + 1 - tf.cast(~inside, tf.float32)))
    return tf.cast(tf.stack([top, left, part_height, part_width], axis=1), tf.int32)


def center_windows(height: tf.Tensor, width: tf.Tensor, size: tuple[int, int], fraction: float) -> tf.Tensor:
    """The largest part in the middle that has the shape of `size`, less the border that `fraction` leaves out."""
    rows, columns = tf.cast(height, tf.float32), tf.cast(width, tf.float32)
    scale = fraction * tf.minimum(rows / size[0], columns / size[1])
    part_height = tf.clip_by_value(tf.round(scale * size[0]), 1.0, tf.maximum(rows, 1.0))
    part_width = tf.clip_by_value(tf.round(scale * size[1]), 1.0, tf.maximum(columns, 1.0))
    top, left = tf.floor((rows - part_height) / 2), tf.floor((columns - part_width) / 2)
    return tf.cast(tf.stack([top, left, part_height, part_width], axis=1), tf.int32)


def windows(height: tf.Tensor, width: tf.Tensor, uniforms: tf.Tensor, options: options_lib.ReadOptions) -> tf.Tensor:
    """The part of each picture that `options` ask for: int32 [n, 4]."""
    if options.crop == "random":
        return random_windows(height, width, uniforms, options.area, options.aspect_ratio)
    if options.crop == "center":
        return center_windows(height, width, options.size, options.center_fraction)
    zeros = tf.zeros_like(height)
    return tf.stack([zeros, zeros, height, width], axis=1)


def reductions(part: tf.Tensor, size: tuple[int, int], greatest: int) -> tf.Tensor:
    """Which of REDUCTIONS leaves a part still as large as wanted: int32 [n], an index.

    Args:
        part: int32 [n, 4], as `windows` gives it.
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
