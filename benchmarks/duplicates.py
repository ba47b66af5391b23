"""Measures seconds and memory of the search for duplicates among hashes, and whether both grow at most linearly.

No image is read. Of the hashes, 2.5 % repeat another one, 2.5 % differ from another one in 1 to 4 bits, and 1 % are the
same perceptual hash, as of black pictures.
Run from the root of the repository: python -m benchmarks.duplicates > duplicates.json
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Iterator
from typing import Any

from benchmarks import harness

_BLOCK = 10_000  # images of a shard
_DISTANCE = 4
_MAX_FLIPPED = 4  # bits of a near hash
_HOT = bytes(8)


def find(kind: str, count: int) -> None:
    """Searches `count` hashes in this process, with the project's transforms alone."""
    import apache_beam as beam
    from apache_beam.runners.portability import fn_api_runner

    from imagebeam.transforms.duplicates import duplicate_settings, find_duplicates

    names = ("exact", "near") if kind == "both" else (kind,)
    settings = duplicate_settings.DuplicateSettings(**dict.fromkeys(names, "report"), near_distance=_DISTANCE)
    with beam.Pipeline(runner=fn_api_runner.FnApiRunner()) as pipe:
        _ = (
            pipe
            | "Starts" >> beam.Create(range(0, count, _BLOCK), reshuffle=False)
            | "Hash" >> beam.FlatMap(_make_block, count).with_output_types(bytes)
            | "Find" >> find_duplicates.FindDuplicates(settings)
            | "Count" >> beam.combiners.Count.Globally()
            | "Check" >> beam.Map(_check, count // (40 if kind == "exact" else 20))
        )


def _make_block(start: int, count: int) -> Iterator[bytes]:
    """Yields the hashes of the images with the numbers from `start`: each hash depends on its number alone."""
    from imagebeam.transforms import elements
    from imagebeam.transforms.shard import image_hashes

    rows = []
    for number in range(start, min(start + _BLOCK, count)):
        content, picture = _hashes(number)
        split = "test" if number % 5 == 0 else "train"
        key = f"n{number % 1000:08d}/n{number % 1000:08d}_{number}.JPEG"
        rows.append(image_hashes.HashedImage(content, picture, split, key, f"/data/images/{key}"))
    yield elements.pack_rows(rows)


def _hashes(number: int) -> tuple[bytes, bytes]:
    import hashlib

    own = hashlib.blake2b(str(number).encode(), digest_size=24).digest()
    if number % 100 == 50:
        return own[:16], _HOT
    if number % 20 or not number:
        return own[:16], own[16:]
    content, picture = _hashes(number - 1)
    if number % 40:
        return content, picture
    flipped = int.from_bytes(picture, "big")
    for bit in range(1 + number // 40 % _MAX_FLIPPED):
        flipped ^= 1 << (number * 7 + bit * 13) % 64
    return own[:16], flipped.to_bytes(8, "big")


def _check(found: int, made: int) -> None:
    """Fails if clearly fewer duplicates were found than were made."""
    if found < 0.99 * made:
        raise harness.BenchmarkError(f"{found:,} duplicates were found, of some {made:,}")


def command(kind: str, count: int) -> list[str]:
    """Returns the command that runs `find` in its own process."""
    return [sys.executable, "-m", "benchmarks.duplicates", "--find", kind, "--count", str(count)]


def measure(kinds: list[str], counts: list[int], rounds: int) -> dict[str, Any]:
    """Runs the whole benchmark; returns the object to print."""
    import statistics

    result: dict[str, Any] = {"benchmark": "duplicates", "machine": harness.describe_machine(), "kinds": {}}
    for kind in kinds:
        runs = {str(count): functools.partial(harness.run, command(kind, count)) for count in counts}
        results = harness.run_in_turn(runs, rounds, name=f"{kind},")
        medians = {
            name: [statistics.median(getattr(m, name) for m in each) for each in results.values()]
            for name in ("seconds", "cpu_seconds", "peak_rss_bytes")
        }
        result["kinds"][kind] = {
            "counts": {count: harness.summarize(each, int(count), "hashes") for count, each in results.items()},
            "growth": {name: harness.growth(counts, values) for name, values in medians.items()},
        }
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", nargs="+", choices=["exact", "near", "both"], default=["exact", "near"])
    parser.add_argument("--count", type=int, nargs="+", default=[500_000, 1_000_000, 2_000_000], help="hashes")
    parser.add_argument("--rounds", type=int, default=1, help="runs of each count")
    parser.add_argument("--find", choices=["exact", "near", "both"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if min(args.count) < 1 or args.rounds < 1:
        parser.error("--count and --rounds take numbers from 1")
    if args.find:
        find(args.find, args.count[0])
        return 0
    return harness.print_result(lambda: measure(args.kind, sorted(set(args.count)), args.rounds))


if __name__ == "__main__":
    sys.exit(main())
