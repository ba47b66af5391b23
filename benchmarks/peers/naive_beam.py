"""Runs the obvious Beam pipeline: match files, read, make Examples, WriteToTFRecord. In memory, one process."""

from __future__ import annotations

import argparse
import glob
import io
import os
from collections.abc import Mapping

import apache_beam as beam
import tensorflow as tf
from apache_beam.io import fileio
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from PIL import Image


def bytes_feature(value: bytes) -> tf.train.Feature:
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))


def int64_feature(value: int) -> tf.train.Feature:
    return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))


def label_name(path: str) -> str:
    return os.path.basename(path).split("_")[0]


def make_example(file: fileio.ReadableFile, labels: Mapping[str, int]) -> bytes:
    path, encoded = file.metadata.path, file.read()
    width, height = Image.open(io.BytesIO(encoded)).size
    example = tf.train.Example(
        features=tf.train.Features(
            feature={
                "image/encoded": bytes_feature(encoded),
                "image/format": bytes_feature(b"JPEG"),
                "image/height": int64_feature(height),
                "image/width": int64_feature(width),
                "image/filename": bytes_feature(os.path.basename(path).encode()),
                "image/class/label": int64_feature(labels[label_name(path)]),
            }
        )
    )
    return example.SerializeToString()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--input", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--num-shards", type=int, default=16)
    args, beam_args = parser.parse_known_args()

    pattern = os.path.join(args.input, "*.JPEG")
    labels = {name: index for index, name in enumerate(sorted(set(map(label_name, glob.glob(pattern)))))}
    # Named: "DirectRunner" would first look for Prism, a program fetched from the internet.
    with beam.Pipeline(runner=FnApiRunner(), options=PipelineOptions(beam_args)) as pipeline:
        _ = (
            pipeline
            | "Match" >> fileio.MatchFiles(pattern)
            | "Read" >> fileio.ReadMatches()
            | "MakeExamples" >> beam.Map(make_example, labels=labels)
            | "Write"
            >> beam.io.WriteToTFRecord(
                os.path.join(args.output, "train"), file_name_suffix=".tfrecord", num_shards=args.num_shards
            )
        )


if __name__ == "__main__":
    main()
