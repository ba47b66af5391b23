"""Reads batches in buckets: each bucket by a reader of its own, whose images have the size of the bucket."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from imagebeam.reader import (
    batch_reader,
    batch_schedule,
    bucket_order,
    counters,
    example_columns,
    read_plan,
    record_order,
    skipped_examples,
)
from imagebeam.reader import options as options_lib


class BucketReader:
    """Reads, parses and decodes a batch in one call, as `batch_reader.BatchReader`. Thread-safe.

    Attributes:
        schedule: the positions that this process reads.
    """

    def __init__(self, plan: read_plan.ReadPlan, options: options_lib.ReadOptions):
        """Opens nothing yet.

        Raises:
            ConfigError: as of `batch_reader.BatchReader`.
        """
        assert options.buckets is not None
        self.schedule = plan.schedule
        assert isinstance(plan.schedule.calendar, bucket_order.BucketOrder)
        self._order = plan.schedule.calendar
        shared = counters.Counters()
        skipped = skipped_examples.SkippedExamples(options, plan.schedule.begin)
        self._readers = [
            batch_reader.BatchReader(
                dataclasses.replace(plan, schedule=self._schedule_of(records)),
                options.of_bucket(bucket),
                shared,
                skipped,
            )
            for bucket, records in enumerate(self._order.records)
        ]

    def _schedule_of(self, records: record_order.Order) -> batch_schedule.BatchSchedule:
        """Returns the schedule of a bucket, whose positions are the numbers of its records over all epochs."""
        start = dataclasses.replace(self.schedule.start, process_count=1)
        # An epoch may have less than one batch of the bucket, which then laps over into the next.
        epochs = batch_schedule.EqualEpochs(self.schedule.epoch_size + self._order.step_places)
        return batch_schedule.BatchSchedule(record_order.JobOrder(records), 0, None, None, 0, start, 1, epochs, 1)

    def metrics(self) -> Mapping[str, float]:
        """Returns what was read and skipped, as `batch_reader.BatchReader.metrics`."""
        return self._readers[0].metrics()

    def specs(self) -> dict[str, example_columns.ColumnSpec]:
        """Returns what a batch consists of, by name; an axis is None where buckets have different sizes."""
        merged = self._readers[0].specs()
        for reader in self._readers[1:]:
            for name, other in reader.specs().items():
                axes = zip(merged[name].shape, other.shape, strict=True)
                merged[name] = other._replace(shape=tuple(a if a == b else None for a, b in axes))
        return merged

    def read_batch(self, first: int, end: int) -> Any:
        """Returns the batch at positions `first` to `end`, as `batch_reader.BatchReader.read_batch`."""
        place = int(self.schedule.order.places(np.array([first]))[0])
        found = self._order.batch_at(place)
        reader = self._readers[found.bucket]
        shift, filled = first - found.first, self.schedule.place_of(first)
        return reader.read_at(batch_reader.BatchPositions(found.first, found.end, shift, filled))


AnyReader: TypeAlias = batch_reader.BatchReader | BucketReader


def make_reader(plan: read_plan.ReadPlan, options: options_lib.ReadOptions) -> AnyReader:
    """Returns the reader of the batches of a plan."""
    return batch_reader.BatchReader(plan, options) if options.buckets is None else BucketReader(plan, options)
