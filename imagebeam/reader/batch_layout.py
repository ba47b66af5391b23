"""The batch as the user gets it: of its size, padded, by name or as (image, label)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from imagebeam import errors
from imagebeam.reader import example_columns, map_call, record_order
from imagebeam.reader import options as options_lib


class BatchLayout:
    """Makes batches of columns, and calls the user's `batch_map` on them."""

    def __init__(self, options: options_lib.ReadOptions, specs: map_call.Specs, blank: Mapping[str, Any]):
        """Takes the columns of a batch, and the example that fills it up.

        Raises:
            ConfigError: if `map` gave columns for which the batch has no room.
        """
        self._options, self._columns, self._blank = options, specs, dict(blank)
        if "weight" in blank:
            self._blank["weight"] = np.zeros_like(blank["weight"])  # whatever `map` made of it
        self._key = record_order.make_key("batch_map", options.seed)
        if options.pad and "mask" in specs:
            raise errors.ConfigError("map-bad-result", "map returned 'mask', which is the mask of pad=True")
        if options.supervised and (specs.keys() - {"weight"} != {"image", "label"}):
            raise errors.ConfigError(
                "map-bad-result",
                f"supervised=True gives (image, label), and map returned {sorted(specs)}: return 'image' and 'label'",
            )

    def fill(self, columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the batch of these examples, filled up if it is padded."""
        size = self._options.batch_size
        return self._pad(columns, size) if size is not None and self._options.pad else columns

    def change(self, batch: dict[str, np.ndarray], place: int) -> dict[str, np.ndarray]:
        """Returns what `batch_map` makes of a batch, if there is one.

        Args:
            batch: the batch.
            place: number of places in batches that the job has filled before this one, the same in all processes.

        Raises:
            ConfigError: if `batch_map` returned something that is no batch.
        """
        return batch if self._options.batch_map is None else self._map(batch, place)

    def finish(self, batch: dict[str, np.ndarray]) -> Any:
        """Returns the batch as the user gets it: arrays by name, or a tuple."""
        return tuple(batch[name] for name in _in_tuple(batch)) if self._options.supervised else batch

    def specs(self) -> dict[str, example_columns.ColumnSpec]:
        """Returns what a batch consists of, by name; if it is a tuple, in its order. For the graphs of TensorFlow."""
        options = self._options
        size = options.batch_size if options.pad or options.drops_remainder else None
        found = {name: spec._replace(shape=(size, *spec.shape)) for name, spec in self._columns.items()}
        if options.pad:
            name, dtype = ("weight", np.float32) if options.supervised else ("mask", np.bool_)
            found[name] = example_columns.ColumnSpec((size,), np.dtype(dtype))
        if options.batch_map is not None:
            nothing, fill = {name: spec.make(0) for name, spec in self._columns.items()}, self._fill
            blank = self._map((self._pad if options.pad else fill)(nothing, options.batch_size or 0), 0)
            found = {name: _spec_of(values, size, found.get(name)) for name, values in blank.items()}
        return {name: found[name] for name in _in_tuple(found)} if options.supervised else found

    def _pad(self, columns: Mapping[str, np.ndarray], size: int) -> dict[str, np.ndarray]:
        """Returns the columns filled up, with a mask or with weights of 0."""
        count = len(columns[self._options.names_of_pictures[0]])
        batch = self._fill(columns, size)
        is_real = np.arange(size) < count
        if not self._options.supervised:
            batch["mask"] = is_real
        elif "weight" not in batch:
            batch["weight"] = is_real.astype(np.float32)
        return batch

    def _fill(self, columns: Mapping[str, np.ndarray], size: int) -> dict[str, np.ndarray]:
        """Returns the columns filled up with blank examples."""
        filled = dict(columns)
        for name, values in columns.items():
            if len(values) < size:  # as of the last batch alone
                filled[name] = np.empty((size, *values.shape[1:]), values.dtype)
                filled[name][: len(values)] = values
                for row in range(len(values), size):
                    filled[name][row] = self._blank[name]
        return filled

    def _map(self, batch: dict[str, np.ndarray], place: int) -> dict[str, np.ndarray]:
        """Returns what `batch_map` makes of a batch."""
        assert self._options.batch_map is not None
        pictures = self._options.names_of_pictures
        count = len(batch[pictures[0]])
        seed = record_order.seeds(np.array([place]), np.zeros(1, np.int64), self._key)[0]
        result = self._options.batch_map(batch, map_call.generator(seed))
        arrays = {name: np.asarray(each) for name, each in result.items()} if isinstance(result, Mapping) else {}
        wanted = [*pictures, "label"] if self._options.supervised else pictures
        wrong = [f"{name!r} of shape {list(each.shape)}" for name, each in arrays.items() if each.shape[:1] != (count,)]
        wrong += [f"no {name!r}" for name in wanted if name not in arrays]
        if self._options.supervised:
            wrong += [f"{name!r}, which is in no pair," for name in arrays if name not in (*wanted, "weight")]
        if wrong:
            raise errors.ConfigError(
                "batch-map-bad-result",
                f"batch_map returned {', '.join(wrong)} for a batch of {count:,} examples: return a dict of arrays "
                "whose first axis has one row for each",
            )
        return arrays


def _in_tuple(names: Iterable[str]) -> list[str]:
    return [name for name in ("image", "label", "weight") if name in names]


def _spec_of(
    values: np.ndarray, size: int | None, before: example_columns.ColumnSpec | None
) -> example_columns.ColumnSpec:
    if before is not None and before.is_ragged and values.dtype == object and values.ndim == 1:
        return before
    return example_columns.ColumnSpec((size, *values.shape[1:]), values.dtype)
