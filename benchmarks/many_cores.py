"""Estimates what the reader feeds on a host with many cores, from parts that are measured here, on few.

Measured on one thread: the time that each image takes to decode; for each image, the time under Python's lock and the
time to read its record, without the lock; and the start of a thread. A simulation puts them together for 1 to 96 cores.
It knows nothing of memory bandwidth, caches, hyper-threads or the network, all of which make a host slower. Run from
the root of the repository: python -m benchmarks.many_cores --images DIR > many_cores.json
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import heapq
import itertools
import statistics
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import imagebeam
from benchmarks import convert, harness, reader
from imagebeam import _native
from imagebeam.reader import batch_reader, open_files

_CORES = (1, 2, 4, 8, 16, 32, 48, 64, 96)
_BATCH_SIZES = (128, 1024)
_CALLS = (2, 4, 8, 16)  # that read batches at once
_NUM_BATCHES = 200  # simulated
_TENSORFLOW_US = 100.0  # for a batch: the call from TensorFlow into Python, under the lock


class Parts(NamedTuple):
    """Times in microseconds."""

    decode: Sequence[float]  # of single images
    read: float  # of an image's record, in C, without Python's lock
    locked: float  # for an image, under Python's lock
    start: float  # of a thread


def thread_us(call: Callable[[], Any]) -> float:
    """Returns the CPU time of a call on this thread, in microseconds."""
    start = time.thread_time()
    call()
    return (time.thread_time() - start) * 1e6


def measure(dataset: imagebeam.ImageDataset, rounds: int) -> Parts:
    """Returns medians over rounds, for random crops."""
    options = imagebeam.ReadOptions(batch_size=reader.BATCH_SIZE, image_size=reader.SIDE)
    plan = dataset.records("train", options)
    batches = batch_reader.BatchReader(plan, options, 1)
    count = dataset.num_examples("train") // reader.BATCH_SIZE * reader.BATCH_SIZE
    found: dict[str, list[float]] = {"read": [], "locked": [], "start": []}
    decode: list[list[float]] = []
    for number in range(rounds + 1):
        locked, read, images = 0.0, 0.0, []
        for first in range(0, count, reader.BATCH_SIZE):
            start = time.thread_time()
            with _timed_reads() as spent:
                chunk = batches.records.read(first, first + reader.BATCH_SIZE)
            parsed = batches.parse(chunk)
            both = (time.thread_time() - start) * 1e6
            read += sum(spent)
            locked += max(both - sum(spent), 0)
            if number:
                images += [decode_us(parsed, index) for index in range(len(parsed.images))]
        if number:  # the first round warms up
            found["read"].append(read / count)
            found["locked"].append(locked / count)
            found["start"].append(start_us())
            decode.append(images)
    medians = {name: statistics.median(values) for name, values in found.items()}
    return Parts(np.median(decode, axis=0).tolist(), **medians)


@contextlib.contextmanager
def _timed_reads() -> Iterator[list[float]]:
    """Collects the times of reads without Python's lock: the kernel's copy and the checksum."""
    spent: list[float] = []

    def read_records(*arguments: Any) -> list[bytes | None]:
        contents: list[bytes | None] = []
        spent.append(thread_us(lambda: contents.extend(_native.read_records(*arguments))))
        return contents

    own = open_files._native
    open_files._native = types.SimpleNamespace(read_records=read_records)  # type: ignore[assignment]
    try:
        yield spent
    finally:
        open_files._native = own


def decode_us(parsed: batch_reader.Parsed, index: int) -> float:
    out = np.empty((1, reader.SIDE, reader.SIDE, 3), np.uint8)
    one = slice(index, index + 1)
    arguments = parsed.images[one], parsed.parts[one], parsed.flips[one], out, 1, parsed.points[one]
    return thread_us(functools.partial(_native.decode, *arguments))


def start_us() -> float:
    """Returns the CPU time to start and end a thread of a batch."""
    threads, images = 64, [b""] * 64
    arguments = np.zeros((64, 4), np.int32), np.zeros(64, np.bool_), np.zeros((64, 8, 8, 3), np.uint8)
    start = time.process_time()
    for _ in range(20):
        _native.decode(images, *arguments, threads)
    several = time.process_time() - start
    start = time.process_time()
    for _ in range(20):
        _native.decode(images, *arguments, 1)
    return max(several - (time.process_time() - start), 0) / 20 / threads * 1e6


def simulate(parts: Parts, cores: int, batch_size: int, num_calls: int) -> dict[str, float]:
    """Returns images per second and the shares of time that the lock and the cores are busy.

    Each call reads the records of a batch one after the other, waiting for the lock before, and then decodes on all
    cores. A thread that reads is given a core at once, as a fair scheduler does; the time it takes from the others is
    added to the images it read.
    """
    decode = itertools.cycle(np.random.default_rng(0).permutation(parts.decode).tolist())
    free = [0.0] * cores  # when each core is free again
    calls = [0.0] * num_calls  # when each call may begin its next batch
    lock, lock_busy, core_busy, end = 0.0, 0.0, 0.0, 0.0
    for _ in range(_NUM_BATCHES):
        locked = batch_size * parts.locked + _TENSORFLOW_US
        lock = max(lock, heapq.heappop(calls)) + locked
        lock_busy += locked
        ready = done = lock + batch_size * parts.read
        for index in range(batch_size):
            spent = next(decode) + parts.read + parts.locked + (parts.start if index < cores else 0)
            core_busy += spent
            last = max(heapq.heappop(free), ready) + spent
            heapq.heappush(free, last)
            done = max(done, last)
        heapq.heappush(calls, done)
        end = max(end, done)
    return {
        "images_per_second": round(_NUM_BATCHES * batch_size / end * 1e6),
        "lock_busy": round(lock_busy / end, 3),
        "cores_busy": round(core_busy / end / cores, 3),
    }


def measured_rate(dataset: imagebeam.ImageDataset, threads: int) -> float:
    """Returns images per CPU second of the reader itself, to hold against the simulation of one core."""
    count = dataset.num_examples("train") // reader.BATCH_SIZE * reader.BATCH_SIZE
    rates = []
    for _ in range(3):  # the first one imports and warms up
        start = time.process_time()
        for _ in dataset.as_tf("train", reader.BATCH_SIZE, image_size=reader.SIDE, threads=threads, num_epochs=1):
            pass
        rates.append(count / (time.process_time() - start))
    return statistics.fmean(rates[1:])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, metavar="DIR", help="folder of JPEG files (default: a generated set)")
    parser.add_argument("--scratch", type=Path, default=Path("/tmp"), metavar="DIR", help="default: %(default)s")
    parser.add_argument("--size", default=reader.ORIGINAL, help="or the shorter side in pixels (default: %(default)s)")
    parser.add_argument("--entry-points", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()

    def result() -> dict[str, Any]:
        machine = harness.describe_machine()
        with tempfile.TemporaryDirectory(prefix="imagebeam-cores-", dir=args.scratch) as temporary:
            images = reader.find_jpegs(args.images or convert.generated_images())
            linkable = convert.linkable(images, Path(temporary))
            prepared = reader.prepare(args.size, linkable, Path(temporary) / "set", args.scratch, args.entry_points)
            dataset = imagebeam.open_dataset(str(prepared.dataset))
            parts = measure(dataset, args.rounds)
            measured = {threads: round(measured_rate(dataset, threads)) for threads in (1, 2)}
        return {
            "benchmark": "many_cores",
            "machine": machine,
            "size": args.size,
            "entry_points": args.entry_points,
            "us": {
                "decode_mean": round(statistics.fmean(parts.decode), 1),
                "decode_max": round(max(parts.decode), 1),
                "read": round(parts.read, 1),
                "locked": round(parts.locked, 1),
                "start_of_a_thread": round(parts.start, 1),
            },
            "limit_of_the_lock": round(1e6 / parts.locked),
            "images_per_cpu_second_by_threads": measured,
            "simulated": {
                f"batches of {size}, {calls} calls": {cores: simulate(parts, cores, size, calls) for cores in _CORES}
                for size in _BATCH_SIZES
                for calls in _CALLS
            },
        }

    return harness.print_result(result)


if __name__ == "__main__":
    sys.exit(main())
