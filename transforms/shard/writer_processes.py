"""Writer processes beside a local runner.

Beam's own multi-processing starts complete Python workers that import Beam (0.6 to 2.2 s before the first shard, 100 MB
each) and send every element through gRPC. A writer process imports no Beam: it is ready after some 0.1 s, takes 25 MB,
and receives one pickled task per shard. Before that, one process lists the source.

concurrent.futures.ProcessPoolExecutor, with processes that are spawned, is not used for these reasons (Python 3.11):

- Spawned processes import the user's main script again, so `imagebeam.convert(...)` in a script without an
  `if __name__ == "__main__"` guard, or piped into `python -`, ends in BrokenProcessPool.
- After the launcher was killed, its workers stay: idle for ever, or writing into a folder that the next run uses. Here
  they end with the launcher.
- The death of one worker fails all tasks of the pool. Here it fails its own task, and the error states the exit code.
- It has no channel for progress during a task, and cannot give workers an environment of their own, which `_MALLOC`
  needs: glibc reads it when a process starts.
- It is ready after 0.26 s, these processes after 0.18 s (two processes with the shard writer imported).

Each behaviour has a test in tests/unit/transforms/shard/test_writer_processes.py.
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
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO, TypeAlias, TypeVar

from imagebeam.storage import given_options
from imagebeam.transforms import elements

# Removes the current folder, which `python -c` puts first on the path: modules of the user's project may hide ours.
_SERVE = """
import sys
sys.path[:] = filter(None, sys.path)
from imagebeam.transforms.shard import shard_writer, writer_processes  # shard_writer: ready before the first task
writer_processes.serve(launcher=int(sys.argv[1]))
"""
_PR_SET_PDEATHSIG = 1
_PATIENCE_SEC = 5.0
_NOTE_SEC = 0.25  # between two progress notes of a task
_DONE, _FAILED, _NOTE, _SLOW = range(4)  # kinds of answers of a writer process
_MAX_DEATHS = 20  # processes that may die in one task

# Settings of glibc's malloc: memory that held an image is kept for the next image. Given back to the kernel, it would
# return page fault by page fault, which takes a tenth of a writer's time.
_MALLOC = {"MALLOC_TRIM_THRESHOLD_": "67108864", "MALLOC_MMAP_THRESHOLD_": "33554432", "MALLOC_TOP_PAD_": "1048576"}


class WriterError(RuntimeError):
    """A writer process failed; the text holds its traceback."""


class WriterDiedError(WriterError):
    """A writer process ended during a task.

    Attributes:
        image: number of the image that it was at, counted from 0 in the task; -1 if that is not known, or it was at
            several.
        is_slow: whether it ended itself because that image took too long.
    """

    def __init__(self, text: str, image: int, is_slow: bool = False):
        super().__init__(text)
        self.image, self.is_slow = image, is_slow


_TaskT = TypeVar("_TaskT", bound=Any)
_MAX_TRIES = 3  # how often a task without images is tried


def try_again(argument: Any, deaths: Sequence[WriterDiedError]) -> Any:
    """Retries a task without images: returns it again, or None after a few deaths."""
    return argument if len(deaths) < _MAX_TRIES else None


def without_killer(task: _TaskT, deaths: Sequence[WriterDiedError]) -> _TaskT | None:
    """Returns a task with images to try again: without the image that killed its process, once it is known.

    That is an image at which two processes died, or one that took longer than allowed. None if processes die at
    different images: then something else kills them.

    Args:
        task: a ShardTask or a HashTask; its `skipped` gets the image and the reason.
        deaths: of its processes so far.
    """
    last = deaths[-1]
    if last.is_slow and last.image >= 0:
        reason = elements.Reason.TOO_SLOW
    elif len(deaths) == 1 or last.image < 0 or deaths[-2].is_slow:
        return task
    elif (before := deaths[-2].image) == last.image:
        reason = elements.Reason.CRASHED
    else:
        return task if before < 0 or before in dict(task.skipped) else None
    return task._replace(skipped=(*task.skipped, (last.image, reason)))


Retry: TypeAlias = Callable[[Any, Sequence[WriterDiedError]], Any]  # (task, deaths so far) -> task to try next, or None


class _Process:
    """One writer process and the pipes to and from it."""

    def __init__(self) -> None:
        self._function: Callable[[Any], Any] | None = None
        self.images = 0  # done of the current task
        self._options: given_options.Table = {}  # of storages, as the process has them
        environment = _MALLOC | os.environ | {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
        self._popen = subprocess.Popen(
            [sys.executable, "-c", _SERVE, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # Ctrl-C reaches only the launcher, which then ends its writers
        )

    def call(self, function: Callable[[Any], Any], argument: Any, notes_each: bool = False) -> Any:
        """Returns `function(argument)`, called in that process; the function is sent only when it changes.

        Args:
            function: to call.
            argument: its argument.
            notes_each: whether the process tells of each image before it begins it, so that one that kills it is known.

        Raises:
            WriterError: if the call raised.
            WriterDiedError: if the process ended.
        """
        assert self._popen.stdin is not None and self._popen.stdout is not None
        last = -1
        try:
            options = given_options.active()
            carried = None if options == self._options else given_options.Carried(options)
            message = (carried, None if function is self._function else function, argument, notes_each)
            pickle.dump(message, self._popen.stdin, protocol=5)
            self._popen.stdin.flush()
            self._function, self._options = function, options
            kind, result = pickle.load(self._popen.stdout)
            while kind == _NOTE:
                self.images = result
                last = result if notes_each else -1
                kind, result = pickle.load(self._popen.stdout)
        except (OSError, EOFError, pickle.UnpicklingError) as e:
            code = self._end()
            text = f"a writer process ended with code {code}" + ("; was it out of memory?" if code == -9 else "")
            raise WriterDiedError(text, last) from e
        finally:
            self.images = 0
        if kind == _SLOW:
            self._end()
            raise WriterDiedError("a writer process ended because an image took too long", result, is_slow=True)
        if kind == _FAILED:
            raise WriterError(result)
        return result

    def _end(self) -> int:
        """Waits for the process to end, kills it after `_PATIENCE_SEC`, and returns its exit code."""
        try:
            return self._popen.wait(_PATIENCE_SEC)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            return self._popen.wait()

    def kill(self) -> None:
        """Kills the process, even in the middle of a shard."""
        self._popen.kill()

    def close(self) -> None:
        """Releases the killed process and its pipes; no thread may still read from it."""
        self._popen.wait()
        for pipe in (self._popen.stdin, self._popen.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


class WriterProcesses:
    """A fixed number of writer processes that take tasks in the order given."""

    def __init__(self, num_processes: int):
        self.token = f"{os.getpid()}-{next(_numbers)}"  # small and picklable, for the steps of the pipeline
        self._processes = [_Process() for _ in range(num_processes)]
        self._idle: queue.SimpleQueue[_Process] = queue.SimpleQueue()
        for process in self._processes:
            self._idle.put(process)
        self._threads = concurrent.futures.ThreadPoolExecutor(num_processes, "imagebeam-writer")
        self._closing = threading.Lock()  # no process starts while all are killed
        self._is_closed = False

    def submit(
        self, function: Callable[[Any], Any], argument: Any, retry: Retry | None = None
    ) -> concurrent.futures.Future[Any]:
        """Returns the future of `function(argument)`; both must be picklable.

        Args:
            function: to call in a writer process.
            argument: its argument.
            retry: called when the process dies during the call: returns the argument of the next try, in a new process,
                or None to give up.
        """
        return self._threads.submit(self._call, function, argument, retry)

    def count_images(self) -> int:
        """Returns how many images of the unfinished shards are done, as of `_NOTE_SEC` ago."""
        return sum(process.images for process in self._processes)

    def _call(self, function: Callable[[Any], Any], argument: Any, retry: Retry | None) -> Any:
        process = self._idle.get()
        deaths: list[WriterDiedError] = []
        try:
            while True:
                try:
                    return process.call(function, argument, bool(deaths))
                except WriterDiedError as e:
                    deaths.append(e)
                    argument = retry(argument, deaths) if retry is not None and len(deaths) < _MAX_DEATHS else None
                    with self._closing:
                        if argument is None or self._is_closed:
                            raise
                        process = self._replace(process)
        finally:
            self._idle.put(process)

    def _replace(self, dead: _Process) -> _Process:
        """Starts a process in place of a dead one."""
        new = _Process()
        self._processes[self._processes.index(dead)] = new
        dead.close()
        return new

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        with self._closing:
            self._is_closed = True
            for process in self._processes:
                process.kill()
        self._threads.shutdown()  # wait: closing a pipe while a thread reads from it raises misleading errors
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
_started: dict[str, WriterProcesses] = {}  # by token; each job in this process has its own
_current: contextvars.ContextVar[str | None] = contextvars.ContextVar("_current", default=None)  # one per thread


def start(num_processes: int) -> WriterProcesses:
    """Starts the writer processes of one job; `current` returns them in this thread until they are closed."""
    pool = WriterProcesses(num_processes)
    _started[pool.token] = pool
    _current.set(pool.token)
    return pool


def current() -> WriterProcesses | None:
    """Returns the writer processes that this thread started for its job; None in a worker of another runner.

    This is for the launcher, which builds the pipeline. The steps of the pipeline run in the runner's threads: they
    keep the token and call `find`.
    """
    return find(_current.get())


def current_token() -> str | None:
    """Returns the token of `current`, for the steps of the pipeline; None if it is None."""
    pool = current()
    return None if pool is None else pool.token


def find(token: str | None) -> WriterProcesses | None:
    """Returns the writer processes with this token; None without a token or if another process started them."""
    return None if token is None else _started.get(token)


def serve(launcher: int) -> None:
    """Runs a writer process: reads tasks from standard input and answers on standard output until the input ends.

    Args:
        launcher: id of the process that started this one.
    """
    _die_with(launcher)
    global _notes, _notes_each
    tasks, results = sys.stdin.buffer, os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    _notes = results
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # printed text must not mix with the answers
    gc.freeze()  # what was imported stays: no collection has to look at it
    function: Any = None
    while True:
        try:
            _, new_function, argument, _notes_each = pickle.load(tasks)
        except EOFError:
            return
        function = new_function or function
        _answer(results, function, argument)


def _answer(results: BinaryIO, function: Callable[[Any], Any], argument: Any) -> None:
    try:
        answer = (_DONE, function(argument))
    except Exception:  # any kind: the launcher raises it as WriterError
        answer = (_FAILED, traceback.format_exc())
    pickle.dump(answer, results, protocol=5)
    results.flush()


_notes: BinaryIO | None = None  # the stream of answers; None outside of a writer process
_notes_each = False
_next_note = 0.0


def notes_each() -> bool:
    """Returns whether this is a writer process whose task tells of each image before it begins it."""
    return _notes_each


def note_progress(images: int) -> None:
    """Sends the launcher the number of images of this task that are done; does nothing outside of a writer process."""
    global _next_note
    if _notes is None or (time.monotonic() < _next_note and not _notes_each):
        return
    pickle.dump((_NOTE, images), _notes, protocol=5)
    _notes.flush()
    _next_note = time.monotonic() + _NOTE_SEC


def is_writer() -> bool:
    """Whether this is a writer process, which may end in the middle of an image."""
    return _notes is not None


def end_as_slow(image: int) -> None:
    """Ends this writer process, in the middle of an image.

    Args:
        image: its number, counted from 0 in the task; -1 for several at once.
    """
    assert _notes is not None
    pickle.dump((_SLOW, image), _notes, protocol=5)
    _notes.flush()
    os._exit(1)


def _die_with(launcher: int) -> None:
    """Asks Linux to kill this process when the launcher dies; other systems end it after its shard, with the input."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != launcher:  # it died before the call: no signal comes
            sys.exit(1)
