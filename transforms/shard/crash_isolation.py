"""Finds images that kill the process which decodes them. Imports no Beam.

The local runner writes shards in writer processes: one that dies takes nothing with it, and `without_killer` finds the
image. The worker of another runner writes in its own process, and an image that kills it kills whatever else it does;
some runners try again, none knows why it died. So a worker leaves a mark beside the shard before it begins, and removes
it when the attempt has ended, well or with an error. Whoever finds a mark writes the shard in a process of its own.

A mark says that an attempt did not end, not why. It may still run elsewhere, or the worker was stopped (Ctrl-C,
preemption), or died of another shard. Then the shard is written in a process of its own for nothing, which costs the
start of that process, 0.1 s: too little to find out more.

Input with one image that kills tends to have more, and each would cost the runner another worker. So the first one that
is found leaves a file in the staging folder, and from then on workers write all shards in processes of their own.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
from collections.abc import Sequence
from typing import TypeVar

from imagebeam import storage
from imagebeam.transforms import elements
from imagebeam.transforms.shard import read_images, shard_writer, writer_processes

MARK_SUFFIX = ".begun.json"  # beside a staged shard while a worker writes it, and after a worker that died
_FOUND_FILE = "crashes.json"  # in the staging folder, once an image has killed a process


_TaskT = TypeVar("_TaskT", shard_writer.ShardTask, read_images.HashTask)


def without_killer(task: _TaskT, deaths: Sequence[writer_processes.WriterDiedError]) -> _TaskT | None:
    """Returns a task to try again after its writer process died: without the image that killed it, once it is known.

    That is an image at which two processes died, or one that took longer than allowed. None if processes die at
    different images: then something else kills them.
    """
    last = deaths[-1]
    if last.is_slow:
        return task.without(last.image, elements.Reason.TOO_SLOW)
    if len(deaths) == 1 or last.image < 0 or deaths[-2].is_slow:
        return task
    before = [death.image for death in deaths[:-1] if not death.is_slow]
    if before[-1] == last.image:
        return task.without(last.image, elements.Reason.CRASHED)
    found_before = {number for number, _ in task.skipped}
    return task if before[-1] < 0 or before[-1] in found_before else None


class WorkerWriter:
    """Writes shards in the worker of a runner, one after the other. To be closed by the thread that made it.

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
        mark = storage.join(self._writer.staging, self._writer.name_of(task) + MARK_SUFFIX)
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
        return without_killer(task, deaths)

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
