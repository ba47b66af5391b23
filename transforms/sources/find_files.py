"""Finds files below a folder by a glob, and looks up many files that a table names with few requests."""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from imagebeam import concurrency, errors, storage
from imagebeam.transforms import elements
from imagebeam.transforms.sources import table_rows

EVERYTHING = ("**", "*")

_REQUESTS_AT_ONCE = 16
_ANY_DEPTH = "**"
_SEARCHED_FOLDERS = 20  # by `holds`
_SEARCHED_FILES = 2_000  # in each


def find_files(root: str, parts: tuple[str, ...], exclude: str = "") -> Iterator[str]:
    """Yields the addresses of the files below `root` that a glob matches; those of one folder as it is listed.

    The folders of a level are listed in parallel, if each takes a request.

    Args:
        root: a folder.
        parts: the glob, cut at its slashes; `**` matches any number of folders. Hidden files and folders match nothing.
        exclude: address that is not searched: the output folder.

    Raises:
        OSError: if a folder cannot be listed.
    """
    store = storage.storage_of(root)
    level = [_FolderToSearch(root, frozenset(_open(parts)), (store.stat(root).identity,))]
    while level:
        below: list[_FolderToSearch] = []
        if store.is_local or len(level) == 1:
            found = itertools.chain.from_iterable(_look_into(folder, exclude) for folder in level)
        else:
            listed = concurrency.map_ahead(lambda folder: [*_look_into(folder, exclude)], level, _REQUESTS_AT_ONCE)
            found = itertools.chain.from_iterable(listed)
        for each in found:
            if isinstance(each, str):
                yield each
            else:
                below.append(each)
        level = below


@dataclasses.dataclass(frozen=True)
class _FolderToSearch:
    """A folder to search, and the parts of the glob that are left to match in it; `**` leaves several ways."""

    uri: str
    ways: frozenset[tuple[str, ...]]
    ancestors: tuple[tuple[int, int], ...]  # identities of this folder and those above, which reveal loops of links

    @functools.cached_property
    def matches(self) -> Callable[[str], object]:
        """Tells whether a file of this name matches the glob; one regular expression, since folders hold 100,000."""
        last = sorted(fnmatch.translate(way[0]) for way in self.ways if len(way) == 1)
        return re.compile("|".join(last) or "(?!)").match

    def enter(self, name: str) -> frozenset[tuple[str, ...]]:
        """Returns the parts of the glob that are left in the folder `name`; none if nothing in it can match."""
        rest: set[tuple[str, ...]] = set()
        for way in self.ways:
            if way[0] == _ANY_DEPTH:
                rest.update(_open(way))
            elif len(way) > 1 and fnmatch.fnmatchcase(name, way[0]):
                rest.update(_open(way[1:]))
        return frozenset(rest)


def _look_into(folder: _FolderToSearch, exclude: str) -> Iterator[str | _FolderToSearch]:
    """Yields the matching files of a folder, and the folders in it that may hold others."""
    for entry in storage.storage_of(folder.uri).list_directory(folder.uri):
        uri = storage.join(folder.uri, entry.name)
        if entry.name.startswith(".") or uri == exclude:
            continue
        if entry.kind == storage.FILE and folder.matches(entry.name):
            yield uri
        is_new = entry.kind == storage.DIRECTORY and entry.identity not in folder.ancestors
        if is_new and (rest := folder.enter(entry.name)):
            yield _FolderToSearch(uri, rest, (*folder.ancestors, entry.identity))


def _open(way: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yields a glob and, if it begins with `**`, also the rest after it: `**` may match no folder."""
    yield way
    while way[0] == _ANY_DEPTH and len(way) > 1:
        way = way[1:]
        yield way


def holds(folder: str, extension: str | tuple[str, ...], if_unknown: bool = True) -> bool:
    """Returns whether a file with this extension is in a folder or below it.

    Args:
        folder: address.
        extension: such as ".txt", or several.
        if_unknown: returned if there is none among the first files of the first folders, and there are more.
    """
    waiting = [folder]
    for _ in range(_SEARCHED_FOLDERS):
        if not waiting:
            return False
        current = waiting.pop(0)
        try:
            for number, entry in enumerate(storage.storage_of(current).list_directory(current)):
                if number == _SEARCHED_FILES:
                    return if_unknown
                if entry.kind == storage.FILE and entry.name.endswith(extension):
                    return True
                if entry.kind == storage.DIRECTORY and not entry.name.startswith("."):
                    waiting.append(storage.join(current, entry.name))
        except (FileNotFoundError, NotADirectoryError):
            continue
    return if_unknown


# --- files that a table names -----------------------------------------------------------------------------------------

Entries: TypeAlias = "Mapping[str, storage.Entry | None]"  # by address; None where there is no file

REQUESTS_AT_ONCE = 32
_MIN_FILES = 50  # a folder is listed for so many of its files
_FILES_PER_PAGE = 20  # wanted ones at least; otherwise they are looked up one by one


def find_together(uris: Iterable[str]) -> Entries:
    """Returns the entries of files that were found, or missed, by listing their folders.

    A folder is listed between the first and the last of its files that are wanted, as long as this takes at most one
    request for each 20 of them. Only storages that can list a range of names are asked. The caller looks up the rest.
    """
    wanted: dict[str, list[str]] = {}
    for uri in uris:
        folder, _, name = uri.rpartition("/")
        if name and "://" in folder:
            wanted.setdefault(folder, []).append(name)
    many = [(folder, names) for folder, names in wanted.items() if len(names) >= _MIN_FILES]
    entries: dict[str, storage.Entry | None] = {}
    for found in concurrency.map_ahead(lambda each: _list(*each), many, REQUESTS_AT_ONCE):
        entries.update(found)
    return entries


def look_at(uri: str, known: Entries) -> tuple[int, int]:
    """Returns size and version of the file at an address that a table names.

    Args:
        uri: its address.
        known: files that were looked up before.

    Raises:
        BadRowError: if there is no such file, or it cannot be read.
    """
    try:
        status = known[uri] if uri in known else storage.storage_of(uri).stat(uri)
    except (FileNotFoundError, NotADirectoryError) as e:
        raise table_rows.BadRowError(elements.Reason.NOT_FOUND, f"there is no file {uri!r}") from e
    except OSError as e:
        if storage.is_fault(e):
            raise
        raise table_rows.BadRowError(elements.Reason.of_error(e), f"{uri!r} cannot be read ({e.strerror or e})") from e
    except ValueError as e:
        raise table_rows.BadRowError(elements.Reason.UNREADABLE, f"{uri!r} is not a valid path ({e})") from e
    if status is None:
        raise table_rows.BadRowError(elements.Reason.NOT_FOUND, f"there is no file {uri!r}")
    if status.kind != storage.FILE:
        raise table_rows.BadRowError(elements.Reason.UNREADABLE, f"{uri!r} is not a regular file ({status.kind})")
    return status.size, status.version


def _list(folder: str, names: Sequence[str]) -> Entries:
    """Returns the entries of the wanted files of a folder that a short listing decides on."""
    try:
        store = storage.storage_of(folder)
    except errors.ConfigError:  # the scheme is unknown
        return {}
    if not isinstance(store, storage.RangeLister):
        return {}
    last = max(names)
    found: dict[str, storage.Entry] = {}
    reached = ""  # all names before it are listed
    try:
        pages = store.list_range(folder, min(names), f"{last} ")
        for num_pages, page in enumerate(pages, start=1):
            for entry in page:
                if entry.kind == storage.FILE or entry.name not in found:  # a folder may have the name of a file
                    found[entry.name] = entry
            reached = max((entry.name for entry in page if entry.kind == storage.FILE), default=reached)
            if num_pages * _FILES_PER_PAGE >= len(names):
                break
        else:
            reached = f"{last} "
    except (OSError, errors.ConfigError) as e:
        if isinstance(e, OSError) and storage.is_fault(e):
            raise
        return {}  # the folder may not be listed, but its files may be read
    entries: dict[str, storage.Entry | None] = {}
    for name in names:
        known = found.get(name)
        is_file = known is not None and known.kind == storage.FILE
        if is_file or f"{name}/" < reached:  # otherwise a later page may have a file of this name, or a folder
            entries[f"{folder}/{name}"] = known
    return entries
