"""Gives changed inputs to each function of the code in C, built with sanitizers: `make sanitize` runs this.

    python -m tests.fuzz_native SECONDS SEED FILE [FUNCTION NUMBER]

The random numbers of a case depend on the seed, the function and the number of the case alone. FILE always names the
last case, and the last two arguments run it alone. A function may refuse its input by one of REFUSALS; a sanitizer ends
the process where the code reads or writes what it must not. Memory that grows from case to case is a leak.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import itertools
import os
import pathlib
import random
import sys
import tempfile
import threading
import time
from typing import Any

import numpy as np

from imagebeam import _native, _writer, example, features
from tests import encoded_images, pictures

REFUSALS = (ValueError, TypeError, OverflowError, MemoryError)
NUMBERS = (0, 1, 2, 3, 7, 8, 15, 16, 17, 63, 64, 255, 256, 1 << 15, 1 << 16, (1 << 31) - 1, -1, -(1 << 31), 1 << 32)
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 3.7, 23.0, 1e-30, 1e30, float("inf"), float("-inf"), float("nan"))
CASES_AT_ONCE = 20  # of a function, before the next one has its turn
WARM_CASES = 200  # after which the memory of a function must not grow
MAX_GROWN_BYTES = 4 << 20

PHOTOS = [
    pictures.encode(pictures.photo(*size), quality=80, **options)
    for size in ((200, 140), (65, 131))
    for options in ({"subsampling": 0}, {"subsampling": 1}, {"subsampling": 2}, {"progressive": True})
]
JPEGS = [*encoded_images.JPEGS.values(), *PHOTOS]
MODES = ("1", "L", "P", "LA", "RGB", "RGBA", "I;16")
PNGS = [encoded_images.INTERLACED, *(encoded_images.encode("PNG", mode) for mode in MODES)]
FEATURES = (
    features.Feature("n", "n", features.INT64),
    features.Feature("x", "x", features.FLOAT),
    features.Feature("b", "b", features.BYTES),
    features.Feature("image/encoded", features.ENCODED, features.BYTES),
)
VALUES = {"n": 7, "x": 0.5, "b": b"name", features.ENCODED: b"an image"}


class Case:
    """Random inputs of one case."""

    def __init__(self, seed: str, folder: pathlib.Path):
        self.random = random.Random(seed)
        self.folder = folder

    def bytes_of(self, valid: bytes) -> bytes:
        """Returns valid bytes, mostly changed."""
        data = bytearray(valid)
        for _ in range(self.random.choice((0, 1, 1, 2, 4, 16))):
            at, count = self.random.randrange(len(data) + 1), self.random.choice((1, 1, 2, 4, 64))
            new = self.random.choice((self.random.randbytes(count), b"\xff" * count, bytes(count), data[:count]))
            kind = self.random.randrange(5)
            if kind == 0:
                del data[at:]
            elif kind == 1:
                data[at:at] = new
            else:
                data[at : at + count] = new[: len(data) - at]
        return bytes(data)

    def image(self) -> bytes:
        return self.bytes_of(self.random.choice(self.random.choice((JPEGS, PHOTOS, PNGS))))

    def jpeg(self) -> bytes:
        return self.bytes_of(self.random.choice(JPEGS))

    def number(self, most: int) -> int:
        """Returns a number from 0 to `most`, or rarely one of NUMBERS."""
        return self.random.choice(NUMBERS) if self.random.random() < 0.05 else self.random.randint(0, most)

    def array(self, shape: tuple[int, ...], dtype: str, most: int) -> np.ndarray:
        """Returns an array, rarely of another shape or type."""
        if self.random.random() < 0.02:
            return np.zeros((self.random.randrange(4), *shape[1:]), self.random.choice(("int8", "int32", "float64")))
        found = np.random.default_rng(self.random.getrandbits(32)).integers(0, most + 1, shape).astype(dtype)
        if found.size and self.random.random() < 0.1:
            spoiled = FLOATS if dtype.startswith("float") else [n for n in NUMBERS if abs(n) < 1 << 31]
            found.flat[self.random.randrange(found.size)] = self.random.choice(spoiled)
        return found

    def maybe(self, value: Any) -> Any:
        return value if self.random.random() < 0.3 else None


def find_features(case: Case) -> None:
    record = b"".join(example.ExampleEncoder(FEATURES).encode(VALUES, VALUES[features.ENCODED]))
    records = [case.bytes_of(record) for _ in range(case.random.randrange(4))]
    n = len(records)
    columns = (*(case.array((n,), kind, 9) for kind in ("int64", "float32")), case.array((n, 2), "int64", 9))
    columns = (*columns, case.array((n, 1, 2), "int64", 9))
    _native.find_features(records, (b"n", b"x", b"b", b"image/encoded"), columns, case.array((n, 4), "bool", 1))


def read_records(case: Case) -> None:
    path = case.folder / "records"
    path.write_bytes(case.random.randbytes(200))
    starts, stops = case.array((5,), "int64", 250), case.array((5,), "int64", 250)
    with open(path, "rb") as file:
        _native.read_records(file.fileno(), starts, stops)


def decode(case: Case) -> None:
    count, views = case.random.randint(1, 4), case.random.randint(1, 2)
    shared = case.random.random() < 0.4
    images: list[Any] = [case.image() for _ in range(count)]
    if case.random.random() < 0.2:
        images[0] = bytes(6 * 8 * 3)
    if shared:
        images = [memoryview(images[0])] * count
    points = [_native.find_entry_points(bytes(each)) for each in images]
    side = case.random.choice((8, 23, 64, 140))
    parts = case.array((count, 4), "int32", side)
    frames = case.array((count, 4), "float64", 2)
    dtype = case.random.choice(("uint8", "uint16", "float32"))
    size = (case.random.randint(1, 40), case.random.randint(1, 40))
    values = None if dtype == "uint8" else case.array((3, 256), dtype, 255)
    out: Any = np.zeros((count, *size, 3), dtype)
    if count % views == 0 and case.random.random() < 0.3:
        out = [np.zeros((count // views, *size, 3), dtype) for _ in range(views)]
    _native.decode(
        images,
        parts,
        case.array((count,), "bool", 1),
        out,
        case.number(3),
        [case.bytes_of(each) if each and case.random.random() < 0.5 else each for each in points],
        case.maybe(frames),
        case.random.choice((1, 1, 2, 2, 0, 3)),
        case.random.random() < 0.5,
        case.random.random() < 0.5,
        values,
        case.maybe(case.array((count, 2), "int32", 140)),
        np.array([(6, 8, 3)] + [(0, 0, 0)] * (count - 1), np.int32) if len(images[0]) == 144 else None,
        case.maybe(case.array((count, 4), "int32", 20)),
        case.maybe(case.array((count, 5), "float32", 2)),
        case.maybe(case.array((count, 4), "int32", 20)),
        case.random.randbytes(case.random.choice((3, 3, 3, 2))),
        shared,
    )


def decode_whole(case: Case) -> None:
    _native.decode_whole(
        case.image(), case.random.choice((0, 1000, 10**6)), *case.random.choice(((), (17, 23), (-1, 5)))
    )


def find_entry_points(case: Case) -> None:
    _native.find_entry_points(case.bytes_of(case.random.choice(PHOTOS)))


def cut(case: Case) -> None:
    photo = case.random.choice(PHOTOS)
    points = _native.find_entry_points(photo)
    changed = case.bytes_of(photo) if case.random.random() < 0.5 else photo
    part = tuple(case.number(140) for _ in range(4))
    _native.cut(changed, case.bytes_of(points) if case.random.random() < 0.5 else points, part)  # type: ignore[arg-type]


def extend_crc(case: Case) -> None:
    _writer.extend_crc(case.number(1 << 31), case.bytes_of(case.random.choice(JPEGS)))


def put_record(case: Case) -> None:
    prefix, payload = (case.random.randbytes(case.random.randrange(100)) for _ in range(2))
    _writer.put_record(bytearray(case.random.randrange(300)), case.number(120), prefix, payload, case.number(1 << 31))


def put_jpeg(case: Case) -> None:
    encoder = example.ExampleEncoder(features.resolve_features({}, None, {}))
    data, path = case.jpeg(), case.folder / "image"
    path.write_bytes(data)
    values: dict[str, Any] = {"image/filename": b"a", "image/key": b"key"}
    assert encoder.layout is not None
    for _ in range(2):
        size = len(data) if case.random.random() < 0.9 else case.number(3000)
        buffer = bytearray(len(data) + case.random.randrange(600))
        _writer.put_jpeg(str(path), size, 0, buffer, case.number(9), 7, *encoder.layout, values)
        if values.keys() >= {"image/format"}:
            encoder.encode(values, data)


def read_file(case: Case) -> None:
    path = case.folder / "file"
    path.write_bytes(case.jpeg())
    _writer.read_file(str(path), case.number(2000), case.number(1))
    with open(path, "rb") as file:
        _writer.read_part(file.fileno(), case.number(2000), case.number(2000), case.number(1))


def check_jpeg(case: Case) -> None:
    data = case.jpeg()
    _writer.check_jpeg(data)
    _writer.find_marker(data, case.number(len(data)))


def encode_prefix(case: Case) -> None:
    encoder = example.ExampleEncoder(FEATURES)
    encoder.encode(VALUES, VALUES[features.ENCODED])
    layout: Any = encoder.layout
    values = {name: case.random.choice((value, b"other", 7, 0.5)) for name, value in VALUES.items()}
    _writer.encode_prefix(layout[0], values, layout[1], layout[2], case.number(100))


def resize_pixels(case: Case) -> None:
    channels, size = case.number(4), (case.random.randint(1, 40), case.random.randint(1, 40))
    target = (case.random.randint(1, 60), case.random.choice((1, 17, 40, case.number(40))))
    data = bytes(max(0, min(channels, 5)) * size[0] * size[1])
    _writer.resize_pixels(data, channels, size, target, case.number(3))


def resize_jpeg(case: Case) -> None:
    full, part = (case.number(100), case.number(100)), tuple(case.number(60) for _ in range(4))
    sampling = case.random.choice(((0, 0), (1, 1), (2, 1), (2, 2), (1, 0), ((1 << 31) - 1, -(1 << 31))))
    reduction = case.random.choice((1, 1, 2, 4, 8, 3))
    options = (case.random.random() < 0.5, case.random.random() < 0.2)
    _writer.resize_jpeg(case.jpeg(), full, part, reduction, case.number(3), case.number(100), sampling, *options)  # type: ignore[arg-type]


def turn_jpeg(case: Case) -> None:
    _writer.turn_jpeg(case.jpeg(), case.number(8), case.random.random() < 0.5)


FUNCTIONS = {
    each.__name__: each
    for each in (
        *(find_features, read_records, decode, decode_whole, find_entry_points, cut, extend_crc, put_record, put_jpeg),
        *(read_file, check_jpeg, encode_prefix, resize_pixels, resize_jpeg, turn_jpeg),
    )
}


def allocated_bytes() -> int:
    """Returns what malloc has given out, by AddressSanitizer; 0 without it."""
    gc.collect()
    library = ctypes.CDLL(None)
    if not hasattr(library, "__sanitizer_get_current_allocated_bytes"):
        return 0
    library.__sanitizer_get_current_allocated_bytes.restype = ctypes.c_size_t
    return int(library.__sanitizer_get_current_allocated_bytes())


def run(name: str, number: int, seed: str, folder: pathlib.Path) -> None:
    """Runs one case, in two threads at the same time: the code in C runs without Python's lock."""

    def call(thread: int) -> None:
        inner = folder / str(thread)
        inner.mkdir(exist_ok=True)
        with contextlib.suppress(*REFUSALS):
            FUNCTIONS[name](Case(f"{seed} {name} {number}", inner))

    other = threading.Thread(target=call, args=(1,))
    other.start()
    call(0)
    other.join()


def main(seconds: str, seed: str, file: str, *only: str) -> None:
    """Runs cases of all functions in turn for some seconds, or one case."""
    end, counts, before = time.monotonic() + float(seconds), dict.fromkeys(FUNCTIONS, 0), dict.fromkeys(FUNCTIONS, 0)
    with tempfile.TemporaryDirectory() as folder, open(file, "wb", buffering=0) as last:
        if only:
            run(only[0], int(only[1]), seed, pathlib.Path(folder))
            return
        for name in itertools.cycle(FUNCTIONS):
            if time.monotonic() > end and min(counts.values()):
                break
            start = allocated_bytes()
            for number in range(counts[name], counts[name] + CASES_AT_ONCE):
                os.pwrite(last.fileno(), f"{name} {number}".ljust(40).encode(), 0)
                run(name, number, seed, pathlib.Path(folder))
            counts[name] += CASES_AT_ONCE
            if counts[name] > WARM_CASES:
                before[name] += allocated_bytes() - start
            if before[name] > MAX_GROWN_BYTES:
                sys.exit(f"{name} keeps memory: {before[name]:,} bytes more after {counts[name] - WARM_CASES} cases")
    print("cases:", ", ".join(f"{name} {count}" for name, count in counts.items()))


if __name__ == "__main__":
    main(*sys.argv[1:])
