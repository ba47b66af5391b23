"""Options of the order: which examples come when, in which batches, and in which process."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from imagebeam.reader import option_values, record_order


def _state(name: str, value: Any) -> record_order.ReaderState | None:
    """Returns a state."""
    if isinstance(value, Mapping):
        raise option_values.bad_value(name, value, "give imagebeam.ReaderState.from_dict of it")
    if value is not None and not isinstance(value, record_order.ReaderState):
        raise option_values.bad_value(name, value, "give what state() of an iterator returned")
    return value


@dataclasses.dataclass(frozen=True)
class OrderOptions:
    """Which examples come when.

    Attributes:
        batch_size: number of examples in a batch of this process; None gives single examples.
        shuffle: "stream" (blocks of records in random order, and the records of many blocks mixed), "global" (a true
            permutation of all records), None (the order of the shards).
        seed: seed of the order, the crops and the flips.
        num_epochs: number of times that everything is read; None never ends.
        repeats: number of times that each record comes in a row in an epoch, each with its own crop, flip, changes and
            random numbers of `map`: repeated augmentation. Epochs are so many times as long. For training alone.
        first_epoch: the epoch that is read first, from 0: where a loop goes on that counts epochs, as Keras'
            `initial_epoch` does. `num_epochs` counts from it.
        next_epoch_each_iteration: whether each iteration over the dataset reads the next `num_epochs` epochs, with
            their own order, crops and flips; by default each iteration reads the same. For loops that iterate over one
            dataset many times, as Keras does. All processes must iterate equally often.
        process_index: index of this process among `process_count`; together they read everything once.
        process_count: number of processes.
        drop_remainder: whether a last batch that is not full is dropped. All processes then make the same number of
            batches.
        pad: whether the last batch is filled up, with "mask" False, and all processes make the same number of batches.
        deterministic: whether examples come in the exact order. Without it, what is decoded first comes first, and
            there is no `state()`.
        state: where to go on, from `ReaderState`.
        shuffle_bytes: bytes of records that "stream" mixes.
        shuffle_records: the same as a number of records.
    """

    batch_size: int | None = option_values.option(
        None, option_values.whole(1, option_values.MAX_BATCH_SIZE, may_be_none=True)
    )
    shuffle: str | None = option_values.option("stream", option_values.choice(option_values.SHUFFLES))
    seed: int = option_values.option(0, option_values.whole())
    num_epochs: int | None = option_values.option(None, option_values.whole(1, may_be_none=True))
    repeats: int = option_values.option(1, option_values.whole(1, 1 << 20))
    first_epoch: int = option_values.option(0, option_values.whole(0))
    next_epoch_each_iteration: bool = option_values.option(False, option_values.truth())
    process_index: int = option_values.option(0, option_values.whole())
    process_count: int = option_values.option(1, option_values.whole(1, 1 << 20))
    drop_remainder: bool = option_values.option(True, option_values.truth())
    pad: bool = option_values.option(False, option_values.truth())
    deterministic: bool = option_values.option(True, option_values.truth())
    state: record_order.ReaderState | None = option_values.option(None, _state)  # noqa: RUF009
    shuffle_bytes: int = option_values.option(256 << 20, option_values.whole(1, 1 << 60))
    shuffle_records: int | None = option_values.option(None, option_values.whole(1, may_be_none=True))

    def conflicts_of_order(self) -> Iterator[str]:
        """Yields an error text for each of these options that does not fit the others."""
        if self.pad and (self.num_epochs is None or self.batch_size is None):
            yield "pad=True needs batch_size and num_epochs, because a reader that never ends has no last batch"
        if self.next_epoch_each_iteration and self.num_epochs is None:
            yield (
                "next_epoch_each_iteration=True needs num_epochs, because no iteration follows one that never ends: "
                "give num_epochs=1"
            )
        if self.next_epoch_each_iteration and self.state is not None:
            yield (
                "next_epoch_each_iteration=True begins each iteration with a whole epoch, and a state is in the middle "
                "of one: give one of the two"
            )
        if self.repeats > 1 and self.shuffle is None:
            yield f"repeats is {self.repeats}, and shuffle=None reads every example once, to evaluate: leave it out"

    @property
    def drops_remainder(self) -> bool:
        return self.drop_remainder and not self.pad
