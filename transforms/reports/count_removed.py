"""Counts what the removed records of a run hold, so that statistics do not include them."""

import array
import pickle
from collections.abc import Iterable, Iterator

import apache_beam as beam

from imagebeam.transforms import elements
from imagebeam.transforms.reports import merge_statistics
from imagebeam.transforms.shard import statistics
from imagebeam.transforms.snapshots import snapshot_states


class _CountFn(beam.DoFn):
    """(index of a shard, packed indexes of its removed records) -> split and statistics of these records."""

    def __init__(self, folder: str):
        self._folder = folder
        self._states: snapshot_states.SnapshotStates | None = None

    def process(self, element: tuple[int, Iterable[bytes]]) -> Iterator[merge_statistics.SplitStatistics]:
        index, packed = element
        if self._states is None:
            self._states = snapshot_states.SnapshotStates(self._folder)
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

    def expand(
        self, removed: beam.PCollection[elements.RemovedRecords]
    ) -> beam.PCollection[merge_statistics.SplitStatistics]:
        return (
            removed
            | "ByShard" >> beam.GroupByKey()  # (index of the shard, [packed indexes])
            | "Count" >> beam.ParDo(_CountFn(self._folder)).with_output_types(merge_statistics.SplitStatistics)
            | "Merge" >> beam.CombinePerKey(merge_statistics.MergeStatisticsFn())
        )
