"""Merges consecutive rows of one image, as tables of captions and tags often have them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from imagebeam.transforms.formats.tables import table_formats
from imagebeam.transforms.sources import table_rows

# Place of a row, and its cells by column, or a text that says what is wrong with it, or a Conflict.
PlacedRow = tuple[table_formats.RowPlace, Any]


class Conflict(NamedTuple):
    """Rows of one image that contradict each other."""

    cells: Mapping[str, Any]  # of the first row
    detail: str


@dataclasses.dataclass
class _Group:
    """The rows of one image so far."""

    first: table_formats.RowPlace
    last: table_formats.RowPlace
    cells: dict[str, Any]
    lists: dict[str, list[Any]]
    conflict: str = ""

    def result(self) -> PlacedRow:
        """Returns the merged row at the place of the first."""
        if self.conflict:
            return self.first, Conflict(self.cells, self.conflict)
        if self.first == self.last:
            return self.first, self.cells
        return self.first, {**self.cells, **self.lists}


def merge_rows(placed: Iterable[PlacedRow], image: str, fields: table_rows.RowFields) -> Iterator[PlacedRow]:
    """Yields one row per image: its first row, with the values of all its rows in columns with many values.

    The other columns of `fields` must agree. A row that cannot be parsed is passed on and does not end a group of rows.
    """
    separators = fields.separators
    single = [name for name in fields.needed if name not in separators]
    group: _Group | None = None
    for place, row in placed:
        if not isinstance(row, Mapping):
            yield place, row
            continue
        if group is not None and row.get(image) == group.cells.get(image):
            _add(group, place, row, single)
        else:
            if group is not None:
                yield group.result()
            group = _Group(place, place, dict(row), {name: [] for name in separators})
        for name, separator in separators.items():
            group.lists[name] += table_rows.values_of(row.get(name), separator)
    if group is not None:
        yield group.result()


def _add(group: _Group, place: table_formats.RowPlace, row: Mapping[str, Any], single: Iterable[str]) -> None:
    group.last = place
    for name in single:
        one, other = group.cells.get(name), row.get(name)
        if not group.conflict and not _agree(one, other):
            group.conflict = (
                f"{group.first} and {place} are of one image, and column {name!r} is {one!r} in one and "
                f"{other!r} in the other; only columns with list: true (and a label with a separator) are put together"
            )


def _agree(one: Any, other: Any) -> bool:
    """Returns whether two cells are equal, also if one is a number and the other its text."""
    return (
        one == other
        or (table_rows.is_empty(one) and table_rows.is_empty(other))
        or str(one).strip() == str(other).strip()
    )
