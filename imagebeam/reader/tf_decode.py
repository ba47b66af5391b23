"""Images decoded by TensorFlow: only the part that is wanted, cut out while it is decoded; and pixels cast."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from imagebeam.reader import batch_reader, read_plan
from imagebeam.reader import options as options_lib

REDUCTIONS = (1, 2, 4, 8)  # factors by which libjpeg can scale an image down while it decodes
ANTIALIAS_GAP = 2  # with antialias an image is decoded reduced only while it stays this much larger than wanted
_KERNELS = {"bilinear": "triangle", "bicubic": "keyscubic"}  # TensorFlow's names
_DCT_METHODS = {"fast": "INTEGER_FAST", "accurate": "INTEGER_ACCURATE"}


def reductions(part: tf.Tensor, size: tuple[int, int], greatest: int) -> tf.Tensor:
    """Returns the index in REDUCTIONS of the largest one that leaves a part as large as wanted: int32 [n].

    Args:
        part: int32 [n, 4], as `crops.windows` returns it.
        size: height and width that are wanted, in pixels.
        greatest: the largest reduction to use.
    """
    least = np.array([np.multiply(each, size) for each in REDUCTIONS[1:] if each <= greatest], np.int32).reshape(-1, 2)
    enough = tf.reduce_all(part[:, None, 2:] >= least, axis=2)
    return tf.reduce_sum(tf.cast(enough, tf.int32), axis=1)


def greatest_reduction(longest_side: int, options: options_lib.ReadOptions) -> int:
    """Returns the largest of REDUCTIONS that any image of a split may allow.

    Args:
        longest_side: of all images in the split, in pixels; 0 if it is unknown.
        options: options of the reader.
    """
    if options.image_size is None:
        return 1
    allowed = [each for each in REDUCTIONS if longest_side == 0 or longest_side >= each * min(options.size)]
    return max(allowed, default=1)


def frame_reductions(frame: tf.Tensor, antialias: bool, greatest: int) -> tf.Tensor:
    """Returns as `reductions` the index of the largest one for an image that is resized with a filter: int32 [].

    Args:
        frame: float64 [4], as `crops.frames` returns it.
        antialias: whether the filter averages.
        greatest: the largest reduction to use.
    """
    index = tf.zeros([], tf.int32)
    for reduction in REDUCTIONS[1:]:
        if reduction <= greatest:
            least = reduction * (ANTIALIAS_GAP if antialias else 1)
            index += tf.cast((frame[1] >= least) & (frame[3] >= least), tf.int32)
    return index


def cover_part(part: tf.Tensor, reduction: tf.Tensor) -> tf.Tensor:
    """Returns the pixels of a reduced image that a part touches: int32 [4]."""
    start = part[:2] // reduction
    return tf.concat([start, (part[:2] + part[2:] + reduction - 1) // reduction - start], axis=0)


def decode_jpeg_part(
    encoded: tf.Tensor,
    part: tf.Tensor,
    reduction_index: tf.Tensor | None,
    dct: str = "fast",
    covers: bool = False,
) -> tf.Tensor:
    """Returns a part of a JPEG, uint8 [height, width, 3], RGB; scaled down if `reduction_index` is given.

    Args:
        encoded: string [], the JPEG.
        part: int32 [4], as `crops.windows` returns it.
        reduction_index: int32 [], the index in REDUCTIONS.
        dct: as in the options of the reader.
        covers: whether all pixels that the part touches are taken; else as many as it has, rounded down.
    """
    method = _DCT_METHODS[dct]
    if reduction_index is None:
        return tf.image.decode_and_crop_jpeg(encoded, part, channels=3, dct_method=method)

    reduction = tf.gather(REDUCTIONS, reduction_index)
    window = cover_part(part, reduction) if covers else tf.maximum(part // reduction, [0, 0, 1, 1])

    def reduced(ratio: int) -> Callable[[], tf.Tensor]:
        return lambda: tf.image.decode_and_crop_jpeg(encoded, window, 3, ratio, dct_method=method)

    return tf.switch_case(reduction_index, [reduced(ratio) for ratio in REDUCTIONS])


def resize(image: tf.Tensor, size: tuple[int, int]) -> tf.Tensor:
    """Resizes bilinearly with half-pixel centers: uint8 [*size, 3].

    Rounds down as most readers do; rounding to the nearest would take 45 us.
    """
    resized = tf.raw_ops.ResizeBilinear(images=image[None], size=size, half_pixel_centers=True)[0]
    return tf.cast(resized, tf.uint8)


def resize_frame(
    image: tf.Tensor, frame: tf.Tensor, part: tf.Tensor, reduction: tf.Tensor, options: options_lib.ReadOptions
) -> tf.Tensor:
    """Resizes with the filter of the options, and rounds to the nearest: uint8 [*options.size, 3].

    Args:
        image: uint8 [height, width, 3], the pixels of a reduced image that the part touches.
        frame: float64 [4], as `crops.frames` returns it.
        part: int32 [4], as `crops.windows` returns it.
        reduction: int32 [], the factor by which the image was reduced.
        options: options of the reader.
    """
    factor = tf.cast(reduction, tf.float64)
    scale = factor / frame[1::2]
    first = tf.cast(part[:2] // reduction, tf.float64)
    start = (tf.cast(part[:2], tf.float64) + frame[::2]) / factor - first
    resized = tf.raw_ops.ScaleAndTranslate(
        images=image[None],
        size=options.size,
        scale=tf.cast(scale, tf.float32),
        translation=tf.cast(-start * scale, tf.float32),
        kernel_type=_KERNELS[options.interpolation],
        antialias=options.antialias,
    )[0]
    return tf.cast(tf.clip_by_value(tf.round(resized), 0.0, 255.0), tf.uint8)


def make_decoder(
    options: options_lib.ReadOptions, only_jpeg: bool, largest_reduction: int, is_raw: bool = False
) -> Callable[[dict[str, Any]], tf.Tensor]:
    """Returns a function from an example's "encoded", "part" and "flip" to its image: uint8 [height, width, 3].

    Examples of bare pixels have a "shape" too, as `raw_image` takes it.

    Args:
        options: options of the reader.
        only_jpeg: whether all images of the split are JPEGs.
        largest_reduction: as `greatest_reduction` returns it; with 1 no reduction is chosen for each image.
        is_raw: whether images are stored as bare pixels.
    """

    def decode_part(example: dict[str, Any], index: tf.Tensor | None) -> tf.Tensor:
        encoded, part = example["encoded"], example["part"]
        if is_raw:
            return _crop(raw_image(encoded, example["shape"]), part)
        if only_jpeg:
            return decode_jpeg_part(encoded, part, index, options.dct, options.filters)
        return tf.cond(
            starts_as_jpeg(encoded),
            lambda: decode_jpeg_part(encoded, part, index, options.dct, options.filters),
            lambda: _crop(_decode_any(encoded), part),
        )

    def decode_filtered(example: dict[str, Any]) -> tf.Tensor:
        part, frame = example["part"], example["frame"]
        if is_raw or largest_reduction == 1:
            return resize_frame(decode_part(example, None), frame, part, tf.constant(1), options)
        index = frame_reductions(frame, options.antialias, largest_reduction)
        if not only_jpeg:
            index = tf.where(starts_as_jpeg(example["encoded"]), index, 0)
        return resize_frame(decode_part(example, index), frame, part, tf.gather(REDUCTIONS, index), options)

    def decode_whole(encoded: tf.Tensor) -> tf.Tensor:
        def decode_jpeg() -> tf.Tensor:
            return tf.io.decode_jpeg(encoded, 3, dct_method=_DCT_METHODS[options.dct])

        if only_jpeg:
            return decode_jpeg()
        if options.dct == "fast":
            return _decode_any(encoded)
        return tf.cond(starts_as_jpeg(encoded), decode_jpeg, lambda: _decode_any(encoded))

    def decode(example: dict[str, Any]) -> tf.Tensor:
        if options.filters:
            image = decode_filtered(example)
        elif options.crop is not None:
            shrinks = largest_reduction > 1 and not is_raw
            index = reductions(example["part"][None], options.size, largest_reduction)[0] if shrinks else None
            image = resize(decode_part(example, index), options.size)
        elif is_raw:
            image = raw_image(example["encoded"], example["shape"])
        else:
            image = decode_whole(example["encoded"])
        if options.flips:
            image = tf.raw_ops.Reverse(tensor=image, dims=tf.stack([False, example["flip"], False]))
        image.set_shape((*(options.size if options.crop else (None, None)), 3))
        return image

    return decode


def raw_image(pixels: tf.Tensor, shape: tf.Tensor) -> tf.Tensor:
    """Returns the image of bare pixels: uint8 [height, width, 3]. Gray becomes RGB, transparency is dropped.

    Args:
        pixels: string [], one byte for each value.
        shape: int64 [3]: height, width, channels.
    """
    image = tf.reshape(tf.io.decode_raw(pixels, tf.uint8), shape)
    is_colored = tf.cast(shape[2] >= 3, tf.int32)
    return tf.ensure_shape(tf.gather(image, tf.range(3) * is_colored, axis=2), (None, None, 3))


def starts_as_jpeg(encoded: tf.Tensor) -> tf.Tensor:
    """Returns whether a file begins like a JPEG: bool []."""
    return tf.strings.substr(encoded, 0, 3) == b"\xff\xd8\xff"


def _decode_any(encoded: tf.Tensor) -> tf.Tensor:
    image = tf.io.decode_image(encoded, channels=3, expand_animations=False)
    image.set_shape((None, None, 3))
    return image


def _crop(image: tf.Tensor, part: tf.Tensor) -> tf.Tensor:
    return tf.image.crop_to_bounding_box(image, part[0], part[1], part[2], part[3])


class Decoder:
    """Decodes the images of a batch with TensorFlow's operations. Thread-safe."""

    def __init__(self, plan: read_plan.ReadPlan, options: options_lib.ReadOptions, threads: int):
        self._shape = options.size if options.crop else (1, 1)
        reduction = greatest_reduction(plan.longest_side, options)
        decode = make_decoder(options, plan.formats == {"jpeg"}, reduction, plan.is_raw)
        specs = {"encoded": tf.TensorSpec([None], tf.string), "flip": tf.TensorSpec([None], tf.bool)}
        if plan.is_raw:
            specs["shape"] = tf.TensorSpec([None, 3], tf.int64)
        if options.crop is not None:
            specs["part"] = tf.TensorSpec([None, 4], tf.int32)
        if options.filters:
            specs["frame"] = tf.TensorSpec([None, 4], tf.float64)

        # One graph for all batches: a tf.data.Dataset of the images would instantiate it for each.
        def decode_all(examples: dict[str, tf.Tensor]) -> tf.Tensor:
            sides = options.size if options.crop else (None, None)
            made = tf.TensorSpec([*sides, 3], tf.uint8)
            return tf.map_fn(decode, examples, fn_output_signature=made, parallel_iterations=threads)

        self._decode_all = tf.function(decode_all, input_signature=[specs], autograph=False)

    def decode(self, parsed: batch_reader.Parsed) -> tuple[np.ndarray, batch_reader.Failures]:
        """Returns the images, uint8 [k, height, width, 3], and the failures."""
        given = {"shape": parsed.shapes, "part": parsed.parts, "frame": parsed.frames, "flip": parsed.flips}
        arrays: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        arrays["encoded"] = np.array([bytes(image) for image in parsed.images], object)
        if not parsed.images:
            return np.zeros((0, *self._shape, 3), np.uint8), []
        with contextlib.suppress(tf.errors.OpError):
            return self._decode(arrays), []
        images, failures = [], []  # which image it is, TensorFlow does not say
        for row in range(len(parsed.images)):
            try:
                images.append(self._decode({name: value[row : row + 1] for name, value in arrays.items()}))
            except tf.errors.OpError as e:
                failures.append((row, _reason(e)))
                images.append(np.zeros((1, *self._shape, 3), np.uint8))
        return np.concatenate(images), failures

    def _decode(self, arrays: dict[str, Any]) -> np.ndarray:
        with tf.device("CPU:0"):
            tensors = {
                name: tf.constant(value, tf.string if name == "encoded" else None) for name, value in arrays.items()
            }
            return self._decode_all(tensors).numpy()

    def measure(self, images: Sequence[bytes | memoryview]) -> tuple[np.ndarray, np.ndarray, batch_reader.Failures]:
        """Returns height and width of each image, int64 [n], which the records do not have; and the failures."""
        sizes, failures = np.ones((len(images), 2), np.int64), []
        for row, image in enumerate(map(bytes, images)):
            try:
                with tf.device("CPU:0"):
                    is_jpeg = image.startswith(b"\xff\xd8\xff")
                    shape = tf.image.extract_jpeg_shape(image) if is_jpeg else tf.shape(_decode_any(image))
                    sizes[row] = shape.numpy()[:2]
            except tf.errors.OpError as e:
                failures.append((row, _reason(e)))
        return sizes[:, 0], sizes[:, 1], failures


def _reason(error: tf.errors.OpError) -> str:
    """Returns the error of an operation, without the names of the graph around it."""
    text = error.message.partition("\n\t [[")[0].partition(" [Op:")[0].splitlines()[-1]
    return re.sub(r"^(Error in user-defined function .*? iterator: \S+:|\{\{.*?\}\}) ", "", text)


def make_caster(
    options: options_lib.ReadOptions, mean_and_std: options_lib.MeanAndStd | None
) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns a function from uint8 pixels to `options.dtype`, normalised if `mean_and_std` is given."""

    def cast(images: tf.Tensor) -> tf.Tensor:
        if options.dtype == "uint8":
            return images
        if mean_and_std is None:
            return tf.cast(images, options.dtype)
        mean, std = (tf.constant(values, tf.float32) for values in mean_and_std)
        return tf.cast((tf.cast(images, tf.float32) - mean) / std, options.dtype)

    return cast


def make_values(options: options_lib.ReadOptions, mean_and_std: options_lib.MeanAndStd | None) -> np.ndarray | None:
    """Returns what `make_caster` makes of each level of each channel: [3, 256] of `options.dtype`; None for uint8."""
    if options.dtype == "uint8":
        return None
    levels = np.tile(np.arange(256, dtype=np.float32), (3, 1))
    if mean_and_std is not None:
        mean, std = (np.array(each, np.float32).reshape(-1, 1) for each in mean_and_std)
        with np.errstate(all="ignore"):  # as TensorFlow does
            levels = (levels - mean) / std
    with np.errstate(all="ignore"):
        return levels.astype(tf.dtypes.as_dtype(options.dtype).as_numpy_dtype)
