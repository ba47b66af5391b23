"""Measures the conversion of MNIST from start to exit: `imagebeam convert --config mnist` and the tutorials' script.

The files are generated: 60,000 and 10,000 pictures of 28 x 28. Run from the root of the repository:
python -m benchmarks.mnist
"""

from __future__ import annotations

import argparse
import functools
from pathlib import Path
from typing import Any

from benchmarks import harness
from tests import idx_files

_NUM_TRAIN, _NUM_TEST = 60_000, 10_000


def _measure(args: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    found, output, count = {}, scratch / "output", _NUM_TRAIN + _NUM_TEST
    for name, zipped in (("plain", ()), ("gz", ("train", "t10k"))):
        source = scratch / name
        idx_files.write_mnist(source, _NUM_TRAIN, _NUM_TEST, zipped=zipped)
        options = ["--input", source, "--output", output, "--workers", 2]
        commands = {
            "loop": harness.peer_command("mnist_loop.py", source, output),
            "imagebeam": harness.imagebeam_command("convert", "mnist", [], *options),
        }
        runs = {
            peer: functools.partial(harness.run_writer, peer, command, output, count)
            for peer, command in commands.items()
        }
        results = harness.run_in_turn(runs, args.rounds, name=f"{name},")
        found[name] = harness.compare(results, [("imagebeam", "loop")], count)
    return {"files": found}


if __name__ == "__main__":
    harness.main("mnist", _measure, harness.make_parser(__doc__).parse_args())
