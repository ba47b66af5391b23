"""Finds files below a folder by a glob, level by level."""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import re
from collections.abc import Callable, Iterator

from imagebeam import concurrency, storage

EVERYTHING = ("**", "*")

_REQUESTS_AT_ONCE = 16
_ANY_DEPTH = "**"


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
            found = (each for folder in level for each in _look_into(folder, exclude))
        else:
            look_into = functools.partial(_list_into, exclude=exclude)
            found = (each for part in concurrency.map_ahead(look_into, level, _REQUESTS_AT_ONCE) for each in part)
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


def _list_into(folder: _FolderToSearch, exclude: str) -> list[str | _FolderToSearch]:
    return list(_look_into(folder, exclude))


def _open(way: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yields a glob and, if it begins with `**`, also the rest after it: `**` may match no folder."""
    yield way
    while way[0] == _ANY_DEPTH and len(way) > 1:
        way = way[1:]
        yield way
