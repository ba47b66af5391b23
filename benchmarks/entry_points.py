"""Measures what entry points gain: CPU time of decoding random crops of JPEGs with and without them, in turn.

Everything runs in this process, on one core, without TensorFlow. Run from the root of the repository:
python -m benchmarks.entry_points --images DIR > entry_points.json
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks import convert, harness, reader
from imagebeam import _native
from imagebeam.reader import crops
from imagebeam.reader import options as options_lib

_SEED = 0
_OPTIONS = options_lib.ReadOptions(batch_size=reader.BATCH_SIZE, image_size=reader.SIDE, crop="random")
_MODES = ("without", "with")


def cpu_us(images: Sequence[bytes], points: Sequence[bytes], parts: np.ndarray, out: np.ndarray) -> float:
    """Returns the CPU time of decoding one crop, in microseconds; `out` receives the crops."""
    flips = np.zeros(len(images), np.bool_)
    start = time.process_time()
    for first in range(0, len(images), reader.BATCH_SIZE):
        batch = slice(first, first + reader.BATCH_SIZE)
        if _native.decode(list(images[batch]), parts[batch], flips[batch], out[batch], 1, list(points[batch])):
            raise harness.BenchmarkError("the set holds a JPEG that cannot be decoded: name another folder")
    return (time.process_time() - start) / len(images) * 1e6


def measure_size(paths: Sequence[Path], num_crops: int, rounds: int) -> dict[str, Any]:
    """Returns the figures of one set of images."""
    encoded = [path.read_bytes() for path in paths]
    start = time.process_time()
    points = [_native.find_entry_points(each) for each in encoded]
    find_us = (time.process_time() - start) / len(encoded) * 1e6
    widths, heights = np.array([Image.open(path).size for path in paths]).T
    chosen = list(itertools.islice(itertools.cycle(range(len(paths))), num_crops))
    uniforms = np.random.default_rng(_SEED).random((num_crops, crops.NUM_UNIFORMS))
    parts = crops.windows(heights[chosen], widths[chosen], uniforms, _OPTIONS)
    images = [encoded[index] for index in chosen]
    used = {"without": [b""] * num_crops, "with": [points[index] for index in chosen]}
    outs = {mode: np.zeros((num_crops, reader.SIDE, reader.SIDE, 3), np.uint8) for mode in _MODES}
    times: dict[str, list[float]] = {mode: [] for mode in _MODES}
    for number in range(rounds + 1):
        for mode in _MODES:
            spent = cpu_us(images, used[mode], parts, outs[mode])
            if number:  # the first round warms up
                times[mode].append(spent)
    num_different = int((outs["with"] != outs["without"]).any(axis=(1, 2, 3)).sum())
    ratios = [without / other for without, other in zip(times["without"], times["with"], strict=True)]
    return {
        "num_files": len(paths),
        "without_points": sum(not each for each in points),
        "bytes_fraction": round(sum(map(len, points)) / sum(map(len, encoded)), 4),
        "find_us": round(find_us),
        "num_crops": num_crops,
        "num_different_crops": num_different,
        "cpu_us_median": {mode: round(statistics.median(times[mode])) for mode in _MODES},
        "cpu without/with": {
            "median": round(statistics.median(ratios), 3),
            "rounds": [round(each, 3) for each in ratios],
        },
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, metavar="DIR", help="folder of JPEG files (default: a generated set)")
    parser.add_argument("--scratch", type=Path, default=Path("/tmp"), metavar="DIR", help="default: %(default)s")
    parser.add_argument("--crops", type=int, default=2000, help="in a round (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    if args.crops < 1 or args.rounds < 1:
        parser.error("--crops and --rounds take numbers from 1")

    def result() -> dict[str, Any]:
        machine = harness.describe_machine()
        folder = args.images or convert.generated_images()
        images = reader.find_jpegs(folder)
        sizes = {}
        with tempfile.TemporaryDirectory(prefix="imagebeam-entry-points-", dir=args.scratch) as temporary:
            linkable = convert.linkable(images, Path(temporary))
            original = convert.link_images(linkable, len(images), Path(temporary) / "images")
            sets = {reader.ORIGINAL: original, "256": reader.resized_images(original, 256, args.scratch)}
            for size, each in sets.items():
                sizes[size] = measure_size(sorted(each.iterdir()), args.crops, args.rounds)
                harness.progress(f"{size}: {sizes[size]}")
        return {"benchmark": "entry_points", "machine": machine, "libjpeg": _native.LIBRARY, "sizes": sizes}

    return harness.print_result(result)


if __name__ == "__main__":
    sys.exit(main())
