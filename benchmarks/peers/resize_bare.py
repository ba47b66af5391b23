"""Resizes JPEGs with the bare calls of Pillow in `multiprocessing.Pool(2)`, and stores nothing. This is the limit.

The calls are those of `imagebeam convert`: decoded at a part of the size where that leaves twice the pixels per side
that are wanted, bicubic, quality 95, the chroma subsampling of the source.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import sys

from PIL import Image, JpegImagePlugin

_SUBSAMPLINGS = ("4:4:4", "4:2:2", "4:2:0")


def resize(path: str, size: int, stretches: bool) -> int:
    with open(path, "rb") as file:
        data = file.read()
    picture = Image.open(io.BytesIO(data))
    width, height = picture.size
    subsampling = _SUBSAMPLINGS[JpegImagePlugin.get_sampling(picture)]
    scale = min(1, size / min(width, height))
    target = (size, size) if stretches else (round(width * scale), round(height * scale))
    picture.draft(None, (min(width, 2 * target[0]), min(height, 2 * target[1])))
    if picture.mode not in ("L", "RGB"):
        picture = picture.convert("RGB")
    if picture.size != target:
        picture = picture.resize(target, Image.Resampling.BICUBIC)
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=95, **({"subsampling": subsampling} if picture.mode == "RGB" else {}))
    return len(buffer.getvalue())


def main(source: str, size: str, stretches: str) -> None:
    paths = sorted(entry.path for entry in os.scandir(source))
    with multiprocessing.Pool(2) as pool:
        print(sum(pool.starmap(resize, [(path, int(size), stretches == "1") for path in paths], chunksize=32)))


if __name__ == "__main__":
    main(*sys.argv[1:])
