"""Features of any number of values, on their way through a pipeline and out of it.

A pipeline moves one string for each example, a small tf.train.Example of its lists, whatever their lengths are: so what
skips, pads and cuts batches need not know of them. They are parsed when the batch is complete.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from imagebeam import features
from imagebeam.reader import options as options_lib
from imagebeam.reader import record_reader

PACKED = "lists"  # the name of the strings in a batch

_TF_TYPES = {features.BYTES: tf.string, features.INT64: tf.int64, features.FLOAT: tf.float32}


def spec_of(feature: features.Feature) -> tf.io.RaggedFeature:
    """What parses a list. Not VarLenFeature: its SparseTensor has to be made dense, where a zero is no value."""
    return tf.io.RaggedFeature(_TF_TYPES[feature.kind], row_splits_dtype=tf.int64)


def unpack(
    packed: tf.Tensor, records: record_reader.Records, options: options_lib.ReadOptions
) -> dict[str, tf.Tensor | tf.RaggedTensor]:
    """The lists of a batch, or of one example.

    Args:
        packed: string [n], or [] for one example.
        records: that are read.
        options: of the reader.

    Returns:
        "label": float32 [n, classes] of 0 and 1, where there is a label of many values; by "features/KEY" each list
        that is asked for, a RaggedTensor [n, None], or with `list_size` a Tensor [n, list_size] and
        "features/KEY/count", int64 [n]. Without the first axis for one example.
    """
    spec = {feature.key: spec_of(feature) for feature in records.lists}
    parsed = tf.io.parse_example(tf.reshape(packed, [-1]), spec)
    size = packed.shape[0] if packed.shape.rank else 1
    unpacked = {}
    for feature in records.lists:
        if feature.source == features.LABEL:
            unpacked["label"] = _multi_hot(parsed[feature.key], size, records, options)
    for feature in records.extra:
        if feature.many:
            unpacked |= _sized(f"features/{feature.key}", parsed[feature.key], size, options.list_size)
    return unpacked if packed.shape.rank else {name: values[0] for name, values in unpacked.items()}


def _multi_hot(
    labels: tf.RaggedTensor, size: int | None, records: record_reader.Records, options: options_lib.ReadOptions
) -> tf.Tensor:
    ids = labels.values + (options.label_base - records.label_base)
    num_classes = records.num_classes if options.num_classes is None else options.num_classes
    places = tf.stack([labels.value_rowids(), ids], axis=1)
    counts = tf.scatter_nd(places, tf.ones_like(ids, tf.float32), tf.stack([labels.nrows(), num_classes]))
    return tf.ensure_shape(tf.minimum(counts, 1.0), [size, num_classes])  # a class that is named twice is there once


def _sized(
    name: str, values: tf.RaggedTensor, size: int | None, list_size: int | None
) -> dict[str, tf.Tensor | tf.RaggedTensor]:
    if list_size is None:
        return {name: values}
    dense = values.to_tensor(shape=[None, list_size])  # of zeros, or of empty bytes, where there is no value
    counts = tf.ensure_shape(values.row_lengths(), [size])
    return {name: tf.ensure_shape(dense, [size, list_size]), f"{name}/count": counts}


def numpy_iterator(dataset: tf.data.Dataset) -> Iterator[Any]:
    """The elements as NumPy arrays; a RaggedTensor as an object array with an array for each row."""
    if not any(isinstance(spec, tf.RaggedTensorSpec) for spec in tf.nest.flatten(dataset.element_spec)):
        return dataset.as_numpy_iterator()
    parts = dataset.map(lambda batch: {name: _parts(value) for name, value in batch.items()}, num_parallel_calls=1)
    return map(_join, parts.as_numpy_iterator())


def _parts(value: tf.Tensor | tf.RaggedTensor) -> Any:
    return (value.values, value.row_splits) if isinstance(value, tf.RaggedTensor) else value


def _join(batch: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {name: _rows(*value) if isinstance(value, tuple) else value for name, value in batch.items()}


def _rows(values: np.ndarray, splits: np.ndarray) -> np.ndarray:
    rows = np.empty(len(splits) - 1, object)
    for row, (start, end) in enumerate(itertools.pairwise(splits.tolist())):
        rows[row] = values[start:end]
    return rows
