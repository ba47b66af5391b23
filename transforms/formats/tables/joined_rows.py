"""Joins tables that list the same images in the same order, row by row, as the lists of CUB-200 do."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from imagebeam.transforms.formats.tables import table_formats
from imagebeam.transforms.sources import table_rows


class JoinedTable(NamedTuple):
    """A further table, of the format of the first."""

    uri: str
    header: tuple[str, ...] = ()  # names of its columns; () if its first line has them


def join_rows(
    rows: Iterable[tuple[table_formats.RowPlace, table_formats.Row]],
    table: table_formats.TableFile,
    on: str,
    columns: Sequence[str],
    texts: Sequence[str],
) -> Iterator[tuple[table_formats.RowPlace, table_formats.Row]]:
    """Yields rows with the columns of `table`; a row that cannot be parsed in either is a text.

    Raises:
        OSError: if the table cannot be read.
        ValueError: if it has other ids, or the same in another order.
    """
    for one, other in itertools.zip_longest(rows, table.rows(columns, texts)):
        if one is None or other is None:
            more = "fewer" if one is None else "more"
            raise ValueError(
                f"it has {more} rows than {table.uri!r}, which source.manifest.join names; both need a row for each id"
            )
        (place, row), (other_place, other_row) = one, other
        if not isinstance(row, Mapping):
            yield place, row
        elif not isinstance(other_row, Mapping):
            yield place, f"{other_place} of {table.uri}: {other_row}"
        else:
            first, second = table_rows.text_in(row, on), table_rows.text_in(other_row, on)
            if first != second:
                raise ValueError(
                    f"{place} has {on} {first!r}, and {other_place} of {table.uri!r} has {second!r}: "
                    f"source.manifest.join needs the same ids in the same order; sort both by {on}"
                )
            yield place, {**other_row, **row}
