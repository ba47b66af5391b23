"""Finds the examples that TensorFlow could not decode: gaps in the positions of the examples that it could decode.

tf.data cannot report on which element an operation failed; it can only drop the element (`ignore_errors`). Elements
come in order, so each dropped one leaves a gap in the positions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import tensorflow as tf

Batch = dict[str, tf.Tensor]
Position: TypeAlias = int | tf.Tensor  # int64 []


def blank(spec: Any, size: int | None) -> Batch:
    """Returns a batch of zeros and empty strings."""
    return {name: tf.zeros([size, *(side or 1 for side in each.shape[1:])], each.dtype) for name, each in spec.items()}


def report_gaps(
    dataset: tf.data.Dataset,
    report: Callable[..., tf.Tensor],
    begin: Position,
    end: Position | None,
    adds_expected: bool = False,
) -> tf.data.Dataset:
    """Reports the gaps between batches, within them, and after the last one.

    Args:
        dataset: batches with "position", int64 [n], ascending over all batches.
        report: operation for a batch if positions are missing before or inside it, with four arguments: the first
            position expected, the positions found, the position after them, and whether the batch marks the end. It
            returns the position after them, int64.
        begin: the first position.
        end: the position after the last one; None if the dataset never ends.
        adds_expected: whether to add "expected" to each batch, the first position that was expected, int64 [].

    Returns:
        The same batches and, if there is an end, a blank batch at that position, which marks it.
    """
    if end is not None:
        beyond = blank(dataset.element_spec, 1) | {"position": tf.reshape(tf.cast(end, tf.int64), [1])}
        dataset = dataset.concatenate(tf.data.Dataset.from_tensors(beyond))

    def check(expected: tf.Tensor, batch: Batch) -> tuple[tf.Tensor, Batch]:
        found = batch["position"]
        following = found[-1] + 1
        is_whole = (found[0] == expected) & (following - expected == tf.size(found, tf.int64))

        def report_gap() -> tf.Tensor:
            is_end = tf.constant(False) if end is None else found[0] == end
            return tf.ensure_shape(report(expected, found, following, is_end), [])

        checked = tf.cond(is_whole, lambda: following, report_gap)
        return checked, batch | {"expected": expected} if adds_expected else batch

    return dataset.scan(tf.cast(begin, tf.int64), check)


def until(dataset: tf.data.Dataset, end: Position | None) -> tf.data.Dataset:
    """Returns the batches that begin before `end`."""
    return dataset if end is None else dataset.take_while(lambda batch: batch["position"][0] < end)


def full_until(dataset: tf.data.Dataset, end: Position | None, size: int) -> tf.data.Dataset:
    """Returns the batches of `size` examples that begin before `end`, and reads the dataset to its own end.

    So `report_gaps` reports what a shorter batch before `end` lacks: it finds that with the batch that marks the end.
    """
    if end is None:
        return dataset
    return dataset.filter(lambda batch: (batch["position"][0] < end) & (tf.size(batch["position"]) == size))


def keep_positions(dataset: tf.data.Dataset, end: Position | None, size: int, fills: bool) -> tf.data.Dataset:
    """Returns batches of `size` consecutive positions up to `end`, with each example at its own position.

    Args:
        dataset: batches as `report_gaps` returns them, with "expected".
        end: the position after the last one; None if the dataset never ends.
        size: size of a batch.
        fills: whether the example after a gap fills it too; otherwise batches are shorter by their gaps.
    """

    def spread(batch: Batch) -> tf.data.Dataset:
        first, found = batch["expected"], batch["position"]

        def take(start: tf.Tensor) -> Batch:
            positions = tf.range(start, tf.minimum(start + size, found[-1] + 1))
            rows = tf.searchsorted(found, positions)
            taken = {name: tf.gather(each, rows) for name, each in batch.items() if name != "expected"}
            return taken | {"position": positions, "is_read": taken["position"] == positions}

        # By batches, so that a long gap takes no memory.
        return tf.data.Dataset.range(first, found[-1] + 1, size).map(take)

    def keep_read(batch: Batch) -> Batch:
        is_kept = batch["is_read"] if end is None else batch["is_read"] & (batch["position"] < end)
        rows = tf.where(is_kept)[:, 0]
        return {name: tf.gather(each, rows) for name, each in batch.items() if name != "is_read"}

    def keep_all(batch: Batch) -> Batch:
        return {name: each for name, each in batch.items() if name != "is_read"}

    dataset = dataset.flat_map(spread).rebatch(size)
    return until(dataset, end).map(keep_all if fills else keep_read)
