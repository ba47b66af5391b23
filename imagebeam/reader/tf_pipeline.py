"""The tf.data pipeline: batches, each read and decoded by one call of `batch_reader`; padded, cast, prefetched.

docs/reader.md has the measurements behind it.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from imagebeam import concurrency, errors, features
from imagebeam.reader import batch_reader, batch_schedule, image_lists, read_plan, tf_decode
from imagebeam.reader import options as options_lib

_UNENDING = 1 << 62
# Lists pass through a pipeline as one string for each example, a small tf.train.Example of them, whatever their
# lengths: the steps that skip, pad and cut batches do not handle lists. They are parsed when the batch is complete.
_PACKED = "lists"

TF_TYPES = {features.BYTES: tf.string, features.INT64: tf.int64, features.FLOAT: tf.float32}
# Batches that are read at once: one reads while the other decodes; eight hide the latency of a network. A call reads
# its records one after the other, so many cores need more calls than two: docs/reader.md has a simulation.
_LOCAL_CALLS, _REMOTE_CALLS = 2, 8
_THREADS_FOR_A_CALL = 8
# Single examples that one call decodes: a call takes 100 us, and an error in one of them is an error of all.
_EXAMPLES_AT_ONCE = 16

Batch = dict[str, tf.Tensor]
Position: TypeAlias = int | tf.Tensor  # int64 []
# From the name of a method of the reader, its arguments and the types of its results to these.
Call: TypeAlias = Callable[[str, Sequence[tf.Tensor], Any], Any]


def build(
    plan: read_plan.ReadPlan,
    options: options_lib.ReadOptions,
    keep_empty: bool = False,
) -> tf.data.Dataset:
    """Returns the dataset of examples or batches that `options` describe.

    Args:
        plan: plan of this process.
        options: options of the reader.
        keep_empty: whether to keep a batch whose examples were all skipped, so that the batches can be counted.

    Raises:
        ConfigError: if the options ask for the decoder in C and it cannot read these records.
    """
    threads = num_threads(options)
    calls = _Calls(make_reader(plan, options), plan.schedule)
    pipeline = _Pipeline(plan, options, keep_empty, calls.values, _caller(calls))
    with tf.device("CPU:0"):
        # Nothing there is Python whose branches depend on tensors. AutoGraph would translate the source of each
        # function that is mapped all the same, which takes longer than all else.
        dataset = tf.autograph.experimental.do_not_convert(pipeline.make)()
    # The number of batches, declared behind the steps that TensorFlow cannot count, for Keras.
    cardinality, replicas = pipeline.cardinality(), plan.schedule.replicas
    if cardinality is not None:
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(cardinality))
    # Prefetch last, finished batches: two even out a batch that takes longer than the others. More of them help no
    # further and take memory, 150 MB for each batch of 1,024 images of 224 px as uint8, also in a tf.train.Checkpoint.
    # One of what the decoder in C cast: the batches of its own calls are finished ones too, of twice to four times the
    # bytes of uint8.
    dataset = dataset.prefetch(2 if calls.values is None else 1)
    # Options hold for the whole pipeline wherever they are set; at the end they also hold for the prefetch.
    dataset = dataset.with_options(tf_options(options.deterministic, threads))
    if cardinality is not None and cardinality > 0 and replicas > 1:
        # tf.distribute takes this for the number of steps, and a step takes a batch for each replica. Without it Keras
        # would make one step too many, of nothing, which counts in its loss.
        dataset.cardinality = lambda: tf.constant(-(-cardinality // replicas), tf.int64)
    dataset.imagebeam_reader = calls  # datasets and iterators made of it hold it
    return dataset


class _Calls:
    """The Python functions that a graph calls."""

    def __init__(self, reader: batch_reader.BatchReader, planned: batch_schedule.BatchSchedule):
        self.read, self.values = reader.read, reader.values
        self._begin, self._stride = planned.begin, planned.stride
        self._iterations = itertools.count()
        self.raised: collections.deque[errors.ImagebeamError] = collections.deque(maxlen=64)  # the last errors

    def next_begin(self, _: np.ndarray) -> np.int64:
        """Returns the first position of the next iteration, if each reads another epoch."""
        return np.int64(self._begin + next(self._iterations) * self._stride)  # next() on it is atomic


def _caller(calls: _Calls) -> Call:
    """Returns a function that adds the call of a method of `calls` to a graph.

    TensorFlow keeps every function that a graph calls until the process ends. So the function refers to the reader
    weakly, and the dataset holds it; but a graph of the user may run long after the dataset is gone.
    """
    find = weakref.ref(calls) if tf.executing_eagerly() else lambda: calls

    def call(method: str, arguments: Sequence[tf.Tensor], dtypes: Any) -> Any:
        def run(*values: Any) -> Any:
            reader = find()
            if reader is None:  # the dataset is gone, and threads that read ahead for it end
                raise StopIteration
            try:
                return getattr(reader, method)(*values)
            except errors.ImagebeamError as e:  # TensorFlow passes on its text alone
                reader.raised.append(type(e)(e.code, e.text))
                raise

        return tf.numpy_function(run, arguments, dtypes, stateful=False)

    return call


@dataclasses.dataclass(frozen=True)
class _Pipeline:
    """Makes the batches, not yet prefetched.

    Attributes:
        plan: plan of this process.
        options: options of the reader.
        keep_empty: as in `build`.
        values: as of `batch_reader.BatchReader`; None if the pixels are not yet cast.
        call: calls the reader.
    """

    plan: read_plan.ReadPlan
    options: options_lib.ReadOptions
    keep_empty: bool
    values: np.ndarray | None
    call: Call

    def make(self) -> tf.data.Dataset:
        """Returns the batches."""
        begin, end = self.plan.schedule.begin, self.plan.schedule.end
        if self.options.next_epoch_each_iteration:
            assert end is not None, "ReadOptions asks for num_epochs"
            firsts = tf.data.Dataset.range(1).map(self._next_begin)
            dataset = firsts.flat_map(lambda first: self._even_out(self._read(first, first + (end - begin))))
        else:
            dataset = self._even_out(self._read(begin, end))
        if self.values is not None:  # the pixels are cast already, and nothing that is left takes time
            blank = tf.constant(self.values[:, 0])
            return dataset.map(lambda batch: self._finish(batch, lambda image: image, blank))
        # Cast whole batches: one operation for a batch costs less than one for each image. One parallel call: the cast
        # runs in the pool, a batch ahead of the training loop; more calls would hold more batches in memory.
        cast = tf_decode.make_caster(self.options, self.plan.mean_and_std)
        num_parallel_calls = None if self.options.dtype == self.plan.form.dtype else 1
        return dataset.map(lambda batch: self._finish(batch, cast), num_parallel_calls=num_parallel_calls)

    def _next_begin(self, turn: tf.Tensor) -> tf.Tensor:
        # Not declared stateful, which a checkpoint of an iterator would refuse. Its argument keeps TensorFlow from
        # folding it into a constant.
        return tf.ensure_shape(self.call("next_begin", [turn], tf.int64), [])

    def _read(self, begin: Position, end: Position | None) -> tf.data.Dataset:
        """Returns batches of "image", "position", "label" and extra features, each read by one call.

        Without a batch size it returns examples.
        """
        options, form = self.options, self.plan.form
        size = options.batch_size or (1 if options.crop is None else _EXAMPLES_AT_ONCE)
        sides = (None, None) if options.crop is None else options.size
        listed = [options.max_images] if self.plan.has_lists_of_images else []
        dtype = form.dtype if self.values is None else options.dtype
        specs = {
            "image": tf.TensorSpec([None, *listed, *sides, form.channels], dtype),
            "position": tf.TensorSpec([None], tf.int64),
        }
        for name, feature in self.plan.columns.items():
            is_class = name == "label" and feature.kind == features.INT64
            specs[name] = tf.TensorSpec([None], tf.int32 if is_class else TF_TYPES[feature.kind])
        for name, feature in self.plan.arrays.items():
            specs[name] = tf.TensorSpec([None, *(feature.shape or ())], TF_TYPES[feature.kind])
        if self.plan.lists:
            specs[_PACKED] = tf.TensorSpec([None], tf.string)
        if listed:
            specs[image_lists.COUNT] = tf.TensorSpec([None], tf.int64)
        for each in self.plan.images:
            of_form = each.form and tf.TensorSpec([None, *sides, each.form.channels], each.form.dtype)
            specs[f"features/{each.name}"] = of_form or specs["image"]
        dtypes = [spec.dtype for spec in specs.values()]

        def read_batch(first: tf.Tensor) -> Batch:
            following = first + size if end is None else tf.minimum(first + size, end)
            columns = self.call("read", [first, following], dtypes)
            parts = zip(specs, columns, strict=True)
            return {name: tf.ensure_shape(column, specs[name].shape) for name, column in parts}

        at_once = num_calls(self.plan.fetcher.is_local, num_threads(options))
        batches = tf.data.Dataset.range(begin, _UNENDING if end is None else end, size).map(
            read_batch, num_parallel_calls=at_once, deterministic=options.deterministic
        )
        return batches if options.batch_size is not None else batches.unbatch()

    def _even_out(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """Makes as many batches in every process, and leaves out empty ones, if the options ask for it.

        Where all batches must be full they are: `batch_schedule.make_schedule` ends after a whole number of them.
        """
        options = self.options
        if options.batch_size is None or options.drops_remainder:
            return dataset
        if options.pad:  # `_finish` pads all batches, and these from nothing
            empty = {
                name: tf.zeros([0, *(side or 1 for side in each.shape[1:])], each.dtype)
                for name, each in dataset.element_spec.items()
            }
            endless = dataset.concatenate(tf.data.Dataset.from_tensors(empty).repeat())
            return endless.take(self.plan.schedule.num_batches)
        if options.on_error == "skip" and not self.keep_empty:
            return dataset.filter(lambda batch: tf.size(batch["position"]) > 0)
        return dataset

    def _finish(self, batch: Batch, cast: Callable[[tf.Tensor], tf.Tensor], blank: tf.Tensor | None = None) -> Any:
        """Returns the batch as the user gets it: of its size, pixels cast, lists unpacked, names or (image, label)."""
        size = self.options.batch_size
        if size is not None and self.options.pad:
            batch = _pad(batch, size, blank, self._pictures)
        if size is not None and (self.options.pad or self.options.drops_remainder):
            batch = {name: tf.ensure_shape(each, [size, *each.shape[1:]]) for name, each in batch.items()}
        batch = batch | {name: cast(batch[name]) for name in self._pictures}
        image = batch["image"]
        if self.plan.lists:
            batch = batch | self._unpack(batch[_PACKED])
        weight = self._weight(batch)
        if self.options.supervised:
            return (image, batch["label"]) if weight is None else (image, batch["label"], weight)
        own = {"image", "position", _PACKED}
        if self.plan.weight is not None and self.plan.weight not in self.plan.extra:
            own.add(f"features/{self.plan.weight.key}")
        others = {name: value for name, value in batch.items() if name not in own}
        if weight is not None:
            others["weight"] = weight
        return {"image": image} | {name.removeprefix("features/"): value for name, value in others.items()}

    def _weight(self, batch: Batch) -> tf.Tensor | None:
        """Returns the weight of each example, float32 [batch], 0 for padding; None if the batch has none."""
        mask = tf.cast(batch["mask"], tf.float32) if self.options.pad else None
        if self.plan.weight is not None:
            weight = tf.cast(batch[f"features/{self.plan.weight.key}"], tf.float32)
        elif self.options.weights is not None:
            assert isinstance(self.options.weights, Mapping)
            table = [self.options.weights[each] for each in sorted(self.options.weights)]
            index = batch["label"] - self.options.label_base
            index = index if mask is None else index * tf.cast(mask, tf.int32)  # padding has the label 0
            weight = tf.gather(tf.constant(table, tf.float32), index)
        else:
            return mask if self.options.supervised else None
        return weight if mask is None else weight * mask

    @property
    def _pictures(self) -> list[str]:
        """Names in a batch of the images whose pixels are cast: all but masks and other numbers."""
        return ["image", *(f"features/{each.name}" for each in self.plan.images if each.form is None)]

    def cardinality(self) -> int | None:
        """Returns the number of elements; None if it is not known before they are read."""
        schedule = self.plan.schedule
        if schedule.end is None:
            return int(tf.data.INFINITE_CARDINALITY)
        is_fixed = self.options.batch_size is not None and (
            self.options.pad or self.options.drops_remainder or self.keep_empty
        )
        if self.options.on_error == "skip" and not is_fixed:
            return None
        return schedule.end - schedule.begin if self.options.batch_size is None else schedule.num_batches

    def _unpack(self, packed: tf.Tensor) -> dict[str, tf.Tensor | tf.RaggedTensor]:
        """Returns the lists of a batch, or of one example.

        Args:
            packed: string [n], or [] for one example.

        Returns:
            "label": float32 [n, classes] of 0 and 1, if images may have several labels; as "features/KEY" each list
            without a shape that the user asked for, a RaggedTensor [n, None], or with `list_size` a Tensor
            [n, list_size] and "features/KEY/count", int64 [n]. For one example without the first axis.
        """
        spec = {feature.key: spec_of(feature) for feature in self.plan.lists}
        parsed = tf.io.parse_example(tf.reshape(packed, [-1]), spec)
        size = packed.shape[0] if packed.shape.rank else 1
        unpacked = {}
        for feature in self.plan.lists:
            if feature.source == features.LABEL:
                unpacked["label"] = self._multi_hot(parsed[feature.key], size)
        for feature in self.plan.extra:
            if feature.is_list:
                unpacked |= _sized(f"features/{feature.key}", parsed[feature.key], size, self.options.list_size)
        return unpacked if packed.shape.rank else {name: values[0] for name, values in unpacked.items()}

    def _multi_hot(self, labels: tf.RaggedTensor, size: int | None) -> tf.Tensor:
        ids = labels.values + (self.options.label_base - self.plan.label_base)
        num_classes = self.plan.num_classes if self.options.num_classes is None else self.options.num_classes
        places = tf.stack([labels.value_rowids(), ids], axis=1)
        counts = tf.scatter_nd(places, tf.ones_like(ids, tf.float32), tf.stack([labels.nrows(), num_classes]))
        return tf.ensure_shape(tf.minimum(counts, 1.0), [size, num_classes])  # a class that is listed twice counts once


def make_reader(plan: read_plan.ReadPlan, options: options_lib.ReadOptions) -> batch_reader.BatchReader:
    """Returns the reader of batches, with the decoder in C if it can read these records.

    Raises:
        ConfigError: if the options ask for the decoder in C and it cannot.
    """
    threads = num_threads(options)
    forms = {each.form for each in plan.images if each.form is not None}
    numbers = {form: tf_decode.NumberDecoder(options, threads, form).decode for form in forms}
    if decodes_natively(plan, options):
        values = tf_decode.make_values(options, plan.mean_and_std)
        return batch_reader.BatchReader(plan, options, threads, values, decode_numbers=numbers)
    decoder = tf_decode.Decoder(plan, options, threads)
    return batch_reader.BatchReader(plan, options, threads, None, (decoder.decode, decoder.measure), numbers)


def num_threads(options: options_lib.ReadOptions) -> int:
    """Returns the number of threads that read and decode: as in `options`, else one for each available core."""
    return options.threads or concurrency.available_cores()


def num_calls(is_local: bool, threads: int) -> int:
    """Returns the number of batches that are read and decoded at once: 2 for up to 23 threads, at most 8."""
    return min(max(threads // _THREADS_FOR_A_CALL, _LOCAL_CALLS), _REMOTE_CALLS) if is_local else _REMOTE_CALLS


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


def decodes_natively(plan: read_plan.ReadPlan, options: options_lib.ReadOptions) -> bool:
    """Returns whether the decoder in C reads these records.

    Raises:
        ConfigError: if the options ask for it and it cannot.
    """
    if options.decoder == "tensorflow":
        return False
    reason = batch_reader.why_not(plan, options)
    if reason is not None and options.decoder == "native":
        text = f"decoder='native' cannot read this: {reason}; give decoder='auto'"
        raise errors.ConfigError("decoder-cannot-read", text)
    return reason is None


def _pad(batch: Batch, size: int, blank: tf.Tensor | None, pictures: Collection[str]) -> Batch:
    """Returns a batch of `size` examples and its mask; `blank`, [3], is a pixel that fills up those in `pictures`."""
    count = tf.shape(batch["position"])[0]
    padded = {
        name: tf.pad(each, [[0, size - count]] + [[0, 0]] * (len(each.shape) - 1), constant_values=_zero(each.dtype))
        for name, each in batch.items()
        if name not in pictures
    }

    def fill_up(image: tf.Tensor) -> tf.Tensor:
        shape = [size - count, *image.shape[1:]]
        fill = tf.zeros(shape, image.dtype) if blank is None else tf.broadcast_to(blank, shape)
        # A full batch, as all are but the last, is not copied.
        return tf.cond(count < size, lambda: tf.concat([image, fill], 0), lambda: image)

    return padded | {name: fill_up(batch[name]) for name in pictures} | {"mask": tf.range(size) < count}


def _zero(dtype: tf.DType) -> Any:
    return "" if dtype == tf.string else tf.zeros([], dtype)


def spec_of(feature: features.Feature) -> tf.io.FixedLenFeature | tf.io.RaggedFeature:
    """Returns the spec that parses a feature into a Tensor, or into a RaggedTensor if it is a list of any length.

    A VarLenFeature would give a SparseTensor; once it is dense, a zero and a missing value look alike.
    """
    if not feature.is_list:
        return tf.io.FixedLenFeature(feature.shape or (), TF_TYPES[feature.kind])
    return tf.io.RaggedFeature(TF_TYPES[feature.kind], row_splits_dtype=tf.int64)


def _sized(
    name: str, values: tf.RaggedTensor, size: int | None, list_size: int | None
) -> dict[str, tf.Tensor | tf.RaggedTensor]:
    if list_size is None:
        return {name: values}
    dense = values.to_tensor(shape=[None, list_size])  # filled up with zeros, or with empty bytes
    counts = tf.ensure_shape(values.row_lengths(), [size])
    return {name: tf.ensure_shape(dense, [size, list_size]), f"{name}/count": counts}
