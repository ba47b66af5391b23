"""Converts MNIST like TensorFlow's how-to: NumPy, tf.train.Example, tf.io.TFRecordWriter, one file per split."""

from __future__ import annotations

import argparse
import gzip
import os

import numpy as np
import tensorflow as tf

NUM_VALIDATION = 1000


def read(path: str) -> bytes:
    if os.path.exists(path):
        with open(path, "rb") as f:
            return f.read()
    with gzip.open(path + ".gz") as f:
        return f.read()


def read_images(path: str) -> np.ndarray:
    data = read(path)
    return np.frombuffer(data, np.uint8, offset=16).reshape(-1, *np.frombuffer(data, ">u4", 2, offset=8), 1)


def read_labels(path: str) -> np.ndarray:
    return np.frombuffer(read(path), np.uint8, offset=8)


def int64_feature(value: int) -> tf.train.Feature:
    return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))


def bytes_feature(value: bytes) -> tf.train.Feature:
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))


def convert(images: np.ndarray, labels: np.ndarray, output: str, name: str) -> None:
    height, width, depth = images.shape[1:]
    with tf.io.TFRecordWriter(os.path.join(output, f"{name}-00000-of-00001.tfrecord")) as writer:
        for image, label in zip(images, labels):
            feature = {
                "height": int64_feature(height),
                "width": int64_feature(width),
                "depth": int64_feature(depth),
                "label": int64_feature(int(label)),
                "image_raw": bytes_feature(image.tobytes()),
            }
            example = tf.train.Example(features=tf.train.Features(feature=feature))
            writer.write(example.SerializeToString())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--input", required=True)
    parser.add_argument("--output", required=True)
    args = parser.parse_args()
    images = read_images(os.path.join(args.input, "train-images-idx3-ubyte"))
    labels = read_labels(os.path.join(args.input, "train-labels-idx1-ubyte"))
    convert(images[NUM_VALIDATION:], labels[NUM_VALIDATION:], args.output, "train")
    convert(images[:NUM_VALIDATION], labels[:NUM_VALIDATION], args.output, "validation")
    images = read_images(os.path.join(args.input, "t10k-images-idx3-ubyte"))
    labels = read_labels(os.path.join(args.input, "t10k-labels-idx1-ubyte"))
    convert(images, labels, args.output, "test")


if __name__ == "__main__":
    main()
