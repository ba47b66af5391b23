"""Records of shards as TensorFlow alone parses them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf


def parse(
    shards: Iterable[str | os.PathLike[str]], spec: Mapping[str, Any], compression: str = ""
) -> list[dict[str, Any]]:
    """Returns the examples of shards: features of a fixed length as NumPy values, others as lists.

    One call parses all: a call for each takes 0.5 ms, and a function in `tf.data` 0.1 s to trace.
    """
    names = sorted(map(str, shards))
    assert names
    records = list(tf.data.TFRecordDataset(names, compression).as_numpy_iterator())
    parsed = tf.io.parse_example(records, spec)
    columns = {
        name: tf.RaggedTensor.from_sparse(values).to_list() if isinstance(values, tf.SparseTensor) else values.numpy()
        for name, values in parsed.items()
    }
    return [{name: values[index] for name, values in columns.items()} for index in range(len(records))]
