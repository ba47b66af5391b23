"""The images of a batch decoded by TensorFlow's operations: what the decoder in C must make of them."""

from __future__ import annotations

from typing import Any

import numpy as np

import imagebeam
from imagebeam.reader import batch_reader, crops, image_decoder
from imagebeam.reader import options as options_lib

_KERNELS = {"bilinear": "triangle", "bicubic": "keyscubic"}
_DCT_METHODS = {"fast": "INTEGER_FAST", "accurate": "INTEGER_ACCURATE"}


def read(dataset: imagebeam.ImageDataset, count: int, **options: Any) -> np.ndarray:
    """Returns the first images of the split train in the order of the shards, uint8 [count, height, width, 3]."""
    asked = options_lib.ReadOptions.of(count, {"num_epochs": 1, "shuffle": None, **options})
    reader = batch_reader.BatchReader(dataset.records("train", asked), asked)
    wanted = reader.parse(reader.read_chunk(0, count)).images
    return np.stack([_decode(wanted, row, asked) for row in range(count)])


def _decode(wanted: image_decoder.Wanted, row: int, options: options_lib.ReadOptions) -> np.ndarray:
    import tensorflow as tf

    assert wanted.cuts.parts is not None
    encoded, part, factor = bytes(wanted.images[row]), wanted.cuts.parts[row : row + 1], 1
    frame = None if wanted.cuts.frames is None else wanted.cuts.frames[row : row + 1]
    if encoded.startswith(b"\xff\xd8"):
        factor = crops.REDUCTIONS[crops.reductions(part, frame, options)[0]]
    [window] = crops.reduced_windows(part, np.array([factor]), options)
    if encoded.startswith(b"\xff\xd8"):
        method = _DCT_METHODS[options.dct]
        image = tf.image.decode_and_crop_jpeg(encoded, window, 3, factor, dct_method=method)
    elif wanted.shapes is not None:
        image = tf.reshape(tf.io.decode_raw(encoded, tf.uint8), wanted.shapes[row])
        image = image[:, :, :3] if image.shape[2] >= 3 else tf.repeat(image[:, :, :1], 3, axis=2)
        image = tf.image.crop_to_bounding_box(image, *window)
    else:
        whole = tf.io.decode_image(encoded, channels=3, expand_animations=False)
        image = tf.image.crop_to_bounding_box(whole, *window)
    if frame is None:  # rounded down
        resized = tf.raw_ops.ResizeBilinear(images=image[None], size=options.size, half_pixel_centers=True)[0]
    else:
        scale = factor / frame[0, 1::2]
        start = (part[0, :2] + frame[0, ::2]) / factor - window[:2]
        resized = tf.raw_ops.ScaleAndTranslate(
            images=image[None],
            size=options.size,
            scale=scale.astype(np.float32),
            translation=(-start * scale).astype(np.float32),
            kernel_type=_KERNELS[options.interpolation],
            antialias=options.antialias,
        )[0]
        resized = tf.clip_by_value(tf.round(resized), 0.0, 255.0)
    pixels = tf.cast(resized, tf.uint8).numpy()
    return pixels[:, ::-1] if wanted.cuts.flips[row] else pixels
