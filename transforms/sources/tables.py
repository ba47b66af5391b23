"""Images named by several tables below one folder, each beside its images: the `metadata.csv` of Hugging Face."""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import posixpath
import re
from collections.abc import Iterator
from concurrent import futures

from imagebeam import errors, storage
from transforms import references
from transforms.sources import listing, manifest, table_formats

_REQUESTS_AT_ONCE = 16
_ANY_DEPTH = "**"


def is_glob(path: str) -> bool:
    """Whether `path` may stand for several tables."""
    return re.search(r"[*?\[]", path) is not None


@dataclasses.dataclass(frozen=True)
class TablesSource:
    """Tables one after the other: positions go on from one to the next, keys are relative to one folder."""

    tables: tuple[manifest.ManifestSource, ...]

    def check_columns(self) -> None:
        """Reads the first row of each.

        Raises:
            ConfigError: if a table cannot be read, or lacks a column.
        """
        for table in self.tables:
            table.check_columns()

    def list_all(self) -> Iterator[listing.Listing]:
        """Yields the references of all tables in the order of their rows."""
        num_rows = 0
        for table in self.tables:
            first_position = num_rows
            for found in dataclasses.replace(table, first_position=first_position).list_all():
                num_rows += found.num_refs + len(found.rejects)  # a row is either, but where rows were merged
                if found.num_refs:
                    num_rows = max(num_rows, references.unpack_refs(found.packed_refs)[-1].position + 1)
                yield found


def find_tables(root: str, glob: str, exclude: str = "", format: str | None = None) -> list[str]:
    """The addresses of the tables below `root` that `glob` matches, sorted.

    Args:
        root: a folder.
        glob: relative to it; `*` and `?` stay inside of a name, `**` is any number of folders. Hidden files and
            folders match nothing.
        exclude: an address that is no input: the output's.
        format: of the tables; left out, files of which the extension tells none are passed over.

    Raises:
        ConfigError: if there is none, or a folder cannot be listed.
    """
    parts = tuple(glob.split("/"))
    try:
        found = _walk(root, parts, exclude)
    except OSError as e:
        raise errors.ConfigError(
            f"the tables {glob!r} below {root!r} cannot be looked for ({e.strerror or e}); check --input"
        ) from e
    tables = [uri for uri in found if format or posixpath.splitext(uri)[1].lower() in table_formats.FORMATS]
    if not tables:
        others = f"; {found[0]!r} is none of {', '.join(table_formats.FORMATS)}" if found else ""
        raise errors.ConfigError(
            f"no table matches {glob!r} below {root!r}{others}; check --input and source.manifest.path, or set "
            "source.by: files for a folder of images without a table"
        )
    return sorted(tables)


def _walk(root: str, parts: tuple[str, ...], exclude: str) -> list[str]:
    """The files that match, level by level, so that the folders of one level are listed side by side."""
    store = storage.storage_of(root)
    files: list[str] = []
    level = [_Folder(root, frozenset(_open(parts)), (store.stat(root).identity,))]
    with futures.ThreadPoolExecutor(1 if store.is_local else _REQUESTS_AT_ONCE) as threads:
        while level:
            below: list[_Folder] = []
            for found, folders in threads.map(functools.partial(_look_into, exclude=exclude), level):
                files += found
                below += folders
            level = below
    return files


def _look_into(folder: _Folder, exclude: str) -> tuple[list[str], list[_Folder]]:
    """The files of a folder that match, and the folders in it where others may."""
    files, folders = [], []
    for entry in storage.storage_of(folder.uri).list_directory(folder.uri):
        uri = storage.join(folder.uri, entry.name)
        if entry.name.startswith(".") or uri == exclude:
            continue
        if entry.kind == storage.FILE and folder.matches(entry.name):
            files.append(uri)
        is_new = entry.kind == storage.DIRECTORY and entry.identity not in folder.ancestors
        if is_new and (rest := folder.enter(entry.name)):
            folders.append(_Folder(uri, rest, (*folder.ancestors, entry.identity)))
    return files, folders


@dataclasses.dataclass(frozen=True)
class _Folder:
    """A folder to be looked into, and what of the glob is still to be matched in it: at `**` there are several ways."""

    uri: str
    ways: frozenset[tuple[str, ...]]
    ancestors: tuple[tuple[int, int], ...]  # identities of the folders above and its own, to see loops of links

    def matches(self, name: str) -> bool:
        return any(len(way) == 1 and fnmatch.fnmatchcase(name, way[0]) for way in self.ways)

    def enter(self, name: str) -> frozenset[tuple[str, ...]]:
        rest: set[tuple[str, ...]] = set()
        for way in self.ways:
            if way[0] == _ANY_DEPTH:
                rest.update(_open(way))
            elif len(way) > 1 and fnmatch.fnmatchcase(name, way[0]):
                rest.update(_open(way[1:]))
        return frozenset(rest)


def _open(way: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """A glob, and where it begins with `**`, also what follows: for `**` may be no folder at all."""
    yield way
    while way[0] == _ANY_DEPTH and len(way) > 1:
        way = way[1:]
        yield way
