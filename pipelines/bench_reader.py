"""Measures how many images per second this host can feed: each stage of the reader alone, and the whole reader.

Each stage is timed on inputs that were prepared in memory, with the threads and the functions of the reader itself. So
the rates of the stages roughly add up to the rate of the whole: 1/whole = 1/read + 1/parse + ...
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

import imagebeam
from imagebeam import plural
from imagebeam.reader import batch_reader, python_calls, read_plan
from imagebeam.reader import options as options_lib

RESNET, VIT = "ResNet-50", "ViT-B/16"
_ROUNDS = 5
_POOL_PICTURES = 256  # images that are prepared for a stage
_POOL_BYTES = 64 << 20  # pixels of these images
_POOL_CHUNKS = 16  # chunks of records; each has 4 MB, or one record
_IMAGES_AT_ONCE = 64  # counted in one call of Python: a call takes 100 us, which would be measured otherwise
_REFERENCE_CHIP = "NVIDIA A100"  # named in the summary


class Figure(NamedTuple):
    """A published figure of how fast one chip trains a model at 224 px."""

    chip: str
    model: str
    images_per_second: float
    origin: str  # who measured
    source: str  # address of the publication


_MLPERF = "https://github.com/mlcommons/training_results_v"
_MLPERF_0_5 = f"{_MLPERF}0.5/blob/8ed3fca75906f9e701f71d27f65e736e25df5519/v0.5.0/google"
_MLPERF_1_0 = f"{_MLPERF}1.0/blob/8200377f425ae24b6ed6c2816b9273aab0996d43/Google/results"
_MLPERF_2_0 = f"{_MLPERF}2.0/blob/a6ae3e16d97bca208ee5510f3614fcd4fa923650/NVIDIA/results"
_MLPERF_3_0 = f"{_MLPERF}3.0/blob/9f08e30cbe2fed7cd12bea174729b3904124c7bc/NVIDIA/results"
_DEEP_LEARNING_EXAMPLES = (
    "https://github.com/NVIDIA/DeepLearningExamples/blob/291f0d02e815b148fa5c2b81bf07aa3552142895/"
    "PyTorch/Classification/ConvNets/resnet50v1.5/README.md"
)
_JAX_TOOLBOX = (
    "https://github.com/NVIDIA/JAX-Toolbox/blob/00eff412ec7bd23ab342743d8239551f020e8e1e/"
    "rosetta/rosetta/projects/vit/README.md"
)
_TIMM = (
    "https://github.com/huggingface/pytorch-image-models/blob/5e7d47ca105a59a39778102d3276291d6db5dd32/"
    "results/benchmark-train-amp-nhwc-pt112-cu113-rtx3090.csv"
)

# The rate of a run on several chips is divided by their number.
FIGURES = (
    # Four epochs of 1,281,167 images between two evaluations in 1,145.2 s, four chips.
    Figure(
        "TPU v2", RESNET, 1118, "MLPerf 0.5", f"{_MLPERF_0_5}/cloud_v2.8/resnet-tpuv2-8/results/tpu/resnet/result_4.txt"
    ),
    # Four epochs in 687.7 s, four chips.
    Figure(
        "TPU v3", RESNET, 1863, "MLPerf 0.5", f"{_MLPERF_0_5}/cloud_v3.8/resnet-tpuv3-8/results/tpu/resnet/result_0.txt"
    ),
    # Four epochs and an evaluation in 23.21 s, 16 hosts with four chips each.
    Figure("TPU v4", RESNET, 3450, "MLPerf 1.0", f"{_MLPERF_1_0}/tpu-v4-128-TF/resnet/result_0.txt"),
    # 1,200 images/s, mixed precision, one chip of 16 GB.
    Figure("NVIDIA V100", RESNET, 1200, "DeepLearningExamples", _DEEP_LEARNING_EXAMPLES),
    # 27,178 images/s, eight chips.
    Figure("NVIDIA A100", RESNET, 3397, "MLPerf 2.0", f"{_MLPERF_2_0}/dgxa100_ngc22.04_mxnet/resnet/result_0.txt"),
    # 56,068 images/s, eight chips.
    Figure("NVIDIA H100", RESNET, 7008, "MLPerf 3.0", f"{_MLPERF_3_0}/dgxh100_ngc23.04_mxnet/resnet/result_0.txt"),
    # 1,218.01 images/s, mixed precision, one chip.
    Figure("RTX 3090", RESNET, 1218, "timm", _TIMM),
    # 7,200.38 images/s, eight chips.
    Figure("NVIDIA A100", VIT, 900, "JAX-Toolbox", _JAX_TOOLBOX),
    # 11,669.52 images/s, eight chips.
    Figure("NVIDIA H100", VIT, 1459, "JAX-Toolbox", _JAX_TOOLBOX),
    # 392.99 images/s, mixed precision, one chip.
    Figure("RTX 3090", VIT, 393, "timm", _TIMM),
)


@dataclasses.dataclass(frozen=True)
class Speed:
    """Images per second in each of a few rounds."""

    rounds: tuple[float, ...]

    @property
    def images_per_second(self) -> float:
        """The median, so that a round in which the host did other work does not count."""
        return statistics.median(self.rounds)


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

    def fed(self, figure: Figure) -> float:
        """Returns how many such chips this host keeps busy."""
        return self.together.images_per_second / figure.images_per_second

    def to_json(self) -> dict[str, Any]:
        """Returns all fields and the derived figures, for programs."""
        speeds = {**self.stages, "together": self.together}
        measured = {
            name: {
                "images_per_second": round(speed.images_per_second, 1),
                "rounds": [round(r, 1) for r in speed.rounds],
            }
            for name, speed in speeds.items()
        }
        return {
            "dataset": self.dataset,
            "split": self.split,
            "num_examples": self.num_examples,
            "mean_record_bytes": self.mean_record_bytes,
            "batch_size": self.batch_size,
            "image_size": self.image_size,
            "dtype": self.dtype,
            "threads": self.threads,
            "decoder": self.decoder,
            "together": measured.pop("together"),
            "stages": measured,
            "slowest": self.slowest,
            "steps_per_second": round(self.together.images_per_second / self.batch_size, 2),
            "accelerators": [figure._asdict() | {"fed": round(self.fed(figure), 3)} for figure in FIGURES],
        }


def run_bench(
    dataset: imagebeam.ImageDataset,
    split: str,
    batch_size: int = 128,
    image_size: int = 224,
    dtype: str = "bfloat16",
    seconds: float = 5.0,
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
        seconds: duration of each of the six measurements, after a warm-up.
        threads: threads of the reader; by default one for each core that this process may use.

    Raises:
        ConfigError: if TensorFlow is not installed, or the options do not fit the split.
        ExampleError: if an image cannot be read or decoded.
    """
    asked: dict[str, Any] = {"image_size": image_size, "crop": "random", "dtype": dtype, "threads": threads}
    whole = dataset.as_tf(split, batch_size, **asked)  # first, because it checks all arguments
    import tensorflow as tf

    from imagebeam.reader import tf_pipeline

    options = imagebeam.ReadOptions(batch_size=batch_size, **asked)
    plan = dataset.records(split, options)
    is_native = tf_pipeline.decodes_natively(plan, options)
    # As in the reader: AutoGraph would translate all functions of the stages, which takes 1.5 s and changes nothing.
    make = tf.autograph.experimental.do_not_convert(_native_stages if is_native else _tensorflow_stages)
    stages: dict[str, _Stage] = make(plan, options)
    together = _measure(_Stage(whole, batch_size, warm_up=2), seconds)  # raises for an image that cannot be decoded
    return BenchResult(
        dataset=dataset.directory,
        split=split,
        num_examples=dataset.num_examples(split),
        mean_record_bytes=plan.mean_record_bytes,
        batch_size=batch_size,
        image_size=image_size,
        dtype=dtype,
        threads=tf_pipeline.num_threads(options),
        decoder=(batch_reader.library() or "") if is_native else "TensorFlow",
        stages={name: _measure(_count(stage), seconds) for name, stage in stages.items()},
        together=together,
    )


class _Stage(NamedTuple):
    """A dataset to iterate."""

    elements: Any  # a tf.data.Dataset
    images: int  # in one element
    warm_up: int  # number of elements after which its inputs are in memory


def _native_stages(plan: read_plan.ReadPlan, options: options_lib.ReadOptions) -> dict[str, _Stage]:
    """Returns the stages of the reader with the decoder in C in their order, each over inputs in memory."""
    import tensorflow as tf

    from imagebeam.reader import tf_decode, tf_pipeline

    assert options.batch_size is not None
    size = options.batch_size
    values = tf_decode.make_values(options, None)
    reader = batch_reader.BatchReader(plan, options, tf_pipeline.num_threads(options), values)
    num_chunks = max(1, min(_POOL_PICTURES // size, _POOL_CHUNKS))
    chunks = [reader.records.read(number * size, (number + 1) * size) for number in range(num_chunks)]
    parsed = [reader.parse(chunk) for chunk in chunks]
    batches = [reader.decode(each)[0] for each in parsed]
    images = tf.data.Dataset.from_tensors(tf.constant(batches[0])).repeat()

    def run(step: Callable[[int], np.ndarray], dtype: tf.DType = tf.uint8) -> tf.data.Dataset:
        """Returns a dataset of what `step` returns, called with ascending numbers."""

        def call(number: np.ndarray) -> np.ndarray:
            with python_calls.calls:
                return step(int(number))

        numbers = tf.data.Dataset.range(1 << 62)
        return numbers.map(lambda number: tf.numpy_function(call, [number], dtype, False), num_parallel_calls=2)

    def fetch(number: int) -> np.ndarray:
        return np.array([len(reader.records.read(number * size, (number + 1) * size).contents) % 256], np.uint8)

    def parse(number: int) -> np.ndarray:
        return np.array([len(reader.parse(chunks[number % num_chunks]).kept) % 256], np.uint8)

    def decode(number: int) -> np.ndarray:
        return np.array([len(reader.decode(parsed[number % num_chunks])[0]) % 256], np.uint8)

    def hand_over(number: int) -> np.ndarray:
        return batches[number % num_chunks]

    stages = {
        "read": run(fetch),
        "parse": run(parse),
        "decode": run(decode),  # includes the flip, the cast and the place in the batch
        "augment": images,  # so nothing is left to do here
        "batch": run(hand_over, tf.as_dtype(options.dtype)),
    }
    tf_options = tf_pipeline.tf_options(options, tf_pipeline.num_threads(options))
    return {name: _Stage(each.with_options(tf_options), size, warm_up=1) for name, each in stages.items()}


def _tensorflow_stages(plan: read_plan.ReadPlan, options: options_lib.ReadOptions) -> dict[str, _Stage]:
    """Returns the stages of the reader with TensorFlow's decoders, each over inputs in memory after its warm-up."""
    import tensorflow as tf

    from imagebeam.reader import crops, tf_decode, tf_parse, tf_pipeline

    assert options.batch_size is not None
    threads = tf_pipeline.num_threads(options)
    reader = tf_parse.ChunkReader(plan, options)
    num_chunks = max(1, min(_POOL_PICTURES // plan.chunk_records, _POOL_CHUNKS))
    num_encoded = num_chunks * plan.chunk_records
    num_images = max(1, min(_POOL_PICTURES, _POOL_BYTES // (options.size[0] * options.size[1] * 3)))
    reduction = tf_decode.greatest_reduction(plan.longest_side, options)
    without_flip = dataclasses.replace(options, flip=False)
    decode = tf_decode.make_decoder(without_flip, plan.formats == {"jpeg"}, reduction, plan.is_raw)
    cast = tf_decode.make_caster(options, None)

    def read(first: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        dtypes = [tf.string, tf.int64, tf.float32, *([tf.string] if plan.lists else [])]
        serialized, _, uniforms, *_ = tf.numpy_function(reader.read, [first, first + plan.chunk_records], dtypes, False)
        return tf.ensure_shape(serialized, [None]), tf.ensure_shape(uniforms, [None, crops.NUM_UNIFORMS])

    def parse(serialized: tf.Tensor, uniforms: tf.Tensor) -> dict[str, tf.Tensor]:
        chunk = tf_parse.parse(serialized, uniforms, plan, without_flip)
        return {name: value for name, value in chunk.items() if name in ("encoded", "shape", "part")}

    def augment(image: tf.Tensor) -> tf.Tensor:
        return cast(tf.cond(tf.random.uniform([]) < 0.5, lambda: tf.reverse(image, [1]), lambda: image))

    def run(function: Any, inputs: tf.data.Dataset, parallel: int = threads) -> tf.data.Dataset:
        return inputs.map(function, num_parallel_calls=parallel, deterministic=options.deterministic)

    def keep(elements: tf.data.Dataset, count: int) -> tf.data.Dataset:
        return elements.take(count).cache().repeat()

    chunks = run(read, tf.data.Dataset.range(0, 1 << 62, plan.chunk_records), max(2, threads))  # (bytes [n], [n, k])
    parsed = run(parse, keep(chunks, num_chunks))  # {"encoded": bytes [n], "part": [n, 4]}
    decoded = run(decode, keep(parsed.unbatch(), num_encoded)).ignore_errors()  # uint8 [height, width, 3]
    images = keep(decoded, num_images)
    augmented = run(augment, images)  # dtype [height, width, 3]
    batches = images.batch(options.batch_size, drop_remainder=True)  # uint8 [batch, height, width, 3]

    batched_pool = -(-num_images // options.batch_size)
    stages = {
        "read": _Stage(chunks, plan.chunk_records, warm_up=0),
        "parse": _Stage(parsed, plan.chunk_records, warm_up=num_chunks),
        "decode": _Stage(decoded, 1, warm_up=num_encoded),
        "augment": _Stage(augmented, 1, warm_up=num_images),
        "batch": _Stage(batches, options.batch_size, warm_up=batched_pool),
    }
    tf_options = tf_pipeline.tf_options(options, threads)
    return {name: each._replace(elements=each.elements.with_options(tf_options)) for name, each in stages.items()}


def _count(stage: _Stage) -> _Stage:
    """Returns a stage that does the same work and yields numbers: images would be copied on their way to Python."""
    import tensorflow as tf

    def touch(*element: Any) -> tf.Tensor:  # every part, or TensorFlow would drop what nobody uses
        firsts = [tf.reshape(part, [-1])[0] for part in tf.nest.flatten(element, expand_composites=True)]
        numbers = [tf.strings.length(first) if first.dtype == tf.string else first for first in firsts]
        return tf.add_n([tf.cast(number, tf.float32) for number in numbers])

    together = -(-_IMAGES_AT_ONCE // stage.images)
    counted = stage.elements.map(touch).batch(together).prefetch(2)
    return _Stage(counted, stage.images * together, warm_up=1 + -(-stage.warm_up // together))


def _measure(stage: _Stage, seconds: float) -> Speed:
    """Measures the speed of a stage after its warm-up."""
    from imagebeam.reader import numpy_iterator

    elements = numpy_iterator.NumpyIterator(stage.elements)
    for _ in range(stage.warm_up):
        next(elements)
    _time_round(elements, stage.images, seconds / _ROUNDS)  # not counted: it warms up threads and caches
    return Speed(tuple(_time_round(elements, stage.images, seconds / _ROUNDS) for _ in range(_ROUNDS)))


def _time_round(elements: Iterator[Any], images: int, seconds: float) -> float:
    """Returns the images per second between the arrival of two elements at least `seconds` apart."""
    start = now = time.perf_counter()
    count = 0
    while now - start < seconds or not count:
        next(elements)
        count += images
        now = time.perf_counter()
    return count / (now - start)


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
    rows.append(("feeds", "of chips that train at 224 px, each as published (--json names the pages)"))
    for figure in FIGURES:
        speed_of_chip = f"{figure.images_per_second:>6,.0f} images/s"
        fed = f"{_significant(result.fed(figure)):>6}"
        rows.append((f"  {figure.chip}", f"{fed}  {figure.model:<9}  {speed_of_chip} ({figure.origin})"))
    return rows


def summarize(result: BenchResult) -> str:
    """Returns the measurement as a sentence."""
    parts = [_in_words(result.fed(figure), figure) for figure in FIGURES if figure.chip == _REFERENCE_CHIP]
    rate = result.together.images_per_second
    return f"this host feeds {rate:,.0f} images/s: {', '.join(parts)}; the slowest stage is {result.slowest}"


def _in_words(fed: float, figure: Figure) -> str:
    chip = figure.chip.removeprefix("NVIDIA ")
    number = _significant(fed)
    return f"{number} of one {chip} in {figure.model}" if fed < 1 else f"{number} {chip} in {figure.model}"


def _significant(number: float) -> str:
    """Returns a number with at least two significant digits: `0.086`, `0.43`, `1.6`, `17`, `1,200`."""
    if number < 0.0995:
        return f"{number:#.2g}"
    return f"{number:,.{2 if number < 0.995 else 1 if number < 9.95 else 0}f}"
