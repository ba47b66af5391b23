"""Writer processes beside a local runner.

Beam's own multi-processing starts whole Python workers that import Beam (0.6 to 2.2 s before the first shard, 100 MB
each) and send every element through gRPC. A writer process imports no Beam: it is ready after some 0.1 s, takes 25 MB,
and gets one pickled task for each shard; before that, one process lists the source while the launcher imports Beam. The
processes end with the process that started them, even when it is killed.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import contextvars
import ctypes
import gc
import itertools
import os
import pickle
import queue
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, BinaryIO

# Without the current folder, which `python -c` puts first: modules of the user's project may hide ours there.
_SERVE = """
import sys
sys.path[:] = filter(None, sys.path)
from imagebeam.transforms.shard import shard_writer, writer_processes  # the writer: imported before a task needs it
writer_processes.serve()
"""
_PR_SET_PDEATHSIG = 1
_PATIENCE_SEC = 5.0
_NOTE_SEC = 0.25  # between two notes of how far a task is
_DONE, _FAILED, _NOTE = range(3)  # what an answer of a writer process is

# glibc: memory that held an image stays with the process for the next one, instead of going back to the kernel and
# coming anew, page fault by page fault; a tenth of a writer's time.
_MALLOC = {"MALLOC_TRIM_THRESHOLD_": "67108864", "MALLOC_MMAP_THRESHOLD_": "33554432", "MALLOC_TOP_PAD_": "1048576"}


class WriterError(RuntimeError):
    """A writer process failed; the text holds its traceback."""


class _Process:
    """One writer process and the pipe to it."""

    def __init__(self) -> None:
        environment = _MALLOC | os.environ | {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
        self._popen = subprocess.Popen(
            [sys.executable, "-c", _SERVE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # Ctrl-C reaches the launcher alone, which ends us
        )
        self._function: Callable[[Any], Any] | None = None
        self.images = 0  # done of the task that it is at

    def call(self, function: Callable[[Any], Any], argument: Any) -> Any:
        """`function(argument)`, in that process; the function is sent when it is another than last time."""
        assert self._popen.stdin is not None and self._popen.stdout is not None
        try:
            message = (None if function is self._function else function, argument)
            pickle.dump(message, self._popen.stdin, protocol=5)
            self._popen.stdin.flush()
            self._function = function
            kind, result = pickle.load(self._popen.stdout)
            while kind == _NOTE:
                self.images = result
                kind, result = pickle.load(self._popen.stdout)
        except (OSError, EOFError, pickle.UnpicklingError) as e:
            raise WriterError(f"a writer process ended with code {self._end()}; was it out of memory?") from e
        finally:
            self.images = 0
        if kind == _FAILED:
            raise WriterError(result)
        return result

    def _end(self) -> int:
        """The exit code of a process that ends by itself, or is ended here if it does not."""
        try:
            return self._popen.wait(_PATIENCE_SEC)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            return self._popen.wait()

    def kill(self) -> None:
        """Ends the process, in the middle of a shard if need be."""
        self._popen.kill()

    def close(self) -> None:
        """Lets go of the killed process. Nothing may read from it any more."""
        self._popen.wait()
        for pipe in (self._popen.stdin, self._popen.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


class WriterProcesses:
    """A fixed number of writer processes that take tasks in the order given."""

    def __init__(self, num_processes: int):
        self.token = f"{os.getpid()}-{next(_numbers)}"  # small and picklable: it travels with the steps of the job
        self._processes = [_Process() for _ in range(num_processes)]
        self._idle: queue.SimpleQueue[_Process] = queue.SimpleQueue()
        for process in self._processes:
            self._idle.put(process)
        self._threads = concurrent.futures.ThreadPoolExecutor(num_processes, "imagebeam-writer")
        self._begun: dict[tuple[Callable[[Any], Any], Any], concurrent.futures.Future[Any]] = {}

    def submit(self, function: Callable[[Any], Any], argument: Any) -> concurrent.futures.Future[Any]:
        """The future of `function(argument)`; both must be picklable."""
        return self._threads.submit(self._call, function, argument)

    def begin(self, function: Callable[[Any], Any], argument: Any) -> None:
        """Submits what will be asked for later, with `take`; both must be hashable."""
        self._begun[function, argument] = self.submit(function, argument)

    def take(self, function: Callable[[Any], Any], argument: Any) -> concurrent.futures.Future[Any]:
        """As `submit`, but what was begun is not begun again."""
        return self._begun.pop((function, argument), None) or self.submit(function, argument)

    def count_images(self) -> int:
        """How many images of shards that are being written are done, as of a moment ago."""
        return sum(process.images for process in self._processes)

    def _call(self, function: Callable[[Any], Any], argument: Any) -> Any:
        process = self._idle.get()
        try:
            return process.call(function, argument)
        finally:
            self._idle.put(process)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        for process in self._processes:
            process.kill()
        self._threads.shutdown()  # they read until the pipes end; a pipe closed under a reader gives odd errors
        for process in self._processes:
            process.close()

    def __enter__(self) -> WriterProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        _started.pop(self.token, None)
        if _current.get() == self.token:
            _current.set(None)
        self.close()


_numbers = itertools.count()
_started: dict[str, WriterProcesses] = {}  # by token: every job that runs in this process has its own
_current: contextvars.ContextVar[str | None] = contextvars.ContextVar("_current", default=None)  # by thread


def start(num_processes: int) -> WriterProcesses:
    """Starts the writer processes of one job; `current` returns them in this thread until they are closed."""
    pool = WriterProcesses(num_processes)
    _started[pool.token] = pool
    _current.set(pool.token)
    return pool


def current() -> WriterProcesses | None:
    """The writer processes that this thread started for its job; None in a worker of any other runner.

    For the launcher, which builds the pipeline. The steps of the pipeline run in threads of the runner's: they keep the
    token and ask `find`.
    """
    return find(_current.get())


def find(token: str | None) -> WriterProcesses | None:
    """The writer processes with this token; None where there is no token, or they were started in another process."""
    return None if token is None else _started.get(token)


def serve() -> None:
    """The life of a writer process: tasks on standard input, results on standard output, until the input ends."""
    _die_with_parent()
    global _notes
    tasks, results = sys.stdin.buffer, os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    _notes = results
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever prints must not end up among the results
    function: Any = None
    gc.freeze()
    gc.disable()  # garbage in circles comes from errors alone, and is looked for after each task
    while True:
        try:
            new_function, argument = pickle.load(tasks)
        except EOFError:
            return
        function = new_function or function
        _answer(results, function, argument)
        gc.collect()


def _answer(results: BinaryIO, function: Callable[[Any], Any], argument: Any) -> None:
    try:
        answer = (_DONE, function(argument))
    except Exception:  # whatever it is, it belongs to the launcher, which raises it as WriterError
        answer = (_FAILED, traceback.format_exc())
    pickle.dump(answer, results, protocol=5)
    results.flush()


_notes: BinaryIO | None = None  # in a writer process, where its answers go
_next_note = 0.0


def note_progress(images: int) -> None:
    """Tells the launcher how many images of this task are done; cheap, and nothing outside of a writer process."""
    global _next_note
    if _notes is None or time.monotonic() < _next_note:
        return
    pickle.dump((_NOTE, images), _notes, protocol=5)
    _notes.flush()
    _next_note = time.monotonic() + _NOTE_SEC


def _die_with_parent() -> None:
    """Asks Linux to kill this process when the launcher dies; elsewhere the end of the input ends it after a shard."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
