"""The place of an iterator over batches, its arrays, and the errors that come out of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import imagebeam
from imagebeam import errors
from imagebeam.reader import batch_iterator, schedule
from imagebeam.reader.reader_state import ReaderState
from tests.unit.imagebeam.reader import restarts

tf = pytest.importorskip("tensorflow")

OPTIONS: dict[str, Any] = {"batch_size": 4, "num_epochs": 2, "shuffle": None}
EMPTY = 2  # number of the batch without examples


def begin(state: ReaderState | None) -> tuple[Iterator[Any], schedule.Schedule]:
    """Returns batches that hold their number in the job; all examples of one batch were skipped."""
    planned = schedule.plan(
        schedule.SelectionEpochs(restarts.select_all([10])), imagebeam.ReadOptions(**OPTIONS, state=state)
    )
    first = planned.begin // 4
    numbers = range(first, first + (planned.num_batches or 0))
    return iter([{"image": np.full(0 if each == EMPTY else 4, each)} for each in numbers]), planned


def numbers_of(batches: batch_iterator.BatchIterator) -> list[int]:
    return [int(batch["image"][0]) for batch in batches]


def test_batch_without_examples_is_skipped_and_counts_in_the_state() -> None:
    batches = batch_iterator.BatchIterator(begin, None, is_deterministic=True)
    assert int(next(batches)["image"][0]) == 0 and batches.state().position == 4
    assert int(next(batches)["image"][0]) == 1 and batches.state().position == 8
    assert int(next(batches)["image"][0]) == 3
    assert (batches.state().epoch, batches.state().position) == (1, 6)
    assert numbers_of(batches) == [4]


def test_iterator_begins_and_is_restored_at_a_state() -> None:
    batches = batch_iterator.BatchIterator(begin, None, is_deterministic=True)
    start = batches.state()
    next(batches)
    state = batches.state()
    assert numbers_of(batch_iterator.BatchIterator(begin, state, is_deterministic=True)) == [1, 3, 4]
    assert numbers_of(batches) == [1, 3, 4]
    batches.restore(state)
    assert batches.state() == state
    assert numbers_of(batches) == [1, 3, 4]
    batches.restore(start)
    assert numbers_of(batches) == [0, 1, 3, 4]


def test_iterator_in_any_order_has_no_state() -> None:
    batches = batch_iterator.BatchIterator(begin, None, is_deterministic=False)
    with pytest.raises(errors.ConfigError, match="deterministic=False gives examples in the order in which they are"):
        batches.state()


def test_ragged_tensors_become_rows_and_tensors_arrays() -> None:
    batch = {"ids": tf.ragged.constant([[1, 2], [], [3]], row_splits_dtype=tf.int64), "label": tf.constant([7, 8, 9])}
    [found] = batch_iterator.NumpyIterator(tf.data.Dataset.from_tensors(batch))
    assert found["ids"].dtype == object
    assert [row.tolist() for row in found["ids"]] == [[1, 2], [], [3]]
    np.testing.assert_array_equal(found["label"], [7, 8, 9])


@pytest.mark.parametrize("kind", [errors.ExampleError, errors.ShardError, errors.ConfigError])
def test_error_of_imagebeam_comes_without_the_wrapper_of_tensorflow(kind: type[errors.ImagebeamError]) -> None:
    def fail(number: np.ndarray) -> np.ndarray:
        raise kind("record 3 of shard x: broken")

    dataset = tf.data.Dataset.range(1).map(lambda number: tf.numpy_function(fail, [number], tf.int64))
    with pytest.raises(kind, match=r"^record 3 of shard x: broken$"):
        next(batch_iterator.NumpyIterator(dataset))


def test_error_of_tensorflow_stays_as_it_is() -> None:
    dataset = tf.data.Dataset.range(1).map(lambda number: tf.io.decode_jpeg("no JPEG"))
    with pytest.raises(tf.errors.OpError, match="JPEG"):
        next(batch_iterator.NumpyIterator(dataset))
