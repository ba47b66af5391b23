"""Gathers the references of each planned shard, and writes the shards, one per element."""

import collections
import concurrent.futures
import contextlib
import dataclasses
import json
import logging
import os
import secrets
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence

import apache_beam as beam
from apache_beam.transforms import window
from apache_beam.typehints import decorators
from apache_beam.utils import windowed_value

from imagebeam import concurrency, storage
from imagebeam.transforms import dataset_settings, elements, rank_references, sort_intervals, step, summaries
from imagebeam.transforms.publish import commit_rights
from imagebeam.transforms.shard import shard_writer, writer_processes

ShardKey = tuple[str, int]  # split, shard index
PackedRun = tuple[int, bytes]  # first rank, packed references
PlacedShard = tuple[ShardKey, Iterable[PackedRun]]


def _cut_into_shards(
    run: sort_intervals.SortedRun, plan: elements.DatasetPlan, ranking: summaries.Ranking
) -> Iterator[tuple[ShardKey, PackedRun]]:
    """A sorted run -> (shard, part of the run)."""
    if plan.action != "write":
        return
    if (lock := commit_rights.StepsLock.of(plan)) is not None:
        lock.renew()
    split, _, _, num_refs, packed = run
    planned, start = plan.splits[split], rank_references.first_rank(run, ranking)
    end, first_shard = start + num_refs, planned.shard_of(start)
    if end <= planned.shard_start(first_shard + 1):
        yield (split, first_shard), (start, packed)
        return
    refs, rank = elements.unpack_refs(packed), start
    while rank < end:
        shard_index = planned.shard_of(rank)
        stop = min(end, planned.shard_start(shard_index + 1))
        yield (split, shard_index), (rank, elements.pack_refs(refs[rank - start : stop - start]))
        rank = stop


def _every_shard(plan: elements.DatasetPlan) -> Iterator[tuple[ShardKey, PackedRun]]:
    """Yields an empty run for every planned shard, so that a shard without images is written too."""
    if plan.action == "write":
        for split, planned in plan.splits.items():
            for shard_index in range(planned.num_shards):
                yield (split, shard_index), (planned.shard_start(shard_index), b"")


@decorators.with_input_types(sort_intervals.SortedRun)
@dataclasses.dataclass
class PlaceInShards(step.Step):
    """Sorted runs -> the references of each planned shard: equal to within one in every split.

    A shard is a run of consecutive ranks in the order of the keys' hashes, so its content depends on the set of keys
    and the number of shards alone.
    """

    plan: beam.PCollection[elements.DatasetPlan]  # one element
    ranking: beam.PCollection[summaries.Ranking]  # one element

    def expand(self, runs: beam.PCollection[sort_intervals.SortedRun]) -> beam.PCollection[PlacedShard]:
        part_type = tuple[ShardKey, PackedRun]
        parts = runs | "CutIntoShards" >> beam.FlatMap(
            _cut_into_shards, plan=beam.pvalue.AsSingleton(self.plan), ranking=beam.pvalue.AsSingleton(self.ranking)
        ).with_output_types(part_type)
        every = self.plan | "EveryShard" >> beam.FlatMap(_every_shard).with_output_types(part_type)
        return (parts, every) | "WithEmptyShards" >> beam.Flatten() | "GroupShards" >> beam.GroupByKey()


_LOGGER = logging.getLogger(__name__)
_FOUND_FILE = "crashes.json"  # in the staging folder, once an image has killed a process
_MAX_WAITING = 8  # unfinished tasks of writer processes: enough to keep them busy without holding many references


class WorkerWriter:
    """Writes shards in the worker of a runner, one after the other. To be closed by the thread that made it.

    The local runner writes shards in writer processes: one that dies takes nothing with it. The worker of another
    runner writes in its own process, and an image that kills it kills whatever else it does; some runners try again,
    none knows why it died. So a worker leaves a mark beside the shard before it begins, and removes it when the attempt
    has ended, well or with an error. Whoever finds a mark writes the shard in a process of its own.

    A mark says that an attempt did not end, not why. It may still run elsewhere, or the worker was stopped (Ctrl-C,
    preemption), or died of another shard. Then the shard is written in a process of its own for nothing, which costs
    the start of that process, 0.1 s: too little to find out more.

    Input with one image that kills tends to have more, and each would cost the runner another worker. So the first one
    that is found leaves a file in the staging folder, and from then on workers write all shards in processes of their
    own.

    Where the time of an image is limited, every shard is written in a process of its own, since only a process can be
    ended in the middle of an image.
    """

    def __init__(self, writer: shard_writer.ShardWriter):
        self._write = writer.write  # one object: it is sent to the process once
        self._writer = writer
        self._found = storage.join(writer.staging, _FOUND_FILE)
        self._store = storage.storage_of(self._found)
        self._is_apart = writer.policy.limits.max_seconds is not None or self._store.exists(self._found)
        self._process: writer_processes.WriterProcesses | None = None

    def write(self, task: shard_writer.ShardTask) -> elements.WrittenShard:
        """Returns the shard of `task`; writes it unless an earlier attempt finished it.

        Raises:
            WriterError: if it was written in a process of its own, which failed.
        """
        try:
            finished = self._writer.find_finished(task)
            return finished if finished is not None else self._write_unfinished(task)
        except BaseException:
            self.close()
            raise

    def _write_unfinished(self, task: shard_writer.ShardTask) -> elements.WrittenShard:
        mark = storage.join(self._writer.staging, self._writer.name_of(task) + shard_writer.MARK_SUFFIX)
        if not self._is_apart and _leave_mark(mark):
            try:
                return self._writer.write_unfinished(task)
            finally:
                _remove_mark(mark)
        written = self._write_apart(task)
        _remove_mark(mark)
        return written

    def _write_apart(self, task: shard_writer.ShardTask) -> elements.WrittenShard:
        """Writes the shard in a process of its own. An error leaves the mark: the next attempt takes the same care."""
        if self._process is None:
            self._process = writer_processes.WriterProcesses(1)
        return self._process.submit(self._write, task, self._retry).result()

    def _retry(
        self, task: shard_writer.ShardTask, deaths: Sequence[writer_processes.WriterDiedError]
    ) -> shard_writer.ShardTask | None:
        if not self._is_apart:
            self._is_apart = True
            with contextlib.suppress(OSError):  # best effort: it only avoids repeated crashes
                self._store.write_whole(self._found, b"{}", durable=False)
        return writer_processes.without_killer(task, deaths)

    def close(self) -> None:
        """Ends the process, if there is one."""
        if self._process is not None:
            self._process.close()
            self._process = None


def _leave_mark(mark: str) -> bool:
    """Leaves a mark at an address; returns whether there was none. One request, without a look before it."""
    store = storage.storage_of(mark)
    # The token tells apart the marks of two attempts, where a storage repeats a request whose answer was lost.
    content = {"host": socket.gethostname(), "process": os.getpid(), "token": secrets.token_hex(8)}
    store.make_directories(os.path.dirname(mark))
    try:
        return store.create_new(mark, json.dumps(content).encode())
    except FileNotFoundError:  # there was one, which another attempt has removed before it could be compared
        return False


def _remove_mark(mark: str) -> None:
    """Removes a mark. One that stays does no harm: a finished shard counts for more."""
    with contextlib.suppress(OSError):
        storage.storage_of(mark).remove(mark)


class _WriteShardFn(beam.DoFn):
    """(shard, [run]) -> WrittenShard. Uses the launcher's writer processes if there are any, else writes in place."""

    def __init__(self, settings: dataset_settings.DatasetSettings, writers: str | None):
        self._settings = settings
        self._writers = writers  # token of the writer processes that the launcher started
        self._writer: WorkerWriter | None = None  # for this bundle, in a worker without writer processes

    def start_bundle(self) -> None:
        self._futures: collections.deque[concurrent.futures.Future[elements.WrittenShard]] = collections.deque()
        self._write: Callable[[shard_writer.ShardTask], elements.WrittenShard] | None = None

    def process(self, element: PlacedShard, plan: elements.DatasetPlan) -> Iterator[elements.WrittenShard]:
        concurrency.raise_if_stopped()
        (split, shard_index), runs = element
        task = shard_writer.ShardTask(split, shard_index, plan.splits[split].num_shards, tuple(runs))
        pool = writer_processes.find(self._writers)
        if pool is None:
            if self._writer is None:
                self._writer = WorkerWriter(self._settings.writer_of(plan))
            with commit_rights.renewed(plan):
                written = self._writer.write(task)
            yield self._counted(written)
            return
        if self._write is None:
            self._write = self._settings.writer_of(plan).write
        self._futures.append(pool.submit(self._write, task, writer_processes.without_killer))
        while len(self._futures) > _MAX_WAITING or (self._futures and self._futures[0].done()):
            yield self._counted(self._futures.popleft().result())

    def finish_bundle(self) -> Iterator[windowed_value.WindowedValue]:
        self._close_writer()
        while self._futures:
            concurrency.raise_if_stopped()
            yield window.GlobalWindows.windowed_value(self._counted(self._futures.popleft().result()))

    def teardown(self) -> None:
        self._close_writer()  # left by a bundle that failed in a later step

    def _close_writer(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    @staticmethod
    def _counted(written: elements.WrittenShard) -> elements.WrittenShard:
        step.count_written(written)
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

    def expand(self, shards: beam.PCollection[PlacedShard]) -> beam.PCollection[elements.WrittenShard]:
        return shards | "Write" >> beam.ParDo(
            _WriteShardFn(self.settings, writer_processes.current_token()), plan=beam.pvalue.AsSingleton(self.plan)
        ).with_output_types(elements.WrittenShard)
