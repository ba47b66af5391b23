"""Measures processes for the benchmarks: time, memory of a process tree, peers in turn, medians and ratios.

Linux only: it reads /proc. Nothing of the project is imported, so that what is measured cannot depend on it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import mmap
import os
import platform
import re
import resource
import shlex
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

REPOSITORY = Path(__file__).resolve().parent.parent
MEGABYTE = 1_000_000

_SAMPLE_SECONDS = 0.05
# Reading smaps_rollup walks the page tables of the process (about 9 ms per GB here) and holds its memory lock. So the
# next reading waits 20 times as long as the last one took: at most 5 % of one core, every 50 ms for a small process.
_PSS_REST = 20
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_MAX_MEMORY_FRACTION = 0.6
_LOG_TAIL_LINES = 25
_MAX_EXTRAPOLATION_RATIO = 1.15  # of 250k, 500k, 1M: n is 1, n log n 1.03, n**1.5 1.23, n**2 1.6

_SHARD_NAME = re.compile(r".+-\d{5,}-of-\d{5,}(\.tfrecord)?")
_RECORD_LENGTH = struct.Struct("<Q")
_FRAME_BYTES = 16  # length, its checksum, the record's checksum


class BenchmarkError(Exception):
    """A peer failed, or its output is not as expected, so there is no figure."""


@dataclasses.dataclass(frozen=True)
class Measurement:
    """The costs of one process from start to exit, with all processes that it started."""

    seconds: float  # wall time
    cpu_seconds: float  # user and system time of all processes
    peak_rss_bytes: int  # sum over the tree; pages shared by several processes count once for each
    peak_pss_bytes: int  # sum over the tree; shared pages are divided among those that share them
    num_pss_readings: int
    others_cpu_fraction: float  # share of the machine's CPU time that other processes took meanwhile
    stopped: str = ""  # why the harness ended it before its time; "" when it ran to its end


class _Memory(NamedTuple):
    rss_bytes: int
    pss_bytes: int
    num_pss_readings: int
    stopped: str


# --- one process -----------------------------------------------------------------------------------------------------


def run(
    command: Sequence[str | os.PathLike[str]],
    *,
    cwd: str | os.PathLike[str] = REPOSITORY,
    env: Mapping[str, str] | None = None,
    max_memory_bytes: int | None = None,
) -> Measurement:
    """Runs a command in a session of its own and measures it; none of its processes outlives the call.

    Args:
        command: program and arguments.
        cwd: its working directory.
        env: set in addition to the environment of this process.
        max_memory_bytes: the tree is ended when its summed resident memory passes this, so that a peer whose memory
            grows with the data cannot take the machine down. Default: 60 % of what is free at the start.

    Raises:
        BenchmarkError: if the command exits with another code than 0, with the end of what it printed.
    """
    if max_memory_bytes is None:
        max_memory_bytes = int(_MAX_MEMORY_FRACTION * _meminfo("MemAvailable"))
    words = [os.fspath(word) for word in command]
    # Programs start from cached bytecode, as on a user's machine: without, the project's own modules cost 50 ms more.
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryFile() as log:
        busy, usage = _busy_seconds(), resource.getrusage(resource.RUSAGE_CHILDREN)
        own = time.process_time()
        start = time.perf_counter()
        process = subprocess.Popen(
            words,
            cwd=cwd,
            env={**inherited, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        sampler = _MemorySampler(process.pid, max_memory_bytes)
        try:
            sampler.start()
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            seconds = time.perf_counter() - start
            busy = _busy_seconds() - busy
            own = time.process_time() - own
        finally:
            _kill_session(process.pid)
            memory = sampler.stop()
            process.wait()  # only now: until it is reaped, its id cannot be another process's
        usage_after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_seconds = usage_after.ru_utime + usage_after.ru_stime - usage.ru_utime - usage.ru_stime
        if process.returncode and not memory.stopped:
            log.seek(0)
            tail = log.read().decode(errors="replace").splitlines()[-_LOG_TAIL_LINES:]
            raise BenchmarkError(
                "\n".join([f"exit code {process.returncode}, expected 0, of: {shlex.join(words)}", *tail])
            )
    capacity = seconds * (os.cpu_count() or 1)
    return Measurement(
        seconds=seconds,
        cpu_seconds=cpu_seconds,
        peak_rss_bytes=memory.rss_bytes,
        peak_pss_bytes=memory.pss_bytes,
        num_pss_readings=memory.num_pss_readings,
        others_cpu_fraction=min(1.0, max(0.0, (busy - cpu_seconds - own) / capacity)),
        stopped=memory.stopped,
    )


class _MemorySampler(threading.Thread):
    """Follows the memory of a session every 50 ms until `stop` (see `_PSS_REST` for the exact measure)."""

    def __init__(self, session: int, max_rss_bytes: int):
        super().__init__(daemon=True)
        self._session = session
        self._max_rss_bytes = max_rss_bytes
        self._done = threading.Event()
        self._peak_rss_bytes = 0
        self._peak_pss_bytes = 0
        self._num_pss_readings = 0
        self._stopped = ""

    def run(self) -> None:
        next_pss = 0.0
        while not self._done.is_set():
            pids = _session_pids(self._session)
            rss_bytes = sum(map(_rss_bytes, pids))
            self._peak_rss_bytes = max(self._peak_rss_bytes, rss_bytes)
            if rss_bytes > self._max_rss_bytes and not self._stopped:
                self._stopped = (
                    f"its processes held {rss_bytes // MEGABYTE} MB together, "
                    f"at most {self._max_rss_bytes // MEGABYTE} MB were allowed"
                )
                _kill_session(self._session)
            start = time.perf_counter()
            if start >= next_pss:
                pss_bytes = sum(map(_pss_bytes, pids))
                end = time.perf_counter()
                next_pss = end + _PSS_REST * (end - start)
                self._peak_pss_bytes = max(self._peak_pss_bytes, pss_bytes)
                self._num_pss_readings += 1
            self._done.wait(_SAMPLE_SECONDS)

    def stop(self) -> _Memory:
        """Ends the thread and returns the peaks."""
        self._done.set()
        if self.ident is not None:
            self.join()
        return _Memory(self._peak_rss_bytes, self._peak_pss_bytes, self._num_pss_readings, self._stopped)


def _session_pids(session: int) -> list[int]:
    """Returns the processes of a session, and their descendants that started a session of their own."""
    parents: dict[int, int] = {}
    members: set[int] = set()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        # "pid (any text) state ppid pgrp session ..."
        fields = _read_proc(f"/proc/{name}/stat", 1024).rpartition(b")")[2].split()
        if len(fields) < 4:
            continue
        pid = int(name)
        parents[pid] = int(fields[1])
        if int(fields[3]) == session:
            members.add(pid)
    num_before = -1
    while len(members) != num_before:
        num_before = len(members)
        members.update(pid for pid, parent in parents.items() if parent in members)
    return sorted(members)


def _kill_session(session: int) -> None:
    for pid in _session_pids(session):
        with contextlib.suppress(ProcessLookupError):  # ended by itself meanwhile
            os.kill(pid, signal.SIGKILL)


def _rss_bytes(pid: int) -> int:
    fields = _read_proc(f"/proc/{pid}/statm", 256).split()
    return int(fields[1]) * _PAGE_BYTES if len(fields) > 1 else 0


def _pss_bytes(pid: int) -> int:
    """Returns the proportional set size, or the resident set size if the kernel does not let us read the former."""
    match = re.search(rb"^Pss:\s+(\d+) kB", _read_proc(f"/proc/{pid}/smaps_rollup", 4096), re.MULTILINE)
    return int(match[1]) * 1024 if match else _rss_bytes(pid)


def _read_proc(path: str, max_bytes: int) -> bytes:
    """Returns the content of the file; empty if the process ended or we may not read it."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return b""
    try:
        return os.read(descriptor, max_bytes)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def _busy_seconds() -> float:
    """Returns the CPU seconds that all cores of this machine have spent on anything but idling."""
    user, nice, system, _, _, irq, softirq = map(int, _read_proc("/proc/stat", 4096).split(b"\n")[0].split()[1:8])
    return (user + nice + system + irq + softirq) / _TICKS_PER_SECOND


def _meminfo(field: str) -> int:
    match = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    if match is None:
        raise BenchmarkError(f"/proc/meminfo has no {field}: these benchmarks need Linux")
    return int(match[1]) * 1024


# --- before and after ------------------------------------------------------------------------------------------------


def warm_files(paths: Iterable[str | os.PathLike[str]]) -> int:
    """Reads every file once, so that it is in the page cache; returns their bytes."""
    buffer = memoryview(bytearray(4 << 20))
    total = 0
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            while num_read := file.readinto(buffer):
                total += num_read
    return total


def warm_memory(num_bytes: int) -> int:
    """Writes to this much memory, at most half of the free memory: a virtual machine is slow at first use of a page."""
    num_bytes = min(num_bytes, _meminfo("MemAvailable") // 2)
    block = b"\1" * (1 << 20)
    with mmap.mmap(-1, max(num_bytes, len(block))) as memory:
        for _ in range(num_bytes // len(block)):
            memory.write(block)
    return num_bytes


class Written(NamedTuple):
    """The number of records and bytes in the shards of a folder."""

    num_shards: int
    num_records: int
    num_record_bytes: int


def count_records(folder: Path) -> Written:
    """Counts the records of all shards (`*-00000-of-00016`, with or without `.tfrecord`) from their lengths alone.

    Raises:
        BenchmarkError: if the lengths do not end exactly where a file does.
    """
    shards = [path for path in folder.rglob("*") if path.is_file() and _SHARD_NAME.fullmatch(path.name)]
    num_records = num_record_bytes = 0
    for path in shards:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            offset, size = 0, os.fstat(descriptor).st_size
            while offset < size:
                header = os.pread(descriptor, _RECORD_LENGTH.size, offset)
                length = _RECORD_LENGTH.unpack(header)[0] if len(header) == _RECORD_LENGTH.size else size
                offset += length + _FRAME_BYTES
                num_records += 1
                num_record_bytes += length
            if offset != size:
                raise BenchmarkError(f"{path} has {size} bytes, its last record would end at {offset}")
        finally:
            os.close(descriptor)
    return Written(len(shards), num_records, num_record_bytes)


# --- in turn ---------------------------------------------------------------------------------------------------------


def run_in_turn(
    peers: Mapping[str, Callable[[], Measurement]], rounds: int, name: str = ""
) -> dict[str, list[Measurement]]:
    """Measures every peer once, then every peer again, so that a drift of the machine affects all of them equally.

    A peer that was stopped is not run again: it would be stopped again.
    """
    results: dict[str, list[Measurement]] = {peer: [] for peer in peers}
    for round_index in range(rounds):
        for peer, measure in peers.items():
            if any(measurement.stopped for measurement in results[peer]):
                continue
            measurement = measure()
            results[peer].append(measurement)
            progress(
                f"{name} round {round_index + 1}/{rounds} {peer}: {measurement.seconds:.2f} s, "
                f"{measurement.peak_rss_bytes / MEGABYTE:.0f} MB resident, "
                f"others took {measurement.others_cpu_fraction:.0%} of the CPUs"
                + (f"; stopped: {measurement.stopped}" if measurement.stopped else "")
            )
    return results


def summarize(measurements: Sequence[Measurement], count: int, noun: str = "images") -> dict[str, Any]:
    """Returns one peer's part of the output: rates of `count` things (`noun`), times and memory of its rounds."""
    finished = [measurement for measurement in measurements if not measurement.stopped]
    stopped = [measurement.stopped for measurement in measurements if measurement.stopped]
    return {
        f"{noun}_per_second": [round(count / m.seconds, 1) for m in finished],
        f"{noun}_per_second_median": _median([count / m.seconds for m in finished], 1),
        "seconds_median": _median([m.seconds for m in finished], 3),
        "cpu_seconds_median": _median([m.cpu_seconds for m in finished], 3),
        "peak_rss_mb": [round(m.peak_rss_bytes / MEGABYTE, 1) for m in measurements],
        "peak_rss_mb_median": _median([m.peak_rss_bytes / MEGABYTE for m in measurements], 1),
        "peak_pss_mb": [round(m.peak_pss_bytes / MEGABYTE, 1) for m in measurements],
        "peak_pss_mb_median": _median([m.peak_pss_bytes / MEGABYTE for m in measurements], 1),
        "pss_readings": [m.num_pss_readings for m in measurements],
        "others_cpu_fraction": [round(m.others_cpu_fraction, 3) for m in measurements],
        "stopped": stopped[0] if stopped else None,
    }


def speed_ratio(first: Sequence[Measurement], second: Sequence[Measurement]) -> dict[str, Any] | None:
    """Returns how many times as fast `first` is as `second`: one ratio per round, and their median.

    Each round's two runs stood next to each other in time, so these ratios are steadier than one of two medians.
    None when one of the two never finished.
    """
    ratios = [b.seconds / a.seconds for a, b in zip(first, second, strict=False) if not (a.stopped or b.stopped)]
    return {"median": _median(ratios, 3), "rounds": [round(ratio, 3) for ratio in ratios]} if ratios else None


def cpu_ratio(first: Sequence[Measurement], second: Sequence[Measurement]) -> dict[str, Any] | None:
    """Returns how many times as much CPU time `second` takes as `first`, like `speed_ratio`."""
    ratios = [
        b.cpu_seconds / a.cpu_seconds for a, b in zip(first, second, strict=False) if not (a.stopped or b.stopped)
    ]
    return {"median": _median(ratios, 3), "rounds": [round(ratio, 3) for ratio in ratios]} if ratios else None


def growth(counts: Sequence[int], values: Sequence[float]) -> dict[str, Any] | None:
    """Returns how a cost grows with the count, from at least three counts in ascending order; None from fewer.

    `per_million` is the slope of the least-squares line, which leaves the cost of starting out. `extrapolation_ratio`
    is the last value over what a straight line through the first two predicts for it: 1 is linear, more is worse.
    """
    if len(counts) < 3:
        return None
    slope, _ = statistics.linear_regression(counts, values)
    step = (values[1] - values[0]) / (counts[1] - counts[0])
    ratio = values[-1] / (values[0] + step * (counts[-1] - counts[0]))
    return {
        "per_million": round(slope * 1e6, 3),
        "extrapolation_ratio": round(ratio, 3),
        "at_most_linear": 0 < ratio <= _MAX_EXTRAPOLATION_RATIO,
    }


def _median(values: Sequence[float], digits: int) -> float | None:
    return round(statistics.median(values), digits) if values else None


def describe_machine() -> dict[str, Any]:
    """Returns a description of the machine and the versions."""
    model = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return {
        "cpu": model[1].strip() if model else platform.machine(),
        "num_cpus": os.cpu_count(),
        "memory_mb": _meminfo("MemTotal") // MEGABYTE,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average_at_start": round(os.getloadavg()[0], 2),
    }


def progress(text: str) -> None:
    """Prints one line to stderr; stdout is for the JSON."""
    print(text.strip(), file=sys.stderr, flush=True)


def print_result(measure: Callable[[], Mapping[str, Any]]) -> int:
    """Measures and prints the result; returns the exit code of the benchmark."""
    try:
        print_json(measure())
    except BenchmarkError as e:
        progress(f"error: {e}")
        return 1
    return 0


def print_json(value: Mapping[str, Any]) -> None:
    """Prints the one object of a benchmark."""
    print(json.dumps(value, indent=2), flush=True)
