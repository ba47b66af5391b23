"""Steps between the rows of a table and its images: joined tables, templates of paths, merged rows."""

from __future__ import annotations

import array
import contextlib
import dataclasses
import functools
import itertools
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from imagebeam import errors, storage
from imagebeam.transforms import elements
from imagebeam.transforms.formats.tables import table_formats
from imagebeam.transforms.sources import files, find_files, image_source, table_rows

# --- templates for the path of an image: images/{id}.*, **/{id:06}.jpg ------------------------------------------------

ANY_EXTENSION = ".*"
ANY_FOLDER = "**/"

_CELL = re.compile(r"\{([^{}]+?)(?::0(\d+))?\}")


class PathTemplate(NamedTuple):
    """Text with `{column}` in it, or `{column:06}` for a number with zeros before it, six digits in all.

    With `.*` at its end, the image may have any extension of an image. With `**/` before the part with the columns, it
    may be in any folder there.
    """

    text: str

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns whose cells it takes, each once."""
        return tuple(dict.fromkeys(name for name, _ in _CELL.findall(self.text)))

    @property
    def any_extension(self) -> bool:
        """Whether the extension is found by a listing."""
        return self.text.endswith(ANY_EXTENSION)

    @property
    def any_folder(self) -> bool:
        """Whether the folder is found by a listing."""
        return ANY_FOLDER in self.text

    @property
    def folder(self) -> str:
        """The folder that all paths begin with; "" if the first cell may name it."""
        return self.text[: self.text.index("{")].partition(ANY_FOLDER)[0].rpartition("/")[0]

    @property
    def num_parts_found(self) -> int:
        """With `any_folder`, the number of names in the path after it; else 0, for the whole path."""
        return self.text.partition(ANY_FOLDER)[2].count("/") + 1 if self.any_folder else 0

    def fill(self, cells: Mapping[str, Any]) -> str:
        """Returns the path of a row; "" if one of its cells is empty.

        Raises:
            BadRowError: if a cell holds several values.
        """
        values = {name: table_rows.text_in(cells, name) for name in self.columns}
        if not all(values.values()):
            return ""
        return _CELL.sub(lambda found: str(values[found[1]]).zfill(int(found[2] or 0)), self.text)

    def find_empty(self, cells: Mapping[str, Any]) -> str:
        """Returns the first of its columns whose cell is empty."""
        return next(name for name in self.columns if table_rows.is_empty(cells.get(name)))


@functools.lru_cache(maxsize=16)
def parse(text: str | None) -> PathTemplate | None:
    """Returns the template that `text` is; None for the name of a column.

    Raises:
        ValueError: if its braces are not closed, or it has `*` elsewhere than for a folder or the extension.
    """
    if text is None or not _CELL.search(text):
        return None
    rest = _CELL.sub("", text.removesuffix(ANY_EXTENSION))
    if "{" in rest or "}" in rest:
        raise ValueError(f"{text!r} has a brace without its other one; write for example 'images/{{id}}.jpg'")
    before, any_folder, after = text.partition(ANY_FOLDER)
    if any_folder and (not before or before.endswith("/")) and "{" not in before and "{" in after:
        rest = rest.replace(ANY_FOLDER, "", 1)
    if "*" in rest:
        raise ValueError(
            f"{text!r} has a '*' that is neither its whole extension nor '**/' before the columns; write for example "
            "'images/{id}.*' or '**/{id}.*'"
        )
    return PathTemplate(text)


# --- joined tables, row by row, as the lists of CUB-200 are -----------------------------------------------------------


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


# --- rows of one image that follow each other, as tables of captions and tags have them -------------------------------

# Place of a row, and its cells by column, or a text that says what is wrong with it, or a Conflict.
PlacedRow = tuple[table_formats.RowPlace, Any]


class Conflict(NamedTuple):
    """Rows of one image that contradict each other."""

    cells: Mapping[str, Any]  # cells of the first row
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


if TYPE_CHECKING:
    import numpy as np


# --- folders and extensions that a table leaves open, found by a listing ----------------------------------------------


class Around(NamedTuple):
    """Rest of a path around the part that a table names."""

    before: str  # the folders, with a slash at the end; "" if the table names them
    after: str  # the extension; "" if the table names it


class PathRests(NamedTuple):
    """The rest of the paths of all images below a folder, by the part that a table names: 12 bytes an image."""

    stems: np.ndarray  # uint64, sorted: hashes of the parts
    numbers: np.ndarray  # uint32: index in `rests`
    rests: Sequence[Around]

    def find(self, stems: Sequence[str]) -> list[tuple[Around, ...]]:
        """Returns what exists around each part: nothing, one rest, or several in their order."""
        import numpy as np

        wanted = np.fromiter(map(_hash, stems), np.uint64, len(stems))
        first = np.searchsorted(self.stems, wanted, "left").tolist()
        last = np.searchsorted(self.stems, wanted, "right").tolist()
        return [
            tuple(sorted(self.rests[number] for number in self.numbers[start:end])) for start, end in zip(first, last)
        ]


def list_rests(folder: str, template: PathTemplate, exclude: str = "") -> PathRests:
    """Lists a folder and all folders below it.

    Args:
        folder: its address.
        template: says which part of a path a table names: the whole address, or its last names.
        exclude: address that is not listed: the output folder.

    Raises:
        OSError: if a folder cannot be listed.
    """
    import numpy as np  # takes 60 ms, and is needed only here

    stems, numbers = array.array("Q"), array.array("I")
    rests: dict[Around, int] = {}
    num_parts = template.num_parts_found
    for uri in find_files.find_files(folder, find_files.EVERYTHING, exclude):
        stem, extension = posixpath.splitext(uri)
        if extension[1:].lower() not in files.IMAGE_EXTENSIONS:
            continue
        if not template.any_extension:
            stem, extension = uri, ""
        before = ""
        if num_parts:
            named = "/".join(stem.rsplit("/", num_parts)[1:])
            before, stem = stem.removesuffix(named).removeprefix(storage.join(folder, "")), named
        stems.append(_hash(stem))
        numbers.append(rests.setdefault(Around(before, extension), len(rests)))
    found = np.frombuffer(stems, np.uint64) if stems else np.zeros(0, np.uint64)
    order = np.argsort(found, kind="stable")
    known = np.frombuffer(numbers, np.uint32) if numbers else np.zeros(0, np.uint32)
    return PathRests(found[order], known[order], tuple(rests))


def _hash(address: str) -> int:
    return elements.hash64(address, 0, b"imagebeam.stems")


# --- names of images by a template ------------------------------------------------------------------------------------

Listed: TypeAlias = "dict[tuple[str, int, bool], PathRests]"  # for tables that share a folder


def name_images(
    template: PathTemplate,
    placed: Iterable[PlacedRow],
    root: str,
    resolve: Callable[[str], str],
    listed: Listed,
    exclude: str = "",
) -> Iterator[PlacedRow]:
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
                listed[asked] = list_rests(folder, template, exclude)
            named = _complete_paths(template, named, resolve, listed[asked])
        yield from named


def fill(template: PathTemplate, row: Any) -> Any:
    """Returns a row with the path that the template makes; one that cannot be used as it is, or as a Conflict."""
    if not isinstance(row, Mapping):
        return row
    try:
        return {**row, template.text: template.fill(row)}
    except table_rows.BadRowError as e:
        return Conflict(row, e.detail)


def _complete_paths(
    template: PathTemplate, rows: Sequence[PlacedRow], resolve: Callable[[str], str], known: PathRests
) -> list[PlacedRow]:
    """Returns the rows with the path of each image that exists once; of a missing one it stays as it is."""
    stems = [_stem_of(template, row, resolve) for _, row in rows]
    found = known.find(stems)
    return [
        (place, row if not stem or not rests else _with_rest(template, row, stem, rests))
        for (place, row), stem, rests in zip(rows, stems, found)
    ]


def _stem_of(template: PathTemplate, row: Any, resolve: Callable[[str], str]) -> str:
    """Returns the part of an image's address that a row names; "" if it has none, or the row cannot be used."""
    if not isinstance(row, Mapping):
        return ""
    with contextlib.suppress(table_rows.BadRowError, errors.ConfigError):
        if path := (table_rows.name_in(row, template.text) or "").removesuffix(ANY_EXTENSION):
            return path.partition(ANY_FOLDER)[2] if template.any_folder else resolve(path)
    return ""


def _with_rest(template: PathTemplate, row: Mapping[str, Any], stem: str, rests: Sequence[Around]) -> Any:
    """Returns a row with the rest of its path; with several, a Conflict that names them."""
    if len(rests) > 1:
        several = ", ".join(repr(f"{rest.before}{stem}{rest.after}") for rest in rests)
        what = "folder" if template.any_folder else "extension"
        return Conflict(row, f"there are several images: {several}; give the {what} in {template.text!r}")
    ((before, after),) = rests
    path = str(table_rows.name_in(row, template.text)).removesuffix(ANY_EXTENSION)
    if template.any_folder:
        path = path.replace(ANY_FOLDER, before, 1)
    return {**row, template.text: path + after}
