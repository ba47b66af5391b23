"""Makes the input of the benchmarks: a folder of JPEGs that a user names, or generated ones, listed repeatedly."""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from benchmarks import harness

# The labels in the names of linked images.
SETTINGS = ("label.by=filename", r"label.pattern=(?P<label>n\d{8})_.*\.JPEG")

_JPEG_START = b"\xff\xd8\xff"
_LABELLED = re.compile(r"n\d{8}_")
_NUM_CLASSES = 100  # of images whose names carry no label
_GENERATED_FOLDER = Path("/tmp/imagebeam-benchmark-images-v1")
_GENERATED_COUNT = 1000  # enough that the set does not fit into a CPU's cache
_GENERATED_QUALITY = 95  # with these sizes and this noise: about 110 KB


def add_option(parser: argparse.ArgumentParser) -> None:
    """Adds the option `--images`."""
    parser.add_argument("--images", type=Path, metavar="DIR", help="folder of JPEG files (default: a generated set)")


def find_images(folder: Path | None, scratch: Path) -> list[Path]:
    """Returns the JPEGs directly in a folder, or the generated ones, where `scratch` can hold hard links to them.

    Other files are left out: they may have the name of a JPEG. Files of another file system are copied to `scratch`.

    Raises:
        BenchmarkError: if there are none.
    """
    folder = folder or _generated_images()
    if not folder.is_dir():
        raise harness.BenchmarkError(f"{folder} is not a folder: name one that holds JPEG files with --images")
    paths = [path for path in sorted(folder.iterdir()) if path.is_file()]
    images = [path for path in paths if path.read_bytes().startswith(_JPEG_START)]  # from now on in the page cache
    if not images:
        raise harness.BenchmarkError(f"no file in {folder} begins as a JPEG does: name another folder with --images")
    if folder.stat().st_dev == scratch.stat().st_dev:
        return images
    originals = scratch / "originals"
    originals.mkdir()
    return [Path(shutil.copy(image, originals)) for image in images]


def link_images(images: Sequence[Path], count: int, folder: Path) -> Path:
    """Makes `folder` list the images `count` times in all, as hard links `n01440764_tench_r0003.JPEG`."""
    folder.mkdir()
    for i in range(count):
        image, repeat = images[i % len(images)], i // len(images)
        stem = image.stem if _LABELLED.match(image.stem) else f"n{i % len(images) % _NUM_CLASSES:08d}_{image.stem}"
        os.link(image, folder / f"{stem}_r{repeat:04d}.JPEG")
    return folder


def _generated_images() -> Path:
    """Returns the folder of the generated set, which the first call makes."""
    if not _GENERATED_FOLDER.exists():
        harness.progress(f"generating {_GENERATED_COUNT} images in {_GENERATED_FOLDER}")
        unfinished = Path(tempfile.mkdtemp(prefix="imagebeam-benchmark-images-", dir=_GENERATED_FOLDER.parent))
        for i in range(_GENERATED_COUNT):
            path = unfinished / f"n{i % _NUM_CLASSES:08d}_generated{i:04d}.JPEG"
            _generate_image(i).save(path, quality=_GENERATED_QUALITY)
        unfinished.rename(_GENERATED_FOLDER)
    return _GENERATED_FOLDER


def _generate_image(seed: int) -> Image.Image:
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
