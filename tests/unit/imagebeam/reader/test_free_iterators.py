"""Iterators of TensorFlow are freed where nothing can wait for their calls."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import pytest

pytest.importorskip("tensorflow")

import numpy as np
import tensorflow as tf

from imagebeam.reader import batch_iterator


def test_garbage_collection_under_a_lock_waits_for_no_call_that_needs_it() -> None:
    lock, is_running = threading.Lock(), threading.Event()

    def take_the_lock(number: int) -> np.int64:
        if number:
            is_running.set()
            with lock:
                pass
        return np.int64(number)

    numbers = tf.data.Dataset.range(2).map(lambda each: tf.numpy_function(take_the_lock, [each], tf.int64))
    iterator = batch_iterator.NumpyIterator(numbers.prefetch(1))
    is_freed = threading.Event()
    weakref.finalize(iterator, is_freed.set)
    cycle: list[Any] = [iterator]
    cycle.append(cycle)  # only the garbage collector frees it
    with lock:
        assert next(iterator) == 0
        is_running.wait()
        del iterator, cycle
        gc.collect()  # would wait for ever for the call that waits for the lock
        assert is_freed.is_set()
