"""Measures the conversion of MNIST from start to exit: `imagebeam convert --config mnist` and the tutorials' script.

The files are generated: 60,000 and 10,000 pictures of 28 x 28. Run from the root of the repository:
python -m benchmarks.mnist
"""

from __future__ import annotations

import argparse
import functools
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import harness
from tests import idx_files

_NUM_TRAIN, _NUM_TEST = 60_000, 10_000


def _measure(args: argparse.Namespace) -> dict[str, Any]:
    found = {}
    with tempfile.TemporaryDirectory(prefix="imagebeam-mnist-", dir=args.scratch) as temporary:
        output = Path(temporary) / "output"
        for name, zipped in (("plain", ()), ("gz", ("train", "t10k"))):
            source = Path(temporary) / name
            idx_files.write_mnist(source, _NUM_TRAIN, _NUM_TEST, zipped=zipped)
            addresses = ["--input", str(source), "--output", str(output)]
            commands = {
                "loop": [sys.executable, str(harness.PEERS_FOLDER / "mnist_loop.py"), *addresses],
                "imagebeam": harness.imagebeam_command("convert", "mnist", [], *addresses, "--workers", 2),
            }
            count = _NUM_TRAIN + _NUM_TEST
            runs = {
                peer: functools.partial(harness.run_writer, peer, command, output, count)
                for peer, command in commands.items()
            }
            results = harness.run_in_turn(runs, args.rounds, name=f"{name},")
            found[name] = harness.compare(results, [("imagebeam", "loop")], count)
    return {"files": found}


def main() -> int:
    args = harness.make_parser(__doc__).parse_args()
    return harness.print_result("mnist", lambda: _measure(args))


if __name__ == "__main__":
    sys.exit(main())
