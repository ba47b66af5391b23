"""The tf.data pipeline: read in order, parse, decode the part that is wanted, batch, cast, prefetch.

Where the decoder in C can read the records, one call does the first four for a whole batch (`batch_reader`); elsewhere
TensorFlow's operations do them (`tf_parse`, `tf_decode`, `gaps`). docs/reader.md has the measurements behind it.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from imagebeam import cpu_count, errors, features
from imagebeam.reader import batch_reader, gaps, list_features, read_plan, shared_graphs, tf_decode, tf_parse
from imagebeam.reader import options as options_lib

_UNENDING = 1 << 62
# Batches that are read at once: one reads while the other decodes; eight hide the latency of a network. A call reads
# its records one after the other, so many cores need more calls than two: benchmarks/many_cores.py.
_LOCAL_CALLS, _REMOTE_CALLS = 2, 8
_THREADS_FOR_A_CALL = 8
# Single examples that one call decodes in C: a call takes 100 us, and an error in one of them is an error of all.
_EXAMPLES_AT_ONCE = 16

Batch = dict[str, tf.Tensor]
# From begin to end; None: never ends.
Read: TypeAlias = Callable[[gaps.Position, gaps.Position | None], tf.data.Dataset]


def build(
    plan: read_plan.ReadPlan,
    options: options_lib.ReadOptions,
    mean_and_std: options_lib.MeanAndStd | None = None,
    keep_empty: bool = False,
) -> tf.data.Dataset:
    """Returns the dataset of examples or batches that `options` describe.

    Args:
        plan: plan of this process.
        options: options of the reader.
        mean_and_std: mean and standard deviation to normalise pixels with; None leaves them from 0 to 255.
        keep_empty: whether to keep a batch whose examples were all skipped, so that the batches can be counted.

    Raises:
        ConfigError: if the options ask for the decoder in C and it cannot read these records.
    """
    threads, schedule = num_threads(options), plan.schedule
    is_native = decodes_natively(plan, options)
    pipeline = _Pipeline(
        plan.layout,
        # Without what only decides which records are read: pipelines that differ in nothing else share a graph.
        dataclasses.replace(
            options,
            shuffle=None,
            seed=0,
            state=None,
            process_index=0,
            process_count=1,
            num_epochs=options.num_epochs and 1,
        ),
        None if mean_and_std is None else (tuple(mean_and_std[0]), tuple(mean_and_std[1])),
        threads,
        is_native=is_native,
        is_local=plan.fetcher.is_local,
        ends=schedule.end is not None,
        reduction=tf_decode.greatest_reduction(plan.longest_side, options),
        keep_empty=keep_empty,
    )
    values = pipeline.values if is_native else None
    calls = _Calls(plan, options, threads, is_native, values)
    numbers = (schedule.begin, schedule.end or 0, calls.spare, schedule.num_batches or 0, plan.chunk_records)
    dataset = shared_graphs.make_dataset(pipeline, calls, numbers)
    # The number of batches, declared behind the steps that TensorFlow cannot count, for Keras.
    dataset = _with_cardinality(dataset, plan, options, keep_empty)
    # Prefetch last, finished batches: two even out a batch that takes longer than the others. More of them help no
    # further and take memory, 150 MB for each batch of 1,024 images of 224 px as uint8, also in a tf.train.Checkpoint.
    # One of what the decoder in C cast: the batches of its own calls are finished ones too, of twice to four times the
    # bytes of uint8.
    dataset = dataset.prefetch(2 if values is None else 1)
    # Options hold for the whole pipeline wherever they are set; at the end they also hold for the prefetch.
    return dataset.with_options(tf_options(options, threads))


class _Calls:
    """The Python functions that a graph calls.

    Attributes:
        read: returns the records or examples at some positions.
        report_lost: as `tf_parse.ChunkReader.report_lost`; None for the decoder in C, which reports by itself.
        spare: number of positions after the last one where replacements of skipped examples are looked for.
    """

    def __init__(
        self,
        plan: read_plan.ReadPlan,
        options: options_lib.ReadOptions,
        threads: int,
        is_native: bool,
        values: np.ndarray | None,
    ):
        self.report_lost, self.spare = None, 0
        if is_native:
            reads_batches = batch_reader.BatchReader(plan, options, threads, values)
            self.read: Callable[..., tuple[np.ndarray, ...]] = reads_batches.read
        else:
            reader = tf_parse.ChunkReader(plan, options)
            self.read, self.report_lost, self.spare = reader.read, reader.report_lost, reader.spare
        self._stride = plan.schedule.stride
        self._iterations = itertools.count()

    def next_begin(self, _: np.ndarray) -> np.int64:
        """Returns the first position of the next iteration, if each reads another epoch."""
        return np.int64(next(self._iterations) * self._stride)  # next() on it is atomic


@dataclasses.dataclass(frozen=True)
class _Pipeline:
    """What the graph of a pipeline depends on, and the graph itself. Nothing else may reach it.

    Attributes:
        layout: layout of the examples.
        options: options of the reader, without those that only decide which records are read.
        mean_and_std: mean and standard deviation to normalise pixels with, if they are normalised.
        threads: number of threads that read and decode.
        is_native: whether the decoder in C reads the records.
        is_local: whether they are on a local disk.
        ends: whether there is a last record.
        reduction: the largest of `tf_decode.REDUCTIONS` that any image may allow.
        keep_empty: whether to keep a batch whose examples were all skipped.
    """

    layout: read_plan.Layout
    options: options_lib.ReadOptions
    mean_and_std: options_lib.MeanAndStd | None
    threads: int
    is_native: bool
    is_local: bool
    ends: bool
    reduction: int
    keep_empty: bool

    @property
    def values(self) -> np.ndarray | None:
        """What the decoder in C makes of each level of each channel: [3, 256]; None: uint8 as it is."""
        return tf_decode.make_values(self.options, self.mean_and_std)

    # Nothing here is Python whose branches depend on tensors. AutoGraph would translate the source of each function
    # that is mapped all the same: 1.3 s of processor time for the first dataset with TensorFlow's decoders.
    @tf.autograph.experimental.do_not_convert
    def __call__(
        self,
        number: tf.Tensor,
        begin: tf.Tensor,
        end: tf.Tensor,
        spare: tf.Tensor,
        num_batches: tf.Tensor,
        chunk_records: tf.Tensor,
    ) -> tf.data.Dataset:
        """Returns the batches, not yet prefetched.

        Args:
            number: of the `_Calls`.
            begin: the first position.
            end: the position after the last one, if there is one.
            spare: as `_Calls.spare`.
            num_batches: number of batches, if it is known and all have one size.
            chunk_records: number of records that one call reads where TensorFlow decodes.
        """
        options, call = self.options, shared_graphs.caller(number)
        # Read, parse and decode: in the order of positions, for only positions say which examples are missing.
        if self.is_native:
            read = self._decode_natively(call)
        else:
            read = self._decode_with_tensorflow(call, spare, chunk_records)
        if options.next_epoch_each_iteration:
            dataset = tf.data.Dataset.range(1).map(functools.partial(_next_begin, call))
            dataset = dataset.flat_map(lambda first: self._even_out(read(first, first + end), num_batches))
        else:
            dataset = self._even_out(read(begin, end if self.ends else None), num_batches)
        if self.is_native:  # its pixels are cast already, and nothing that is left takes time
            values = self.values
            blank = None if values is None else tf.constant(values[:, 0])
            return dataset.map(lambda batch: _finish(batch, self.layout, options, lambda image: image, blank))
        # Cast whole batches, after batching: batching copies pixels, and uint8 has a quarter of the bytes of float32;
        # one operation for a batch costs less than one for each image. One parallel call: the cast runs in the pool, a
        # batch ahead of the training loop; more calls would hold more batches in memory.
        cast = tf_decode.make_caster(options, self.mean_and_std)
        return dataset.map(lambda batch: _finish(batch, self.layout, options, cast), num_parallel_calls=1)

    def _decode_natively(self, call: shared_graphs.Call) -> Read:
        """Returns a function that reads batches of "image", "position", "label" and extra features, each by one call.

        Without a batch size it reads examples.
        """
        layout, options = self.layout, self.options
        size = options.batch_size or _EXAMPLES_AT_ONCE
        specs = {
            "image": tf.TensorSpec([None, *options.size, 3], options.dtype),
            "position": tf.TensorSpec([None], tf.int64),
        }
        for name, feature in zip(layout.column_names, layout.columns, strict=True):
            is_class = name == "label" and feature.kind == features.INT64
            specs[name] = tf.TensorSpec([None], tf.int32 if is_class else list_features.TF_TYPES[feature.kind])
        if layout.lists:
            specs[list_features.PACKED] = tf.TensorSpec([None], tf.string)
        dtypes = [spec.dtype for spec in specs.values()]

        def read(begin: gaps.Position, end: gaps.Position | None) -> tf.data.Dataset:
            def read_batch(first: tf.Tensor) -> Batch:
                following = first + size if end is None else tf.minimum(first + size, end)
                columns = call("read", [first, following], dtypes)
                parts = zip(specs, columns, strict=True)
                return {name: tf.ensure_shape(column, specs[name].shape) for name, column in parts}

            batches = tf.data.Dataset.range(begin, _UNENDING if end is None else end, size).map(
                read_batch,
                num_parallel_calls=num_calls(self.is_local, self.threads),
                deterministic=options.deterministic,
            )
            return batches if options.batch_size is not None else batches.unbatch()

        return read

    def _decode_with_tensorflow(self, call: shared_graphs.Call, spare: tf.Tensor, chunk_records: tf.Tensor) -> Read:
        """Returns a function that reads the same with TensorFlow's operations; without a batch size, examples."""
        layout, options, threads = self.layout, self.options, self.threads
        decode = tf_decode.make_decoder(
            options,
            layout.formats == {"jpeg"},
            self.reduction,
            layout.is_raw,
        )
        in_order = options.deterministic or options.on_error == "skip"

        def report_lost(*seen: tf.Tensor) -> tf.Tensor:
            return call("report_lost", seen, tf.int64)

        def read(begin: gaps.Position, end: gaps.Position | None) -> tf.data.Dataset:
            stop = None if end is None else end + spare

            def read_chunk(first: tf.Tensor) -> Batch:
                following = first + chunk_records
                if stop is not None:
                    following = tf.minimum(following, stop)
                return tf_parse.read_and_parse(call, layout, options, first, following)

            # Some 4 MB of records at a time: a call into Python takes 100 us, and parse_example is faster on many
            # records.
            chunks = tf.data.Dataset.range(begin, _UNENDING if stop is None else stop, chunk_records)
            dataset = chunks.map(read_chunk, num_parallel_calls=max(2, threads), deterministic=in_order)
            dataset = dataset.take_while(lambda chunk: tf.size(chunk["position"]) > 0).unbatch()
            # Decode single images, not chunks: images of a chunk differ in size until they are decoded and resized.
            dataset = dataset.map(
                lambda example: _decode(decode, example), num_parallel_calls=threads, deterministic=in_order
            )
            if not in_order:
                if options.batch_size is None:
                    return dataset
                return dataset.batch(options.batch_size, drop_remainder=options.drops_remainder)
            # An example that cannot be decoded is dropped here, and found as a gap in the positions once they are
            # batched.
            dataset = dataset.ignore_errors()
            if options.batch_size is None:
                return gaps.until(gaps.report_gaps(dataset.batch(1), report_lost, begin, stop), stop).unbatch()
            skips = options.on_error == "skip"
            dataset = gaps.report_gaps(dataset.batch(options.batch_size), report_lost, begin, stop, skips)
            if skips:
                return gaps.keep_positions(dataset, end, options.batch_size, fills=options.drops_remainder)
            if options.drops_remainder:
                return gaps.full_until(dataset, stop, options.batch_size)
            return gaps.until(dataset, stop)

        return read

    def _even_out(self, dataset: tf.data.Dataset, num_batches: tf.Tensor) -> tf.data.Dataset:
        """Makes as many batches in every process, and leaves out empty ones, if the options ask for it.

        Where all batches must be full they are: `schedule.plan` ends after a whole number of them.
        """
        options = self.options
        if options.batch_size is None or options.drops_remainder:
            return dataset
        if options.pad:  # `_finish` pads all batches, and these from nothing
            empty = gaps.blank(dataset.element_spec, 0)
            return dataset.concatenate(tf.data.Dataset.from_tensors(empty).repeat()).take(num_batches)
        if options.on_error == "skip" and not self.keep_empty:
            return dataset.filter(lambda batch: tf.size(batch["position"]) > 0)
        return dataset


def _next_begin(call: shared_graphs.Call, turn: tf.Tensor) -> tf.Tensor:
    # Not declared stateful, which a checkpoint of an iterator would refuse. Its argument keeps TensorFlow from folding
    # it into a constant.
    return tf.ensure_shape(call("next_begin", [turn], tf.int64), [])


def num_threads(options: options_lib.ReadOptions) -> int:
    """Returns the number of threads that read and decode: as in `options`, else one for each available core."""
    return options.threads or cpu_count.available_cores()


def num_calls(is_local: bool, threads: int) -> int:
    """Returns the number of batches that are read and decoded at once: 2 for up to 23 threads, at most 8."""
    return min(max(threads // _THREADS_FOR_A_CALL, _LOCAL_CALLS), _REMOTE_CALLS) if is_local else _REMOTE_CALLS


def tf_options(options: options_lib.ReadOptions, threads: int) -> tf.data.Options:
    """Returns the tf.data options: a private thread pool, no parallelism inside operations, no automatic sharding.

    A picture is too small to be worth several threads, and processes have got their own shares already. Nothing here is
    left to autotuning, whose thread may miss that an iterator ends (TensorFlow 2.21 wakes it up before it says why): to
    free the iterator then takes as long as it has lived, up to a minute.
    """
    given = tf.data.Options()
    given.deterministic = options.deterministic
    given.threading.private_threadpool_size = threads
    given.threading.max_intra_op_parallelism = 1
    given.autotune.enabled = False
    given.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return given


def decodes_natively(plan: read_plan.ReadPlan, options: options_lib.ReadOptions) -> bool:
    """Returns whether the decoder in C reads these records.

    Raises:
        ConfigError: if the options ask for it and it cannot.
    """
    if options.decoder == "tensorflow":
        return False
    reason = batch_reader.why_not(plan, options)
    if reason is not None and options.decoder == "native":
        raise errors.ConfigError(f"decoder='native' cannot read this: {reason}; give decoder='auto'")
    return reason is None


def _decode(decode: Callable[[Batch], tf.Tensor], example: Batch) -> Batch:
    kept = {name: value for name, value in example.items() if name not in ("encoded", "shape", "part", "frame", "flip")}
    return {"image": decode(example)} | kept


def _pad(batch: Batch, size: int, blank: tf.Tensor | None) -> Batch:
    """Returns a batch of `size` examples and its mask; `blank`, [3], is a pixel of the images that fill it up."""
    count = tf.shape(batch["position"])[0]
    padded = {
        name: tf.pad(each, [[0, size - count]] + [[0, 0]] * (len(each.shape) - 1), constant_values=_zero(each.dtype))
        for name, each in batch.items()
        if name != "image"
    }
    image = batch["image"]

    def fill_up() -> tf.Tensor:
        shape = [size - count, *image.shape[1:]]
        return tf.concat([image, tf.zeros(shape, image.dtype) if blank is None else tf.broadcast_to(blank, shape)], 0)

    # A full batch, as all are but the last, is not copied.
    return padded | {"image": tf.cond(count < size, fill_up, lambda: image), "mask": tf.range(size) < count}


def _zero(dtype: tf.DType) -> Any:
    return "" if dtype == tf.string else tf.zeros([], dtype)


def _finish(
    batch: Batch,
    plan: read_plan.Layout,
    options: options_lib.ReadOptions,
    cast: Callable[[tf.Tensor], tf.Tensor],
    blank: tf.Tensor | None = None,
) -> Any:
    """Returns the batch as the user gets it: of its size, pixels cast, lists unpacked, names or (image, label)."""
    size = options.batch_size
    if size is not None and options.pad:
        batch = _pad(batch, size, blank)
    if size is not None and (options.pad or options.drops_remainder):
        batch = {name: tf.ensure_shape(each, [size, *each.shape[1:]]) for name, each in batch.items()}
    image = cast(batch["image"])
    if plan.lists:
        batch = batch | list_features.unpack(batch[list_features.PACKED], plan, options)
    if options.supervised:
        weights = (tf.cast(batch["mask"], tf.float32),) if options.pad else ()
        return (image, batch["label"], *weights)
    others = {name: value for name, value in batch.items() if name not in ("image", "position", list_features.PACKED)}
    return {"image": image} | {name.removeprefix("features/"): value for name, value in others.items()}


def _with_cardinality(
    dataset: tf.data.Dataset, plan: read_plan.ReadPlan, options: options_lib.ReadOptions, keep_empty: bool
) -> tf.data.Dataset:
    """Declares the number of elements if it is known before they are read."""
    schedule = plan.schedule
    if schedule.end is None:
        return dataset.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))
    is_fixed = options.batch_size is not None and (options.pad or options.drops_remainder or keep_empty)
    if options.on_error == "skip" and not is_fixed:
        return dataset
    if schedule.replicas > 1:  # tf.distribute would take the number of batches for the number of steps
        return dataset
    count = schedule.end - schedule.begin if options.batch_size is None else schedule.num_batches
    return dataset.apply(tf.data.experimental.assert_cardinality(count))
