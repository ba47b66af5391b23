"""Writes shards, one bundle element each."""

import collections
import concurrent.futures
import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import apache_beam as beam
from apache_beam.metrics import Metrics
from apache_beam.transforms import window
from apache_beam.utils import windowed_value

from imagebeam.transforms import elements
from imagebeam.transforms import layout as layout_lib
from imagebeam.transforms.shard import shard_writer, writer_processes

_NAMESPACE = "imagebeam.write"
_MAX_WAITING = 8  # tasks handed to writer processes and not done: keeps them busy, and their references few


class _WriteShardFn(beam.DoFn):
    """(shard, [run]) -> WrittenShard; by the launcher's writer processes where it started some, else right here."""

    def __init__(self, layout: layout_lib.DatasetLayout, writers: str | None):
        self._layout = layout
        self._writers = writers  # token of the launcher's writer processes

    def start_bundle(self) -> None:
        self._futures: collections.deque[concurrent.futures.Future[elements.WrittenShard]] = collections.deque()
        self._write: Callable[[shard_writer.ShardTask], elements.WrittenShard] | None = None

    def process(
        self, element: tuple[tuple[str, int], Iterable[tuple[int, bytes]]], plan: elements.DatasetPlan
    ) -> Iterator[elements.WrittenShard]:
        (split, shard_index), runs = element
        if self._write is None:
            self._write = self._layout.writer_of(plan).write
        task = shard_writer.ShardTask(split, shard_index, plan.splits[split].num_shards, tuple(runs))
        pool = writer_processes.find(self._writers)
        if pool is None:
            yield self._counted(self._write(task))
            return
        self._futures.append(pool.submit(self._write, task))
        while len(self._futures) > _MAX_WAITING or (self._futures and self._futures[0].done()):
            yield self._counted(self._futures.popleft().result())

    def finish_bundle(self) -> Iterator[windowed_value.WindowedValue]:
        while self._futures:
            yield window.GlobalWindows.windowed_value(self._counted(self._futures.popleft().result()))

    @staticmethod
    def _counted(written: elements.WrittenShard) -> elements.WrittenShard:
        Metrics.counter(_NAMESPACE, "images-out").inc(written.shard.records)
        Metrics.counter(_NAMESPACE, "bytes-out").inc(written.shard.bytes)
        for reason, count in written.rejected.items():
            Metrics.counter(_NAMESPACE, f"rejects-{reason}").inc(count)
        return written


@dataclasses.dataclass
class WriteShards(beam.PTransform):
    """Streams each shard's images into a staged file. A bundle that runs twice leaves one shard, the same bytes."""

    plan: Any  # PCollection of one DatasetPlan
    layout: layout_lib.DatasetLayout

    def __post_init__(self) -> None:
        super().__init__()

    def expand(
        self, shards: beam.PCollection[tuple[tuple[str, int], Iterable[tuple[int, bytes]]]]
    ) -> beam.PCollection[elements.WrittenShard]:
        pool = writer_processes.current()
        return shards | "Write" >> beam.ParDo(
            _WriteShardFn(self.layout, None if pool is None else pool.token), plan=beam.pvalue.AsSingleton(self.plan)
        ).with_output_types(elements.WrittenShard)
