"""Batches as a tf.data.Dataset: each is made by one call of `batch_reader` from TensorFlow's threads.

docs/reader-speed.md has the measurements behind it.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from imagebeam import concurrency, features
from imagebeam.reader import batch_reader, batch_stream, bucket_reader, example_columns, read_plan
from imagebeam.reader import options as options_lib

_UNENDING = 1 << 62
_TYPES = {features.BYTES: tf.string, features.INT64: tf.int64, features.FLOAT: tf.float32}
# Single examples that one call decodes: a call takes 100 us, and an error in one of them is an error of all.
_EXAMPLES_AT_ONCE = 16

# From the name of a method of `_Calls`, its arguments and the types of its results to these.
Call: TypeAlias = Callable[[str, Sequence[tf.Tensor], Any], Any]


class _Calls:
    """The Python functions that a graph calls."""

    def __init__(self, reader: bucket_reader.AnyReader, specs: dict[str, example_columns.ColumnSpec]):
        self._reader, self._specs = reader, specs
        self._iterations = itertools.count()

    def read(self, first: np.ndarray, end: np.ndarray) -> list[np.ndarray]:
        """Returns the arrays of a batch; of a list its values and where its rows begin and end."""
        batch = self._reader.read_batch(int(first), int(end))
        arrays: list[np.ndarray] = []
        for spec, values in zip(
            self._specs.values(), batch if isinstance(batch, tuple) else map(batch.get, self._specs)
        ):
            if spec.is_ragged:
                arrays.append(np.concatenate([np.zeros(0, spec.dtype), *values]))
                arrays.append(np.cumsum([0, *map(len, values)], dtype=np.int64))
            else:
                arrays.append(values)
        return arrays

    def next_begin(self, _: np.ndarray) -> np.int64:
        """Returns the first position of the next iteration, if each reads another epoch."""
        schedule = self._reader.schedule
        return np.int64(schedule.begin + next(self._iterations) * schedule.stride)  # next() on it is atomic


def _caller(calls: _Calls) -> Call:
    """Returns a function that adds the call of a method of `calls` to a graph.

    TensorFlow keeps every function that a graph calls until the process ends. So the function refers to the reader
    weakly, and the dataset holds it; but a graph of the user may run long after the dataset is gone.
    """
    find = weakref.ref(calls) if tf.executing_eagerly() else lambda: calls

    def call(method: str, arguments: Sequence[tf.Tensor], dtypes: Any) -> Any:
        def run(*values: Any) -> Any:
            with concurrency.running_calls:
                held = find()
                if held is None or concurrency.running_calls.is_closed:  # it is gone, or the program ends
                    raise StopIteration
                return getattr(held, method)(*values)

        return tf.numpy_function(run, arguments, dtypes, stateful=False)

    return call


def build(plan: read_plan.ReadPlan, options: options_lib.ReadOptions) -> tf.data.Dataset:
    """Returns the dataset of examples or batches that `options` describe.

    Args:
        plan: plan of this process.
        options: options of the reader.

    Raises:
        ConfigError: if the options ask for the decoder in C and it cannot read these records.
    """
    reader, schedule = bucket_reader.make_reader(plan, options), plan.schedule
    specs = reader.specs()
    calls = _Calls(reader, specs)
    threads = batch_reader.num_threads(options)
    at_once = batch_stream.num_calls(plan.fetcher.is_local, threads)
    with tf.device("CPU:0"):
        # Nothing there is Python whose branches depend on tensors. AutoGraph would translate the source of each
        # function that is mapped all the same, which takes longer than all else.
        make = tf.autograph.experimental.do_not_convert(_read)
        dataset = make(_caller(calls), schedule.begin, schedule.end, schedule.num_batches, specs, options, at_once)
    # The number of batches, declared behind the steps that TensorFlow cannot count, for Keras.
    cardinality, replicas = _cardinality(plan, options), schedule.replicas
    if cardinality is not None:
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(cardinality))
    # Prefetch last, finished batches. More of them than two help no further and take memory, 150 MB for each batch of
    # 1,024 images of 224 px as uint8, also in a tf.train.Checkpoint.
    dataset = dataset.prefetch(options.prefetch)
    # Options hold for the whole pipeline wherever they are set; at the end they also hold for the prefetch.
    dataset = dataset.with_options(tf_options(options.deterministic, threads))
    if cardinality is not None and cardinality > 0 and replicas > 1:
        # tf.distribute takes this for the number of steps, and a step takes a batch for each replica. Without it Keras
        # would make one step too many, of nothing, which counts in its loss.
        dataset.cardinality = lambda: tf.constant(-(-cardinality // replicas), tf.int64)
    dataset.imagebeam_reader = calls  # datasets and iterators made of it hold it
    return dataset


def _read(
    call: Call,
    begin: int,
    end: int | None,
    num_batches: int | None,
    specs: dict[str, example_columns.ColumnSpec],
    options: options_lib.ReadOptions,
    at_once: int,
) -> tf.data.Dataset:
    """Returns batches, each read by one call; without a batch size, examples."""
    # Without a crop images have different sizes.
    size = options.batch_size or (1 if options.crop is None else _EXAMPLES_AT_ONCE)
    if num_batches is None and end is not None:
        num_batches = -(-(end - begin) // size)
    dtypes: list[tf.DType] = []
    for spec in specs.values():
        dtypes.append(tf.string if spec.dtype.kind == "O" else tf.dtypes.as_dtype(spec.dtype))
        dtypes += [tf.int64] if spec.is_ragged else []

    def read_batch(start: tf.Tensor, number: tf.Tensor) -> Any:
        first, following = start + number * size, start + (number + 1) * size
        if end is not None:
            first, following = (tf.minimum(each, start + (end - begin)) for each in (first, following))
        arrays = iter(call("read", [first, following], dtypes))
        batch = {name: _as_tensor(arrays, spec) for name, spec in specs.items()}
        return tuple(batch.values()) if options.supervised else batch

    def read_from(start: tf.Tensor | int) -> tf.data.Dataset:
        numbers = tf.data.Dataset.range(_UNENDING if num_batches is None else num_batches)
        return numbers.map(
            lambda number: read_batch(tf.cast(start, tf.int64), number),
            num_parallel_calls=at_once,
            deterministic=options.deterministic,
        )

    dataset = read_from(begin)
    if options.next_epoch_each_iteration:
        # Not declared stateful, which a checkpoint of an iterator would refuse. Its argument keeps TensorFlow from
        # folding it into a constant.
        turns = tf.data.Dataset.range(1).map(lambda turn: tf.ensure_shape(call("next_begin", [turn], tf.int64), []))
        dataset = turns.flat_map(read_from)
    if options.batch_size is None:
        return dataset.unbatch().map(lambda *example: example if options.supervised else example[0])  # lists as tensors
    if options.on_error == "skip" and not options.drops_remainder and not options.pad:
        name = options.names_of_pictures[0]
        return dataset.filter(lambda *batch: tf.shape(batch[0] if options.supervised else batch[0][name])[0] > 0)
    return dataset


def _as_tensor(arrays: Any, spec: example_columns.ColumnSpec) -> tf.Tensor | tf.RaggedTensor:
    if not spec.is_ragged:
        return tf.ensure_shape(next(arrays), spec.shape)
    values, splits = tf.ensure_shape(next(arrays), [None]), next(arrays)
    rows = spec.shape[0]
    splits = tf.ensure_shape(splits, [None if rows is None else rows + 1])
    return tf.RaggedTensor.from_row_splits(values, splits, validate=False)


def _cardinality(plan: read_plan.ReadPlan, options: options_lib.ReadOptions) -> int | None:
    """Returns the number of elements; None if it is not known before they are read."""
    schedule = plan.schedule
    if schedule.end is None:
        return int(tf.data.INFINITE_CARDINALITY)
    is_fixed = options.batch_size is not None and (options.pad or options.drops_remainder)
    if options.on_error == "skip" and not is_fixed:
        return None
    return schedule.end - schedule.begin if options.batch_size is None else schedule.num_batches


def tf_options(deterministic: bool, threads: int) -> tf.data.Options:
    """Returns the tf.data options: a private thread pool, no parallelism inside operations, no automatic sharding.

    A picture is too small to be worth several threads, and processes have got their own shares already. Nothing here is
    left to autotuning, whose thread may miss that an iterator ends (TensorFlow 2.21 wakes it up before it says why): to
    free the iterator then takes as long as it has lived, up to a minute.
    """
    given = tf.data.Options()
    given.deterministic = deterministic
    given.threading.private_threadpool_size = threads
    given.threading.max_intra_op_parallelism = 1
    given.autotune.enabled = False
    given.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return given


def spec_of(feature: features.Feature) -> tf.io.FixedLenFeature | tf.io.RaggedFeature:
    """Returns the spec that parses a feature into a Tensor, or into a RaggedTensor if it is a list of any length.

    A VarLenFeature would give a SparseTensor; once it is dense, a zero and a missing value look alike.
    """
    if not feature.is_list:
        return tf.io.FixedLenFeature(feature.shape or (), _TYPES[feature.kind])
    return tf.io.RaggedFeature(_TYPES[feature.kind], row_splits_dtype=tf.int64)
