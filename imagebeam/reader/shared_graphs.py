"""Graphs that datasets of one process share, and their calls into the Python reader of the dataset that runs.

Tracing the functions of a pipeline takes more processor time than starting it. So what differs between two datasets
with the same options is an input of their graph: the number of the reader, and the positions to read.
"""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

_MAX_GRAPHS = 32  # 2 MB each

# Name of a method of the reader, its arguments, and the types of its results.
Call: TypeAlias = Callable[[str, Sequence[tf.Tensor], Any], Any]
# From the reader's number and further int64 [] to a dataset.
Make: TypeAlias = Callable[..., tf.data.Dataset]

_READERS: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_NUMBERS = itertools.count()
_READERS_IN_GRAPHS: list[Any] = []


def make_dataset(make: Make, reader: Any, numbers: Sequence[int]) -> tf.data.Dataset:
    """Returns the dataset of `make`, which calls `reader` for as long as the dataset or one made of it is held.

    Args:
        make: called with the number of the reader and `numbers`, all int64 []. Its graph is made once for all that are
            equal to it, so nothing else may decide what it returns.
        reader: has the methods that the graph calls by `caller`.
        numbers: further inputs of the graph.
    """
    number = next(_NUMBERS)
    _READERS[number] = reader
    inputs = [tf.constant(each, tf.int64) for each in (number, *numbers)]
    if not tf.executing_eagerly():  # a function or graph of the user, which may run long after the dataset is gone
        _READERS_IN_GRAPHS.append(reader)
        return make(*inputs)
    with tf.device("CPU:0"):
        dataset = _trace(make, len(inputs))(*inputs)
    dataset.imagebeam_reader = reader  # datasets and iterators made of it hold it
    return dataset


@functools.lru_cache(_MAX_GRAPHS)
def _trace(make: Make, num_inputs: int) -> Callable[..., tf.data.Dataset]:
    signature = [tf.TensorSpec([], tf.int64)] * num_inputs
    return tf.function(make, input_signature=signature, autograph=False).get_concrete_function()  # type: ignore[no-any-return]


def clear() -> None:
    """Forgets all graphs. Datasets that use them keep them."""
    _trace.cache_clear()


def caller(number: tf.Tensor) -> Call:
    """Returns a function that adds the call of a method of reader `number` to the graph."""

    def call(method: str, arguments: Sequence[tf.Tensor], dtypes: Any) -> Any:
        def run(number: Any, *values: Any) -> Any:
            reader = _READERS.get(int(number))
            if reader is None:  # the dataset is gone, and threads that read ahead for it end
                raise StopIteration
            return getattr(reader, method)(*values)

        return tf.numpy_function(run, [number, *arguments], dtypes, stateful=False)

    return call
