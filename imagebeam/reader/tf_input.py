"""The tf.data pipeline: read in order -> parse -> decode the wanted part -> batch -> check that nothing is lost.

Where the decoder in C can do it, the first four are one call for each batch. Why it is built so, with the measurements:
docs/reader.md.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from imagebeam import errors, features
from imagebeam.reader import (
    bare_pixels,
    batch_reader,
    crops,
    gaps,
    list_features,
    record_bytes,
    record_reader,
    tf_decode,
)
from imagebeam.reader import options as options_lib

_UNENDING = 1 << 62
_FEW_CALLS, _MANY_CALLS = 2, 8  # under way at once, to a local disk and to an address far away
_TF_TYPES = {features.BYTES: tf.string, features.INT64: tf.int64, features.FLOAT: tf.float32}
_EMPTY = {features.BYTES: "", features.INT64: 0, features.FLOAT: 0.0}
_UNDECODABLE = "the image cannot be decoded; imagebeam verify --decode finds all such"

Batch = dict[str, tf.Tensor]


class ChunkReader:
    """What the graph calls in Python where TensorFlow decodes: reads records, and says which were lost."""

    def __init__(self, records: record_reader.Records, options: options_lib.ReadOptions):
        self._reader = record_reader.RecordReader(records, options)
        self._records = records
        self._lock = threading.Lock()
        self._troubles: dict[int, record_bytes.Trouble] = {}  # by record, of those that could not be read
        self._failure: errors.ImagebeamError | None = None

    @property
    def spare(self) -> int:
        """Positions after the last one in which replacements may be looked for."""
        return self._reader.spare

    def read(self, first: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, ...]:
        """Records at positions `first` to `end`: bytes [n], their positions, random numbers, and lists if asked for."""
        with record_reader.calls:
            if record_reader.calls.are_over:
                end = first  # no records: the end of the pipeline
            try:
                chunk = self._reader.read(int(first), int(end))
            except errors.ImagebeamError as e:  # of a whole shard: told where its records are missed
                self._failure = self._failure or e
                raise
            contents = np.empty(len(chunk.contents), object)
            for index, content in enumerate(chunk.contents):
                if isinstance(content, record_bytes.Trouble):  # cannot be decoded either, and is told there
                    with self._lock:
                        self._troubles[int(chunk.records[index])] = content
                    content = b""
                contents[index] = content
            if not self._records.lists:
                return contents, chunk.positions, chunk.uniforms
            return contents, chunk.positions, chunk.uniforms, self._pack_lists(contents)

    def _pack_lists(self, contents: np.ndarray) -> np.ndarray:
        packed = np.full(len(contents), b"", object)
        for index, content in enumerate(contents):
            with contextlib.suppress(ValueError):  # of what is no Example, and cannot be parsed in the graph either
                packed[index] = self._reader.pack_lists(content)
        return packed

    def report_lost(
        self, expected: np.ndarray, found: np.ndarray, following: np.ndarray, is_end: np.ndarray
    ) -> np.ndarray:
        """Deals with positions from `expected` to `following` that are not among those `found`.

        At the end there is only what stands for it, which replaces no example.
        """
        with record_reader.calls:
            if self._failure is not None:
                raise self._failure
            if not record_reader.calls.are_over:
                lost = np.setdiff1d(np.arange(int(expected), int(following), dtype=np.int64), found)
                records, _ = self._records.locate(lost)
                for position, record in zip(lost.tolist(), records.tolist()):
                    trouble = self._troubles.get(record) or self._reader.trouble(record, _UNDECODABLE)
                    self._reader.lose(position, trouble)
                if is_end and len(lost) >= self.spare > 0:
                    raise self._reader.no_replacement(int(expected))
            return following


def build(
    records: record_reader.Records,
    options: options_lib.ReadOptions,
    mean_and_std: Any = None,
    keep_empty: bool = False,
) -> tf.data.Dataset:
    """The dataset of examples or batches that `options` describe.

    Args:
        records: that are read.
        options: of the reader.
        mean_and_std: of the pixels, to normalise them with.
        keep_empty: whether a batch of which every example was skipped is kept, so that batches can be counted.

    Raises:
        ConfigError: if they ask for the decoder in C, and it cannot read these records so.
    """
    threads = options.threads or num_cores()
    schedule = records.schedule
    make = _batches_of_native if decodes_natively(records, options) else _batches_of_tensorflow
    read = make(records, options, threads)

    def read_between(begin: gaps.Position, end: gaps.Position | None) -> tf.data.Dataset:
        dataset = read(begin, end)
        return dataset if options.batch_size is None else _even_out(dataset, records, options, keep_empty)

    if options.next_epoch_each_iteration:
        assert schedule.end is not None, "options refuse what never ends"
        dataset = _next_at_each_iteration(read_between, schedule.end, schedule.stride)
    else:
        dataset = read_between(schedule.begin, schedule.end)
    cast = tf_decode.make_caster(options, mean_and_std)
    dataset = dataset.map(lambda batch: _finish(batch, records, options, cast), num_parallel_calls=1)
    dataset = _with_cardinality(dataset, records, options, keep_empty)
    return dataset.prefetch(2).with_options(tf_options(options, threads))


def _next_at_each_iteration(
    read: Callable[[gaps.Position, gaps.Position], tf.data.Dataset], length: int, stride: int
) -> tf.data.Dataset:
    """Of `length` positions for each iteration, which begin `stride` after those of the one before."""
    iterations = itertools.count()  # next() on it is atomic

    def begin(turn: tf.Tensor) -> tf.Tensor:
        # Not declared stateful, which a checkpoint of an iterator would refuse; as it has an argument, it is not folded
        # into a constant.
        first = tf.numpy_function(lambda _: np.int64(next(iterations) * stride), [turn], tf.int64, stateful=False)
        return tf.ensure_shape(first, [])

    beginnings = tf.data.Dataset.range(1).map(begin)
    return beginnings.flat_map(lambda first: read(first, first + length))


def _with_cardinality(
    dataset: tf.data.Dataset, records: record_reader.Records, options: options_lib.ReadOptions, keep_empty: bool
) -> tf.data.Dataset:
    """Says how many elements there are, where it is known before they are read: Keras asks for it."""
    schedule = records.schedule
    if schedule.end is None:
        return dataset.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))
    is_fixed = options.batch_size is not None and (options.pad or options.drops_remainder or keep_empty)
    if options.on_error == "skip" and not is_fixed:
        return dataset
    if schedule.replicas > 1:  # tf.distribute would take the number of batches for that of steps
        return dataset
    count = schedule.end - schedule.begin if options.batch_size is None else schedule.num_batches
    return dataset.apply(tf.data.experimental.assert_cardinality(count))


def decodes_natively(records: record_reader.Records, options: options_lib.ReadOptions) -> bool:
    """Whether the decoder in C reads these records; as it is asked for, or because it can.

    Raises:
        ConfigError: if it is asked for and cannot.
    """
    if options.decoder == "tensorflow":
        return False
    reason = batch_reader.why_not(records, options)
    if reason is not None and options.decoder == "native":
        raise errors.ConfigError(f"decoder='native' cannot read this: {reason}; give decoder='auto'")
    return reason is None


def _batches_of_native(
    records: record_reader.Records, options: options_lib.ReadOptions, threads: int
) -> Callable[[gaps.Position, gaps.Position | None], tf.data.Dataset]:
    """Reads batches of "image", "position", "label" and the extra features, each made in one call."""
    reader = batch_reader.BatchReader(records, options, threads)
    size = options.batch_size
    assert size is not None
    specs = {"image": tf.TensorSpec([None, *options.size, 3], tf.uint8), "position": tf.TensorSpec([None], tf.int64)}
    for name, feature in zip(records.column_names, records.columns, strict=True):
        dtype = _TF_TYPES[feature.kind]
        specs[name] = tf.TensorSpec([None], tf.int32 if name == "label" and dtype == tf.int64 else dtype)
    if records.lists:
        specs[list_features.PACKED] = tf.TensorSpec([None], tf.string)

    def read(begin: gaps.Position, end: gaps.Position | None) -> tf.data.Dataset:
        def read_batch(first: tf.Tensor) -> Batch:
            following = first + size if end is None else tf.minimum(first + size, end)
            dtypes = [spec.dtype for spec in specs.values()]
            columns = tf.numpy_function(reader.read, [first, following], dtypes, stateful=False)
            parts = zip(specs, columns, strict=True)
            return {name: tf.ensure_shape(column, specs[name].shape) for name, column in parts}

        return tf.data.Dataset.range(begin, _UNENDING if end is None else end, size).map(
            read_batch,
            num_parallel_calls=_FEW_CALLS if records.fetcher.is_local else _MANY_CALLS,
            deterministic=options.deterministic,
        )

    return read


def _batches_of_tensorflow(
    records: record_reader.Records, options: options_lib.ReadOptions, threads: int
) -> Callable[[gaps.Position, gaps.Position | None], tf.data.Dataset]:
    """Reads the same with TensorFlow's operations; single examples without a batch size."""
    reader = ChunkReader(records, options)
    only_jpeg = records.formats == {"jpeg"}
    greatest = greatest_reduction(records.longest_side, options)
    decode = tf_decode.make_decoder(options, only_jpeg, greatest, records.is_raw)
    in_order = options.deterministic or options.on_error == "skip"

    def read(begin: gaps.Position, end: gaps.Position | None) -> tf.data.Dataset:
        stop = None if end is None else end + reader.spare

        def read_chunk(first: tf.Tensor) -> Batch:
            following = first + records.chunk if stop is None else tf.minimum(first + records.chunk, stop)
            return _read_and_parse(reader, records, options, first, following)

        dataset = tf.data.Dataset.range(begin, _UNENDING if stop is None else stop, records.chunk).map(
            read_chunk, num_parallel_calls=max(2, threads), deterministic=in_order
        )
        dataset = dataset.take_while(lambda chunk: tf.size(chunk["position"]) > 0).unbatch()
        dataset = dataset.map(
            lambda example: _decode(decode, example), num_parallel_calls=threads, deterministic=in_order
        )
        if not in_order:
            return dataset if options.batch_size is None else dataset.batch(options.batch_size)
        # What is lost leaves a gap in the positions, which is found when they are batched.
        dataset = dataset.ignore_errors()
        if options.batch_size is None:
            return gaps.until(gaps.report_gaps(dataset.batch(1), reader.report_lost, begin, stop), stop).unbatch()
        dataset = gaps.report_gaps(dataset.batch(options.batch_size), reader.report_lost, begin, stop)
        if options.on_error == "skip":
            return gaps.keep_places(dataset, begin, end, options.batch_size, fills=options.drops_remainder)
        return gaps.until(dataset, stop)

    return read


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
    allowed = [each for each in tf_decode.REDUCTIONS if longest_side == 0 or longest_side >= each * min(options.size)]
    return max(allowed, default=1)


def _read_and_parse(
    reader: ChunkReader,
    records: record_reader.Records,
    options: options_lib.ReadOptions,
    first: tf.Tensor,
    end: tf.Tensor,
) -> Batch:
    """A chunk of examples, encoded: as `parse` gives it, "position", and where there are lists, those."""
    dtypes = [tf.string, tf.int64, tf.float32, *([tf.string] if records.lists else [])]
    serialized, positions, uniforms, *packed = tf.numpy_function(reader.read, [first, end], dtypes, stateful=False)
    uniforms.set_shape([None, crops.NUM_UNIFORMS])
    for each in (serialized, positions, *packed):
        each.set_shape([None])
    chunk = parse(serialized, uniforms, records, options) | {"position": positions}
    return chunk | dict(zip([list_features.PACKED], packed))


def parse(
    serialized: tf.Tensor, uniforms: tf.Tensor, records: record_reader.Records, options: options_lib.ReadOptions
) -> Batch:
    """What is needed to decode examples, and their features of one value.

    Args:
        serialized: string [n].
        uniforms: float32 [n, windows.NUM_UNIFORMS] in [0, 1).
        records: that are read.
        options: of the reader.

    Returns:
        "encoded", for `pixels.make_decoder`; with raw images their "shape", int64 [n, 3]; "part", int32 [n, 4], and
        "flip", where the options ask for them; "label" and the extra features, each [n].
    """
    image = records.by_source[features.ENCODED]
    stored = [records.by_source.get(source) for source in bare_pixels.SHAPE[: 3 if records.is_raw else 2]]
    wanted = [*records.columns, *(feature for feature in stored if feature is not None)]
    spec = {f.key: tf.io.FixedLenFeature([], _TF_TYPES[f.kind], _EMPTY[f.kind]) for f in wanted}
    spec[image.key] = list_features.spec_of(image) if image.many else tf.io.FixedLenFeature([], tf.string, "")
    parsed = tf.io.parse_example(serialized, spec)
    chunk = {"encoded": parsed[image.key]}
    if records.is_raw:
        chunk["shape"] = tf.stack([parsed[feature.key] for feature in stored if feature is not None], axis=1)
    if options.flips:
        chunk["flip"] = uniforms[:, -1] < 0.5
    if options.crop is not None:
        height, width = dimensions(parsed, stored[:2], parsed[image.key])
        chunk["part"] = draw_windows(height, width, uniforms, options)
    for name, feature in zip(records.column_names, records.columns, strict=True):
        values = parsed[feature.key]
        chunk[name] = _label(values, feature.kind, records, options) if name == "label" else values
    return chunk


def draw_windows(
    height: tf.Tensor, width: tf.Tensor, uniforms: tf.Tensor, options: options_lib.ReadOptions
) -> tf.Tensor:
    """The part of each picture that is wanted, int32 [n, 4], as `windows.windows`."""

    def draw(height: np.ndarray, width: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
        with record_reader.calls:
            return crops.windows(height, width, uniforms, options)

    part = tf.numpy_function(draw, [height, width, uniforms], tf.int32, stateful=False)
    return tf.ensure_shape(part, [None, 4])


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


def _label(values: tf.Tensor, kind: str, records: record_reader.Records, options: options_lib.ReadOptions) -> tf.Tensor:
    if kind == features.FLOAT:
        return values
    return tf.cast(values + (options.label_base - records.label_base), tf.int32)


def _decode(decode: Any, example: Batch) -> Batch:
    kept = {name: value for name, value in example.items() if name not in ("encoded", "shape", "part", "flip")}
    return {"image": decode(example)} | kept


def _even_out(
    dataset: tf.data.Dataset, records: record_reader.Records, options: options_lib.ReadOptions, keep_empty: bool
) -> tf.data.Dataset:
    """Batches of one size, and as many of them in every process, where the options say so."""
    size = options.batch_size
    if options.drops_remainder:
        dataset = dataset.filter(lambda batch: tf.size(batch["position"]) == size)
    elif options.pad:
        dataset = dataset.map(lambda batch: _pad(batch, size))
        blank = gaps.blank(dataset.element_spec, size)
        dataset = dataset.concatenate(tf.data.Dataset.from_tensors(blank).repeat())
    elif options.on_error == "skip" and not keep_empty:
        dataset = dataset.filter(lambda batch: tf.size(batch["position"]) > 0)
    if not (options.drops_remainder or options.pad):
        return dataset
    dataset = dataset.map(lambda batch: {name: _with_size(each, size) for name, each in batch.items()})
    return dataset if records.schedule.num_batches is None else dataset.take(records.schedule.num_batches)


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


def _finish(batch: Batch, records: record_reader.Records, options: options_lib.ReadOptions, cast: Any) -> Any:
    image = cast(batch["image"])
    if records.lists:
        batch = batch | list_features.unpack(batch[list_features.PACKED], records, options)
    if options.supervised:
        weights = (tf.cast(batch["mask"], tf.float32),) if options.pad else ()
        return (image, batch["label"], *weights)
    others = {name: value for name, value in batch.items() if name not in ("image", "position", list_features.PACKED)}
    return {"image": image} | {name.removeprefix("features/"): value for name, value in others.items()}


class NumpyIterator(Iterator[Any]):
    """The elements of a dataset as NumPy arrays; an error of this package comes as itself, not as TensorFlow's."""

    def __init__(self, dataset: tf.data.Dataset):
        self._elements = list_features.numpy_iterator(dataset)

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
