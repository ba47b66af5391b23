"""Writes shards, one per element."""

import collections
import concurrent.futures
import dataclasses
import logging
from collections.abc import Callable, Iterator

import apache_beam as beam
from apache_beam.transforms import window
from apache_beam.utils import windowed_value

from imagebeam import interrupts
from imagebeam.transforms import counters, dataset_settings, elements, place_in_shards, step
from imagebeam.transforms.shard import deadly_images, shard_writer, writer_processes

_LOGGER = logging.getLogger(__name__)
_MAX_WAITING = 8  # unfinished tasks of writer processes: enough to keep them busy without holding many references


class _WriteShardFn(beam.DoFn):
    """(shard, [run]) -> WrittenShard. Uses the launcher's writer processes if there are any, else writes in place."""

    def __init__(self, settings: dataset_settings.DatasetSettings, writers: str | None):
        self._settings = settings
        self._writers = writers  # token of the writer processes that the launcher started
        self._writer: deadly_images.WorkerWriter | None = None  # of this bundle, in a worker without them

    def start_bundle(self) -> None:
        self._futures: collections.deque[concurrent.futures.Future[elements.WrittenShard]] = collections.deque()
        self._write: Callable[[shard_writer.ShardTask], elements.WrittenShard] | None = None

    def process(
        self, element: place_in_shards.PlacedShard, plan: elements.DatasetPlan
    ) -> Iterator[elements.WrittenShard]:
        interrupts.check()
        (split, shard_index), runs = element
        task = shard_writer.ShardTask(split, shard_index, plan.splits[split].num_shards, tuple(runs))
        pool = writer_processes.find(self._writers)
        if pool is None:
            if self._writer is None:
                self._writer = deadly_images.WorkerWriter(self._settings.writer_of(plan))
            yield self._counted(self._writer.write(task))
            return
        if self._write is None:
            self._write = self._settings.writer_of(plan).write
        self._futures.append(pool.submit(self._write, task, deadly_images.without_killer))
        while len(self._futures) > _MAX_WAITING or (self._futures and self._futures[0].done()):
            yield self._counted(self._futures.popleft().result())

    def finish_bundle(self) -> Iterator[windowed_value.WindowedValue]:
        self._close_writer()
        while self._futures:
            interrupts.check()
            yield window.GlobalWindows.windowed_value(self._counted(self._futures.popleft().result()))

    def teardown(self) -> None:
        self._close_writer()  # of a bundle that failed in a later step

    def _close_writer(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    @staticmethod
    def _counted(written: elements.WrittenShard) -> elements.WrittenShard:
        counters.count_written(written)
        _LOGGER.debug(
            "%s %s: %d records, %d bytes, rejects %s",
            "kept" if written.is_kept else "wrote",
            written.shard.name,
            written.shard.records,
            written.shard.bytes,
            dict(written.rejected),
        )
        return written


@dataclasses.dataclass
class WriteShards(step.Step):
    """Streams each shard's images into a staged file. A bundle that runs twice leaves one shard with the same bytes."""

    plan: beam.PCollection[elements.DatasetPlan]  # one element
    settings: dataset_settings.DatasetSettings

    def expand(self, shards: beam.PCollection[place_in_shards.PlacedShard]) -> beam.PCollection[elements.WrittenShard]:
        return shards | "Write" >> beam.ParDo(
            _WriteShardFn(self.settings, writer_processes.current_token()), plan=beam.pvalue.AsSingleton(self.plan)
        ).with_output_types(elements.WrittenShard)
