"""Measures images per second and memory of `imagebeam convert` and the usual alternatives, in turn in one run.

Run from the root of the repository: python -m benchmarks.convert --images DIR > convert.json
"""

from __future__ import annotations

import argparse
import functools
import os
import random
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from benchmarks import harness

NUM_SHARDS = 16
IMAGEBEAM_SETTINGS = (
    "label.by=filename",
    r"label.pattern=(?P<label>n\d{8})_.*\.JPEG",
    f"output.num_shards={NUM_SHARDS}",
)
RATIOS = (("imagebeam", "loop"), ("imagebeam", "naive"), ("imagebeam", "bare"))

_PEERS_FOLDER = Path(__file__).resolve().parent / "peers"
_SUFFIXES = frozenset({".jpg", ".jpeg"})
_LABELLED = re.compile(r"n\d{8}_")
_NUM_CLASSES = 100  # of images whose names carry no label
_WARM_UP_COUNT = 64
# In-memory Beam holds six to seven times its input, and memory that a virtual machine has not touched yet is slow.
_WARM_MEMORY_PER_INPUT_BYTE = 8

_GENERATED_FOLDER = Path("/tmp/imagebeam-benchmark-images-v1")
_GENERATED_COUNT = 1000  # enough that the set does not fit into a CPU's cache
_GENERATED_QUALITY = 95  # with these sizes and this noise: about 110 KB


def _script(name: str, *options: str) -> Callable[[Path, Path], list[str]]:
    def command(source: Path, output: Path) -> list[str]:
        arguments = ["--input", str(source), "--output", str(output), "--num-shards", str(NUM_SHARDS), *options]
        return [sys.executable, str(_PEERS_FOLDER / name), *arguments]

    return command


def _imagebeam(workers: int) -> Callable[[Path, Path], list[str]]:
    def command(source: Path, output: Path) -> list[str]:
        settings = [word for setting in IMAGEBEAM_SETTINGS for word in ("--set", setting)]
        arguments = ["--config", "imagenet_files", "--input", str(source), "--output", str(output), *settings]
        return [sys.executable, "-m", "imagebeam", "convert", *arguments, "--workers", str(workers)]

    return command


# The command line of each peer, for an input folder and an output folder.
PEERS: dict[str, Callable[[Path, Path], list[str]]] = {
    "loop": _script("tfrecord_loop.py"),
    "loop2": _script("tfrecord_loop.py", "--processes", "2"),
    "naive": _script("naive_beam.py"),
    "bare": _script("bare_writer.py"),
    "imagebeam": _imagebeam(workers=2),
    "imagebeam1": _imagebeam(workers=1),
}


# --- input -----------------------------------------------------------------------------------------------------------


def generate_image(seed: int) -> Image.Image:
    """Returns an image with the spectrum of a photo: gradients, and noise that is weaker at finer scales."""
    rng = random.Random(seed)
    size = rng.choice([(500, 375), (375, 500), (500, 333), (500, 400), (640, 480)])
    bands = []
    for _ in range(3):
        band = Image.linear_gradient("L").rotate(rng.choice((0, 90, 180, 270))).resize(size)
        for cell, strength in ((64, 0.5), (16, 0.35), (4, 0.25), (1, 0.12)):
            shape = (size[0] // cell + 2, size[1] // cell + 2)
            noise = Image.frombytes("L", shape, rng.randbytes(shape[0] * shape[1]))
            band = Image.blend(band, noise.resize(size, Image.Resampling.BICUBIC), strength)
        bands.append(band)
    # The bands of a photo are alike: each is half the first one.
    return Image.merge("RGB", [bands[0], *(Image.blend(bands[0], band, 0.5) for band in bands[1:])])


def generated_images() -> Path:
    """Returns the folder of the generated set, which the first call makes."""
    if not _GENERATED_FOLDER.exists():
        harness.progress(f"generating {_GENERATED_COUNT} images in {_GENERATED_FOLDER}")
        unfinished = Path(tempfile.mkdtemp(prefix="imagebeam-benchmark-images-", dir=_GENERATED_FOLDER.parent))
        for i in range(_GENERATED_COUNT):
            path = unfinished / f"n{i % _NUM_CLASSES:08d}_generated{i:04d}.JPEG"
            generate_image(i).save(path, quality=_GENERATED_QUALITY)
        unfinished.rename(_GENERATED_FOLDER)
    return _GENERATED_FOLDER


def find_images(folder: Path) -> list[Path]:
    """Returns the JPEG files directly in a folder, sorted."""
    if not folder.is_dir():
        raise harness.BenchmarkError(f"{folder} is not a folder: name one that holds JPEG files with --images")
    images = sorted(path for path in folder.iterdir() if path.suffix.lower() in _SUFFIXES and path.is_file())
    if not images:
        raise harness.BenchmarkError(f"{folder} holds no .jpg, .jpeg or .JPEG file: name another folder with --images")
    return images


def link_images(images: Sequence[Path], count: int, folder: Path) -> Path:
    """Makes `folder` list the images `count` times in all, as hard links `n01440764_tench_r0003.JPEG`."""
    folder.mkdir()
    for i in range(count):
        image, repeat = images[i % len(images)], i // len(images)
        stem = image.stem if _LABELLED.match(image.stem) else f"n{i % len(images) % _NUM_CLASSES:08d}_{image.stem}"
        os.link(image, folder / f"{stem}_r{repeat:04d}.JPEG")
    return folder


def linkable(images: Sequence[Path], scratch: Path) -> list[Path]:
    """Returns the images if the scratch folder can hold hard links to them, else copies of them in that folder."""
    probe = scratch / "probe"
    try:
        os.link(images[0], probe)
    except OSError:
        originals = scratch / "originals"
        originals.mkdir()
        return [Path(shutil.copy(image, originals)) for image in images]
    probe.unlink()
    return list(images)


# --- measure ---------------------------------------------------------------------------------------------------------


def convert(peer: str, source: Path, count: int, num_bytes: int, scratch: Path) -> harness.Measurement:
    """Runs one peer over a folder, checks what it wrote and removes it.

    Raises:
        BenchmarkError: if the peer fails, or the shards do not hold `count` records with the bytes of all images.
    """
    output = scratch / "output"
    output.mkdir()
    try:
        measurement = harness.run(PEERS[peer](source, output))
        if not measurement.stopped:
            written = harness.count_records(output)
            if (written.num_shards, written.num_records) != (NUM_SHARDS, count):
                raise harness.BenchmarkError(
                    f"{peer} wrote {written.num_records} records in {written.num_shards} shards, "
                    f"expected {count} in {NUM_SHARDS}"
                )
            if written.num_record_bytes < num_bytes:
                raise harness.BenchmarkError(
                    f"{peer} wrote records of {written.num_record_bytes} bytes, the images alone have {num_bytes}"
                )
    finally:
        shutil.rmtree(output)
        os.sync()  # otherwise the next peer waits while data of this one is written to the disk
    return measurement


def measure_count(
    peers: Sequence[str], images: Sequence[Path], count: int, rounds: int, scratch: Path
) -> dict[str, Any]:
    """Returns one count's part of the output."""
    source = link_images(images, count, scratch / "input")
    try:
        num_bytes = sum(entry.stat().st_size for entry in os.scandir(source))
        free_bytes = shutil.disk_usage(scratch).free
        if free_bytes < 1.5 * num_bytes:
            raise harness.BenchmarkError(
                f"{scratch} has {free_bytes // harness.MEGABYTE} MB free, {count} images need "
                f"{int(1.5 * num_bytes) // harness.MEGABYTE} MB: name another folder with --scratch"
            )
        harness.warm_memory(_WARM_MEMORY_PER_INPUT_BYTE * num_bytes)
        runs = {peer: functools.partial(convert, peer, source, count, num_bytes, scratch) for peer in peers}
        results = harness.run_in_turn(runs, rounds, name=f"{count} images,")
    finally:
        shutil.rmtree(source)
    return {
        "input_mb": round(num_bytes / harness.MEGABYTE, 1),
        "peers": {peer: harness.summarize(measurements, count) for peer, measurements in results.items()},
        "ratios": {
            f"{first}/{second}": harness.speed_ratio(results[first], results[second])
            for first, second in RATIOS
            if first in results and second in results
        },
    }


def warm_up(peers: Sequence[str], images: Sequence[Path], scratch: Path) -> None:
    """Reads images and programs into the page cache; a peer that cannot run fails here, not an hour later."""
    harness.warm_files(images)
    source = link_images(images, _WARM_UP_COUNT, scratch / "input")
    try:
        num_bytes = sum(entry.stat().st_size for entry in os.scandir(source))
        for peer in peers:
            harness.progress(f"warm-up {peer}")
            convert(peer, source, _WARM_UP_COUNT, num_bytes, scratch)
    finally:
        shutil.rmtree(source)


def measure(folder: Path, counts: Sequence[int], rounds: int, peers: Sequence[str], scratch: Path) -> dict[str, Any]:
    """Runs the whole benchmark; returns the object to print."""
    machine = harness.describe_machine()
    with tempfile.TemporaryDirectory(prefix="imagebeam-convert-", dir=scratch) as temporary:
        images = linkable(find_images(folder), Path(temporary))
        warm_up(peers, images, Path(temporary))
        return {
            "benchmark": "convert",
            "machine": machine,
            "images": {
                "folder": str(folder),
                "num_files": len(images),
                "mean_bytes": sum(image.stat().st_size for image in images) // len(images),
            },
            "num_shards": NUM_SHARDS,
            "rounds": rounds,
            "counts": {str(count): measure_count(peers, images, count, rounds, Path(temporary)) for count in counts},
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, metavar="DIR", help="folder of JPEG files (default: a generated set)")
    parser.add_argument("--count", type=int, nargs="+", default=[10_000, 40_000], help="images per conversion")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each peer")
    parser.add_argument("--peers", default=",".join(PEERS), help="comma-separated (default: %(default)s)")
    parser.add_argument("--scratch", type=Path, default=Path("/tmp"), metavar="DIR", help="default: %(default)s")
    args = parser.parse_args()
    peers = args.peers.split(",")
    for peer in peers:
        if peer not in PEERS:
            parser.error(f"--peers names {peer!r}, expected some of {','.join(PEERS)}")
    if min(args.count) < 1 or args.rounds < 1:
        parser.error("--count and --rounds take numbers from 1")
    return harness.print_result(
        lambda: measure(args.images or generated_images(), args.count, args.rounds, peers, args.scratch)
    )


if __name__ == "__main__":
    sys.exit(main())
