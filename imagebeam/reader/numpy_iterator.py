"""The elements of a tf.data.Dataset as NumPy arrays."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from imagebeam import errors


class NumpyIterator(Iterator[Any]):
    """The elements of a dataset as NumPy arrays. Raises errors of imagebeam themselves, not TensorFlow's wrappers.

    A RaggedTensor becomes an object array with one array for each row.
    """

    def __init__(self, dataset: tf.data.Dataset):
        if any(isinstance(spec, tf.RaggedTensorSpec) for spec in tf.nest.flatten(dataset.element_spec)):
            parts = dataset.map(_split_ragged, num_parallel_calls=1)
            self._elements: Iterator[Any] = map(_join_ragged, parts.as_numpy_iterator())
        else:
            self._elements = dataset.as_numpy_iterator()

    def __next__(self) -> Any:
        try:
            return next(self._elements)
        except tf.errors.OpError as e:
            raise translate(e) from e


def translate(error: tf.errors.OpError) -> Exception:
    """Returns the error of imagebeam that TensorFlow wrapped, or `error` itself if there is none in it."""
    for kind in (errors.ExampleError, errors.ShardError, errors.ConfigError):
        _, found, text = str(error).partition(f"{kind.__name__}: ")
        if found:
            return kind(text.splitlines()[0])
    return error


def _split_ragged(batch: dict[str, Any]) -> dict[str, Any]:
    """Replaces each RaggedTensor by its values and row splits, which TensorFlow converts to NumPy arrays."""
    return {
        name: (value.values, value.row_splits) if isinstance(value, tf.RaggedTensor) else value
        for name, value in batch.items()
    }


def _join_ragged(batch: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {name: _rows(*value) if isinstance(value, tuple) else value for name, value in batch.items()}


def _rows(values: np.ndarray, splits: np.ndarray) -> np.ndarray:
    rows = np.empty(len(splits) - 1, object)
    for row, (start, end) in enumerate(itertools.pairwise(splits.tolist())):
        rows[row] = values[start:end]
    return rows
