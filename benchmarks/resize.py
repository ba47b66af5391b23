"""Measures resizing by `imagebeam convert`, start to exit, against the bare calls of Pillow and img2dataset.

Run from the root of the repository: python -m benchmarks.resize --images DIR --peers-python /tmp/img2dataset/bin/python
"""

from __future__ import annotations

import argparse
import functools
import sys
from pathlib import Path
from typing import Any

from benchmarks import harness, inputs

_OURS = {  # peers that are imagebeam
    "imagebeam": "image.resampler=native",
    "pillow": "image.resampler=pillow",
}
_PEERS = ["bare", *_OURS, "img2dataset"]
_PAIRS = [(ours, other) for ours in _OURS for other in ("bare", "img2dataset")]
_WARM_UP_COUNT = 64


def _command(peer: str, source: Path, output: Path, args: argparse.Namespace) -> list[str]:
    if peer in _OURS:
        shape = f"image.resize=[{args.size},{args.size}]" if args.stretch else f"image.shortest_side={args.size}"
        settings = ["image.encode=jpeg", shape, _OURS[peer], *inputs.SETTINGS]
        options = ["--input", source, "--output", output, "--workers", 2]
        return harness.imagebeam_command("convert", "imagenet_files", settings, *options)
    if peer == "bare":
        return harness.peer_command("resize_bare.py", source, args.size, int(args.stretch))
    return harness.peer_command("resize_img2dataset.py", source, args.size, output, python=args.peers_python)


def _measure(args: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    images = inputs.find_images(args.images, scratch)
    results, output = {}, scratch / "output"
    for count, rounds in ((_WARM_UP_COUNT, 1), (args.count, args.rounds)):
        source = inputs.link_images(images, count, scratch / f"input-{rounds}-{count}")
        runs = {}
        for peer in args.peers:
            command, records = _command(peer, source, output, args), count if peer in _OURS else None
            runs[peer] = functools.partial(harness.run_writer, peer, command, output, records)
        results = harness.run_in_turn(runs, rounds, name=f"{count} images,")
    return {"images": args.count, "size": args.size, **harness.compare(results, _PAIRS, args.count)}


if __name__ == "__main__":
    parser = harness.make_parser(__doc__, peers=_PEERS)
    inputs.add_option(parser)
    parser.add_argument("--count", type=harness.positive, default=10_000, help="images per run (default: %(default)s)")
    parser.add_argument("--size", type=harness.positive, default=256, help="shorter side in pixels (%(default)s)")
    parser.add_argument("--stretch", action="store_true", help="image.resize: height and width both become --size")
    parser.add_argument("--peers-python", default=sys.executable, metavar="FILE", help="Python that has img2dataset")
    harness.main("resize", _measure, parser.parse_args())
