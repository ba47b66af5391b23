"""Job graphs, as runners receive them."""

from __future__ import annotations

import base64
import bz2
import functools
import pathlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from imagebeam.pipelines import convert, request
from imagebeam.pipelines import job as job_lib
from imagebeam.pipelines.beam import runners
from imagebeam.transforms import dataset_settings

FN_API = "--runner=apache_beam.runners.portability.fn_api_runner.FnApiRunner"
_PICKLED = re.compile(rb"QlpoOTFBWSZTW[A-Za-z0-9+/]+")  # bz2 in base64, as Beam packs


def graph_of(folder: pathlib.Path, **sections: Any) -> bytes:
    """The graph of a conversion into `folder`, which need not exist."""
    pipeline = pipeline_of(functools.partial(add_conversion, folder=folder, **sections))
    with runners.relative_paths():
        graph: bytes = pipeline.to_runner_api().SerializeToString()
    return graph


def pipeline_of(add_steps: Callable[[beam.Pipeline], Any], *options: str) -> beam.Pipeline:
    """A pipeline with these steps, which never runs."""
    pipeline = beam.Pipeline(options=PipelineOptions([FN_API, *options]))
    add_steps(pipeline)
    return pipeline


def add_conversion(
    pipeline: beam.Pipeline,
    folder: pathlib.Path,
    snapshot: dataset_settings.SnapshotSettings | None = None,
    **sections: Any,
) -> None:
    """Adds the steps of a conversion into `folder`."""
    config = request.as_config({"output": {"uri": str(folder / "out")}, **sections})
    files = request.RunFiles(names=str(folder / "names.json"), scratch=str(folder))
    job = job_lib.make_job(request.Checked(config, 1, snapshot=snapshot), files)
    convert.add_steps(pipeline, job)


def pickles_in(graph: bytes) -> Iterator[bytes]:
    """The pickled functions and coders in a graph, unpacked."""
    for packed in _PICKLED.findall(graph):
        packed = packed[: len(packed) // 4 * 4]  # without its end, which holds a checksum
        yield bz2.BZ2Decompressor().decompress(base64.b64decode(packed))
