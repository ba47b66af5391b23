"""Spreads rows over intervals, each bundle packed into few blocks, so that a GroupByKey moves blocks and not rows."""

import collections
import zlib
from collections.abc import Iterator
from typing import Any

import apache_beam as beam
from apache_beam.transforms import window
from apache_beam.utils import windowed_value

from imagebeam.transforms import elements, hashing, sort_intervals

MAX_PENDING = 50_000  # rows that a bundle holds before it packs them: 30 MB
PackedRows = tuple[int, bytes]  # interval, packed rows


def interval_of_key(key: str) -> int:
    """Returns the interval of the rows of an image, by a checksum of its key."""
    return zlib.crc32(hashing.encode_key(key)) % sort_intervals.NUM_INTERVALS


class SpreadRowsFn(beam.DoFn):
    """Base of what yields PackedRows. Rows wait for others of their interval until the bundle ends."""

    def start_bundle(self) -> None:
        self.pending: dict[int, list[tuple[Any, ...]]] = collections.defaultdict(list)
        self.num_pending = 0

    def finish_bundle(self) -> Iterator[windowed_value.WindowedValue]:
        yield from map(window.GlobalWindows.windowed_value, self.take())

    def add(self, interval: int, row: tuple[Any, ...]) -> None:
        """Adds a row."""
        self.pending[interval].append(row)
        self.num_pending += 1

    @property
    def is_full(self) -> bool:
        """Whether so much waits that it should be taken."""
        return self.num_pending >= MAX_PENDING

    def take(self) -> Iterator[tuple[int, Any]]:
        """Yields each interval of which rows wait, with its block."""
        pending, self.pending, self.num_pending = self.pending, collections.defaultdict(list), 0
        for interval, rows in pending.items():
            yield interval, self.pack(rows)

    def pack(self, rows: list[tuple[Any, ...]]) -> Any:
        """Returns the block of an interval's rows. A subclass may have another one."""
        return elements.pack_rows(rows)
