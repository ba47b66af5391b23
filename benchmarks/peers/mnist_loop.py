"""Converts MNIST like TensorFlow's how-to: NumPy, tf.train.Example, tf.io.TFRecordWriter, one file per split."""

from __future__ import annotations

import gzip
import os
import sys

import numpy as np
import tensorflow as tf
import tfrecord_loop

NUM_VALIDATION = 1000


def read(path: str) -> bytes:
    with open(path, "rb") if os.path.exists(path) else gzip.open(path + ".gz") as f:
        return f.read()


def read_split(source: str, name: str) -> tuple[np.ndarray, np.ndarray]:
    data = read(os.path.join(source, f"{name}-images-idx3-ubyte"))
    images = np.frombuffer(data, np.uint8, offset=16).reshape(-1, *np.frombuffer(data, ">u4", 2, offset=8), 1)
    return images, np.frombuffer(read(os.path.join(source, f"{name}-labels-idx1-ubyte")), np.uint8, offset=8)


def convert(images: np.ndarray, labels: np.ndarray, output: str, name: str) -> None:
    height, width, depth = images.shape[1:]
    with tf.io.TFRecordWriter(os.path.join(output, f"{name}-00000-of-00001.tfrecord")) as writer:
        for image, label in zip(images, labels):
            values = {
                "height": height,
                "width": width,
                "depth": depth,
                "label": int(label),
                "image_raw": image.tobytes(),
            }
            writer.write(tfrecord_loop.serialize(values))


def main(source: str, output: str) -> None:
    images, labels = read_split(source, "train")
    convert(images[NUM_VALIDATION:], labels[NUM_VALIDATION:], output, "train")
    convert(images[:NUM_VALIDATION], labels[:NUM_VALIDATION], output, "validation")
    convert(*read_split(source, "t10k"), output, "test")


if __name__ == "__main__":
    main(*sys.argv[1:])
