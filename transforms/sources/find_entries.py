"""Looks up files that a table names: many at once, with a listing of their folders where that takes fewer requests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from imagebeam import concurrency, errors, storage
from imagebeam.transforms import elements
from imagebeam.transforms.sources import table_rows

Entries: TypeAlias = "Mapping[str, storage.Entry | None]"  # by address; None where there is no file

REQUESTS_AT_ONCE = 32
_MIN_FILES = 50  # of one folder, for which it is listed
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
    except errors.ConfigError:  # of an unknown scheme
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
