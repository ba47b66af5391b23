"""Records by position: reads them in the order of the schedule, and counts the examples that are skipped."""

from __future__ import annotations

import logging
import threading
from typing import NamedTuple

import numpy as np

from imagebeam import errors, example
from imagebeam.reader import crops, read_plan, shard_reader
from imagebeam.reader import options as options_lib
from imagebeam.reader import order as order_lib

_LOGGER = logging.getLogger(__name__)
_MIN_SKIPPED = 10  # skipped examples before max_error_fraction is applied: a fraction of fewer means nothing


class Chunk(NamedTuple):
    """The records at consecutive positions."""

    contents: list[bytes | shard_reader.Trouble]
    positions: np.ndarray  # int64 [n]
    records: np.ndarray  # int64 [n], numbers of the records in the split
    uniforms: np.ndarray  # float32 [n, crops.NUM_UNIFORMS], random numbers in [0, 1)


class RecordReader:
    """Reads records by position, and skips or refuses examples that cannot be read or decoded. Thread-safe."""

    def __init__(self, plan: read_plan.ReadPlan, options: options_lib.ReadOptions):
        self._fetcher = plan.fetcher
        self._schedule = plan.schedule
        self._options = options
        self._list_keys = frozenset(feature.key for feature in plan.lists)
        self._key = order_lib.make_key("pixels", options.seed)
        self._lock = threading.Lock()
        self._skipped: set[int] = set()  # positions
        self._farthest = plan.schedule.begin  # the last position of a skipped example
        self._logged: set[str] = set()  # shards

    def read(self, first: int, end: int) -> Chunk:
        """Returns the records at positions `first` to `end`.

        Raises:
            ShardError: if a whole shard cannot be read.
        """
        positions = np.arange(first, end, dtype=np.int64)
        records, epochs = self._schedule.order.locate(positions)
        contents = list(self._fetcher.fetch(records, epochs))
        return Chunk(contents, positions, records, order_lib.uniforms(records, epochs, self._key, crops.NUM_UNIFORMS))

    def pack_lists(self, content: bytes) -> bytes:
        """Returns the lists of a record that the batches need (`ReadPlan.lists`), as a tf.train.Example.

        Raises:
            ValueError: if `content` is not a tf.train.Example.
        """
        return example.select_features(content, self._list_keys)

    @property
    def replaces(self) -> bool:
        """True if the next readable example replaces a skipped one, because all batches must be full."""
        options = self._options
        return options.on_error == "skip" and options.batch_size is not None and options.drops_remainder

    @property
    def spare(self) -> int:
        """Number of positions after the last one where replacements are looked for: those of an epoch."""
        return self._schedule.spare if self.replaces else 0

    def no_replacement(self, position: int) -> errors.ExampleError:
        """Returns the error for an epoch without any readable example from `position` on."""
        return errors.ExampleError(
            f"none of {self.spare:,} examples from position {position:,} on could be read or decoded, and a batch of "
            f"{self._options.batch_size} needs one: run imagebeam verify --decode"
        )

    def trouble(self, record: int, detail: str) -> shard_reader.Trouble:
        """Returns `detail` with the record of the split that it is about."""
        return self._fetcher.trouble(record, detail)

    def lose(self, position: int, trouble: shard_reader.Trouble) -> None:
        """Skips an example, if the options allow it.

        Raises:
            ExampleError: if they do not, or too many examples were skipped.
        """
        if self._options.on_error == "raise":
            raise errors.ExampleError(str(trouble))
        with self._lock:
            self._skipped.add(position)
            self._farthest = max(self._farthest, position)
            num_skipped = len(self._skipped)
            num_read = self._farthest + 1 - self._schedule.begin
            is_first = trouble.shard not in self._logged
            self._logged.add(trouble.shard)
        if is_first:
            _LOGGER.warning("skipped %s (logged once for each shard)", trouble)
        if num_skipped > _MIN_SKIPPED and num_skipped > self._options.max_error_fraction * num_read:
            raise errors.ExampleError(
                f"{num_skipped:,} of {num_read:,} examples could not be read or decoded, more than "
                f"max_error_fraction={self._options.max_error_fraction}; the last: {trouble}"
            )
