"""Measures resizing by `imagebeam convert`, start to exit, against the bare calls of Pillow and img2dataset.

Run from the root of the repository: python -m benchmarks.resize --images DIR --peers-python /tmp/img2dataset/bin/python
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

from benchmarks import convert, harness

RATIOS = (
    ("imagebeam", "bare"),
    ("imagebeam", "img2dataset"),
    ("native", "bare"),
    ("native", "img2dataset"),
    ("native_area", "img2dataset"),
)
_PEERS_FOLDER = Path(__file__).resolve().parent / "peers"
_SETTINGS = {  # of imagebeam, by peer; the others are scripts
    "imagebeam": ("image.resampler=pillow",),
    "area": ("image.filter=area",),
    "native": ("image.resampler=native",),
    "native_area": ("image.resampler=native", "image.filter=area"),
}
PEERS = ("bare", "imagebeam", "native", "img2dataset", "area", "native_area")
_USUAL_PEERS = PEERS[:4]


def command(peer: str, source: Path, output: Path, size: int, stretches: bool, peers_python: str) -> list[str]:
    """Returns the command line of a peer."""
    if peer in _SETTINGS:
        shape = f"image.resize=[{size},{size}]" if stretches else f"image.shortest_side={size}"
        chosen = ("image.encode=jpeg", shape, *_SETTINGS[peer], *convert.IMAGEBEAM_SETTINGS)
        settings = [word for setting in chosen for word in ("--set", setting)]
        addresses = ["--input", str(source), "--output", str(output)]
        arguments = ["--config", "imagenet_files", *addresses, *settings, "--workers", "2"]
        return [sys.executable, "-m", "imagebeam", "convert", *arguments]
    options = ["--input", str(source), "--size", str(size), *(["--stretch"] if stretches else [])]
    if peer == "bare":
        return [sys.executable, str(_PEERS_FOLDER / "resize_bare.py"), *options]
    return [peers_python, str(_PEERS_FOLDER / "resize_img2dataset.py"), *options, "--output", str(output)]


def resize(
    peer: str, source: Path, count: int, scratch: Path, size: int, stretches: bool, peers_python: str
) -> harness.Measurement:
    """Runs a peer and removes what it wrote.

    Raises:
        BenchmarkError: if it fails, or imagebeam wrote another number of records.
    """
    output = scratch / "output"
    output.mkdir()
    try:
        measurement = harness.run(command(peer, source, output, size, stretches, peers_python))
        num_records = harness.count_records(output).num_records if peer in _SETTINGS else count
    finally:
        shutil.rmtree(output)
        os.sync()
    if num_records != count:
        raise harness.BenchmarkError(f"{peer} wrote {num_records:,} records, expected {count:,}")
    return measurement


def measure(args: argparse.Namespace, peers: Sequence[str]) -> dict[str, Any]:
    """Runs the whole benchmark; returns the object to print."""
    machine = harness.describe_machine()
    with tempfile.TemporaryDirectory(prefix="imagebeam-resize-", dir=args.scratch) as temporary:
        scratch = Path(temporary)
        images = convert.linkable(convert.find_images(args.images or convert.generated_images()), scratch)
        harness.warm_files(images)
        fixed = {"size": args.size, "stretches": args.stretch, "peers_python": args.peers_python}
        few = convert.link_images(images, 64, scratch / "few")
        for peer in peers:
            harness.progress(f"warm-up {peer}")
            resize(peer, few, 64, scratch, **fixed)
        source = convert.link_images(images, args.count, scratch / "input")
        runs = {peer: functools.partial(resize, peer, source, args.count, scratch, **fixed) for peer in peers}
        results = harness.run_in_turn(runs, args.rounds)
    pairs = [pair for pair in RATIOS if set(pair) <= set(results)]
    return {
        "benchmark": "resize",
        "machine": machine,
        "images": args.count,
        "size": [args.size, args.size] if args.stretch else args.size,
        "rounds": args.rounds,
        "peers": {peer: harness.summarize(measurements, args.count) for peer, measurements in results.items()},
        "ratios": {f"{one}/{other}": harness.speed_ratio(results[one], results[other]) for one, other in pairs},
        "cpu_ratios": {f"{one}/{other}": harness.cpu_ratio(results[one], results[other]) for one, other in pairs},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, metavar="DIR", help="folder of JPEG files (default: a generated set)")
    parser.add_argument("--count", type=int, default=10_000, help="images per run (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each peer")
    parser.add_argument("--size", type=int, default=256, help="shorter side in pixels (default: %(default)s)")
    parser.add_argument("--stretch", action="store_true", help="image.resize: height and width both become --size")
    parser.add_argument(
        "--peers", default=",".join(_USUAL_PEERS), help=f"some of {','.join(PEERS)} (default: %(default)s)"
    )
    parser.add_argument("--peers-python", default=sys.executable, metavar="FILE", help="Python that has img2dataset")
    parser.add_argument("--scratch", type=Path, default=Path("/tmp"), metavar="DIR", help="default: %(default)s")
    args = parser.parse_args()
    peers = args.peers.split(",")
    for peer in peers:
        if peer not in PEERS:
            parser.error(f"--peers names {peer!r}, expected some of {','.join(PEERS)}")
    return harness.print_result(lambda: measure(args, peers))


if __name__ == "__main__":
    sys.exit(main())
