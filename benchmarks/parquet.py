"""Measures `imagebeam convert` on images in Parquet files, as `datasets` writes them, beside the same images in files.

Run from the root of the repository: python -m benchmarks.parquet --images DIR > parquet.json
"""

from __future__ import annotations

import argparse
import functools
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from benchmarks import convert, harness

_ROWS = 1_000  # of one file
_ROW_GROUP = 100  # rows: what `datasets` writes for images
_WRITERS: dict[str, dict[str, Any]] = {  # options of pyarrow
    "uncompressed": {"compression": "none", "use_dictionary": ["label"]},  # as `datasets` 5 writes it
    "snappy": {"compression": "snappy"},  # as earlier versions did
    "zstd": {"compression": "zstd"},  # as some people do: unpacked once in each process
}
PEERS = ("files", *_WRITERS)


def write_files(source: Path, folder: Path, peer: str) -> None:
    """Writes the images of `source` in their order."""
    folder.mkdir()
    type_ = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    paths = sorted(source.iterdir())
    names = sorted({path.name.partition("_")[0] for path in paths})
    num_files = -(-len(paths) // _ROWS)
    for number in range(num_files):
        part = paths[number * _ROWS : (number + 1) * _ROWS]
        images = pa.array([{"bytes": path.read_bytes(), "path": path.name} for path in part], type_)
        labels = pa.array([names.index(path.name.partition("_")[0]) for path in part])
        pyarrow.parquet.write_table(
            pa.table({"image": images, "label": labels}),
            folder / f"train-{number:05d}-of-{num_files:05d}.parquet",
            row_group_size=_ROW_GROUP,
            **_WRITERS[peer],
        )


def run_convert(peer: str, source: Path, count: int, scratch: Path) -> harness.Measurement:
    """Runs one conversion, checks how much it wrote and removes it.

    Raises:
        BenchmarkError: if it fails, or the shards do not hold `count` records.
    """
    output = scratch / "output"
    if peer == "files":
        settings = ["--config", "imagenet_files"]
        settings += [word for each in convert.IMAGEBEAM_SETTINGS for word in ("--set", each)]
    else:
        settings = ["--config", "parquet", "--set", f"output.num_shards={convert.NUM_SHARDS}"]
    command = [sys.executable, "-m", "imagebeam", "convert", *settings, "--input", str(source), "--output", str(output)]
    try:
        measurement = harness.run([*command, "--workers", "2"])
        written = harness.count_records(output)
        if written.num_records != count:
            raise harness.BenchmarkError(f"{peer} wrote {written.num_records} records, expected {count}")
    finally:
        shutil.rmtree(output, ignore_errors=True)
        os.sync()
    return measurement


def measure(folder: Path, count: int, rounds: int, peers: Sequence[str], scratch: Path) -> dict[str, Any]:
    """Runs the whole benchmark; returns the object to print."""
    machine = harness.describe_machine()
    with tempfile.TemporaryDirectory(prefix="imagebeam-parquet-", dir=scratch) as temporary:
        images = convert.linkable(convert.find_images(folder), Path(temporary))
        sources = {"files": convert.link_images(images, count, Path(temporary) / "files")}
        for peer in peers:
            if peer != "files":
                sources[peer] = Path(temporary) / peer
                write_files(sources["files"], sources[peer], peer)
        runs = {peer: functools.partial(run_convert, peer, sources[peer], count, Path(temporary)) for peer in peers}
        for run in runs.values():
            run()  # reads images and programs into the page cache
        results = harness.run_in_turn(runs, rounds)
    others = [peer for peer in peers if peer != "files" and "files" in peers]
    return {
        "benchmark": "parquet",
        "machine": machine,
        "images": count,
        "rounds": rounds,
        "peers": {peer: harness.summarize(measurements, count) for peer, measurements in results.items()},
        "speed_ratios": {peer: harness.speed_ratio(results[peer], results["files"]) for peer in others},
        "cpu_ratios": {peer: harness.cpu_ratio(results[peer], results["files"]) for peer in others},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, metavar="DIR", help="folder of JPEG files (default: a generated set)")
    parser.add_argument("--count", type=int, default=5_000, help="images per conversion")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each peer")
    parser.add_argument("--peers", default=",".join(PEERS), help="comma-separated (default: %(default)s)")
    parser.add_argument("--scratch", type=Path, default=Path("/tmp"), metavar="DIR", help="default: %(default)s")
    args = parser.parse_args()
    peers = args.peers.split(",")
    if unknown := [peer for peer in peers if peer not in PEERS]:
        parser.error(f"--peers names {unknown[0]!r}, expected some of {','.join(PEERS)}")
    if args.count < 1 or args.rounds < 1:
        parser.error("--count and --rounds take numbers from 1")
    images = args.images or convert.generated_images()
    return harness.print_result(lambda: measure(images, args.count, args.rounds, peers, args.scratch))


if __name__ == "__main__":
    sys.exit(main())
