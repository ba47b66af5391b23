"""Images decoded by TensorFlow: only the part that is wanted, cut out while it is decoded; and pixels cast."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from imagebeam.reader import bare_pixels, batch_reader, crops, read_plan
from imagebeam.reader import options as options_lib

_KERNELS = {"bilinear": "triangle", "bicubic": "keyscubic"}  # TensorFlow's names
_DCT_METHODS = {"fast": "INTEGER_FAST", "accurate": "INTEGER_ACCURATE"}
_PNG_DEPTH = 24  # byte of a PNG with its bits for a channel
_JPEG_START = b"\xff\xd8\xff"
_OTHER_FORMAT = len(crops.REDUCTIONS)  # the kind of an image that is no JPEG; that of a JPEG is its reduction


class Decoder:
    """Decodes the images of a batch with TensorFlow's operations. Thread-safe."""

    def __init__(self, plan: read_plan.ReadPlan, options: options_lib.ReadOptions, threads: int):
        self._options = options
        self._is_raw, self._form = plan.is_raw, plan.form
        self._shape = options.size if options.crop else (1, 1)
        specs = {
            "encoded": tf.TensorSpec([None], tf.string),
            "kind": tf.TensorSpec([None], tf.int32),
            "flip": tf.TensorSpec([None], tf.bool),
        }
        if plan.is_raw:
            specs["shape"] = tf.TensorSpec([None, 3], tf.int64)
        if options.crop is not None:
            specs["window"] = tf.TensorSpec([None, 4], tf.int32)
        if options.filters:
            specs["scale"] = specs["translation"] = tf.TensorSpec([None, 2], tf.float32)

        # One graph for all batches: a tf.data.Dataset of the images would instantiate it for each.
        def decode_all(examples: dict[str, tf.Tensor]) -> tf.Tensor:
            sides = options.size if options.crop else (None, None)
            made = tf.TensorSpec([*sides, plan.form.channels], plan.form.dtype)
            decode = functools.partial(_decode_one, options, plan.form)
            return tf.map_fn(decode, examples, fn_output_signature=made, parallel_iterations=threads)

        self._decode_all = tf.function(decode_all, input_signature=[specs], autograph=False)

    def decode(self, parsed: batch_reader.Parsed) -> tuple[np.ndarray, batch_reader.Failures]:
        """Returns the images, [k, height, width, channels] of the type in the plan's form, and the failures."""
        shape = (*self._shape, self._form.channels)
        if not parsed.images:
            return np.zeros((0, *shape), self._form.dtype), []
        return _decode_each(self._decode_all, self._arrays(parsed), np.zeros((1, *shape), self._form.dtype))

    def _arrays(self, parsed: batch_reader.Parsed) -> dict[str, np.ndarray]:
        """Returns what `_decode_one` takes of each image."""
        images = [bytes(image) for image in parsed.images]
        is_jpeg = np.array([not self._is_raw and image.startswith(_JPEG_START) for image in images])
        index = np.zeros(len(images), np.int64)
        arrays: dict[str, Any] = {"encoded": np.array(images, object), "flip": parsed.flips}
        if parsed.shapes is not None:
            arrays["shape"] = parsed.shapes
        if parsed.parts is not None:
            index = np.where(is_jpeg, crops.reductions(parsed.parts, parsed.frames, self._options), 0)
            factors = np.array(crops.REDUCTIONS)[index]
            arrays["window"] = crops.reduced_windows(parsed.parts, factors, self._options)
            if parsed.frames is not None:
                scale = factors[:, None] / parsed.frames[:, 1::2]
                start = (parsed.parts[:, :2] + parsed.frames[:, ::2]) / factors[:, None] - arrays["window"][:, :2]
                arrays |= {"scale": scale.astype(np.float32), "translation": (-start * scale).astype(np.float32)}
        return arrays | {"kind": np.where(is_jpeg, index, _OTHER_FORMAT).astype(np.int32)}

    def measure(self, images: Sequence[bytes | memoryview]) -> tuple[np.ndarray, np.ndarray, batch_reader.Failures]:
        """Returns height and width of each image, int64 [n], which the records do not have; and the failures."""
        sizes, failures = np.ones((len(images), 2), np.int64), []
        for row, image in enumerate(map(bytes, images)):
            try:
                with tf.device("CPU:0"):
                    is_jpeg = image.startswith(_JPEG_START)
                    shape = tf.image.extract_jpeg_shape(image) if is_jpeg else tf.shape(_decode_any(image))
                    sizes[row] = shape.numpy()[:2]
            except tf.errors.OpError as e:
                failures.append((row, _reason(e)))
        return sizes[:, 0], sizes[:, 1], failures


class NumberDecoder:
    """Decodes the images of a batch that hold classes, depth or other numbers, each to the nearest pixel. Thread-safe.

    Numbers between those of two pixels would be of no class, and no depth of the scene.
    """

    def __init__(self, options: options_lib.ReadOptions, threads: int, form: bare_pixels.PixelForm):
        self._size = options.size if options.crop else None
        self._form = form
        sides = self._size or (None, None)
        specs = {
            "encoded": tf.TensorSpec([None], tf.string),
            "sides": tf.TensorSpec([None, 2], tf.int32),
            "rows": tf.TensorSpec([None, sides[0]], tf.int32),
            "columns": tf.TensorSpec([None, sides[1]], tf.int32),
        }

        def decode_all(examples: dict[str, tf.Tensor]) -> tf.Tensor:
            made = tf.TensorSpec([*sides, form.channels], form.dtype)
            decode_one = functools.partial(_decode_numbers, form)
            return tf.map_fn(decode_one, examples, fn_output_signature=made, parallel_iterations=threads)

        self._decode_all = tf.function(decode_all, input_signature=[specs], autograph=False)

    def decode(self, parsed: batch_reader.Parsed) -> tuple[np.ndarray, batch_reader.Failures]:
        """Returns the images, [k, height, width, channels] of their form, and the failures."""
        if not parsed.images:
            return np.zeros((0, *(self._size or (1, 1)), self._form.channels), self._form.dtype), []
        assert parsed.sizes is not None, "read_plan"
        size = self._size or tuple(parsed.sizes[0].tolist())
        rows, columns = crops.nearest(parsed.sizes, parsed.parts, parsed.frames, size)
        columns[parsed.flips] = columns[parsed.flips, ::-1]
        encoded = np.array([bytes(image) for image in parsed.images], object)
        arrays = {"encoded": encoded, "sides": parsed.sizes, "rows": rows, "columns": columns}
        return _decode_each(self._decode_all, arrays, np.zeros((1, *size, self._form.channels), self._form.dtype))


def _decode_each(
    decode_all: Callable[[dict[str, tf.Tensor]], tf.Tensor], arrays: dict[str, np.ndarray], blank: np.ndarray
) -> tuple[np.ndarray, batch_reader.Failures]:
    """Returns the decoded images, `blank` for each one that cannot be decoded, and the failures."""

    def decode(values: dict[str, np.ndarray]) -> np.ndarray:
        with tf.device("CPU:0"):
            dtypes = {"encoded": tf.string}
            return decode_all({name: tf.constant(value, dtypes.get(name)) for name, value in values.items()}).numpy()

    with contextlib.suppress(tf.errors.OpError):
        return decode(arrays), []
    images, failures = [], []  # which image it is, TensorFlow does not say
    for row in range(len(arrays["encoded"])):
        try:
            images.append(decode({name: value[row : row + 1] for name, value in arrays.items()}))
        except tf.errors.OpError as e:
            failures.append((row, _reason(e)))
            images.append(blank)
    return np.concatenate(images), failures


def _decode_numbers(form: bare_pixels.PixelForm, example: dict[str, tf.Tensor]) -> tf.Tensor:
    """Returns the pixels of a PNG, or bare ones of float32, at `rows` and `columns`, [rows, columns, channels].

    Args:
        form: type and channels of the pixels.
        example: "encoded", string []; "sides", int32 [2], which it must have; "rows" and "columns", int32.
    """
    encoded, sides = example["encoded"], example["sides"]
    if form.dtype == "float32":
        numbers = raw_image(encoded, tf.concat([sides, [form.channels]], 0), form)
    else:
        depth = tf.strings.substr(encoded, _PNG_DEPTH, 1)
        if form.dtype == "uint16":
            fits = tf.debugging.assert_equal(depth, b"\x10", message="it is no PNG of 16 bits")
        else:
            message = "a mask of 16 bits is no uint8: take its bytes"
            fits = tf.debugging.assert_none_equal(depth, b"\x10", message=message)
        with tf.control_dependencies([fits]):
            numbers = tf.io.decode_png(encoded, form.channels, form.dtype)
    has_sides = tf.debugging.assert_equal(tf.shape(numbers)[:2], sides, message="it has not the size of the image")
    with tf.control_dependencies([has_sides]):
        return tf.gather(tf.gather(numbers, example["rows"]), example["columns"], axis=1)


def _decode_one(
    options: options_lib.ReadOptions, form: bare_pixels.PixelForm, example: dict[str, tf.Tensor]
) -> tf.Tensor:
    """Returns an image, [height, width, channels].

    Args:
        options: options of the reader.
        form: type and channels of the image.
        example: "encoded", string []; "kind", int32 [], the index in REDUCTIONS of a JPEG, or _OTHER_FORMAT; "flip",
            bool []; of bare pixels "shape", as `raw_image` takes it; with a crop "window", int32 [4], in the reduced
            image; with a filter "scale" and "translation", float32 [2], as TensorFlow takes them.
    """
    encoded, window = example["encoded"], example.get("window")
    method = _DCT_METHODS[options.dct]
    if "shape" in example:
        image = _crop(raw_image(encoded, example["shape"], form), window)
    elif not form.is_usual:
        image = _crop(tf.io.decode_png(encoded, form.channels, form.dtype), window)
    elif window is None:
        jpeg = functools.partial(tf.io.decode_jpeg, encoded, 3, dct_method=method)
        image = tf.cond(example["kind"] == _OTHER_FORMAT, lambda: _decode_any(encoded), jpeg)
    else:
        reduced = [
            functools.partial(tf.image.decode_and_crop_jpeg, encoded, window, 3, factor, dct_method=method)
            for factor in crops.REDUCTIONS
        ]
        image = tf.switch_case(example["kind"], [*reduced, lambda: _crop(_decode_any(encoded), window)])
    if options.filters:
        image = tf.raw_ops.ScaleAndTranslate(
            images=image[None],
            size=options.size,
            scale=example["scale"],
            translation=example["translation"],
            kernel_type=_KERNELS[options.interpolation],
            antialias=options.antialias,
        )[0]
        image = _rounded(image, form)
    elif options.crop is not None:
        image = tf.raw_ops.ResizeBilinear(images=image[None], size=options.size, half_pixel_centers=True)[0]
        # Rounds down, as most readers do: rounding to the nearest would take 45 us.
        image = tf.cast(image, tf.uint8) if form.is_usual else _rounded(image, form)
    if options.flips:
        image = tf.raw_ops.Reverse(tensor=image, dims=tf.stack([False, example["flip"], False]))
    image.set_shape((*(options.size if options.crop else (None, None)), form.channels))
    return image


def _rounded(image: tf.Tensor, form: bare_pixels.PixelForm) -> tf.Tensor:
    """Returns float32 as the type of the form: whole numbers are rounded to the nearest that it holds."""
    dtype = tf.dtypes.as_dtype(form.dtype)
    return tf.cast(tf.clip_by_value(tf.round(image), 0.0, float(dtype.max)), dtype) if dtype.is_integer else image


def raw_image(pixels: tf.Tensor, shape: tf.Tensor, form: bare_pixels.PixelForm = bare_pixels.USUAL) -> tf.Tensor:
    """Returns the image of bare pixels: [height, width, channels].

    In the usual form, uint8 [height, width, 3], gray becomes RGB, and transparency is dropped.

    Args:
        pixels: string [], the values one after the other, little-endian.
        shape: int64 [3]: height, width, channels.
        form: type of the values, and channels of the image.
    """
    image = tf.reshape(tf.io.decode_raw(pixels, form.dtype), shape)
    if not form.is_usual:
        return tf.ensure_shape(image, (None, None, form.channels))
    is_colored = tf.cast(shape[2] >= 3, tf.int32)
    return tf.ensure_shape(tf.gather(image, tf.range(3) * is_colored, axis=2), (None, None, 3))


def _decode_any(encoded: tf.Tensor) -> tf.Tensor:
    image = tf.io.decode_image(encoded, channels=3, expand_animations=False)
    image.set_shape((None, None, 3))
    return image


def _crop(image: tf.Tensor, window: tf.Tensor | None) -> tf.Tensor:
    return image if window is None else tf.image.crop_to_bounding_box(image, *tf.unstack(window))


def _reason(error: tf.errors.OpError) -> str:
    """Returns the error of an operation, without the names of the graph around it."""
    if asserted := re.search(r"assertion failed: \[(.*?)\]", error.message):
        return asserted[1]
    text = error.message.partition("\n\t [[")[0].partition(" [Op:")[0].splitlines()[-1]
    return re.sub(r"^(Error in user-defined function .*? iterator: \S+:|\{\{.*?\}\}) ", "", text)


def make_caster(
    options: options_lib.ReadOptions, mean_and_std: options_lib.MeanAndStd | None
) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns a function from decoded pixels to `options.dtype`, normalised if `mean_and_std` is given."""

    def cast(images: tf.Tensor) -> tf.Tensor:
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
