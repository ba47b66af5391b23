"""Gaps in the positions of a dataset: each is reported once, and filled or kept as the options say."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

tf = pytest.importorskip("tensorflow")


lost: list[int] = []


def report(expected: np.ndarray, found: np.ndarray, following: np.ndarray, is_end: np.ndarray) -> np.ndarray:
    lost.extend(sorted(set(range(int(expected), int(following))) - set(found.tolist())))
    return following


@functools.cache
def keep_positions(size: int, fills: bool) -> Any:
    """Returns a function from positions, their begin and end to batches. Its graph is made once: that takes 0.1 s."""
    from imagebeam.reader import gaps

    call = functools.partial(tf.numpy_function, report, Tout=tf.int64, stateful=False)

    def keep(positions: tf.Tensor, begin: tf.Tensor, end: tf.Tensor) -> tf.data.Dataset:
        dataset = tf.data.Dataset.from_tensor_slices({"position": positions, "value": positions + 1}).batch(size)
        reported = gaps.report_gaps(dataset, lambda *seen: call(seen), begin, end, adds_expected=True)
        return gaps.keep_positions(reported, end, size, fills)

    number = tf.TensorSpec([], tf.int64)
    return tf.function(keep, [tf.TensorSpec([None], tf.int64), number, number], autograph=False)


@settings(deadline=None, max_examples=8)
@given(st.integers(0, 5), st.integers(1, 9), st.sampled_from([1, 3]), st.booleans(), st.sets(st.integers(0, 8)))
@example(2, 7, 3, True, set(range(7)))  # none missing
@example(2, 7, 3, False, set())  # all
@example(0, 7, 3, False, {0, 2, 6})  # inside of a batch, and a batch
@example(0, 7, 3, True, {3, 4})  # at both ends
@example(1, 5, 1, True, {1, 4})
def test_every_missing_position_is_reported_and_every_batch_keeps_its_places(
    begin: int, length: int, size: int, fills: bool, found_places: set[int]
) -> None:
    end = begin + length
    kept = sorted(begin + place for place in found_places if place < length)
    lost.clear()
    inputs = (tf.constant(each, tf.int64) for each in (kept, begin, end))
    batches = list(keep_positions(size, fills)(*inputs).as_numpy_iterator())
    assert lost == [each for each in range(begin, end) if each not in kept]
    for number, batch in enumerate(batches):
        assert all((each - begin) // size == number for each in batch["position"].tolist())
    found = [pair for batch in batches for pair in zip(batch["position"].tolist(), batch["value"].tolist())]
    expected = [(each, each + 1) for each in kept]
    if fills:  # a blank value follows the last example, to fill a gap at the end
        expected = [(each, next((k + 1 for k in kept if k >= each), 0)) for each in range(begin, end)]
    assert [(position, value) for position, value in found if position < end] == expected
