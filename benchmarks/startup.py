"""Measures start-up: imports of the package, and `imagebeam convert` of six images, from start to exit.

Run from the root of the repository: python -m benchmarks.startup
"""

from __future__ import annotations

import argparse
import functools
import sys
from pathlib import Path
from typing import Any

from benchmarks import harness, inputs

_NUM_IMAGES = 6
_MODULES = ("imagebeam", "imagebeam.dataset", "imagebeam.pipelines.convert")


def _measure(args: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    source = inputs.link_images(inputs.find_images(args.images, scratch), _NUM_IMAGES, scratch / "input")
    options = ["--input", source, "--output", scratch / "output"]
    convert = harness.imagebeam_command("convert", "imagenet_files", inputs.SETTINGS, *options)
    programs = {"python": "pass"} | {f"import {name}": f"import {name}" for name in _MODULES}
    runs = {name: functools.partial(harness.run, [sys.executable, "-c", code]) for name, code in programs.items()}
    runs["convert"] = functools.partial(harness.run_writer, "imagebeam", convert, scratch / "output", _NUM_IMAGES)
    harness.run_in_turn(runs, 1, name="warm-up,")
    results = harness.run_in_turn(runs, args.rounds)
    return {"peers": {name: harness.summarize(found, 1, "runs") for name, found in results.items()}}


if __name__ == "__main__":
    parser = harness.make_parser(__doc__, rounds=5)
    inputs.add_option(parser)
    harness.main("startup", _measure, parser.parse_args())
