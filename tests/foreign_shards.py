"""TFRecord files as other tools write them, written by TensorFlow."""

from __future__ import annotations

import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tests import image_sets, pictures

BOX_SIDES = ("xmin", "xmax", "ymin", "ymax")


def write(path: pathlib.Path, examples: Iterable[Mapping[str, Any]], compression: str = "") -> pathlib.Path:
    """Writes a file of examples by `tf.io.TFRecordWriter`."""
    import tensorflow as tf

    path.parent.mkdir(parents=True, exist_ok=True)
    with tf.io.TFRecordWriter(str(path), compression) as writer:
        for values in examples:
            writer.write(serialize(values))
    return path


def serialize(values: Mapping[str, Any], empty: Mapping[str, str] = {}) -> bytes:
    """Returns a tf.train.Example; `empty` has the kinds of those empty lists that are not of floats."""
    import tensorflow as tf

    message = tf.train.Example()
    for key, value in values.items():
        listed = [e.encode() if isinstance(e, str) else e for e in (value if isinstance(value, list) else [value])]
        kind = {bytes: "bytes", int: "int64", float: "float"}[type(listed[0])] if listed else empty.get(key, "float")
        several = getattr(message.features.feature[key], f"{kind}_list")
        several.SetInParent()
        several.value.extend(listed)
    data: bytes = message.SerializeToString()
    return data


def jpeg(index: int, width: int = 40, height: int = 30) -> bytes:
    """Returns a JPEG that depends on the index."""
    return pictures.encode(pictures.photo(width, height).rotate(7 * index))


def pixels(index: int, height: int = 4, width: int = 6, channels: int = 3) -> np.ndarray:
    """Returns uint8 [height, width, channels]."""
    return np.random.default_rng(index).integers(0, 255, (height, width, channels), np.uint8)


def imagenet(index: int) -> dict[str, Any]:
    """Returns an example of the TPU models' ImageNet script, whose labels begin at 1."""
    names = (b"tench, Tinca tinca", b"goldfish", b"great white shark")
    return {
        "image/encoded": jpeg(index),
        "image/height": 30,
        "image/width": 40,
        "image/channels": 3,
        "image/colorspace": b"RGB",
        "image/format": b"JPEG",
        "image/filename": b"n%d.JPEG" % index,
        "image/class/label": index % 3 + 1,
        "image/class/text": names[index % 3],
    }


def tfds(index: int) -> dict[str, Any]:
    """Returns an example of TFDS's ImageClassification."""
    return {
        "image": image_sets.save(pictures.photo(28, 28).rotate(7 * index)),
        "label": index % 4,
        "file_name": b"%d.png" % index,
    }


def detection(index: int) -> dict[str, Any]:
    """Returns an example of the Object Detection API; the image 0 has no box, and so no features of boxes."""
    values = {
        "image/encoded": jpeg(index),
        "image/format": b"jpeg",
        "image/height": 30,
        "image/width": 40,
        "image/filename": b"%d.jpg" % index,
        "image/source_id": b"%d" % index,
    }
    for side in BOX_SIDES if index else ():
        values[f"image/object/bbox/{side}"] = [0.25 * number for number in range(index)]
    if index:
        values["image/object/class/label"] = [number + 1 for number in range(index)]
        values["image/object/class/text"] = [b"thing"] * index
    return values


def tfrecorder(index: int) -> dict[str, Any]:
    """Returns an example of TFRecorder: pixels in base64. Source: tfrecorder/beam_image.py."""
    import base64

    return {
        "image": base64.b64encode(pixels(index).tobytes(), altchars=b"-_"),
        "image_height": 4,
        "image_width": 6,
        "image_channels": 3,
        "image_name": b"%d.jpg" % index,
        "label": index % 2,
        "split": b"TRAIN",
    }


def numbered(path: pathlib.Path, examples: Sequence[Mapping[str, Any]], num_shards: int) -> None:
    """Writes the files `path-00000-of-0000N`, with equal shares of the examples."""
    size = -(-len(examples) // num_shards)
    for number in range(num_shards):
        name = f"{path.name}-{number:05d}-of-{num_shards:05d}"
        write(path.parent / name, examples[number * size : (number + 1) * size])
