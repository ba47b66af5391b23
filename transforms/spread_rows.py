"""Spreads rows over intervals, each bundle packed into few blocks, so that a GroupByKey moves blocks and not rows."""

import collections
from collections.abc import Iterator
from typing import Any

import apache_beam as beam
from apache_beam.transforms import window
from apache_beam.utils import windowed_value

from imagebeam.transforms import elements

MAX_PENDING = 50_000  # rows that a bundle holds before it packs them: 30 MB
PackedRows = tuple[int, bytes]  # interval, packed rows


class SpreadRowsFn(beam.DoFn):
    """Base of what yields PackedRows. Rows wait for others of their interval until the bundle ends."""

    def start_bundle(self) -> None:
        self._pending: dict[int, list[tuple[Any, ...]]] = collections.defaultdict(list)
        self._num_pending = 0

    def finish_bundle(self) -> Iterator[windowed_value.WindowedValue]:
        yield from map(window.GlobalWindows.windowed_value, self._take())

    def add(self, interval: int, row: tuple[Any, ...]) -> None:
        """Adds a row."""
        self._pending[interval].append(row)
        self._num_pending += 1

    def take_if_many(self) -> Iterator[PackedRows]:
        """Yields what waits if that is much."""
        if self._num_pending >= MAX_PENDING:
            yield from self._take()

    def _take(self) -> Iterator[PackedRows]:
        pending, self._pending, self._num_pending = self._pending, collections.defaultdict(list), 0
        for interval, rows in pending.items():
            yield interval, elements.pack_rows(rows)
