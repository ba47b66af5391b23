"""Measures processes for the benchmarks: time, memory of a process tree, peers in turn, medians and ratios.

Linux only. Nothing of the project is imported, so that what is measured cannot depend on it.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import platform
import resource
import shlex
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import psutil

REPOSITORY = Path(__file__).resolve().parent.parent
PEERS_FOLDER = REPOSITORY / "benchmarks" / "peers"
MEGABYTE = 1_000_000

_SAMPLE_SECONDS = 0.05
_MAX_MEMORY_FRACTION = 0.6  # of the free memory, for one peer
_LOG_TAIL_LINES = 25
_MAX_EXTRAPOLATION_RATIO = 1.15  # of 250k, 500k, 1M: n is 1, n log n 1.03, n**1.5 1.23, n**2 1.6
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
    others_cpu_fraction: float  # share of the machine's CPU time that other processes took meanwhile
    stopped: str = ""  # why the harness killed it; "" when it ran to its end
    line: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # figures of its own


# --- one process -----------------------------------------------------------------------------------------------------


def run(command: Sequence[str | os.PathLike[str]], env: Mapping[str, str] | None = None) -> Measurement:
    """Runs a command in its own process group and measures it; none of its processes outlives the call.

    A tree that uses more than 60 % of the memory that was free at the start is killed, so that a peer whose memory
    grows with the data cannot take the machine down.

    Raises:
        BenchmarkError: if the command exits with another code than 0. The text has the end of what it printed.
    """
    words = [os.fspath(word) for word in command]
    # Programs start from cached bytecode, as on a user's machine: otherwise our own modules cost 50 ms more.
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryFile() as log:
        own, before = time.process_time(), resource.getrusage(resource.RUSAGE_CHILDREN)
        busy, start = busy_seconds(), time.perf_counter()
        process = subprocess.Popen(
            words,
            cwd=REPOSITORY,
            env={**inherited, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        max_bytes = int(_MAX_MEMORY_FRACTION * psutil.virtual_memory().available)
        peak_bytes, stopped, has_ended = 0, "", threading.Event()

        def follow_memory() -> None:
            nonlocal peak_bytes, stopped
            while not has_ended.is_set():
                rss_bytes = 0
                for each in tree(process.pid):
                    with contextlib.suppress(psutil.Error):  # ended meanwhile
                        rss_bytes += each.memory_info().rss
                peak_bytes = max(peak_bytes, rss_bytes)
                if rss_bytes > max_bytes and not stopped:
                    held, allowed = rss_bytes // MEGABYTE, max_bytes // MEGABYTE
                    stopped = f"its processes held {held} MB together, at most {allowed} MB were allowed"
                    _kill_group(process.pid)
                has_ended.wait(_SAMPLE_SECONDS)

        following = threading.Thread(target=follow_memory, daemon=True)
        following.start()
        try:
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            seconds = time.perf_counter() - start
        finally:
            _kill_group(process.pid)
            has_ended.set()
            following.join()
            process.wait()  # only now: until it is reaped, its id cannot be another process's
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if process.returncode and not stopped:
            log.seek(0)
            tail = log.read().decode(errors="replace").splitlines()[-_LOG_TAIL_LINES:]
            problem = f"exit code {process.returncode}, expected 0, of: {shlex.join(words)}"
            raise BenchmarkError("\n".join([problem, *tail]))
    cpu_seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    others = busy_seconds() - busy - cpu_seconds - (time.process_time() - own)
    others /= seconds * (os.cpu_count() or 1)
    return Measurement(seconds, cpu_seconds, peak_bytes, min(1.0, max(0.0, others)), stopped)


def tree(pid: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    return []


def _kill_group(pid: int) -> None:
    for process in tree(pid):  # also those that left the group
        with contextlib.suppress(psutil.Error):
            process.kill()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, 9)


def busy_seconds() -> float:
    """Returns the CPU seconds that all cores of this machine have spent on anything but idling."""
    times = psutil.cpu_times()
    return times.user + times.nice + times.system + times.irq + times.softirq


# --- before and after ------------------------------------------------------------------------------------------------


def warm_memory(num_bytes: int) -> None:
    """Writes to this much memory, at most half of the free memory: a virtual machine is slow at first use of a page."""
    _ = b"\1" * min(num_bytes, psutil.virtual_memory().available // 2)


class Written(NamedTuple):
    """The number of records and bytes in the shards of a folder."""

    num_shards: int
    num_records: int
    num_record_bytes: int


def count_records(folder: Path) -> Written:
    """Counts the records of all shards (`*-of-*`, with or without `.tfrecord`) from their lengths alone.

    Raises:
        BenchmarkError: if the lengths do not end exactly where a file does.
    """
    shards = [path for path in folder.glob("*-of-*") if path.is_file()]
    num_records = num_record_bytes = 0
    for path in shards:
        size, offset = path.stat().st_size, 0
        with path.open("rb") as file:
            while offset < size:
                file.seek(offset)
                header = file.read(_RECORD_LENGTH.size)
                length = _RECORD_LENGTH.unpack(header)[0] if len(header) == _RECORD_LENGTH.size else size
                offset += length + _FRAME_BYTES
                num_records += 1
                num_record_bytes += length
        if offset != size:
            raise BenchmarkError(f"{path} has {size} bytes, its last record would end at {offset}")
    return Written(len(shards), num_records, num_record_bytes)


def run_writer(
    peer: str, command: Sequence[str], output: Path, num_records: int | None, min_bytes: int = 0
) -> Measurement:
    """Runs a peer that writes into `output`, checks the number of records in its shards and removes them.

    Args:
        peer: named in errors.
        command: of the peer.
        output: folder that is made for it.
        num_records: number of records to expect; None if the peer does not write TFRecords.
        min_bytes: number of bytes that the records have at least.

    Raises:
        BenchmarkError: if the peer fails, or its records are not as expected.
    """
    output.mkdir()
    try:
        measurement = run(command)
        written = count_records(output)
    finally:
        shutil.rmtree(output)
        os.sync()  # otherwise the next peer waits while data of this one is written to the disk
    if num_records is None or measurement.stopped:
        return measurement
    if written.num_records != num_records or written.num_record_bytes < min_bytes:
        raise BenchmarkError(
            f"{peer} wrote {written}, expected {num_records:,} records of at least {min_bytes:,} bytes"
        )
    return measurement


def imagebeam_command(command: str, config: str, settings: Sequence[str], *options: object) -> list[str]:
    """Returns a command line of imagebeam; `settings` are values of `--set`."""
    words = [word for setting in settings for word in ("--set", setting)]
    return [sys.executable, "-m", "imagebeam", command, "--config", config, *words, *map(str, options)]


def peer_command(script: str, *arguments: object, python: str = sys.executable) -> list[str]:
    """Returns the command line of a script in `peers/`."""
    return [python, str(PEERS_FOLDER / script), *map(str, arguments)]


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
            found = measure()
            results[peer].append(found)
            progress(
                f"{name} round {round_index + 1}/{rounds} {peer}: {found.seconds:.2f} s, "
                f"{found.peak_rss_bytes / MEGABYTE:.0f} MB resident, "
                f"others took {found.others_cpu_fraction:.0%} of the CPUs"
                + (f"; stopped: {found.stopped}" if found.stopped else "")
            )
    return results


def summarize(measurements: Sequence[Measurement], count: int, noun: str = "images") -> dict[str, Any]:
    """Returns one peer's part of the output: rates of `count` things (`noun`), times and memory of its rounds."""
    finished = [measurement for measurement in measurements if not measurement.stopped]
    return {
        f"{noun}_per_second": series([count / m.seconds for m in finished], 1),
        "seconds": series([m.seconds for m in finished], 3),
        "cpu_seconds": series([m.cpu_seconds for m in finished], 3),
        "peak_rss_mb": series([m.peak_rss_bytes / MEGABYTE for m in measurements], 1),
        "others_cpu_fraction": [round(m.others_cpu_fraction, 3) for m in measurements],
        "stopped": next((m.stopped for m in measurements if m.stopped), None),
    }


def series(values: Sequence[float], digits: int) -> dict[str, Any] | None:
    """Returns the median and the value of each round; None without values."""
    if not values:
        return None
    return {"median": round(statistics.median(values), digits), "rounds": [round(each, digits) for each in values]}


def ratios(
    results: Mapping[str, Sequence[Measurement]], pairs: Iterable[tuple[str, str]], cost: Callable[[Measurement], float]
) -> dict[str, Any]:
    """Returns "first/second": how many times the cost of `first` the one of `second` is, for the pairs that were run.

    Each round's two runs were close in time, so these ratios are steadier than one of two medians. The value is None
    if one of the two never finished.
    """
    return {
        f"{first}/{second}": series(
            [cost(b) / cost(a) for a, b in zip(results[first], results[second]) if not (a.stopped or b.stopped)], 3
        )
        for first, second in pairs
        if first in results and second in results
    }


def compare(results: Mapping[str, Sequence[Measurement]], pairs: Sequence[tuple[str, str]], count: int) -> dict:
    """Returns the summary of every peer that converts `count` images, and the ratios of wall and CPU time."""
    return {
        "peers": {peer: summarize(measurements, count) for peer, measurements in results.items()},
        "ratios": ratios(results, pairs, lambda m: m.seconds),
        "cpu_ratios": ratios(results, pairs, lambda m: m.cpu_seconds),
    }


def growth(counts: Sequence[int], values: Sequence[float]) -> dict[str, Any] | None:
    """Returns how a cost grows with the count, from at least three counts in ascending order; None from fewer.

    `per_million` is the slope of the least-squares line, which excludes the cost of start-up. `extrapolation_ratio`
    is the last value over the prediction of a straight line through the first two: 1 is linear, more is worse.
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


# --- the command line ------------------------------------------------------------------------------------------------


def make_parser(doc: str | None, *, rounds: int = 3, peers: Sequence[str] = ()) -> argparse.ArgumentParser:
    """Returns a parser of the options that most scripts take."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=positive, default=rounds, help="runs of each peer (default: %(default)s)")
    parser.add_argument("--scratch", type=Path, default=Path("/tmp"), metavar="DIR", help="default: %(default)s")
    if peers:
        parser.add_argument("--peers", nargs="+", choices=peers, default=list(peers), help="default: all")
    return parser


def positive(text: str) -> int:
    """Parses a number from 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1")
    return int(text)


def main(name: str, measure: Callable[..., Mapping[str, Any]], args: argparse.Namespace) -> NoReturn:
    """Measures in a scratch folder, prints the one JSON object of a benchmark and exits."""
    machine = describe_machine()
    try:
        with tempfile.TemporaryDirectory(prefix=f"imagebeam-{name}-", dir=args.scratch) as scratch:
            print(json.dumps({"benchmark": name, "machine": machine, **measure(args, Path(scratch))}, indent=2))
    except BenchmarkError as e:
        sys.exit(f"error: {e}")
    sys.exit()


def describe_machine() -> dict[str, Any]:
    """Returns a description of the machine and the versions."""
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "cpu": models[0].partition(": ")[2] if models else platform.machine(),
        "num_cpus": os.cpu_count(),
        "memory_mb": psutil.virtual_memory().total // MEGABYTE,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average_at_start": round(os.getloadavg()[0], 2),
    }


def progress(text: str) -> None:
    """Prints one line to stderr; stdout is for the JSON."""
    print(text.strip(), file=sys.stderr, flush=True)
