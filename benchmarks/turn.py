"""Measures how long it takes to turn one photo upright: without loss in C, and decoded and encoded by Pillow.

Everything runs in this process, on one core. Without --image the photos are drawn. Run from the root of the repository:
python -m benchmarks.turn > turn.json
"""

from __future__ import annotations

import argparse
import io
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image, ImageOps

from benchmarks import harness
from imagebeam.transforms.images import checked_image, structure, turn_jpeg, turn_upright

_SIZES = {"496x368": ((496, 368), 200), "12 MP": ((4032, 3024), 3)}  # whole blocks of 16; turns in a round
_ORIENTATION = 6  # a phone held upright: a quarter turn
_QUALITY = 90
_NUM_COLORS = 60  # steps of the drawing
_NOISE = 12


def draw_photo(width: int, height: int) -> bytes:
    """Returns a JPEG with edges, gradients and the noise of a camera, which asks for a quarter turn."""
    base = Image.effect_mandelbrot((width, height), (-2.2, -1.3, 0.8, 1.3), _NUM_COLORS).convert("L")
    noise = Image.effect_noise((width, height), _NOISE)
    bands = [
        Image.blend(each, noise, 0.3) for each in (base, base.rotate(180), Image.linear_gradient("L").resize(base.size))
    ]
    return with_orientation(Image.merge("RGB", bands))


def with_orientation(picture: Image.Image, **options: Any) -> bytes:
    """Encodes `picture` as a JPEG that asks for a quarter turn."""
    exif = Image.Exif()
    exif[0x0112] = _ORIENTATION
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", exif=exif, **({"quality": _QUALITY} | options))
    return buffer.getvalue()


def read_photo(path: Path) -> bytes:
    """Returns a JPEG of the user, cut to whole blocks, which asks for a quarter turn."""
    with Image.open(path) as picture:
        width, height = (side // 16 * 16 for side in picture.size)
        return with_orientation(picture.convert("RGB").crop((0, 0, width, height)))


def turn_without_loss(image: checked_image.Image) -> bytes:
    found = turn_upright.turn_upright(image)
    if not found.is_lossless:
        raise harness.BenchmarkError("not turned without loss: build imagebeam with a C compiler and libjpeg-turbo")
    return found.image.data


def turn_with_pillow(image: checked_image.Image) -> bytes:
    """The usual way: ImageOps.exif_transpose, and the quality of the source."""
    turned = ImageOps.exif_transpose(Image.open(io.BytesIO(image.data)))
    buffer = io.BytesIO()
    turned.save(buffer, "JPEG", quality=_QUALITY)
    return buffer.getvalue()


PEERS: dict[str, Callable[[checked_image.Image], bytes]] = {
    "lossless": turn_without_loss,
    "encoded again": turn_jpeg.encode_turned,
    "pillow": turn_with_pillow,
}


def time_turns(
    turn: Callable[[checked_image.Image], bytes], image: checked_image.Image, count: int
) -> dict[str, float]:
    """Returns wall and CPU time of one turn in microseconds."""
    start, cpu_start = time.perf_counter(), time.process_time()
    for _ in range(count):
        turn(image)
    cpu, wall = time.process_time() - cpu_start, time.perf_counter() - start
    return {"wall_us": wall / count * 1e6, "cpu_us": cpu / count * 1e6}


def measure(photos: dict[str, tuple[bytes, int]], rounds: int) -> dict[str, Any]:
    """Runs the whole benchmark; returns the object to print."""
    machine = harness.describe_machine()
    results: dict[str, Any] = {}
    for name, (data, count) in photos.items():
        image = structure.check_image(data)
        sizes = {peer: len(turn(image)) for peer, turn in PEERS.items()}  # which also warms up
        times: dict[str, list[dict[str, float]]] = {peer: [] for peer in PEERS}
        for _ in range(rounds):
            for peer, turn in PEERS.items():
                times[peer].append(time_turns(turn, image, count))
        peers = {
            peer: {"bytes": sizes[peer]}
            | {
                f"{key}_median": round(statistics.median(each[key] for each in times[peer]))
                for key in ("wall_us", "cpu_us")
            }
            for peer in PEERS
        }
        ratios = [other["cpu_us"] / own["cpu_us"] for own, other in zip(times["lossless"], times["pillow"])]
        results[name] = {
            "height": image.height,
            "width": image.width,
            "bytes": len(data),
            "peers": peers,
            "cpu pillow/lossless": {
                "median": round(statistics.median(ratios), 2),
                "rounds": [round(each, 2) for each in ratios],
            },
        }
        harness.progress(f"{name}: {peers}")
    return {"benchmark": "turn", "machine": machine, "libjpeg": turn_upright.library(), "photos": results}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--image", type=Path, help="a JPEG to turn in place of the drawn ones")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    if args.rounds < 1:
        parser.error("--rounds takes numbers from 1")
    if args.image is not None:
        photos = {args.image.name: (read_photo(args.image), 20)}
    else:
        photos = {name: (draw_photo(*size), count) for name, (size, count) in _SIZES.items()}
    return harness.print_result(lambda: measure(photos, args.rounds))


if __name__ == "__main__":
    sys.exit(main())
