"""Measures how many images per second this host can feed: the whole reader, and each of its stages alone.

The rate of a stage follows from its CPU time for an image, on as many cores as the reader has threads. So the rates of
the stages roughly add up to the rate of the whole: 1/whole = 1/read + 1/parse + 1/decode.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import imagebeam
from imagebeam import plural
from imagebeam.reader import batch_reader, image_decoder

_ROUNDS = 5
_POOL_IMAGES = 256  # images that are prepared for a stage


@dataclasses.dataclass(frozen=True)
class Speed:
    """Images per second in each of a few rounds."""

    rounds: tuple[float, ...]

    @property
    def images_per_second(self) -> float:
        """The median, so that a round in which the host did other work does not count."""
        return statistics.median(self.rounds)

    def to_json(self) -> dict[str, Any]:
        rounds = [round(rate, 1) for rate in self.rounds]
        return {"images_per_second": round(self.images_per_second, 1), "rounds": rounds}


@dataclasses.dataclass(frozen=True)
class BenchResult:
    """The rates of the stages and of the whole reader, and what was measured."""

    dataset: str
    split: str
    num_examples: int
    mean_record_bytes: int
    batch_size: int
    image_size: int
    dtype: str
    threads: int
    decoder: str  # the library
    stages: Mapping[str, Speed]  # in the order of the reader
    together: Speed  # the reader as a trainer runs it

    @property
    def slowest(self) -> str:
        """The stage to speed up first."""
        return min(self.stages, key=lambda name: self.stages[name].images_per_second)

    def to_json(self) -> dict[str, Any]:
        """Returns all fields and the derived figures, for programs."""
        return {
            **vars(self),
            "together": self.together.to_json(),
            "stages": {name: speed.to_json() for name, speed in self.stages.items()},
            "slowest": self.slowest,
            "steps_per_second": round(self.together.images_per_second / self.batch_size, 2),
        }


def run_bench(
    dataset: imagebeam.ImageDataset,
    split: str,
    *,
    batch_size: int,
    image_size: int,
    dtype: str,
    seconds: float,
    threads: int | None = None,
) -> BenchResult:
    """Measures the whole reader, then its stages one after the other.

    Shards in the kernel's page cache are read from memory, as in the later epochs of a training.

    Args:
        dataset: the dataset.
        split: "train", or a part such as "train[:10%]"; a small one is read repeatedly.
        batch_size: number of images in a batch.
        image_size: side of the square images, in pixels.
        dtype: type of the pixels in the batches.
        seconds: duration of each of the four measurements, after a warm-up.
        threads: threads of the reader; by default one for each core that this process may use.

    Raises:
        ConfigError: if the options do not fit the split.
        ExampleError: if an image cannot be read or decoded.
    """
    asked: dict[str, Any] = {"image_size": image_size, "dtype": dtype, "threads": threads}
    asked |= {"crop": "random", "shuffle": "stream"}
    batches = dataset.as_numpy(split, batch_size, **asked)  # first, because it checks all arguments
    together = _measure(lambda: next(batches), batch_size, seconds, time.perf_counter)
    options = imagebeam.ReadOptions(batch_size=batch_size, **asked)
    plan = dataset.records(split, options)
    reader = batch_reader.BatchReader(plan, options)
    num_threads = batch_reader.num_threads(options)
    return BenchResult(
        dataset=dataset.directory,
        split=split,
        num_examples=dataset.num_examples(split),
        mean_record_bytes=plan.mean_record_bytes,
        batch_size=batch_size,
        image_size=image_size,
        dtype=dtype,
        threads=num_threads,
        decoder=(image_decoder.library() or "") if reader.decoder.is_native else "Pillow",
        stages={
            name: _measure(stage, batch_size * num_threads, seconds, time.process_time)
            for name, stage in _stages(reader, batch_size).items()
        },
        together=together,
    )


_Stage = Callable[[], object]  # does the work for one batch


def _stages(reader: batch_reader.BatchReader, size: int) -> dict[str, _Stage]:
    """Returns the stages of the reader in their order."""
    starts = itertools.count(0, size)

    def read() -> Any:
        first = next(starts)
        return reader.read_chunk(first, first + size)

    chunks = [read() for _ in range(max(1, _POOL_IMAGES // size))]
    chunk, parsed = itertools.cycle(chunks), itertools.cycle([reader.parse(each) for each in chunks])
    return {
        "read": read,
        "parse": lambda: reader.parse(next(chunk)),
        "decode": lambda: reader.decoder.decode(next(parsed).images),  # with the crop, the resize and the flip
    }


def _measure(stage: _Stage, images: float, seconds: float, clock: Callable[[], float]) -> Speed:
    """Returns the images per second by `clock` of calls that make `images` each; the first round warms up."""
    rates = []
    for _ in range(_ROUNDS + 1):
        begin, start, count = time.perf_counter(), clock(), 0
        while time.perf_counter() - begin < seconds / _ROUNDS or not count or clock() == start:
            stage()
            count += 1
        rates.append(count * images / (clock() - start))
    return Speed(tuple(rates[1:]))


def bench_rows(result: BenchResult) -> list[tuple[str, str]]:
    """Returns the measurement as rows of a table."""
    size = f"{result.image_size} x {result.image_size} px"
    record = plural.format_bytes(result.mean_record_bytes)
    images, threads = plural.count(result.num_examples, "image"), plural.count(result.threads, "thread")
    rows = [
        ("dataset", f"{result.dataset}, {result.split}: {images}, {record} each"),
        ("reader", f"{threads}, batches of {result.batch_size}, {size}, {result.dtype}, decoded by {result.decoder}"),
    ]
    work = sum(1 / speed.images_per_second for speed in result.stages.values())
    for name, speed in result.stages.items():
        share = 1 / speed.images_per_second / work
        rows.append((f"  {name}", f"{speed.images_per_second:>9,.0f} images/s  {share:>4.0%} of the work"))
    rate = result.together.images_per_second
    per_second = plural.format_bytes(rate * result.mean_record_bytes)
    steps = f"{rate / result.batch_size:,.1f} steps/s of {result.batch_size}"
    rows.append(("together", f"{rate:>9,.0f} images/s  {steps}, {per_second}/s of records"))
    return rows


def summarize(result: BenchResult) -> str:
    """Returns the measurement as a sentence."""
    rate = result.together.images_per_second
    return f"this host feeds {rate:,.0f} images/s; the slowest stage is {result.slowest}"
