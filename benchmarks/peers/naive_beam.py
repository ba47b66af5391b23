"""Runs the obvious Beam pipeline: match files, read, make Examples, WriteToTFRecord. In memory, one process."""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Mapping

import apache_beam as beam
import tfrecord_loop
from apache_beam.io import fileio
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner


def make_example(file: fileio.ReadableFile, labels: Mapping[str, int]) -> bytes:
    return tfrecord_loop.make_example(file.metadata.path, file.read(), labels)


def main(source: str, output: str, num_shards: str) -> None:
    pattern, prefix = os.path.join(source, "*.JPEG"), os.path.join(output, "train")
    labels = {name: index for index, name in enumerate(sorted(set(map(tfrecord_loop.label_name, glob.glob(pattern)))))}
    # Named: "DirectRunner" would first look for Prism, a program fetched from the internet.
    with beam.Pipeline(runner=FnApiRunner(), options=PipelineOptions([])) as pipeline:
        _ = (
            pipeline
            | "Match" >> fileio.MatchFiles(pattern)
            | "Read" >> fileio.ReadMatches()
            | "MakeExamples" >> beam.Map(make_example, labels=labels)
            | "Write" >> beam.io.WriteToTFRecord(prefix, file_name_suffix=".tfrecord", num_shards=int(num_shards))
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
