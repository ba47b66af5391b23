"""Measures images per second of input pipelines: imagebeam's and the usual alternatives, in turn.

224 px random-resized crop and flip, batches of 128, uint8, from the same images. Run from the root of the repository:
python -m benchmarks.reader --images DIR > reader.json
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image, ImageStat

from benchmarks import harness, inputs

_NUM_SHARDS = 8
_SHAPE = [128, 224, 224, 3]  # of a batch; peers/reader_measure.py has it too
_QUALITY = 95  # of the resized JPEGs
_ORIGINAL = "original"
_MAX_BRIGHTNESS_ERROR = 15.0  # means of the red and blue of photos differ by more, so exchanged channels are found
_NUM_MEASURED_IMAGES = 1000  # for the expected mean
_WARM_UP_COUNT_SECONDS = 1.0
_ENVIRONMENT = {"PYTHONPATH": str(harness.REPOSITORY), "TF_CPP_MIN_LOG_LEVEL": "2"}


class _Peer(NamedTuple):
    """A script in `peers/`, and what it needs."""

    script: str
    modules: str  # imported to find out whether the peer can run
    packages: str  # packages for pip that contain them
    options: tuple[str, ...] = ()


_IMAGEBEAM = _Peer("reader_imagebeam.py", "imagebeam, tensorflow, psutil", "imagebeam[tf] psutil")
_PEERS = {
    "imagebeam": _IMAGEBEAM,
    "imagebeam_global": _IMAGEBEAM._replace(options=("--shuffle", "global")),
    "imagebeam_pillow": _IMAGEBEAM._replace(options=("--feed", "numpy", "--decoder", "pillow")),
    "imagebeam_numpy": _IMAGEBEAM._replace(options=("--feed", "numpy")),
    "tfdata": _Peer("reader_tfdata.py", "psutil, tensorflow", "tensorflow psutil"),
    "dali": _Peer("reader_dali.py", "psutil, nvidia.dali.fn", "nvidia-dali-cuda120 psutil"),
    "grain": _Peer(
        "reader_grain.py", "psutil, grain, array_record.python.array_record_module", "grain array_record pillow psutil"
    ),
    "webdataset": _Peer("reader_webdataset.py", "psutil, webdataset, PIL", "webdataset pillow numpy psutil"),
}
_PAIRS = [
    (ours, other)
    for ours in _PEERS
    if ours.startswith("imagebeam")
    for other in _PEERS
    if other not in ("imagebeam", ours)
]


def _image_seconds(reading: harness.Measurement) -> float:
    return reading.line["seconds"] / reading.line["images"]


def _image_cpu_seconds(reading: harness.Measurement) -> float:
    return reading.line["cpu_seconds"] / reading.line["images"]


class _ImageSet(NamedTuple):
    """One size of the images, as files and as a dataset."""

    images: Path
    dataset: Path
    scratch: Path  # for the files that peers make
    mean: list[float]  # of the channels, by Pillow


# --- input -----------------------------------------------------------------------------------------------------------


def _resize_image(source: Path, shorter_side: int, folder: Path) -> None:
    """Writes the picture as a JPEG whose shorter side has that many pixels; a smaller one keeps its size."""
    with Image.open(source) as image:
        rgb = image.convert("RGB")
    factor = shorter_side / min(rgb.size)
    if factor < 1:
        rgb = rgb.resize([max(shorter_side, round(side * factor)) for side in rgb.size], Image.Resampling.LANCZOS)
    rgb.save(folder / source.name, "JPEG", quality=_QUALITY)


def _resized_images(source: Path, shorter_side: int, folder: Path) -> Path:
    """Returns the folder of the resized images."""
    harness.progress(f"resizing the images to {shorter_side}")
    folder.mkdir()
    with multiprocessing.get_context("spawn").Pool() as pool:
        resize = functools.partial(_resize_image, shorter_side=shorter_side, folder=folder)
        pool.map(resize, sorted(source.iterdir()))
    return folder


def _mean_of(folder: Path) -> list[float]:
    """Returns the mean of each channel over the images of a folder, each with the same weight, decoded by Pillow."""
    paths = sorted(folder.iterdir())
    means = []
    for path in paths[:: -(-len(paths) // _NUM_MEASURED_IMAGES)]:
        with Image.open(path) as image:
            image.draft("RGB", (64, 64))
            means.append(ImageStat.Stat(image.convert("RGB")).mean)
    return [round(statistics.fmean(channel), 2) for channel in zip(*means)]


def _prepare(size: str, images: Sequence[Path], folder: Path, args: argparse.Namespace) -> _ImageSet:
    """Returns images of this size, and the dataset that imagebeam makes of them."""
    folder.mkdir()
    source = inputs.link_images(images, len(images), folder / "images")
    if size != _ORIGINAL:
        source = _resized_images(source, int(size), folder / "resized")
    dataset, files = folder / "dataset", folder / "peers"
    files.mkdir()
    settings = [*inputs.SETTINGS, f"output.num_shards={_NUM_SHARDS}"]
    if args.entry_points:
        settings.append("features.image/entry_points=image/entry_points")
    harness.progress(f"converting {size}")
    addresses = ["--input", source, "--output", dataset]
    harness.run(harness.imagebeam_command("convert", "imagenet_files", settings, *addresses))
    for path in dataset.rglob("*-of-*"):
        path.read_bytes()  # from now on in the page cache
    return _ImageSet(source, dataset, files, _mean_of(source))


# --- peers -----------------------------------------------------------------------------------------------------------


def _python(peer: str, args: argparse.Namespace) -> str:
    return sys.executable if peer.startswith("imagebeam") else args.peers_python


def _find_missing(peer: str, args: argparse.Namespace) -> dict[str, str] | None:
    """Returns why a peer cannot run here and what it needs, or None."""
    _, modules, packages, _ = _PEERS[peer]
    words = [_python(peer, args), "-c", f"import {modules}"]
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, **_ENVIRONMENT})
    if done.returncode == 0:
        return None
    errors = [line for line in done.stderr.splitlines() if "rror" in line] or [f"exit code {done.returncode}"]
    return {"reason": errors[-1], "needs": f"pip install {packages}"}


def _read(peer: str, args: argparse.Namespace, image_set: _ImageSet, seconds: float) -> harness.Measurement:
    """Runs one peer over an image set.

    Raises:
        BenchmarkError: if it fails, or its batches are not as expected.
    """
    script, _, _, options = _PEERS[peer]
    scratch = image_set.scratch / peer
    scratch.mkdir(exist_ok=True)
    given = ["--dataset", image_set.dataset, "--images", image_set.images, "--scratch", scratch]
    given += ["--seconds", seconds, "--threads", args.threads, *options]
    # harness.run keeps what a command prints for its errors only, so the line goes to a file.
    output = image_set.scratch / "line.json"
    command = harness.peer_command(script, *given, python=_python(peer, args))
    measurement = harness.run(["sh", "-c", 'exec "$@" > "$0"', output, *command], _ENVIRONMENT)
    if measurement.stopped:
        return measurement
    line = json.loads(output.read_text().splitlines()[-1])
    if (line["shape"], line["dtype"]) != (_SHAPE, "uint8"):
        raise harness.BenchmarkError(f"{peer} makes {line['dtype']} {line['shape']}, expected uint8 {_SHAPE}")
    if max(abs(a - b) for a, b in zip(line["mean"], image_set.mean)) > _MAX_BRIGHTNESS_ERROR:
        expected = f"{image_set.mean}, each within {_MAX_BRIGHTNESS_ERROR:g}"
        raise harness.BenchmarkError(f"the channels of {peer} have the means {line['mean']}, expected {expected}")
    harness.progress(f"{peer}: {line['images'] / line['seconds']:,.0f} images/s")
    return dataclasses.replace(measurement, line=line)


# --- measure ---------------------------------------------------------------------------------------------------------


def _summarize(readings: Sequence[harness.Measurement]) -> dict[str, Any]:
    """Returns one peer's part of the output."""
    finished = [reading for reading in readings if not reading.stopped]
    return {
        "images_per_second": harness.series([1 / _image_seconds(reading) for reading in finished], 1),
        "images_per_cpu_second": harness.series([1 / _image_cpu_seconds(reading) for reading in finished], 1),
        "peak_rss_mb": harness.series([reading.peak_rss_bytes / harness.MEGABYTE for reading in readings], 1),
        "others_cpu_fraction": [reading.line["others_cpu_fraction"] for reading in finished],
        "mean": [reading.line["mean"] for reading in finished],
        "versions": finished[0].line["versions"] if finished else {},
        "stopped": next((reading.stopped for reading in readings if reading.stopped), None),
    }


def _measure_size(size: str, image_set: _ImageSet, peers: Sequence[str], args: argparse.Namespace) -> dict[str, Any]:
    """Returns one size's part of the output."""
    results: dict[str, list[harness.Measurement]] = {}
    # In the warm-up each peer makes its own files, and fails if it cannot run at all.
    for seconds, rounds in ((_WARM_UP_COUNT_SECONDS, 1), (args.seconds, args.rounds)):
        runs = {peer: functools.partial(_read, peer, args, image_set, seconds) for peer in peers}
        results = harness.run_in_turn(runs, rounds, name=f"{size},")
    sizes = [path.stat().st_size for path in image_set.images.iterdir()]
    return {
        "num_files": len(sizes),
        "mean_bytes": sum(sizes) // len(sizes),
        "mean": image_set.mean,
        "peers": {peer: _summarize(readings) for peer, readings in results.items()},
        "ratios": harness.ratios(results, _PAIRS, _image_seconds),
        "cpu_ratios": harness.ratios(results, _PAIRS, _image_cpu_seconds),
    }


def _measure(args: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    missing = {peer: reason for peer in args.peers if (reason := _find_missing(peer, args))}
    for peer, reason in missing.items():
        harness.progress(f"missing {peer}: {reason['reason']} ({reason['needs']})")
    found = [peer for peer in args.peers if peer not in missing]
    images = inputs.find_images(args.images, scratch)
    sets = {size: _prepare(size, images, scratch / size, args) for size in args.sizes}
    sizes = {size: _measure_size(size, each, found, args) for size, each in sets.items()}
    return {"threads": args.threads, "entry_points": args.entry_points, "missing": missing, "sizes": sizes}


def _size(text: str) -> str:
    return text if text == _ORIGINAL else str(harness.positive(text))


if __name__ == "__main__":
    parser = harness.make_parser(__doc__, peers=list(_PEERS))
    inputs.add_option(parser)
    parser.add_argument("--seconds", type=float, default=8, help="seconds to count in each run (default: %(default)s)")
    parser.add_argument("--sizes", type=_size, nargs="+", default=[_ORIGINAL, "256"], help="original, shorter side")
    parser.add_argument("--entry-points", action="store_true", help="store image/entry_points in the dataset")
    parser.add_argument("--threads", type=harness.positive, default=2, help="cores of every peer (%(default)s)")
    parser.add_argument("--peers-python", default=sys.executable, metavar="FILE", help="Python that has the peers")
    args = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    if args.threads > len(cores):
        parser.error(f"--threads is {args.threads}, expected at most {len(cores)}, the number of available cores")
    os.sched_setaffinity(0, cores[: args.threads])  # peers inherit it; AUTOTUNE and the like count these cores
    harness.main("reader", _measure, args)
