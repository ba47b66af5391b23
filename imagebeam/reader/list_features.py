"""Features with any number of values: how a pipeline carries them, and how they are unpacked into batches.

A pipeline carries one string for each example, a small tf.train.Example of its lists, whatever their lengths. So the
steps that skip, pad and cut batches do not handle lists. They are parsed when the batch is complete.
"""

from __future__ import annotations

import tensorflow as tf

from imagebeam import features
from imagebeam.reader import options as options_lib
from imagebeam.reader import read_plan

PACKED = "lists"  # name of the strings in a batch

TF_TYPES = {features.BYTES: tf.string, features.INT64: tf.int64, features.FLOAT: tf.float32}


def spec_of(feature: features.Feature) -> tf.io.RaggedFeature:
    """Returns the spec that parses a list into a RaggedTensor.

    A VarLenFeature would give a SparseTensor; once it is dense, a zero and a missing value look alike.
    """
    return tf.io.RaggedFeature(TF_TYPES[feature.kind], row_splits_dtype=tf.int64)


def unpack(
    packed: tf.Tensor, plan: read_plan.Layout, options: options_lib.ReadOptions
) -> dict[str, tf.Tensor | tf.RaggedTensor]:
    """Returns the lists of a batch, or of one example.

    Args:
        packed: string [n], or [] for one example.
        plan: plan of the reader, or its layout.
        options: options of the reader.

    Returns:
        "label": float32 [n, classes] of 0 and 1, if images may have several labels; as "features/KEY" each list that
        the user asked for, a RaggedTensor [n, None], or with `list_size` a Tensor [n, list_size] and
        "features/KEY/count", int64 [n]. For one example without the first axis.
    """
    spec = {feature.key: spec_of(feature) for feature in plan.lists}
    parsed = tf.io.parse_example(tf.reshape(packed, [-1]), spec)
    size = packed.shape[0] if packed.shape.rank else 1
    unpacked = {}
    for feature in plan.lists:
        if feature.source == features.LABEL:
            unpacked["label"] = _multi_hot(parsed[feature.key], size, plan, options)
    for feature in plan.extra:
        if feature.many:
            unpacked |= _sized(f"features/{feature.key}", parsed[feature.key], size, options.list_size)
    return unpacked if packed.shape.rank else {name: values[0] for name, values in unpacked.items()}


def _multi_hot(
    labels: tf.RaggedTensor, size: int | None, plan: read_plan.Layout, options: options_lib.ReadOptions
) -> tf.Tensor:
    ids = labels.values + (options.label_base - plan.label_base)
    num_classes = plan.num_classes if options.num_classes is None else options.num_classes
    places = tf.stack([labels.value_rowids(), ids], axis=1)
    counts = tf.scatter_nd(places, tf.ones_like(ids, tf.float32), tf.stack([labels.nrows(), num_classes]))
    return tf.ensure_shape(tf.minimum(counts, 1.0), [size, num_classes])  # a class that is listed twice counts once


def _sized(
    name: str, values: tf.RaggedTensor, size: int | None, list_size: int | None
) -> dict[str, tf.Tensor | tf.RaggedTensor]:
    if list_size is None:
        return {name: values}
    dense = values.to_tensor(shape=[None, list_size])  # filled up with zeros, or with empty bytes
    counts = tf.ensure_shape(values.row_lengths(), [size])
    return {name: tf.ensure_shape(dense, [size, list_size]), f"{name}/count": counts}
