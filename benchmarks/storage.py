"""Measures the listing of a large bucket (requests, seconds, memory) and reads per second with latency, on an emulator.

Needs Go, which builds the emulator of the tests. Run from the root of the repository: python -m benchmarks.storage
"""

from __future__ import annotations

import argparse
import contextlib
import json
import pathlib
import resource
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks import harness
from imagebeam.transforms import elements
from imagebeam.transforms.shard import read_ahead
from imagebeam.transforms.sources import files
from tests.servers import faults, gcs

_URI = "gs://large/images"
_FLAT_URI = "gs://large/flat"
_NUM_FOLDERS = 100
_CONCURRENCIES = (1, 8, 32)
_LARGE_OBJECT, _LARGE_BYTES = "gs://pictures/large.jpg", 4 << 20
_MEGABYTES_AHEAD = (16, 64, 128)


def list_bucket(uri: str = _URI, in_ranges: bool = True) -> dict[str, Any]:
    """Lists a folder of the bucket in this process, in ranges of names or page by page."""
    if not in_ranges:
        files._PAGES_AND_RANGES = ((sys.maxsize, 1),)
    begin, before = time.monotonic(), _peak_rss_mb()
    count = packed = 0
    for found in files.FilesSource(uri).list_all():
        count += found.num_refs
        packed += len(elements.pack_refs(elements.unpack_refs(found.packed_refs)))
    seconds = time.monotonic() - begin
    return {
        "objects": count,
        "seconds": round(seconds, 2),
        "objects_per_second": round(count / seconds),
        "grown_rss_mb": round(_peak_rss_mb() - before, 1),  # the listings are not kept: they go to the workers
        "packed_bytes_per_object": round(packed / count, 1),
    }


def read_objects(count: int, concurrency: int) -> float:
    """Reads `count` objects in this process; returns objects per second."""
    refs = [elements.ImageRef(f"{i}", f"{_URI}/label-{i % 100:02d}/{i:07d}.jpg", 1024) for i in range(count)]
    begin = time.monotonic()
    for _, data in read_ahead.fetch(refs, read_ahead.ReadAhead(concurrency, read_ahead.READ_AHEAD.num_bytes)):
        assert isinstance(data, bytes), data
    return count / (time.monotonic() - begin)


def read_large_objects(count: int, megabytes: int) -> float:
    """Reads the large object repeatedly with 32 requests at a time, and at most a given number of bytes ahead.

    Returns the growth of this process's memory, in megabytes. What is written of them takes longer than what is read.
    """
    refs = [elements.ImageRef(f"{i}", _LARGE_OBJECT, _LARGE_BYTES) for i in range(count)]
    before = _peak_rss_mb()
    for _, data in read_ahead.fetch(refs, read_ahead.ReadAhead(32, megabytes << 20)):
        assert isinstance(data, bytes), data
        time.sleep(0.05)
    return _peak_rss_mb() - before


def measure_flat(emulator: gcs.Emulator, latency_sec: float) -> dict[str, Any]:
    """Lists one folder with all objects, whose requests are delayed, in ranges and page by page."""
    found = {}
    with faults.FaultyProxy(emulator.url, seed=0, fraction=0, latency_sec=latency_sec) as proxy:
        for name, in_ranges in (("in_ranges", True), ("in_sequence", False)):
            with _process(emulator, proxy.url) as call:
                before = len(emulator.requests())
                found[name] = call(list_bucket, _FLAT_URI, in_ranges)
                found[name]["requests"] = len(emulator.requests()) - before
                print(f"flat, {name}: {found[name]['seconds']} s", file=sys.stderr)
    return found


def _peak_rss_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


@contextlib.contextmanager
def _process(emulator: gcs.Emulator, url: str | None = None) -> Iterator[Any]:
    emulator.environment["STORAGE_EMULATOR_HOST"] = url or emulator.url
    with emulator.process() as call:
        yield call


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--objects", type=int, default=200_000)
    parser.add_argument("--reads", type=int, default=1000, help="at each concurrency, in each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--latency", type=float, default=0.02, metavar="SEC", help="added to each request (0.02)")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder, gcs.run(pathlib.Path(folder), args.objects) as emulator:
        with _process(emulator) as call:
            before = len(emulator.requests())
            listed = call(list_bucket)
            requests = len(emulator.requests()) - before
        ideal = args.objects / 1000 + _NUM_FOLDERS
        listed |= {"requests": requests, "requests_over_ideal": round(requests / ideal, 3)}
        print(f"listed {listed['objects']:,} objects in {listed['seconds']} s", file=sys.stderr)
        flat = measure_flat(emulator, args.latency)
        emulator.bucket("pictures").blob("large.jpg").upload_from_string(bytes(_LARGE_BYTES))
        grown: dict[int, float] = {}
        for megabytes in _MEGABYTES_AHEAD:
            with _process(emulator) as call:
                call(read_objects, 100, 32)  # what a first request imports does not count
                grown[megabytes] = round(call(read_large_objects, 100, megabytes), 1)
                print(f"{megabytes} MiB ahead: {grown[megabytes]} MB more memory", file=sys.stderr)
        rates: dict[int, list[float]] = {concurrency: [] for concurrency in _CONCURRENCIES}
        with faults.FaultyProxy(emulator.url, seed=0, fraction=0, latency_sec=args.latency) as proxy:
            for _ in range(args.rounds):
                for concurrency in _CONCURRENCIES:  # in turn, each in a process of its own
                    with _process(emulator, proxy.url) as call:
                        call(read_objects, 10, concurrency)
                        rates[concurrency].append(round(call(read_objects, args.reads, concurrency), 1))
                        print(f"{concurrency} at once: {rates[concurrency][-1]} reads/s", file=sys.stderr)
    result = {
        "benchmark": "storage",
        "machine": harness.describe_machine(),
        "listing": listed,
        "flat_listing": flat,
        "grown_rss_mb_by_mib_ahead": {str(megabytes): value for megabytes, value in grown.items()},
        "latency_sec": args.latency,
        "reads_per_second": {str(concurrency): values for concurrency, values in rates.items()},
    }
    print(json.dumps(result, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
