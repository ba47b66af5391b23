"""Measures downloads by `imagebeam convert --config urls` from a web with dead links, against img2dataset.

Run from the root of the repository: python -m benchmarks.urls --images DIR --peers-python /tmp/img2dataset/bin/python
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import harness, inputs
from benchmarks.peers import fault_server

_PEERS = ["imagebeam", "img2dataset"]


@contextlib.contextmanager
def _serve(folder: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "benchmarks.peers.fault_server", str(folder)]
    with subprocess.Popen(command, cwd=harness.REPOSITORY, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.terminate()


def _command(peer: str, urls: Path, num_good: int, output: Path, args: argparse.Namespace) -> list[str]:
    if peer == "img2dataset":
        return harness.peer_command(
            "urls_img2dataset.py", urls, num_good, args.timeout, output, python=args.peers_python
        )
    settings = [
        *("source.manifest.format=csv", "source.manifest.header=[url]", f"source.web.timeout_sec={args.timeout}"),
        *("source.web.per_host=64", "output.report=false"),
    ]
    return harness.imagebeam_command("convert", "urls", settings, "--input", urls, "--output", output, "--workers", 2)


def _measure(args: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    images = inputs.link_images(inputs.find_images(args.images, scratch), args.num_images, scratch / "images")
    num_good = args.count // 100 * fault_server.NUM_GOOD
    with _serve(images) as server:
        urls, output = scratch / "urls.txt", scratch / "output"
        urls.write_text("".join(f"{server}/image/{number}.jpg\n" for number in range(args.count)))
        runs = {}
        for peer in args.peers:
            command, records = _command(peer, urls, num_good, output, args), num_good if peer == "imagebeam" else None
            runs[peer] = functools.partial(harness.run_writer, peer, command, output, records)
        results = harness.run_in_turn(runs, args.rounds, name=f"{args.count} addresses,")
    return {
        "addresses": args.count,
        "images": num_good,
        "faults_in_100": fault_server.FAULTS,
        **harness.compare(results, [("imagebeam", "img2dataset")], num_good),
    }


if __name__ == "__main__":
    parser = harness.make_parser(__doc__, peers=_PEERS)
    inputs.add_option(parser)
    parser.add_argument(
        "--count", type=harness.positive, default=10_000, help="addresses per run, a multiple of 100 (%(default)s)"
    )
    parser.add_argument("--num-images", type=harness.positive, default=1000, help="images of the server (%(default)s)")
    parser.add_argument("--timeout", type=harness.positive, default=5, help="of a request, in seconds (%(default)s)")
    parser.add_argument("--peers-python", default=sys.executable, metavar="FILE", help="Python that has img2dataset")
    harness.main("urls", _measure, parser.parse_args())
