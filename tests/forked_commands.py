"""Processes that start at once: forks of a server that has imported Beam, or Beam and TensorFlow, already.

To import Beam takes 1 to 4 s and TensorFlow another 5 s, more than most commands of the tests. A fork has its own
process id, standard streams, environment, working folder, signals and exit code. As in the process of the tests, its
Beam repeats less (`quick_beam`) and no write waits for the disk (`quick_disk`); besides, it waits less between two
attempts (`quick_waits`). Like a command, it ends without taking its modules apart, which takes 0.06 s. It does not test
what happens while Python starts and imports: for that, start a Python (`command_line.run_fresh`).

A server is started where a test first needs it, and ends with the process of the tests. A worker of a whole run imports
the same for its own tests, so there the servers with much to import are forks of it: see `fork_servers`.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import gc
import importlib
import io
import json
import logging
import os
import pathlib
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, NoReturn
from unittest import mock

from imagebeam.pipelines import quick_exit
from tests import quick_beam, quick_disk, quick_waits

if TYPE_CHECKING:
    import pytest

_ROOT = pathlib.Path(__file__).parent.parent
_BEAM = (
    "imagebeam.pipelines.cli",
    "imagebeam.pipelines.convert",
    "imagebeam.pipelines.messages.progress",
    "imagebeam.pipelines.messages.plan_report",
    "imagebeam.pipelines.verify_dataset",
    "imagebeam.pipelines.inspect_dataset",
    "apache_beam.runners.portability.fn_api_runner",
    "imagebeam.pipelines.make_job",
    "imagebeam.pipelines.messages.report_rows",
    *(
        f"imagebeam.transforms.{name}"
        for name in (
            "drop_duplicates",
            "list_images",
            "columns.transform_columns",
            "duplicates.report_duplicates",
            "plan.stage_inputs",
            "reports.store_dead_letters",
        )
    ),
    "imagebeam.transforms.html_report.make_report",  # and Pillow: what writer processes import as they start
    *(
        f"PIL.{name}"
        for name in (
            "BmpImagePlugin",
            "GifImagePlugin",
            "ImageDraw",
            "ImageOps",
            "JpegImagePlugin",
            "PngImagePlugin",
            "PpmImagePlugin",
        )
    ),
)
PRELOADED = {  # what each kind of server imports, where it is installed
    "local": ("imagebeam.pipelines.beam.runners", *_BEAM),
    "remote": (
        *_BEAM,
        "apache_beam.io.gcp.gcsio",
        "apache_beam.runners.portability.prism_runner",
        "apache_beam.runners.dataflow.dataflow_runner",
        "apache_beam.runners.dataflow.internal.apiclient",
        "fsspec.implementations.webhdfs",
        "google.auth.compute_engine",
        "google.cloud.storage",
        "google.oauth2.credentials",
        "imagebeam.pipelines.status",
        "imagebeam.storage.gcs",
        "imagebeam.storage.webhdfs",
        "s3fs",
    ),
    "tensorflow": (
        "tensorflow",
        *_BEAM,
        "imagebeam.pipelines.bench_reader",
        "imagebeam.reader.dataset_source",
        "imagebeam.reader.shard_cache.cached_source",
        "tensorflow_transform.beam",
    ),
}
FORKED = ("remote", "tensorflow")  # each imports more; "local" imports less of Beam than the tests do
_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3"}  # while TensorFlow is imported
_READY = b"ready\n"
_REQUEST_BYTES = 1 << 20
_FAILED_TO_START = 70
_CANNOT_FLUSH = 120  # of Python where a stream cannot be flushed
_REAP_SEC = 5.0
_PATCHES = contextlib.ExitStack()  # of a server, for its life


class Process:
    """A fork that runs, with the methods of `subprocess.Popen` that tests use. Its streams go to temporary files."""

    def __init__(self, connection: socket.socket, pid: int, stdout: IO[bytes], stderr: IO[bytes]):
        self.pid = pid
        self.returncode: int | None = None
        self._connection, self._stdout, self._stderr = connection, stdout, stderr

    def poll(self) -> int | None:
        """Returns the exit code, or None while the process runs."""
        return self._wait(0)

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the end; returns the exit code, negative for a signal.

        Raises:
            subprocess.TimeoutExpired: after `timeout` seconds.
        """
        code = self._wait(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("a forked command", timeout or 0)
        return code

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Waits for the end; returns what was written to standard output and standard error."""
        self.wait(timeout)
        texts = []
        for file in (self._stdout, self._stderr):
            file.seek(0)
            texts.append(io.TextIOWrapper(file, "utf-8", errors="surrogateescape").read())
        return texts[0], texts[1]

    def send_signal(self, number: int) -> None:
        """Sends a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kills the process, unless it has ended."""
        self.send_signal(signal.SIGKILL)

    def _wait(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._connection], [], [], timeout)[0]:
            self.returncode = json.loads(self._connection.recv(_REQUEST_BYTES))
            self._connection.close()
        return self.returncode


def start(
    kind: str,
    run: Mapping[str, Any],
    environment: Mapping[str, str],
    cwd: str | os.PathLike[str] = _ROOT,
    streams: Sequence[int | None] | None = None,
) -> Process:
    """Starts a process.

    Args:
        kind: of the server, a key of PRELOADED.
        run: `{"arguments": [...]}` of the command `imagebeam`, or `{"code": text}` of a Python program.
        environment: all variables. Of those that Python reads as it starts, PYTHONPATH alone has an effect.
        cwd: the working folder.
        streams: descriptors of standard input, output and error, None for a closed one. By default the null device
            and two temporary files.
    """
    stdout, stderr = (tempfile.TemporaryFile() for _ in range(2))  # noqa: SIM115  # closed with the Process
    with open(os.devnull, "rb") as nothing:
        given = [nothing.fileno(), stdout.fileno(), stderr.fileno()] if streams is None else list(streams)
        request = {"run": run, "environment": dict(environment), "cwd": str(cwd)}
        request["streams"] = [number for number, each in enumerate(given) if each is not None]
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.connect(_address(kind))
        message = json.dumps(request).encode()
        assert len(message) < _REQUEST_BYTES
        socket.send_fds(connection, [message], [each for each in given if each is not None])
    return Process(connection, json.loads(connection.recv(_REQUEST_BYTES)), stdout, stderr)


_BEAM_WORKER = "import runpy; runpy.run_module('apache_beam.runners.worker.sdk_worker_main', run_name='__main__')"


def fork_beam_workers(patch: pytest.MonkeyPatch, preloaded: str = "tensorflow") -> list[Process]:
    """Makes jobs in several processes of Beam's local runner fork their workers; returns the list of those started."""
    from apache_beam.runners.portability import local_job_service

    started: list[Process] = []

    def popen(command: str, shell: bool, env: Mapping[str, str]) -> Process:
        assert shell and command.endswith("apache_beam.runners.worker.sdk_worker_main"), command
        started.append(start(preloaded, {"code": _BEAM_WORKER, "arguments": []}, env))
        return started[-1]

    patch.setattr(local_job_service, "subprocess", types.SimpleNamespace(Popen=popen))
    return started


def fork_servers() -> None:
    """Imports what the servers of FORKED import, and forks them, where all of it is installed.

    Call it before anything else is imported, and before there are threads that use it.
    """
    for kind in FORKED:
        folder, address = _make_folder()
        log = os.path.join(folder, "log")
        with mock.patch.dict(os.environ, _QUIET), _write_errors_to(log):
            _preload(kind)
        life, end_of_life = os.pipe()
        start, ready = os.pipe()
        pid = os.fork()
        if pid == 0:
            _become_a_server(life, ready, log)
            _run_from_depth(_serve(kind, address))
        for each in (life, ready):
            os.close(each)
        _remember(kind, folder, lambda pid=pid: os.waitpid(pid, 0), lambda end=end_of_life: os.close(end))
        with open(start, "rb") as answer:
            assert answer.readline() == _READY, pathlib.Path(log).read_text()


@contextlib.contextmanager
def _write_errors_to(log: str) -> Iterator[None]:
    """Keeps messages of TensorFlow in C++, that it finds no GPU, from the terminal."""
    sys.stderr.flush()
    kept = os.dup(2)
    with open(log, "ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def is_running(pid: int | str) -> bool:
    """Returns whether there is such a process that has not ended, by /proc. An orphan may stay there for a while."""
    try:
        return pathlib.Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


_servers: dict[str, str] = {}  # the address of each server, by its kind
_lock = threading.Lock()


def _address(kind: str) -> str:
    """Returns the address of a server; starts it where there is none."""
    with _lock:
        if kind not in _servers:
            folder, address = _make_folder()
            log = os.path.join(folder, "log")
            with open(log, "wb") as errors:
                process = subprocess.Popen(
                    [sys.executable, "-m", "tests.forked_commands", kind, address],
                    cwd=_ROOT,
                    stdin=subprocess.PIPE,  # the server ends when this is closed
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    start_new_session=True,  # Ctrl-C is for the process of the tests
                    env={**os.environ, **_QUIET},
                )
            assert process.stdin is not None
            assert process.stdout is not None
            _remember(kind, folder, process.wait, process.stdin.close)
            assert process.stdout.readline() == _READY, pathlib.Path(log).read_text()
            process.stdout.close()
    return _servers[kind]


def _make_folder() -> tuple[str, str]:
    """Returns a new folder of a server, and the address of its socket there."""
    folder = tempfile.mkdtemp(prefix="forked-")
    return folder, os.path.join(folder, "socket")


def _remember(kind: str, folder: str, wait: Callable[[], object], end: Callable[[], object]) -> None:
    """Keeps the address of a server, which is ended at the end of this process."""
    _servers[kind] = os.path.join(folder, "socket")
    atexit.register(wait)
    atexit.register(end)


# --- the server ------------------------------------------------------------------------------------------------------


def _serve(kind: str, address: str) -> Any:
    """Forks for each request until standard input is closed. Returns the request in each fork."""
    _preload(kind)
    logging.root.handlers.clear()  # of this process: imports that warn add one
    _PATCHES.enter_context(quick_beam.patched())
    _PATCHES.enter_context(quick_disk.patched())
    _PATCHES.enter_context(quick_waits.patched())
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(address)
    listener.listen()
    os.write(1, _READY)
    os.dup2(2, 1)
    gc.collect()
    gc.freeze()
    while True:
        ready, _, _ = select.select([listener, 0], [], [], _REAP_SEC)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:  # attendants that have ended
                pass
        if 0 in ready:
            shutil.rmtree(os.path.dirname(address), ignore_errors=True)  # also if the tests were killed
            os._exit(0)
        if not ready:
            continue
        connection, _ = listener.accept()
        message, descriptors, _, _ = socket.recv_fds(connection, _REQUEST_BYTES, 3)
        if message and os.fork() == 0:
            listener.close()
            request = json.loads(message)
            _attend(connection)
            _become(request, descriptors)
            return request
        connection.close()
        for each in descriptors:
            os.close(each)


def _become_a_server(life: int, ready: int, log: str) -> None:
    """Takes from this fork of the tests what is theirs: their streams, files, pipes, exit handlers and session.

    `life` becomes standard input, and `ready` standard output.
    """
    try:
        os.setsid()
        gc.enable()
        faulthandler.disable()
        atexit._clear()
        _servers.clear()
        sys.path[:] = [str(_ROOT), *(each for each in sys.path if each not in ("", str(_ROOT)))]
        os.dup2(os.open(log, os.O_WRONLY | os.O_APPEND), 2)
        os.dup2(life, 0)
        os.dup2(ready, 1)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    except BaseException:
        traceback.print_exc()
        os._exit(_FAILED_TO_START)


def _preload(kind: str) -> None:
    for name in PRELOADED[kind]:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as e:
            if e.name is None or e.name.startswith("imagebeam"):
                raise
        if name == "imagebeam.pipelines.beam.runners":  # as a command on local files does
            importlib.import_module(name).import_beam_lightly([], [])


def _attend(connection: socket.socket) -> None:
    """Returns in a new process. This one tells the client its id and exit code, and kills it if the client ends."""
    reader, writer = os.pipe()  # closed when the process ends: its own processes do not inherit it
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        connection.close()
        return
    os.close(writer)
    connection.send(json.dumps(pid).encode())
    if connection in select.select([connection, reader], [], [])[0]:  # the client sends nothing, so it has ended
        os.kill(pid, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    try:
        connection.send(json.dumps(code).encode())
    finally:
        os._exit(0)


def _become(request: Mapping[str, Any], descriptors: Sequence[int]) -> None:
    """Gives this process what a new Python has: a session, signals, environment, folder and standard streams."""
    try:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ.clear()
        os.environ.update(request["environment"])
        time.tzset()
        tempfile.tempdir = None  # the environment names it
        os.chdir(request["cwd"])
        folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        sys.path[:1] = [request["cwd"], *(each for each in folders if each and each not in sys.path)]
        sys.argv = [sys.modules["imagebeam.pipelines.cli"].__file__ or "", *request["run"].get("arguments", ())]
        high = [os.dup(each) for each in descriptors]  # above the standard ones, which may be closed
        for number in range(3):
            os.close(number)
        for number, each in zip(request["streams"], high):
            os.dup2(each, number)
        for each in {*descriptors, *high} - {0, 1, 2}:
            os.close(each)
        sys.stdin = sys.__stdin__ = _open_stream(0, "r")
        sys.stdout = sys.__stdout__ = _open_stream(1, "w")
        sys.stderr = sys.__stderr__ = _open_stream(2, "w", "backslashreplace")
    except BaseException:
        traceback.print_exc()
        os._exit(_FAILED_TO_START)


def _open_stream(number: int, mode: str, errors: str = "strict") -> Any:
    """Opens a standard stream as Python does when it starts; None where the descriptor is closed."""
    try:
        os.fstat(number)
    except OSError:
        return None
    binary = open(number, f"{mode}b", closefd=False)  # noqa: SIM115  # open for the life of this process
    is_line_buffered = number == 2 or binary.isatty()
    return io.TextIOWrapper(binary, "utf-8", errors, line_buffering=is_line_buffered)


def _run_from_depth(asked: Mapping[str, Any]) -> NoReturn:
    """Runs what a fork was asked for, below frames of the tests that must not go on, and ends the process."""
    code = 0
    try:
        _run_to_end(asked)
    except SystemExit as e:
        code = 1 if e.code else 0
        if not isinstance(e.code, int):
            print(e.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    quick_exit.end(code)
    os._exit(_CANNOT_FLUSH)


def _run_to_end(asked: Mapping[str, Any]) -> None:
    """Runs what a fork was asked for and ends the process. Returns or raises where Python has something to say."""
    try:
        _run(asked["run"])
    except SystemExit as e:
        if e.code is None or isinstance(e.code, int):
            quick_exit.end((e.code or 0) & 0xFF)
        raise
    else:
        quick_exit.end(0)
    finally:
        _PATCHES.close()  # before Python takes apart the modules that they restore


def _run(run: Mapping[str, Any]) -> None:
    if "code" in run:
        exec(run["code"], {"__name__": "__main__"})
    else:
        sys.modules["imagebeam.pipelines.cli"].run()


if __name__ == "__main__":
    _run_to_end(_serve(*sys.argv[1:]))
