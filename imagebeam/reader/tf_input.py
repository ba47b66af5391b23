"""The tf.data pipeline: read in order -> parse -> decode the wanted part -> batch -> check that nothing is lost.

Why it is built so, with the measurements: docs/reader.md.
"""

from __future__ import annotations

import atexit
import dataclasses
import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from imagebeam import errors, features
from imagebeam.reader import fetch, pixels
from imagebeam.reader import options as options_lib
from imagebeam.reader import order as order_lib

_LOGGER = logging.getLogger(__name__)
_CHUNK_BYTES = 4 << 20  # of records that one call reads
_MAX_CHUNK_RECORDS = 64
_UNENDING = 1 << 62
_TF_TYPES = {features.BYTES: tf.string, features.INT64: tf.int64, features.FLOAT: tf.float32}
_EMPTY = {features.BYTES: "", features.INT64: 0, features.FLOAT: 0.0}
_CHECK_SEC, _QUIET_CHECKS, _PATIENCE_SEC = 0.005, 6, 5.0
_UNDECODABLE = "the image cannot be decoded; imagebeam verify --decode finds all such"
_MIN_SKIPPED = 10  # examples that may be skipped before a fraction of them means anything

Batch = dict[str, tf.Tensor]


@dataclasses.dataclass(frozen=True, eq=False)
class Records:
    """What the pipeline reads: records in an order, and what it must know of them.

    Attributes:
        fetcher: of the split.
        order: which record stands at which position.
        chosen: the records of the split that the order counts; None for all.
        by_source: the features of every example, by what they are.
        extra: further features that are wanted in the batches.
        formats: of the images in the split, empty where it is not known.
        longest_side: of its pictures, in pixels; 0 where it is not known.
        mean_record_bytes: on average.
        label_base: id of the first class in the records.
        num_batches: that every process makes; None leaves it to each.
    """

    fetcher: fetch.RecordFetcher
    order: order_lib.Order
    chosen: np.ndarray | None
    by_source: Mapping[str, features.Feature]
    extra: Sequence[features.Feature]
    formats: frozenset[str]
    longest_side: int
    mean_record_bytes: int
    label_base: int
    num_batches: int | None

    @property
    def chunk(self) -> int:
        """Records that one call reads."""
        return max(1, min(_MAX_CHUNK_RECORDS, _CHUNK_BYTES // self.mean_record_bytes))

    def locate(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Records of the split, and epochs, of ascending positions."""
        records, epochs = self.order.locate(positions)
        return (records if self.chosen is None else self.chosen[records]), epochs


class _Calls:
    """Calls from TensorFlow's threads into Python. None may be under way, or begin, while the interpreter ends.

    Their threads would die there, and the interpreter would wait forever for an iterator that waits for them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begun = self._ended = 0
        self.are_over = False  # pipelines end at their next call
        atexit.register(self._end)

    def __enter__(self) -> None:
        with self._lock:
            self._begun += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._ended += 1

    def _end(self) -> None:
        self.are_over = True
        seen, quiet, patience = -1, 0, time.monotonic() + _PATIENCE_SEC
        while quiet < _QUIET_CHECKS and time.monotonic() < patience:
            time.sleep(_CHECK_SEC)
            quiet = quiet + 1 if seen == self._begun == self._ended else 0
            seen = self._begun


_calls = _Calls()


class Reader:
    """What the graph calls in Python: reads records, and says which were lost."""

    def __init__(self, records: Records, options: options_lib.ReadOptions):
        self._records = records
        self._options = options
        self._key = order_lib.make_key("pixels", options.seed)
        self._lock = threading.Lock()
        self._troubles: dict[int, fetch.Trouble] = {}  # by record, of those that could not be read
        self._failure: errors.ImagebeamError | None = None
        self._skipped: set[int] = set()  # positions
        self._told: set[str] = set()  # shards

    def read(self, first: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Records at positions `first` to `end`: bytes [n], their positions and random numbers."""
        with _calls:
            if _calls.are_over:
                end = first  # no records: the end of the pipeline
            try:
                return self._read(first, end)
            except errors.ImagebeamError as e:  # of a whole shard: told where its records are missed
                self._failure = self._failure or e
                raise

    def _read(self, first: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        positions = np.arange(int(first), int(end), dtype=np.int64)
        records, epochs = self._records.locate(positions)
        contents = np.empty(len(positions), object)
        for index, content in enumerate(self._records.fetcher.fetch(records)):
            if isinstance(content, fetch.Trouble):  # what cannot be read cannot be decoded either, and is told there
                with self._lock:
                    self._troubles[int(records[index])] = content
                content = b""
            contents[index] = content
        return contents, positions, order_lib.uniforms(records, epochs, self._key, pixels.NUM_UNIFORMS)

    def report_lost(self, expected: np.ndarray, found: np.ndarray, following: np.ndarray) -> np.ndarray:
        """Deals with positions from `expected` to `following` that are not among those `found`."""
        with _calls:
            if self._failure is not None:
                raise self._failure
            if not _calls.are_over:
                self._report_lost(expected, found, following)
            return following

    def _report_lost(self, expected: np.ndarray, found: np.ndarray, following: np.ndarray) -> None:
        lost = np.setdiff1d(np.arange(int(expected), int(following), dtype=np.int64), found)
        records, _ = self._records.locate(lost)
        for position, record in zip(lost.tolist(), records.tolist()):
            trouble = self._troubles.get(record) or self._records.fetcher.trouble(record, _UNDECODABLE)
            if self._options.on_error == "raise":
                raise errors.ExampleError(str(trouble))
            self._skip(position, trouble)

    def _skip(self, position: int, trouble: fetch.Trouble) -> None:
        with self._lock:
            self._skipped.add(position)
            num_skipped = len(self._skipped)
            is_first = trouble.shard not in self._told
            self._told.add(trouble.shard)
        if is_first:
            _LOGGER.warning("skipped %s (told once for each shard)", trouble)
        if num_skipped > _MIN_SKIPPED and num_skipped > self._options.max_error_fraction * (position + 1):
            raise errors.ExampleError(
                f"{num_skipped:,} of {position + 1:,} examples could not be read or decoded, more than "
                f"max_error_fraction={self._options.max_error_fraction}; the last: {trouble}"
            )


def build(records: Records, options: options_lib.ReadOptions, mean_and_std: Any = None) -> tf.data.Dataset:
    """The dataset of examples or batches that `options` describe."""
    reader = Reader(records, options)
    threads = options.threads or num_cores()
    end = _UNENDING if options.num_epochs is None else records.order.num_positions(options.num_epochs)
    # A state of GlobalOrder is in the order itself; other orders count on from it.
    begin = 0
    if options.state is not None and options.shuffle != "global":
        begin = options.state.epoch * records.order.epoch_size + options.state.position
    chunks = tf.data.Dataset.range(begin, end, records.chunk)
    dataset = chunks.map(
        lambda first: _read_and_parse(reader, records, options, first, tf.minimum(first + records.chunk, end)),
        num_parallel_calls=max(2, threads),
        deterministic=options.deterministic,
    )
    dataset = dataset.take_while(lambda chunk: tf.size(chunk["position"]) > 0).unbatch()
    only_jpeg = records.formats == {"jpeg"}
    greatest = greatest_reduction(records.longest_side, options)
    decode = pixels.make_decoder(options, only_jpeg, greatest)
    dataset = dataset.map(
        lambda example: _decode(decode, example), num_parallel_calls=threads, deterministic=options.deterministic
    )
    if options.deterministic:  # what is lost leaves a hole in the positions, which is found when they are batched
        dataset = dataset.ignore_errors()
    if options.batch_size is None:
        dataset = _check_positions(dataset.batch(1), reader, begin, end, options).unbatch()
    else:
        dataset = _check_positions(dataset.batch(options.batch_size), reader, begin, end, options)
        dataset = _even_out(dataset, records, options)
    cast = pixels.make_caster(options, mean_and_std)
    dataset = dataset.map(lambda batch: _finish(batch, records, options, cast), num_parallel_calls=1)
    return dataset.prefetch(2).with_options(tf_options(options, threads))


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def tf_options(options: options_lib.ReadOptions, threads: int) -> tf.data.Options:
    """Those of the whole pipeline: threads of its own, and none inside of operations."""
    given = tf.data.Options()
    given.deterministic = options.deterministic
    given.threading.private_threadpool_size = threads
    given.threading.max_intra_op_parallelism = 1
    given.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return given


def greatest_reduction(longest_side: int, options: options_lib.ReadOptions) -> int:
    """The most that a picture of a split may be scaled down by while it is decoded: one of pixels.REDUCTIONS."""
    if options.image_size is None:
        return 1
    allowed = [each for each in pixels.REDUCTIONS if longest_side == 0 or longest_side >= each * min(options.size)]
    return max(allowed, default=1)


def _read_and_parse(
    reader: Reader, records: Records, options: options_lib.ReadOptions, first: tf.Tensor, end: tf.Tensor
) -> Batch:
    """A chunk of examples, encoded: "encoded", "part", "flip", "position", "label" and the extra features."""
    serialized, positions, uniforms = tf.numpy_function(
        reader.read, [first, end], [tf.string, tf.int64, tf.float32], stateful=False
    )
    serialized.set_shape([None])
    positions.set_shape([None])
    uniforms.set_shape([None, pixels.NUM_UNIFORMS])
    wanted = [records.by_source[features.ENCODED], *records.extra]
    stored = [records.by_source.get("image/height"), records.by_source.get("image/width")]
    label = records.by_source.get(features.LABEL)
    wanted += [feature for feature in (*stored, label) if feature is not None]
    spec = {f.key: tf.io.FixedLenFeature([], _TF_TYPES[f.kind], _EMPTY[f.kind]) for f in wanted}
    parsed = tf.io.parse_example(serialized, spec)
    encoded = parsed[records.by_source[features.ENCODED].key]
    chunk = {"encoded": encoded, "position": positions}
    if options.flips:
        chunk["flip"] = uniforms[:, -1] < 0.5
    if options.crop is not None:
        height, width = dimensions(parsed, stored, encoded)
        chunk["part"] = pixels.windows(height, width, uniforms, options)
    if label is not None:
        chunk["label"] = _label(parsed[label.key], label.kind, records, options)
    return chunk | {f"features/{feature.key}": parsed[feature.key] for feature in records.extra}


def dimensions(
    parsed: Batch, stored: Sequence[features.Feature | None], encoded: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Heights and widths, int32 [n]: as stored, or from a pass over the headers where the config dropped them."""
    height, width = stored
    if height is not None and width is not None:
        return tf.cast(parsed[height.key], tf.int32), tf.cast(parsed[width.key], tf.int32)

    def shape_of(image: tf.Tensor) -> tf.Tensor:
        return tf.cond(
            tf.strings.substr(image, 0, 3) == b"\xff\xd8\xff",
            lambda: tf.image.extract_jpeg_shape(image),
            lambda: tf.cond(
                tf.strings.length(image) > 0,
                lambda: tf.shape(tf.io.decode_image(image, 3, expand_animations=False)),
                lambda: tf.constant([1, 1, 3]),
            ),
        )

    shapes = tf.map_fn(shape_of, encoded, fn_output_signature=tf.TensorSpec([3], tf.int32))
    return shapes[:, 0], shapes[:, 1]


def _label(values: tf.Tensor, kind: str, records: Records, options: options_lib.ReadOptions) -> tf.Tensor:
    if kind == features.FLOAT:
        return values
    return tf.cast(values + (options.label_base - records.label_base), tf.int32)


def _decode(decode: Any, example: Batch) -> Batch:
    kept = {name: value for name, value in example.items() if name not in ("encoded", "part", "flip")}
    return {"image": decode(example)} | kept


def _check_positions(
    dataset: tf.data.Dataset, reader: Reader, begin: int, end: int, options: options_lib.ReadOptions
) -> tf.data.Dataset:
    """Finds holes in the positions of batches that come in order, and after the last one."""
    if not options.deterministic:
        return dataset
    if end != _UNENDING:
        beyond = _blank(dataset.element_spec, 1) | {"position": tf.constant([end], tf.int64)}
        dataset = dataset.concatenate(tf.data.Dataset.from_tensors(beyond))

    def check(expected: tf.Tensor, batch: Batch) -> tuple[tf.Tensor, Batch]:
        found = batch["position"]
        following = found[-1] + 1
        is_whole = (found[0] == expected) & (following - expected == tf.size(found, tf.int64))

        def report() -> tf.Tensor:
            told = tf.numpy_function(reader.report_lost, [expected, found, following], tf.int64, stateful=False)
            return tf.ensure_shape(told, [])

        return tf.cond(is_whole, lambda: following, report), batch

    dataset = dataset.scan(tf.constant(begin, tf.int64), check)
    return dataset.take_while(lambda batch: batch["position"][0] < end) if end != _UNENDING else dataset


def _even_out(dataset: tf.data.Dataset, records: Records, options: options_lib.ReadOptions) -> tf.data.Dataset:
    """Batches of one size, and as many of them in every process, where the options say so."""
    size = options.batch_size
    if options.drops_remainder:
        dataset = dataset.filter(lambda batch: tf.size(batch["position"]) == size)
    if options.pad:
        dataset = dataset.map(lambda batch: _pad(batch, size))
        blank = _blank(dataset.element_spec, size)
        dataset = dataset.concatenate(tf.data.Dataset.from_tensors(blank).repeat())
    if options.drops_remainder or options.pad:
        dataset = dataset.map(lambda batch: {name: _with_size(each, size) for name, each in batch.items()})
    return dataset if records.num_batches is None else dataset.take(records.num_batches)


def _blank(spec: Any, size: int | None) -> Batch:
    """A batch of nothing."""
    return {name: tf.zeros([size, *(side or 1 for side in each.shape[1:])], each.dtype) for name, each in spec.items()}


def _pad(batch: Batch, size: int | None) -> Batch:
    count = tf.shape(batch["position"])[0]
    padded = {
        name: tf.pad(each, [[0, size - count]] + [[0, 0]] * (len(each.shape) - 1), constant_values=_zero(each.dtype))
        for name, each in batch.items()
    }
    return padded | {"mask": tf.range(size) < count}


def _zero(dtype: tf.DType) -> Any:
    return "" if dtype == tf.string else tf.zeros([], dtype)


def _with_size(value: tf.Tensor, size: int | None) -> tf.Tensor:
    return tf.ensure_shape(value, [size, *value.shape[1:]])


def _finish(batch: Batch, records: Records, options: options_lib.ReadOptions, cast: Any) -> Any:
    image = cast(batch["image"])
    if options.supervised:
        return image, batch["label"]
    others = {name: value for name, value in batch.items() if name not in ("image", "position")}
    return {"image": image} | {name.removeprefix("features/"): value for name, value in others.items()}


class NumpyIterator(Iterator[Any]):
    """The elements of a dataset as NumPy arrays; an error of this package comes as itself, not as TensorFlow's."""

    def __init__(self, dataset: tf.data.Dataset):
        self._elements = dataset.as_numpy_iterator()

    def __next__(self) -> Any:
        try:
            return next(self._elements)
        except tf.errors.OpError as e:
            raise translate(e) from e


def translate(error: tf.errors.OpError) -> Exception:
    """The error of this package that TensorFlow wrapped, or `error`."""
    for kind in (errors.ExampleError, errors.ShardError, errors.ConfigError):
        _, found, told = str(error).partition(f"{kind.__name__}: ")
        if found:
            return kind(told.splitlines()[0])
    return error
