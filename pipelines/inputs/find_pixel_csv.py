"""Finds CSV files with pixels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from imagebeam import errors
from imagebeam.pipelines.config import arrays_section
from imagebeam.pipelines.inputs import array_axes
from imagebeam.transforms.arrays import array_names, found_array, pixel_rows, unpacked_content
from imagebeam.transforms.formats import array_places
from imagebeam.transforms.sources import pixel_csv, table_rows

_MAX_SHOWN = 6
_MAX_FOLDERS = 100  # looked into below the one that is given


class _Table(NamedTuple):
    """A CSV file with pixels."""

    uri: str
    version: int
    table: pixel_rows.PixelTable


def find_tables(files: array_places.Files, wanted: arrays_section.ArraysConfig) -> dict[str, _Table] | None:
    """Returns the CSV files with pixels by split; None if the config or the files say that images are in arrays."""
    if wanted.images:
        if not all(one.endswith(array_names.CSV) for one in wanted.images.values()):
            return None
        named = {}
        for split, one in wanted.images.items():
            uris = files.match(f"source.arrays.images.{split}", one)
            if len(uris) > 1 or (found := _look_into(uris[0])) is None:
                raise errors.ConfigError(
                    f"source.arrays.images.{split}, {one!r}, must name one CSV file with pixels; it names "
                    f"{', '.join(uris[:_MAX_SHOWN])}"
                )
            named[split] = found
        return named
    tables: dict[str, _Table] = {}
    names = [name for name in files.names if name.endswith(array_names.CSV)]
    for name in names[:_MAX_FOLDERS]:
        if (found := _look_into(files.address(name))) is not None:
            split = array_places.role_of(name.removesuffix(array_names.CSV)).split
            if split in tables:
                raise errors.ConfigError(
                    f"{found.uri!r} and {tables[split].uri!r} both hold pixels of the split {split or '(unnamed)'}: "
                    "give one of them as --input, or name them in source.arrays.images"
                )
            tables[split] = found
    return {split: tables[split] for split in sorted(tables, key=array_places.ORDER.index)} or None


def _look_into(uri: str) -> _Table | None:
    version = array_places.stat(uri).version
    with array_places.explained(uri):
        table = pixel_rows.look_into(uri, version)
    return None if table is None else _Table(uri, version, table)


def csv_source(
    tables: Mapping[str, _Table],
    wanted: arrays_section.ArraysConfig,
    fields: table_rows.RowFields,
    label_kind: str | None,
    takes_splits: bool,
) -> pixel_csv.PixelCsvSource:
    """Returns the source of CSV files with pixels; arguments are those of `find_arrays.find`.

    Raises:
        ConfigError: if the files have not what the config asks for.
    """
    if takes_splits and "" in tables:
        raise errors.ConfigError(
            f"the name of {tables[''].uri!r} says no split: set split.by: column or split.by: hash, or name the files "
            "of each split in source.arrays.images"
        )
    found: list[pixel_csv.PixelFile] = []
    shapes: dict[tuple[int, int, int], array_places.Place] = {}
    for split, each in tables.items():
        missing = [name for name in fields.needed if name not in each.table.names]
        if missing:
            raise errors.ConfigError(
                f"{each.uri!r} has no column {missing[0]!r} beside its pixels, only "
                f"{', '.join(map(repr, each.table.names)) or 'none'}; name another, or leave the file out by giving "
                "the other as --input"
            )
        flat = found_array.FoundArray(pixel_rows.PIXELS, (0, each.table.num_pixels), "|u1")
        place = array_places.Place(each.uri, each.version, flat)
        axes = array_axes.axes_of(place, wanted)
        try:
            shapes.setdefault(axes.image_shape(flat.shape), place)
        except ValueError as e:
            raise errors.ConfigError(f"{place} does not have {e}: correct source.arrays.shape") from e
        address = unpacked_content.part_of(each.uri, pixel_rows.part_name(axes))
        found.append(pixel_csv.PixelFile(split, each.uri, each.version, each.table, address))
    array_axes.check_shapes(shapes)
    names = array_axes.given_classes(wanted) if label_kind == "class" else ()
    if label_kind == "class" and not names:
        names = _numbers_in_rows(found, fields)
    return pixel_csv.PixelCsvSource(tuple(found), next(iter(shapes)), fields, names)


def _numbers_in_rows(found: Sequence[pixel_csv.PixelFile], fields: table_rows.RowFields) -> tuple[tuple[str, str], ...]:
    texts: set[str] = set()
    for file in found:
        if fields.label is not None:
            column = file.table.names.index(fields.label)
            with array_places.explained(file.uri):
                texts.update(row.cells[column] for row in pixel_rows.read_rows(file.uri, file.version, file.table))
    return array_axes.numbers_up_to(texts - {""})
