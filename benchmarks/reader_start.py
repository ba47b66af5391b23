"""Measures imagebeam's reader from the start of a process, here and in other checkouts, in turn.

Each converts the images for itself, because versions may not read each other's datasets. Run from the root of the
repository: python -m benchmarks.reader_start --images DIR --others ../old/.venv/bin/python > reader_start.json
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from benchmarks import harness, inputs

_SHAPE = [128, 224, 224, 3]
_FIGURES = ("first_seconds", "first_cpu_seconds", "resident_mb", "images_per_second", "images_per_cpu_second")


def _as_png(images: Path, folder: Path) -> Path:
    """Writes the images of a folder as PNG."""
    folder.mkdir()
    for path in sorted(images.iterdir()):
        with Image.open(path) as image:
            image.convert("RGB").save(folder / f"{path.stem}.png", compress_level=6)
    return folder


def _read(python: str, dataset: Path, num_images: int) -> harness.Measurement:
    """Runs the reader of a checkout.

    Raises:
        BenchmarkError: if it fails, or its batches are not as expected.
    """
    output = dataset.with_name("line.json")
    command = harness.peer_command("reader_start.py", dataset, num_images, python=python)
    measurement = harness.run(["sh", "-c", 'exec "$@" > "$0"', output, *command], {"TF_CPP_MIN_LOG_LEVEL": "2"})
    line = json.loads(output.read_text())
    if (line["shape"], line["dtype"]) != (_SHAPE, "uint8"):
        raise harness.BenchmarkError(f"{python} makes {line['dtype']} {line['shape']}, expected uint8 {_SHAPE}")
    return dataclasses.replace(measurement, line=line)


def _measure_kind(pythons: Sequence[str], images: Path, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Returns the figures of each checkout for the images of one folder."""
    folder.mkdir()
    datasets = {}
    for index, python in enumerate(pythons):
        dataset = folder / str(index)
        settings = ["label.by=none", "output.num_shards=8"]
        words = [word for setting in settings for word in ("--set", setting)]
        program = Path(python).with_name("imagebeam")  # `-m imagebeam` would find the package of this folder
        harness.run([program, "convert", "--input", images, "--output", dataset, *words])
        datasets[python] = dataset
    found: dict[str, list[harness.Measurement]] = {}
    for count, rounds in ((1, 1), (args.count, args.rounds)):  # the first is a warm-up
        runs = {python: functools.partial(_read, python, dataset, count) for python, dataset in datasets.items()}
        found = harness.run_in_turn(runs, rounds, name=f"{folder.name},")
    return {
        python: {name: harness.series([each.line[name] for each in readings], 2) for name in _FIGURES}
        | {"others_cpu_fraction": [round(each.others_cpu_fraction, 2) for each in readings]}
        for python, readings in found.items()
    }


def _measure(args: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    found = inputs.find_images(args.images, scratch)
    images = inputs.link_images(found, len(found), scratch / "images")
    sources = {kind: images if kind == "jpeg" else _as_png(images, scratch / "as-png") for kind in args.kinds}
    pythons = [sys.executable, *args.others]
    return {kind: _measure_kind(pythons, folder, args, scratch / kind) for kind, folder in sources.items()}


if __name__ == "__main__":
    parser = harness.make_parser(__doc__, rounds=5)
    inputs.add_option(parser)
    parser.add_argument("--kinds", nargs="+", choices=("jpeg", "png"), default=["jpeg", "png"], help="default: both")
    parser.add_argument("--others", nargs="*", default=[], metavar="FILE", help="Pythons of other checkouts")
    parser.add_argument("--count", type=harness.positive, default=6000, help="images to count (default: %(default)s)")
    harness.main("reader_start", _measure, parser.parse_args())
