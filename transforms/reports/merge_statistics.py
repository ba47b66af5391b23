"""Merges the statistics of all shards of a split on the workers that wrote them.

They name every class. So the commit gets one merged value for each split, and shards without statistics.
"""

import array
import dataclasses
import pickle
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.typehints import decorators

from imagebeam.transforms import elements, step
from imagebeam.transforms.shard import statistics
from imagebeam.transforms.snapshots import image_states

SplitStatistics = tuple[str, bytes]  # split, pickled statistics: Beam encodes the strings of a dict as UTF-8


class MergedStatistics(NamedTuple):
    """The outputs of MergeStatistics."""

    written: beam.PCollection[elements.WrittenShard]  # without statistics
    statistics: beam.PCollection[SplitStatistics]  # one for each split


def _take_statistics(written: elements.WrittenShard) -> Iterator[Any]:
    """WrittenShard -> the same without its statistics; its split and statistics."""
    yield written._replace(statistics={})
    yield beam.pvalue.TaggedOutput("statistics", (written.split, pickle.dumps(written.statistics)))


def _merge_pickled(parts: Iterable[bytes]) -> bytes:
    return pickle.dumps(statistics.merge_statistics(map(pickle.loads, parts)))


@decorators.with_input_types(elements.WrittenShard)
@dataclasses.dataclass
class MergeStatistics(step.Step):
    """Takes the statistics out of written shards and merges them by split."""

    @decorators.no_annotations  # Beam warns of an output that is a NamedTuple
    def expand(self, written: beam.PCollection[elements.WrittenShard]) -> MergedStatistics:
        taken = written | "TakeStatistics" >> beam.FlatMap(_take_statistics).with_output_types(
            elements.WrittenShard, statistics=SplitStatistics
        ).with_outputs("statistics", main="written")
        return MergedStatistics(taken.written, taken.statistics | "Merge" >> beam.CombinePerKey(_merge_pickled))


def merge_by_split(written: Iterable[elements.WrittenShard]) -> dict[str, dict[str, Any]]:
    """Returns the merged statistics of each split, in this process."""
    mergers: dict[str, statistics.StatisticsMerger] = {}
    for each in written:
        mergers.setdefault(each.split, statistics.StatisticsMerger()).add(each.statistics)
    return {split: merger.result() for split, merger in mergers.items()}


def unpack_by_split(merged: Mapping[str, bytes]) -> dict[str, dict[str, Any]]:
    """Returns the statistics of each split from the output of MergeStatistics."""
    return {split: pickle.loads(packed) for split, packed in merged.items()}


class _CountFn(beam.DoFn):
    """(index of a shard, packed indexes of its removed records) -> split and statistics of these records."""

    def __init__(self, folder: str):
        self._folder = folder
        self._states: image_states.SnapshotStates | None = None

    def process(self, element: tuple[int, Iterable[bytes]]) -> Iterator[SplitStatistics]:
        index, packed = element
        if self._states is None:
            self._states = image_states.SnapshotStates(self._folder)
        read = self._states.read(index)
        counts = statistics.StatisticsBuilder()
        for records in packed:
            for record in array.array("I", records):
                image = read.images[record]
                assert image.measures is not None, "the states are read with measures"
                counts.add(image.labels, image.measures)
        yield read.split, pickle.dumps(counts.build())


class CountRemoved(beam.PTransform):
    """The records that a run removes from the snapshot in a folder -> their statistics, one for each split."""

    def __init__(self, folder: str):
        super().__init__()
        self._folder = folder

    def expand(self, removed: beam.PCollection[elements.RemovedRecords]) -> beam.PCollection[SplitStatistics]:
        return (
            removed
            | "ByShard" >> beam.GroupByKey()  # (index of the shard, [packed indexes])
            | "Count" >> beam.ParDo(_CountFn(self._folder)).with_output_types(SplitStatistics)
            | "Merge" >> beam.CombinePerKey(_merge_pickled)
        )
