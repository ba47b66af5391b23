"""An iterator over batches as NumPy arrays that can save and restore its place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from imagebeam import errors
from imagebeam.reader import reader_state, schedule

Begin = Callable[[reader_state.ReaderState | None], tuple[Iterator[Any], schedule.Schedule]]


class BatchIterator(Iterator[dict[str, np.ndarray]]):
    """Batches as NumPy arrays. `state` returns the current place in the data, `restore` goes to such a place."""

    def __init__(self, begin: Begin, state: reader_state.ReaderState | None, is_deterministic: bool):
        """Begins at `state`.

        Args:
            begin: returns the batches from a state on, those whose examples were all skipped included, and the schedule
                that they follow.
            state: where to begin; None for the first epoch.
            is_deterministic: whether the batches come in the order of the schedule.
        """
        self._begin = begin
        self._is_deterministic = is_deterministic
        self.restore(state)

    def __next__(self) -> Any:
        while True:
            batch = next(self._batches)
            self._num_batches += 1
            if len(batch[0] if isinstance(batch, tuple) else batch["image"]):  # else all examples were skipped
                return batch

    def state(self) -> reader_state.ReaderState:
        """Returns where the next batch begins: plain values, the same in every process of the job.

        Raises:
            ConfigError: with deterministic=False, which leaves open which examples have been read.
        """
        if not self._is_deterministic:
            raise errors.ConfigError(
                "deterministic=False gives examples in the order in which they are decoded, so there is no state from "
                "which another reader could go on exactly: leave it out where you need state()"
            )
        return self._schedule.state_after(self._num_batches)

    def restore(self, state: reader_state.ReaderState | None) -> None:
        """Goes on from `state`, as fast as a start: nothing before it is read."""
        self._batches, self._schedule = self._begin(state)
        self._num_batches = 0  # since the schedule began
