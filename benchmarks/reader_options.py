"""Measures what options of image quality cost: CPU time of an image, read by imagebeam with each of them, in turn.

Random crops and crops of evaluations to 224 px, with both decoders, all in this process. Run from the root of the
repository: python -m benchmarks.reader_options --images DIR > reader_options.json
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import imagebeam
from benchmarks import convert, harness, reader

_DECODERS = ("native", "tensorflow")
_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "random": {},
    "random, accurate": {"dct": "accurate"},
    "random, bicubic": {"interpolation": "bicubic"},
    "random, antialias": {"antialias": True},
    "random, bicubic, antialias, accurate": {"interpolation": "bicubic", "antialias": True, "dct": "accurate"},
    "center": {"crop": "center"},
    "resize_shorter": {"crop": "resize_shorter"},
    "resize_shorter, antialias": {"crop": "resize_shorter", "antialias": True},
    "resize_shorter, bicubic, antialias, accurate": {
        "crop": "resize_shorter",
        "interpolation": "bicubic",
        "antialias": True,
        "dct": "accurate",
    },
}


def cpu_us(dataset: imagebeam.ImageDataset, decoder: str, options: Mapping[str, Any]) -> float:
    """Returns the CPU time of reading one image, of all threads, in microseconds."""
    start, count = time.process_time(), 0
    for batch in dataset.as_numpy(
        "train",
        reader.BATCH_SIZE,
        image_size=reader.SIDE,
        decoder=decoder,
        num_epochs=1,
        drop_remainder=False,
        **options,
    ):
        count += len(batch["image"])
    return (time.process_time() - start) / count * 1e6


def measure_size(dataset: imagebeam.ImageDataset, rounds: int) -> dict[str, Any]:
    """Returns medians and ratios to the first setting, by decoder and setting."""
    times: dict[tuple[str, str], list[float]] = {(each, name): [] for each in _DECODERS for name in _SETTINGS}
    for number in range(rounds + 1):
        for decoder, name in times:
            spent = cpu_us(dataset, decoder, _SETTINGS[name])
            if number:  # the first round warms up
                times[decoder, name].append(spent)
        harness.progress(f"round {number} of {rounds}")
    first = next(iter(_SETTINGS))
    found: dict[str, Any] = {decoder: {} for decoder in _DECODERS}
    for (decoder, name), spent in times.items():
        ratios = [one / other for one, other in zip(spent, times[decoder, first], strict=True)]
        found[decoder][name] = {
            "cpu_us_median": round(statistics.median(spent)),
            f"ratio to {first}": round(statistics.median(ratios), 3),
            "ratios": [round(each, 3) for each in ratios],
        }
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, metavar="DIR", help="folder of JPEG files (default: a generated set)")
    parser.add_argument("--scratch", type=Path, default=Path("/tmp"), metavar="DIR", help="default: %(default)s")
    parser.add_argument("--count", type=int, default=1000, help="number of images (default: %(default)s)")
    parser.add_argument("--sizes", default=f"{reader.ORIGINAL},256", help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    if args.count < 1 or args.rounds < 1:
        parser.error("--count and --rounds take numbers from 1")

    def result() -> dict[str, Any]:
        machine = harness.describe_machine()
        images = reader.find_jpegs(args.images or convert.generated_images())[: args.count]
        sizes = {}
        with tempfile.TemporaryDirectory(prefix="imagebeam-options-", dir=args.scratch) as temporary:
            linkable = convert.linkable(images, Path(temporary))
            for size in args.sizes.split(","):
                prepared = reader.prepare(size, linkable, Path(temporary) / size, args.scratch, False)
                sizes[size] = measure_size(imagebeam.open_dataset(str(prepared.dataset)), args.rounds)
        return {"benchmark": "reader_options", "machine": machine, "sizes": sizes}

    return harness.print_result(result)


if __name__ == "__main__":
    sys.exit(main())
