"""Runs the script that everyone writes: a loop over the sorted files, tf.train.Example, tf.io.TFRecordWriter."""

from __future__ import annotations

import argparse
import glob
import io
import os
from collections.abc import Mapping

import tensorflow as tf
from PIL import Image


def bytes_feature(value: bytes) -> tf.train.Feature:
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))


def int64_feature(value: int) -> tf.train.Feature:
    return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))


def make_example(path: str, encoded: bytes, labels: Mapping[str, int]) -> bytes:
    width, height = Image.open(io.BytesIO(encoded)).size  # the header only; half the time of tf.io.extract_jpeg_shape
    filename = os.path.basename(path)
    example = tf.train.Example(
        features=tf.train.Features(
            feature={
                "image/encoded": bytes_feature(encoded),
                "image/format": bytes_feature(b"JPEG"),
                "image/height": int64_feature(height),
                "image/width": int64_feature(width),
                "image/filename": bytes_feature(filename.encode()),
                "image/class/label": int64_feature(labels[label_name(path)]),
            }
        )
    )
    return example.SerializeToString()


def label_name(path: str) -> str:
    return os.path.basename(path).split("_")[0]


def write_shard(shard_index: int, num_shards: int, files: list[str], labels: dict[str, int], output: str) -> None:
    start, end = (len(files) * i // num_shards for i in (shard_index, shard_index + 1))
    name = f"train-{shard_index:05d}-of-{num_shards:05d}.tfrecord"
    with tf.io.TFRecordWriter(os.path.join(output, name)) as writer:
        for path in files[start:end]:
            with open(path, "rb") as f:
                writer.write(make_example(path, f.read(), labels))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--input", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--num-shards", type=int, default=16)
    args = parser.parse_args()

    files = sorted(glob.glob(os.path.join(args.input, "*.JPEG")))
    labels = {name: index for index, name in enumerate(sorted(set(map(label_name, files))))}
    os.makedirs(args.output, exist_ok=True)
    for shard_index in range(args.num_shards):
        write_shard(shard_index, args.num_shards, files, labels, args.output)


if __name__ == "__main__":
    main()
