"""Calls the user's `map` on each example, with random numbers that depend on seed, record and round alone."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from imagebeam import concurrency, errors
from imagebeam.reader import batch_buffers, example_columns, map_call, map_workers, record_order

Failures: TypeAlias = list[tuple[int, Exception]]  # the row of each example that cannot be mapped, and why

_ROWS_AT_ONCE = 8  # examples that a thread takes at once
_TRACED_SIDES = 64, 96  # of black images, if images have any size: sides that then differ may have any length


class ExampleMap:
    """Calls a function on examples. Thread-safe if the function is.

    Attributes:
        specs: of the columns that it makes.
        blank: what it makes of the example that fills up a batch.
    """

    def __init__(
        self,
        function: map_call.Function,
        columns: example_columns.ExampleColumns,
        seed: int,
        threads: int,
        num_processes: int,
        needed: Sequence[str],
    ):
        """Calls the function on a black example, and expects its names, shapes and types of all others.

        Args:
            function: the function.
            columns: of its examples.
            seed: of the random numbers.
            threads: number of threads that call it at once for a batch.
            num_processes: number of processes that call it instead; 0 for none.
            needed: names that its results must have, those of images.

        Raises:
            ConfigError: if that call fails, or its result cannot be in a batch, or no process can get the function.
        """
        self._function, self._before = function, columns.specs
        self._key = record_order.make_key("map", seed)
        self._buffers: Mapping[str, batch_buffers.BatchBuffers] = collections.defaultdict(batch_buffers.BatchBuffers)
        first, second = (_trace(function, columns.blank(side), needed) for side in _TRACED_SIDES)
        before = columns.specs
        self.specs = {name: _merge(value, second.get(name), before.get(name)) for name, value in first.items()}
        self.blank = {name: value[()] for name, value in first.items()}
        self._workers, self._threads = None, num_processes or threads
        if num_processes:
            self._workers = map_workers.MapWorkers(function, before, self.specs, num_processes, _ROWS_AT_ONCE)

    def apply(
        self, columns: map_call.Arrays, records: np.ndarray, rounds: np.ndarray
    ) -> tuple[map_call.Arrays, Failures]:
        """Returns the columns of what the function makes of the examples, and the failures.

        Args:
            columns: of the examples. Their memory is used again.
            records: int64 [n], numbers of the records.
            rounds: int64 [n], as of `record_order.seeds`.
        """
        seeds = record_order.seeds(records, rounds, self._key)
        made = {name: self._make_column(name, spec, columns, len(seeds)) for name, spec in self.specs.items()}
        failures: Failures = []

        def change(rows: range) -> None:
            examples = [{name: each[row] for name, each in columns.items()} for row in rows]
            results = self._call_here if self._workers is None else self._workers.call
            for row, given, result in zip(rows, examples, results(examples, seeds[rows.start : rows.stop])):
                if isinstance(result, Exception):
                    failures.append((row, result))
                    continue
                for name, value in _apart(result, given).items():
                    if value.shape != made[name].shape[1:] and made[name].dtype != object:
                        made[name] = np.empty((1, *value.shape), value.dtype)  # of any size, so the only one
                    if value is not given.get(name):
                        made[name][row] = value if self.specs[name].is_ragged else value[()]

        chunks = [range(first, min(first + _ROWS_AT_ONCE, len(seeds))) for first in range(0, len(seeds), _ROWS_AT_ONCE)]
        concurrency.call_each(change, chunks, max(1, min(self._threads, len(chunks))))
        return made, sorted(failures, key=lambda each: each[0])

    def _call_here(
        self, examples: Sequence[Mapping[str, Any]], seeds: np.ndarray
    ) -> Iterator[map_call.Arrays | Exception]:
        """Yields what the function makes of each example, or why it failed."""
        for example, seed in zip(examples, seeds, strict=True):
            try:
                yield map_call.call(self._function, dict(example), seed, self.specs)
            except Exception as e:
                yield e

    def _make_column(
        self, name: str, spec: example_columns.ColumnSpec, columns: map_call.Arrays, count: int
    ) -> np.ndarray:
        if spec == self._before.get(name):  # as the image of most functions: written where it was
            return columns[name]
        if spec.is_ragged or spec.dtype == object:
            return spec.make(count)
        return self._buffers[name].make((count, *(each or 0 for each in spec.shape)), spec.dtype)


def _apart(result: map_call.Arrays, given: Mapping[str, Any]) -> map_call.Arrays:
    """Returns the arrays, copies of those in the memory of another name: it may be written before they are read."""
    arrays = {name: each for name, each in given.items() if isinstance(each, np.ndarray)}
    return {
        name: value.copy()
        if any(other != name and np.may_share_memory(value, each) for other, each in arrays.items())
        else value
        for name, value in result.items()
    }


def _trace(function: map_call.Function, blank: dict[str, Any], needed: Sequence[str]) -> map_call.Arrays:
    try:
        return map_call.call(function, blank, np.uint64(0), needed=needed)
    except map_call.ResultError as e:
        raise errors.ConfigError("map-bad-result", f"{e}: a batch cannot hold it") from e
    except Exception as e:
        raise errors.ConfigError(
            "map-failed",
            f"map raised {type(e).__name__}: {e}; this was the call on a black example with zeros and empty values, "
            "which says what a batch has and fills it up: let it return the usual shapes for it",
        ) from e


def _merge(
    first: np.ndarray, second: np.ndarray | None, before: example_columns.ColumnSpec | None
) -> example_columns.ColumnSpec:
    """Returns the spec of a column by what two black images became."""
    if before is not None and before.is_ragged and first.ndim == 1:
        return example_columns.ColumnSpec((None,), first.dtype, is_ragged=True)
    if second is None or first.ndim != second.ndim or first.dtype != second.dtype:
        other = "nothing" if second is None else map_call.shape_of(second)
        raise errors.ConfigError(
            "map-bad-result",
            f"map returned {map_call.shape_of(first)} for an image of {_TRACED_SIDES[0]} px, and {other} for one of "
            f"{_TRACED_SIDES[1]} px: only the lengths of axes may differ",
        )
    sides = zip(first.shape, second.shape, strict=True)
    return example_columns.ColumnSpec(tuple(a if a == b else None for a, b in sides), first.dtype)
