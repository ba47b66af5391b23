"""Measures what a function of the user costs: an identity function against decoding and encoding alone.

Run from the root of the repository: python -m benchmarks.functions --images DIR
"""

from __future__ import annotations

import argparse
import functools
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import harness, inputs

_FUNCTIONS = {"plain": [], "function": ["image.function=benchmarks.functions:identity"]}
_WARM_UP_COUNT = 64


def identity(image: np.ndarray, reference: object) -> np.ndarray:
    return image


def _measure(args: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    images = inputs.find_images(args.images, scratch)
    results, output = {}, scratch / "output"
    for count, rounds in ((_WARM_UP_COUNT, 1), (args.count, args.rounds)):
        source = inputs.link_images(images, count, scratch / f"input-{rounds}-{count}")
        runs = {}
        for peer in args.peers:
            settings = ["image.encode=jpeg", *_FUNCTIONS[peer], *inputs.SETTINGS]
            options = ["--input", source, "--output", output, "--workers", 2]
            command = harness.imagebeam_command("convert", "imagenet_files", settings, *options)
            runs[peer] = functools.partial(harness.run_writer, peer, command, output, count)
        results = harness.run_in_turn(runs, rounds, name=f"{count} images,")
    return {"images": args.count, **harness.compare(results, [("function", "plain")], args.count)}


if __name__ == "__main__":
    parser = harness.make_parser(__doc__, peers=[*_FUNCTIONS])
    inputs.add_option(parser)
    parser.add_argument("--count", type=harness.positive, default=10_000, help="images per run (default: %(default)s)")
    harness.main("functions", _measure, parser.parse_args())
