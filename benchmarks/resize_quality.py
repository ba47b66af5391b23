"""Measures how near resized images are to an exact one: the resizer in C and Pillow, by PSNR and SSIM.

The exact image is the whole decoded JPEG scaled with Lanczos in floating point, rounded nowhere. Each way is measured
as it is stored: pixels (`image.encode: png`), and a JPEG of quality 95, decoded again. Run from the root of the
repository: python -m benchmarks.resize_quality --images DIR
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import PIL.Image

from imagebeam.transforms.images import prepare, resample
from tests import pictures

FILTERS = ("lanczos", "bicubic", "area")
RESAMPLERS = (resample.NATIVE, resample.PILLOW)
STORED = ("png", "jpeg")
_WINDOW = 8  # pixels per side of the windows of SSIM
_C1, _C2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2


def exact(data: bytes, side: int) -> np.ndarray:
    """Returns the image scaled in floating point: float [height, width, 3], cut off at 0 and 255."""
    with PIL.Image.open(io.BytesIO(data)) as picture:
        size = resample.Scaling(shortest_side=side).scaled(*picture.size)
        bands = picture.convert("RGB").split()
    scaled = [band.convert("F").resize(size, PIL.Image.Resampling.LANCZOS) for band in bands]
    return np.stack([np.asarray(band) for band in scaled], axis=-1).clip(0, 255).astype(np.float64)


def stored(data: bytes, side: int, encode: str, resampler: str, filter: str) -> np.ndarray:
    """Returns the pixels of the image that convert stores."""
    how = resample.Scaling(shortest_side=side, filter=filter, resampler=resampler)
    image = prepare.ImagePolicy(encode=encode, scaling=how).prepare(data)
    with PIL.Image.open(io.BytesIO(image.data)) as picture:
        return np.asarray(picture.convert("RGB")).astype(np.float64)


def ssim(one: np.ndarray, other: np.ndarray) -> float:
    """Returns the mean structural similarity of the brightness, in windows that overlap by half.

    Source: Wang et al., Image Quality Assessment (2004), equation 13.
    """
    weights = np.array([0.299, 0.587, 0.114])
    windows = [
        np.lib.stride_tricks.sliding_window_view(each @ weights, (_WINDOW, _WINDOW))[:: _WINDOW // 2, :: _WINDOW // 2]
        for each in (one, other)
    ]
    x, y = (each.reshape(-1, _WINDOW**2) for each in windows)
    mean_x, mean_y = x.mean(axis=1), y.mean(axis=1)
    covariance = (x * y).mean(axis=1) - mean_x * mean_y
    likeness = (2 * mean_x * mean_y + _C1) * (2 * covariance + _C2)
    return float(np.mean(likeness / ((mean_x**2 + mean_y**2 + _C1) * (x.var(axis=1) + y.var(axis=1) + _C2))))


def measure(images: Sequence[bytes], side: int) -> dict[str, dict[str, float]]:
    """Returns mean PSNR in dB and mean SSIM of each way."""
    results, exacts = {}, [exact(data, side) for data in images]
    for encode, resampler, filter in itertools.product(STORED, RESAMPLERS, FILTERS):
        made = [stored(data, side, encode, resampler, filter) for data in images]
        found = [(pictures.psnr(one, other), ssim(one, other)) for one, other in zip(made, exacts)]
        mean_psnr, mean_ssim = np.mean(found, axis=0).tolist()
        results[f"{encode} {resampler} {filter}"] = {"psnr": round(mean_psnr, 2), "ssim": round(mean_ssim, 4)}
    return results


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, required=True, metavar="DIR", help="folder of JPEG files")
    parser.add_argument("--count", type=int, default=50, help="images, the first by name (default: %(default)s)")
    parser.add_argument("--sides", type=int, nargs="+", default=[256, 128], help="shorter sides in pixels")
    args = parser.parse_args(argv)
    paths = sorted(path for path in args.images.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))[: args.count]
    images = [path.read_bytes() for path in paths if min(PIL.Image.open(path).size) > max(args.sides)]
    sides = {str(side): measure(images, side) for side in args.sides}
    print(json.dumps({"benchmark": "resize_quality", "images": len(images), "sides": sides}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
