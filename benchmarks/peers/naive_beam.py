"""Runs the obvious Beam pipeline: match files, read, make Examples, WriteToTFRecord. In memory, one process."""

from __future__ import annotations

import argparse
import glob
import os
from collections.abc import Mapping

import apache_beam as beam
import tfrecord_loop
from apache_beam.io import fileio
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner


def make_example(file: fileio.ReadableFile, labels: Mapping[str, int]) -> bytes:
    return tfrecord_loop.make_example(file.metadata.path, file.read(), labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--input", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--num-shards", type=int, default=16)
    args, beam_args = parser.parse_known_args()

    pattern = os.path.join(args.input, "*.JPEG")
    labels = {name: index for index, name in enumerate(sorted(set(map(tfrecord_loop.label_name, glob.glob(pattern)))))}
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
