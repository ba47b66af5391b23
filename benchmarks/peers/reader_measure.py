"""Shares among the reader scripts the arguments and the measurement of a running pipeline.

A script builds its pipeline as its users do and hands the batches to `run`, which prints one JSON line.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import math
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import psutil

from benchmarks import harness

BATCH_SIZE = 128
SIDE = 224
AREA = (0.08, 1.0)  # of the random window, as a part of the picture's
ASPECT_RATIO = (3 / 4, 4 / 3)
NUM_SHARDS = 8

_WARM_UP_BATCHES = 8
_WARM_UP_SECONDS = 3.0  # also what tf.data's AUTOTUNE needs to settle
_NUM_TRIALS = 10
_LOG_RATIO = tuple(map(math.log, ASPECT_RATIO))


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """Parses the arguments that every script takes."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--dataset", required=True, type=Path, help="written by imagebeam: shards and their index")
    parser.add_argument("--images", required=True, type=Path, help="folder of the same JPEG files")
    parser.add_argument("--scratch", required=True, type=Path, help="folder for files of the peer's own; they are kept")
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--threads", type=int, default=2)
    return parser


def run(parser: argparse.ArgumentParser, batches_of: Callable[..., Iterable[Any]], *packages: str) -> NoReturn:
    """Warms a pipeline up, counts its images, prints one JSON line and ends the process.

    Args:
        parser: parses the command line.
        batches_of: called with what is parsed; returns images of batch after batch, without end, as anything that NumPy
            takes for an array.
        *packages: packages whose versions are printed.
    """
    args = parser.parse_args()
    batches = iter(batches_of(args))
    shape, dtype, mean = _warm_up(batches)
    line = {
        **_count(batches, args.seconds),
        "shape": shape,
        "dtype": dtype,
        "mean": mean,
        "versions": {package: importlib.metadata.version(package) for package in packages},
    }
    print(json.dumps(line), flush=True)
    # Threads and processes of the pipeline are still at work, and some libraries would wait for them.
    for process in harness.tree(os.getpid())[1:]:
        with contextlib.suppress(psutil.Error):
            process.kill()
    os._exit(0)


def _warm_up(batches: Iterator[Any]) -> tuple[list[int], str, list[float]]:
    """Returns shape and dtype of the first batch, and the mean of each channel over the warm-up batches."""
    start = time.perf_counter()
    images = np.asarray(next(batches))
    shape, dtype, means = list(images.shape), str(images.dtype), [_channel_means(images)]
    while len(means) < _WARM_UP_BATCHES:
        means.append(_channel_means(np.asarray(next(batches))))
    while time.perf_counter() - start < _WARM_UP_SECONDS:
        next(batches)
    return shape, dtype, [round(float(value), 2) for value in np.mean(means, axis=0)]


def _channel_means(images: np.ndarray) -> np.ndarray:
    return images[:, ::4, ::4].mean((0, 1, 2))  # every 16th pixel


def _count(batches: Iterator[Any], seconds: float) -> dict[str, float]:
    """Counts from the arrival of one batch to that of another."""
    num_images = 0
    next(batches)
    start, own_start, busy_start = time.perf_counter(), _own_seconds(), harness.busy_seconds()
    while (elapsed := time.perf_counter() - start) < seconds:
        num_images += len(next(batches))
    own, busy = _own_seconds() - own_start, harness.busy_seconds() - busy_start
    return {
        "images": num_images,
        "seconds": round(elapsed, 3),
        "cpu_seconds": round(own, 3),
        "others_cpu_fraction": round(max(0.0, busy - own) / elapsed / (os.cpu_count() or 1), 3),
    }


def _own_seconds() -> float:
    """Returns the CPU time of this process and its living descendants."""
    total = 0.0
    for process in harness.tree(os.getpid()):
        with contextlib.suppress(psutil.Error):  # ended meanwhile
            times = process.cpu_times()
            total += times.user + times.system
    return total


# --- for more than one peer ------------------------------------------------------------------------------------------


def shards(dataset: Path) -> list[str]:
    """Returns the TFRecord files of a dataset."""
    return sorted(map(str, dataset.glob("*.tfrecord")))


def share_out(images: Path) -> list[list[tuple[bytes, int]]]:
    """Yields (JPEG bytes, class) of the files of a folder, in random order, for each of NUM_SHARDS shards."""
    paths = sorted(images.iterdir())
    classes = {name: index for index, name in enumerate(sorted({path.name.split("_")[0] for path in paths}))}
    random.Random(0).shuffle(paths)
    examples = [(path.read_bytes(), classes[path.name.split("_")[0]]) for path in paths]
    return [examples[shard_index::NUM_SHARDS] for shard_index in range(NUM_SHARDS)]


def random_window(width: int, height: int, uniform: Callable[[float, float], float]) -> Sequence[int]:
    """Returns left, top, right, bottom of a random part of an image, chosen like torchvision's RandomResizedCrop."""
    for _ in range(_NUM_TRIALS):
        area = width * height * uniform(*AREA)
        ratio = math.exp(uniform(*_LOG_RATIO))
        part_width, part_height = round((area * ratio) ** 0.5), round((area / ratio) ** 0.5)
        if 0 < part_width <= width and 0 < part_height <= height:
            break
    else:
        part_width = min(width, round(height * ASPECT_RATIO[1]))
        part_height = min(height, round(width / ASPECT_RATIO[0]))
    left = int(uniform(0, width - part_width + 1))
    top = int(uniform(0, height - part_height + 1))
    return left, top, left + part_width, top + part_height


def random_crop(image: Any, uniform: Callable[[float, float], float]) -> np.ndarray:
    """Returns a random window of a picture of Pillow, resized, and flipped or not: uint8 [SIDE, SIDE, 3]."""
    from PIL import Image  # not all peers have it

    image = image.resize((SIDE, SIDE), Image.Resampling.BILINEAR, random_window(*image.size, uniform))
    return np.asarray(image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if uniform(0, 1) < 0.5 else image)


def written_once(folder: Path, write: Callable[[Path], object]) -> list[str]:
    """Returns the files of a folder that `write` fills, unless an earlier run of the peer has."""
    if not folder.exists():
        unfinished = folder.with_suffix(".unfinished")
        unfinished.mkdir(exist_ok=True)
        write(unfinished)
        unfinished.rename(folder)
    return sorted(map(str, folder.iterdir()))
