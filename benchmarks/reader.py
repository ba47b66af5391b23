"""Measures images per second of input pipelines: imagebeam's, the usual alternatives and the limit, in turn.

224 px random-resized crop and flip, batches of 128, uint8, from the same images. Run from the root of the repository:
python -m benchmarks.reader --images DIR > reader.json
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import hashlib
import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image, ImageStat

from benchmarks import convert, harness

NUM_SHARDS = 8
BATCH_SIZE = 128
SIDE = 224
QUALITY = 95  # of the resized JPEGs
ORIGINAL = "original"

_PEERS_FOLDER = Path(__file__).resolve().parent / "peers"
_LIMIT_SOURCE = _PEERS_FOLDER / "reader_limit.c"
_LIMIT_NEEDS = "a C compiler and libjpeg-turbo's headers: apt-get install gcc libjpeg62-turbo-dev"
_JPEG_START = b"\xff\xd8\xff"
_MAX_BRIGHTNESS_ERROR = 15.0  # red and blue of photos differ by more: exchanged, they are found
_NUM_MEASURED_IMAGES = 1000  # for the mean that is expected
_WARM_UP_COUNT_SECONDS = 1.0
_ENVIRONMENT = {"PYTHONPATH": str(harness.REPOSITORY), "TF_CPP_MIN_LOG_LEVEL": "2"}


class Peer(NamedTuple):
    """A script in `peers/`, and what it takes to run it."""

    script: str
    modules: str  # imported to find out whether the peer can run
    packages: str  # packages for pip that contain them
    options: tuple[str, ...] = ()


PEERS: dict[str, Peer | None] = {
    "limit": None,  # a program in C
    "imagebeam": Peer("reader_imagebeam.py", "imagebeam, tensorflow", "imagebeam[tf]"),
    "imagebeam_global": Peer(
        "reader_imagebeam.py", "imagebeam, tensorflow", "imagebeam[tf]", options=("--shuffle", "global")
    ),
    "imagebeam_tensorflow": Peer(
        "reader_imagebeam.py", "imagebeam, tensorflow", "imagebeam[tf]", options=("--decoder", "tensorflow")
    ),
    "tutorial": Peer("reader_tutorial.py", "tensorflow", "tensorflow"),
    "tfds": Peer("reader_tfds.py", "tensorflow, tensorflow_datasets", "tensorflow tensorflow-datasets"),
    "tfdata": Peer("reader_tfdata.py", "tensorflow", "tensorflow"),
    "dali": Peer("reader_dali.py", "numpy, nvidia.dali.fn", "nvidia-dali-cuda120"),
    "grain": Peer(
        "reader_grain.py", "grain, array_record.python.array_record_module, PIL", "grain array_record pillow"
    ),
    "webdataset": Peer("reader_webdataset.py", "numpy, webdataset, PIL", "webdataset pillow numpy"),
}
OURS = ("imagebeam", "imagebeam_global", "imagebeam_tensorflow")


@dataclasses.dataclass(frozen=True)
class Reading(harness.Measurement):
    """A peer's own figures of its steady state, and the costs of its process from start to exit."""

    images_per_second: float = 0.0
    images_per_cpu_second: float = 0.0
    others_while_counted: float = 0.0  # as others_cpu_fraction
    mean: tuple[float, ...] = ()  # of the channels
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)


class ImageSet(NamedTuple):
    """One size of the images, as files and as a dataset."""

    images: Path
    dataset: Path
    scratch: Path  # for what peers make of the images
    mean: tuple[float, ...]  # of the channels, by Pillow


# --- input -----------------------------------------------------------------------------------------------------------


def resize_image(source: Path, shorter_side: int, folder: Path) -> None:
    """Writes the picture as a JPEG whose shorter side has that many pixels; a smaller one keeps its size."""
    with Image.open(source) as image:
        rgb = image.convert("RGB")
    factor = shorter_side / min(rgb.size)
    if factor < 1:
        rgb = rgb.resize([max(shorter_side, round(side * factor)) for side in rgb.size], Image.Resampling.LANCZOS)
    rgb.save(folder / source.name, "JPEG", quality=QUALITY)


def resized_images(source: Path, shorter_side: int, scratch: Path) -> Path:
    """Returns the folder of the resized images, which are made once for each input."""
    paths = sorted(source.iterdir())
    listing = "".join(f"{path.name} {path.stat().st_size}\n" for path in paths)
    digest = hashlib.sha256(f"{QUALITY}\n{listing}".encode()).hexdigest()[:12]
    folder = scratch / f"imagebeam-benchmark-images-{shorter_side}-{digest}"
    if not folder.exists():
        harness.progress(f"resizing {len(paths)} images to {folder}")
        unfinished = Path(tempfile.mkdtemp(prefix="imagebeam-benchmark-images-", dir=scratch))
        with multiprocessing.get_context("spawn").Pool() as pool:
            pool.map(functools.partial(resize_image, shorter_side=shorter_side, folder=unfinished), paths)
        unfinished.rename(folder)
    return folder


def find_jpegs(folder: Path) -> list[Path]:
    """Returns the files of a folder that are JPEGs by content: decoders of image parts support no other format."""
    found = []
    for path in convert.find_images(folder):
        with path.open("rb") as file:
            if file.read(len(_JPEG_START)) == _JPEG_START:
                found.append(path)
    if not found:
        raise harness.BenchmarkError(f"no file in {folder} begins as a JPEG does: name another folder with --images")
    return found


def mean_of(folder: Path) -> tuple[float, ...]:
    """Returns the mean of each channel over the images of a folder, each with the same weight, decoded by Pillow."""
    paths = sorted(folder.iterdir())
    means = []
    for path in paths[:: -(-len(paths) // _NUM_MEASURED_IMAGES)]:
        with Image.open(path) as image:
            image.draft("RGB", (64, 64))
            means.append(ImageStat.Stat(image.convert("RGB")).mean)
    return tuple(round(statistics.fmean(channel), 2) for channel in zip(*means))


def prepare(size: str, images: Sequence[Path], folder: Path, scratch: Path, entry_points: bool) -> ImageSet:
    """Returns images of this size, and the dataset that imagebeam makes of them."""
    folder.mkdir()
    source = convert.link_images(images, len(images), folder / "images")
    if size != ORIGINAL:
        source = resized_images(source, int(size), scratch)
    dataset = folder / "dataset"
    settings = [*convert.IMAGEBEAM_SETTINGS[:-1], f"output.num_shards={NUM_SHARDS}"]
    if entry_points:
        settings.append("features.image/entry_points=image/entry_points")
    words = [word for setting in settings for word in ("--set", setting)]
    arguments = ["--config", "imagenet_files", "--input", str(source), "--output", str(dataset), *words]
    harness.progress(f"converting {size}")
    harness.run([sys.executable, "-m", "imagebeam", "convert", *arguments])
    written = harness.count_records(dataset)
    if (written.num_shards, written.num_records) != (NUM_SHARDS, len(images)):
        raise harness.BenchmarkError(
            f"{dataset} has {written.num_records} records in {written.num_shards} shards, "
            f"expected {len(images)} in {NUM_SHARDS}"
        )
    files = folder / "peers"
    files.mkdir()
    return ImageSet(source, dataset, files, mean_of(source))


# --- peers -----------------------------------------------------------------------------------------------------------


def find_missing(peer: str, python: str, program: Path) -> dict[str, str] | None:
    """Returns why a peer cannot run here and what it needs, or None; builds the C program of `limit`."""
    needs = PEERS[peer]
    if needs is None:
        words = ["cc", "-O3", "-march=native", "-o", str(program), str(_LIMIT_SOURCE), "-ljpeg", "-lpthread", "-lm"]
        if shutil.which(words[0]) is None:
            return {"reason": "there is no cc", "needs": _LIMIT_NEEDS}
    else:
        words = [_python(peer, python), "-c", f"import {needs.modules}"]
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, **_ENVIRONMENT})
    if done.returncode == 0:
        return None
    errors = [line for line in done.stderr.splitlines() if "rror" in line] or [f"exit code {done.returncode}"]
    reason = errors[-1] if needs else errors[0]  # Python names the cause last, a compiler first
    return {"reason": reason, "needs": _LIMIT_NEEDS if needs is None else f"pip install {needs.packages}"}


def _python(peer: str, python: str) -> str:
    return sys.executable if peer in OURS else python


def read(
    peer: str, python: str, program: Path, image_set: ImageSet, threads: int, seconds: float, name: str
) -> Reading:
    """Runs one peer over an image set.

    Raises:
        BenchmarkError: if it fails, or its batches are not what was asked for.
    """
    needs = PEERS[peer]
    if needs is None:
        command = [str(program), str(image_set.dataset), str(seconds), str(threads)]
    else:
        scratch = image_set.scratch / peer
        scratch.mkdir(exist_ok=True)
        arguments = ["--dataset", image_set.dataset, "--images", image_set.images, "--scratch", scratch]
        arguments += ["--seconds", seconds, "--threads", threads, *needs.options]
        command = [_python(peer, python), str(_PEERS_FOLDER / needs.script), *map(str, arguments)]
    # harness.run keeps what a command prints for its errors only, so the line goes to a file.
    output = image_set.scratch / "line.json"
    measurement = harness.run(["sh", "-c", 'exec "$@" > "$0"', output, *command], env=_ENVIRONMENT)
    if measurement.stopped:
        return Reading(**dataclasses.asdict(measurement))
    line = json.loads(output.read_text().splitlines()[-1])
    check_batches(peer, line, image_set.mean)
    harness.progress(f"{name} {peer}: {line['images_per_second']:,.0f} images/s")
    return Reading(
        **dataclasses.asdict(measurement),
        images_per_second=line["images"] / line["seconds"],
        images_per_cpu_second=line["images"] / line["cpu_seconds"],
        others_while_counted=line["others_cpu_fraction"],
        mean=tuple(line["mean"]),
        versions=line["versions"],
    )


def check_batches(peer: str, line: Mapping[str, Any], expected_mean: Sequence[float]) -> None:
    """Raises an error for batches of another shape, blank images, or channels in another order."""
    shape = [BATCH_SIZE, SIDE, SIDE, 3]
    if (line["shape"], line["dtype"]) != (shape, "uint8"):
        raise harness.BenchmarkError(f"{peer} makes {line['dtype']} {line['shape']}, expected uint8 {shape}")
    if max(abs(a - b) for a, b in zip(line["mean"], expected_mean, strict=True)) > _MAX_BRIGHTNESS_ERROR:
        raise harness.BenchmarkError(
            f"{peer} makes pictures whose channels have the means {line['mean']}, "
            f"expected {list(expected_mean)}, each within {_MAX_BRIGHTNESS_ERROR:g}"
        )


# --- measure ---------------------------------------------------------------------------------------------------------


def summarize(readings: Sequence[Reading]) -> dict[str, Any]:
    """Returns one peer's part of the output."""
    finished = [reading for reading in readings if not reading.stopped]
    rates = [round(reading.images_per_second, 1) for reading in finished]
    cpu_rates = [round(reading.images_per_cpu_second, 1) for reading in finished]
    stopped = [reading.stopped for reading in readings if reading.stopped]
    return {
        "images_per_second": rates,
        "images_per_second_median": round(statistics.median(rates), 1) if rates else None,
        "images_per_cpu_second": cpu_rates,
        "images_per_cpu_second_median": round(statistics.median(cpu_rates), 1) if cpu_rates else None,
        "peak_rss_mb": [round(reading.peak_rss_bytes / harness.MEGABYTE, 1) for reading in readings],
        "others_cpu_fraction": [reading.others_while_counted for reading in finished],
        "mean": [list(reading.mean) for reading in finished],
        "versions": dict(finished[0].versions) if finished else {},
        "stopped": stopped[0] if stopped else None,
    }


def ratio(
    first: Sequence[Reading], second: Sequence[Reading], rate: Callable[[Reading], float]
) -> dict[str, Any] | None:
    """Returns the rate of `first` over that of `second`, per round and as the median, like harness.speed_ratio."""
    ratios = [rate(a) / rate(b) for a, b in zip(first, second, strict=False) if not (a.stopped or b.stopped)]
    if not ratios:
        return None
    return {"median": round(statistics.median(ratios), 3), "rounds": [round(each, 3) for each in ratios]}


def ratios(results: Mapping[str, Sequence[Reading]], rate: Callable[[Reading], float]) -> dict[str, Any]:
    """Returns the ratios of imagebeam to every other peer, with either shuffle."""
    return {
        f"{ours}/{peer}": ratio(results[ours], results[peer], rate)
        for ours in OURS
        for peer in results
        if ours in results and peer not in (ours, OURS[0])
    }


def measure_size(
    size: str, image_set: ImageSet, peers: Sequence[str], python: str, program: Path, args: argparse.Namespace
) -> dict[str, Any]:
    """Returns one size's part of the output."""
    warm = functools.partial(read, python=python, program=program, image_set=image_set, threads=args.threads)
    harness.warm_files(path for path in image_set.dataset.rglob("*") if path.is_file())
    for peer in peers:  # makes its own files, and fails here if it cannot run at all
        warm(peer, seconds=_WARM_UP_COUNT_SECONDS, name=f"{size} warm-up")
    runs = {peer: functools.partial(warm, peer, seconds=args.seconds, name=size) for peer in peers}
    results = harness.run_in_turn(runs, args.rounds, name=f"{size},")
    sizes = [path.stat().st_size for path in image_set.images.iterdir()]
    return {
        "num_files": len(sizes),
        "mean_bytes": sum(sizes) // len(sizes),
        "mean": list(image_set.mean),
        "peers": {peer: summarize(readings) for peer, readings in results.items()},
        "ratios": ratios(results, lambda reading: reading.images_per_second),
        "cpu_ratios": ratios(results, lambda reading: reading.images_per_cpu_second),
    }


def measure(args: argparse.Namespace, peers: Sequence[str], sizes: Sequence[str]) -> dict[str, Any]:
    """Runs the whole benchmark; returns the object to print."""
    machine = harness.describe_machine()
    with tempfile.TemporaryDirectory(prefix="imagebeam-reader-", dir=args.scratch) as temporary:
        program = Path(temporary) / "limit"
        missing = {}
        for peer in peers:
            if reason := find_missing(peer, args.peers_python, program):
                harness.progress(f"missing {peer}: {reason['reason']} ({reason['needs']})")
                missing[peer] = reason
        found = [peer for peer in peers if peer not in missing]
        images = convert.linkable(find_jpegs(args.images), Path(temporary))
        sets = {size: prepare(size, images, Path(temporary) / size, args.scratch, args.entry_points) for size in sizes}
        return {
            "benchmark": "reader",
            "machine": machine,
            "images": str(args.images),
            "num_shards": NUM_SHARDS,
            "batch_size": BATCH_SIZE,
            "image_size": SIDE,
            "threads": args.threads,
            "entry_points": args.entry_points,
            "seconds": args.seconds,
            "rounds": args.rounds,
            "missing": missing,
            "sizes": {
                size: measure_size(size, image_set, found, args.peers_python, program, args)
                for size, image_set in sets.items()
            },
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, metavar="DIR", help="folder of JPEG files (default: a generated set)")
    parser.add_argument("--scratch", type=Path, default=Path("/tmp"), metavar="DIR", help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each peer")
    parser.add_argument("--seconds", type=float, default=8, help="that are counted in each run (default: %(default)s)")
    parser.add_argument("--peers", default=",".join(PEERS), help="comma-separated (default: %(default)s)")
    parser.add_argument("--sizes", default=f"{ORIGINAL},256", help="original, or pixels of the shorter side")
    parser.add_argument("--entry-points", action="store_true", help="store image/entry_points in the dataset")
    parser.add_argument("--threads", type=int, default=2, help="cores that every peer gets (default: %(default)s)")
    parser.add_argument(
        "--peers-python", default=sys.executable, metavar="PATH", help="Python with the peers (default: this one)"
    )
    args = parser.parse_args()
    peers, sizes = args.peers.split(","), args.sizes.split(",")
    for peer in peers:
        if peer not in PEERS:
            parser.error(f"--peers names {peer!r}, expected some of {','.join(PEERS)}")
    for size in sizes:
        if size != ORIGINAL and not size.isdecimal():
            parser.error(f"--sizes names {size!r}, expected {ORIGINAL} or a number of pixels")
    if args.rounds < 1 or args.seconds <= 0:
        parser.error("--rounds takes numbers from 1, --seconds numbers above 0")
    cores = sorted(os.sched_getaffinity(0))
    if not 1 <= args.threads <= len(cores):
        parser.error(f"--threads is {args.threads}, expected 1 to {len(cores)}, the cores that there are")
    os.sched_setaffinity(0, cores[: args.threads])  # of the peers too: AUTOTUNE and the like go by it

    def result() -> dict[str, Any]:
        args.images = args.images or convert.generated_images()
        return measure(args, peers, sizes)

    return harness.print_result(result)


if __name__ == "__main__":
    sys.exit(main())
