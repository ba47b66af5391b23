"""Names the images of rows by a template. Folders and extensions that it leaves open are found by a listing."""

from __future__ import annotations

import contextlib
import itertools
import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from imagebeam import errors, storage
from imagebeam.transforms.formats.tables import image_extensions, merged_rows, path_template
from imagebeam.transforms.sources import image_source, table_rows

Listed: TypeAlias = "dict[tuple[str, int, bool], image_extensions.PathRests]"  # for tables that share a folder


def name_images(
    template: path_template.PathTemplate,
    placed: Iterable[merged_rows.PlacedRow],
    root: str,
    resolve: Callable[[str], str],
    listed: Listed,
    exclude: str = "",
) -> Iterator[merged_rows.PlacedRow]:
    """Yields the rows with the path that the template makes, as a cell under its text.

    Args:
        template: of the paths.
        placed: the rows.
        root: address of the folder that paths are relative to.
        resolve: returns the address of a path.
        listed: the folders that other tables have listed; this one adds its own.
        exclude: address that is not listed: the output folder.

    Raises:
        OSError: if a folder cannot be listed.
    """
    rows = iter(placed)
    folder = storage.join_relative(root, posixpath.normpath(template.folder or ".")).removesuffix("/.")
    while batch := list(itertools.islice(rows, image_source.MAX_REFS)):
        named = [(place, fill(template, row)) for place, row in batch]
        if template.any_extension or template.any_folder:
            asked = folder, template.num_parts_found, template.any_extension
            if asked not in listed:
                listed[asked] = image_extensions.list_rests(folder, template, exclude)
            named = _complete_paths(template, named, resolve, listed[asked])
        yield from named


def fill(template: path_template.PathTemplate, row: Any) -> Any:
    """Returns a row with the path that the template makes; one that cannot be used as it is, or as a Conflict."""
    if not isinstance(row, Mapping):
        return row
    try:
        return {**row, template.text: template.fill(row)}
    except table_rows.BadRowError as e:
        return merged_rows.Conflict(row, e.detail)


def _complete_paths(
    template: path_template.PathTemplate,
    rows: Sequence[merged_rows.PlacedRow],
    resolve: Callable[[str], str],
    known: image_extensions.PathRests,
) -> list[merged_rows.PlacedRow]:
    """Returns the rows with the path of each image that exists once; of a missing one it stays as it is."""
    stems = [_stem_of(template, row, resolve) for _, row in rows]
    found = known.find(stems)
    return [
        (place, row if not stem or not rests else _with_rest(template, row, stem, rests))
        for (place, row), stem, rests in zip(rows, stems, found)
    ]


def _stem_of(template: path_template.PathTemplate, row: Any, resolve: Callable[[str], str]) -> str:
    """Returns the part of an image's address that a row names; "" if it has none, or the row cannot be used."""
    if not isinstance(row, Mapping):
        return ""
    with contextlib.suppress(table_rows.BadRowError, errors.ConfigError):
        if path := (table_rows.name_in(row, template.text) or "").removesuffix(path_template.ANY_EXTENSION):
            return path.partition(path_template.ANY_FOLDER)[2] if template.any_folder else resolve(path)
    return ""


def _with_rest(
    template: path_template.PathTemplate,
    row: Mapping[str, Any],
    stem: str,
    rests: Sequence[image_extensions.Around],
) -> Any:
    """Returns a row with the rest of its path; with several, a Conflict that names them."""
    if len(rests) > 1:
        several = ", ".join(repr(f"{rest.before}{stem}{rest.after}") for rest in rests)
        what = "folder" if template.any_folder else "extension"
        return merged_rows.Conflict(row, f"there are several images: {several}; give the {what} in {template.text!r}")
    ((before, after),) = rests
    path = str(table_rows.name_in(row, template.text)).removesuffix(path_template.ANY_EXTENSION)
    if template.any_folder:
        path = path.replace(path_template.ANY_FOLDER, before, 1)
    return {**row, template.text: path + after}
