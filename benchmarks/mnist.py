"""Measures the conversion of MNIST from start to exit: `imagebeam convert --config mnist` and the tutorials' script.

The files are generated: 60,000 and 10,000 pictures of 28 x 28. Run from the root of the repository:
python -m benchmarks.mnist
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

from benchmarks import harness
from tests import idx_files

NUM_TRAIN, NUM_TEST = 60_000, 10_000
NUM_RECORDS = NUM_TRAIN + NUM_TEST

_LOOP = Path(__file__).resolve().parent / "peers" / "mnist_loop.py"


def command(peer: str, source: Path, output: Path) -> list[str]:
    """Returns the command line of a peer."""
    addresses = ["--input", str(source), "--output", str(output)]
    if peer == "loop":
        return [sys.executable, str(_LOOP), *addresses]
    return [sys.executable, "-m", "imagebeam", "convert", "--config", "mnist", *addresses, "--workers", "2"]


def convert(peer: str, source: Path, scratch: Path) -> harness.Measurement:
    """Runs a peer, counts the records that it wrote, and removes them.

    Raises:
        BenchmarkError: if it fails, or they are not as many as the pictures.
    """
    output = scratch / "output"
    output.mkdir()
    try:
        measurement = harness.run(command(peer, source, output))
        written = harness.count_records(output)
    finally:
        shutil.rmtree(output)
        os.sync()
    if written.num_records != NUM_RECORDS:
        raise harness.BenchmarkError(f"{peer} wrote {written.num_records:,} records, expected {NUM_RECORDS:,}")
    return measurement


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="runs of each peer")
    args = parser.parse_args(argv)
    machine = harness.describe_machine()
    results = {}
    with tempfile.TemporaryDirectory(prefix="imagebeam-mnist-") as temporary:
        scratch = Path(temporary)
        for name, zipped in (("plain", ()), ("gz", ("train", "t10k"))):
            idx_files.write_mnist(scratch / name, NUM_TRAIN, NUM_TEST, zipped=zipped)
            runs = {peer: functools.partial(convert, peer, scratch / name, scratch) for peer in ("loop", "imagebeam")}
            measured = harness.run_in_turn(runs, args.rounds, name=f"{name},")
            results[name] = {
                "peers": {peer: harness.summarize(each, NUM_RECORDS) for peer, each in measured.items()},
                "imagebeam/loop": harness.speed_ratio(measured["imagebeam"], measured["loop"]),
                "cpu: imagebeam/loop": harness.cpu_ratio(measured["imagebeam"], measured["loop"]),
            }
    harness.print_json({"benchmark": "mnist", "machine": machine, "rounds": args.rounds, "files": results})
    return 0


if __name__ == "__main__":
    sys.exit(main())
