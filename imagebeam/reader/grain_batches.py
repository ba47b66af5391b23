"""Batches as a dataset of Grain. Imports Grain, so it is imported by `as_grain_batches`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import grain

from imagebeam import errors
from imagebeam.reader import record_order, resumable


class GrainBatches(grain.IterDataset):
    """The batches of one process, decoded by the reader's threads; Grain's transformations follow as on any dataset.

    Each iteration begins at the first batch, and its iterator saves and restores its place.
    """

    def __init__(self, begin: Callable[[], Any]):
        """`begin` returns a new `feeds.BatchIterator`."""
        super().__init__()
        self._begin = begin

    def __iter__(self) -> GrainBatchIterator:
        return GrainBatchIterator(self._begin())

    def set_slice(self, sl: slice, sequential_slice: bool = False) -> None:
        """Refuses to be cut into parts, which Grain does for its worker processes.

        Raises:
            ConfigError: always.
        """
        raise errors.ConfigError(
            "reader-in-worker",
            "as_grain_batches reads and decodes in threads of the training process, and Grain would start one reader "
            "in each worker process: leave mp_prefetch out; for transformations in worker processes, use as_grain",
        )


class GrainBatchIterator(resumable.Resumable, grain.DatasetIterator):
    """Batches as dicts of NumPy arrays, with Grain's `get_state` and `set_state`."""

    def __init__(self, batches: Any):
        """`batches` is a `feeds.BatchIterator`."""
        super().__init__()
        self._batches = batches
        self._is_closed = False

    def __next__(self) -> Any:
        if self._is_closed:
            raise ValueError("this iterator was closed: make a new one with iter()")
        return next(self._batches)

    def close(self) -> None:
        """Makes `next` raise ValueError, as iterators of Grain do. Those of 0.2.13, for Python 3.10, cannot."""
        self._is_closed = True

    @property
    def num_batches(self) -> int | None:
        """Number of batches, as `feeds.BatchIterator.num_batches`."""
        return self._batches.num_batches

    def state(self) -> record_order.ReaderState:
        return self._batches.state()

    def restore(self, state: record_order.ReaderState) -> None:
        self._batches.restore(state)

    def metrics(self) -> Mapping[str, float | str]:
        """Returns what the trainer waited for, as `feeds.BatchIterator.metrics`."""
        return self._batches.metrics()
