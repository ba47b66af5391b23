"""Finds what to read of a dataset: the folder itself, or the folder of one of its snapshots."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from imagebeam import catalog as catalog_lib
from imagebeam import errors, records, snapshots, storage

if TYPE_CHECKING:
    import array

_MAX_NAMED = 8  # snapshots in an error


class Found(NamedTuple):
    """A folder with a catalog, and its catalog."""

    folder: str
    catalog: catalog_lib.Catalog


def name_of(catalog: catalog_lib.Catalog) -> str | None:
    """Returns the name of the snapshot that a catalog is of, such as "000002"; None for any other dataset."""
    name = catalog.snapshot.get("name")
    return None if name is None else str(name)


def check_name(snapshot: object) -> str:
    """Returns the name of a snapshot, given as a name or as its number: "000002" for "000002", "2" and 2.

    Raises:
        ConfigError: if it is neither.
    """
    if isinstance(snapshot, str) and snapshot.isascii() and snapshot.isdecimal() and int(snapshot) > 0:
        return f"{int(snapshot):06d}"
    if hasattr(snapshot, "__index__") and not isinstance(snapshot, bool) and int(snapshot.__index__()) > 0:
        return f"{int(snapshot.__index__()):06d}"
    raise errors.ConfigError(
        f'snapshot is {snapshot!r}; give the name of one, such as "000002", or its number, or None for the latest'
    )


def find(
    directory: str | os.PathLike[str],
    snapshot: str | int | None = None,
    read: Callable[[str], bytes] | None = None,
    list_names: Callable[[str], Iterable[str]] | None = None,
) -> Found:
    """Returns the catalog to read and the folder that it is in.

    A folder with a catalog costs one read, and so does a snapshot that is named. Otherwise the file LATEST names it.

    Args:
        directory: a path or an address.
        snapshot: name or number of a snapshot; None for the folder itself, or else the latest snapshot.
        read: returns all bytes of the file at an address; by default the storage of the address does.
        list_names: returns the names of the files at an address; by default the storage of the address does.

    Raises:
        CatalogError: if there is no catalog, or it cannot be read.
        ConfigError: if there is no such snapshot.
    """
    dataset = storage.normalize(directory)
    if snapshot is not None:
        return _find_pinned(dataset, check_name(snapshot), read, list_names)
    catalog = catalog_lib.find_catalog(dataset, read)
    if catalog is not None:
        return Found(dataset, catalog)
    latest = _latest_name(dataset, read)
    if latest is None:
        raise catalog_lib.missing_catalog(dataset, read, list_names)
    folder = snapshots.folder_of(dataset, latest)
    catalog = catalog_lib.find_catalog(folder, read)
    if catalog is None:
        raise errors.CatalogError(
            f"{storage.join(dataset, snapshots.LATEST_FILE)} names {latest}, and {folder} holds no "
            f"{catalog_lib.CATALOG_FILE}: it was removed; restore it, or give one of the snapshots that are there: "
            f"{_describe_all(dataset, latest, list_names) or 'none'}"
        )
    return Found(folder, catalog)


def _find_pinned(
    dataset: str,
    name: str,
    read: Callable[[str], bytes] | None,
    list_names: Callable[[str], Iterable[str]] | None,
) -> Found:
    folder = snapshots.folder_of(dataset, name)
    catalog = catalog_lib.find_catalog(folder, read)
    if catalog is not None:
        return Found(folder, catalog)
    others = _describe_all(dataset, _latest_name(dataset, read), list_names)
    if others:
        raise errors.ConfigError(f"there is no snapshot {name} in {dataset}; it has {others}")
    raise errors.ConfigError(
        f"there is no snapshot {name} in {dataset}, which has no snapshots: leave snapshot out, or give the folder "
        "that imagebeam convert --update writes to"
    )


def load_catalog(directory: str | os.PathLike[str], snapshot: str | int | None = None) -> catalog_lib.Catalog:
    """Reads the catalog of a dataset: that in its folder, else that of the latest snapshot.

    Names of shards are relative to the folder of the catalog: DIRECTORY, or DIRECTORY/snapshots/SNAPSHOT.

    Args:
        directory: a path or an address.
        snapshot: name or number of a snapshot, such as "000002" or 2; None for the latest.

    Raises:
        CatalogError: if there is no catalog, or it cannot be read.
        ConfigError: if there is no such snapshot.
    """
    return find(directory, snapshot).catalog


def load_removed(
    folder: str, catalog: catalog_lib.Catalog, read: Callable[[str], bytes] | None = None
) -> Mapping[str, array.array[int]]:
    """Returns the removed records of a snapshot by the name of their shard: ascending indexes in it, uint32.

    Reads nothing if the catalog says that no record is removed.

    Args:
        folder: the folder of the catalog.
        catalog: of the snapshot.
        read: as for `find`.

    Raises:
        CatalogError: if the file that names them is missing, cannot be read, or is not that of the catalog.
    """
    if not any(shard.removed for split in catalog.splits.values() for shard in split.shards):
        return {}
    uri = storage.join(folder, snapshots.REMOVED_FILE)
    try:
        data = (read or storage.storage_of(uri).read)(uri)
    except (FileNotFoundError, NotADirectoryError) as e:
        raise errors.CatalogError(
            f"{uri} is missing, and the catalog beside it says that records are removed: restore it, or run imagebeam "
            "convert --update --overwrite, which writes a whole new snapshot"
        ) from e
    except OSError as e:
        raise catalog_lib.unreadable(uri, e) from e
    expected = catalog.files.get(snapshots.REMOVED_FILE)
    if expected is not None and expected.crc32c not in (None, records.extend_crc(0, data)):
        raise snapshots.misfit(uri)
    return snapshots.decode_removed(data, catalog, uri)


def _latest_name(dataset: str, read: Callable[[str], bytes] | None) -> str | None:
    try:
        return snapshots.latest_name(dataset, read)
    except OSError as e:
        raise catalog_lib.unreadable(storage.join(dataset, snapshots.LATEST_FILE), e) from e


def _describe_all(dataset: str, latest: str | None, list_names: Callable[[str], Iterable[str]] | None) -> str:
    """Returns the names of the newest snapshots as a text; "" if there are none, or they cannot be listed."""
    try:
        found = list(itertools.islice(_names_of(dataset, list_names or _list_names), _MAX_NAMED + 1))
    except (OSError, errors.ImagebeamError):  # this only adds detail to an error that is raised anyway
        return ""
    shown = [f"{name} (the latest)" if name == latest else name for name in found[:_MAX_NAMED]]
    return ", ".join([*(["..."] if len(found) > _MAX_NAMED else []), *reversed(shown)])


def _names_of(dataset: str, list_names: Callable[[str], Iterable[str]]) -> Iterator[str]:
    """Yields the names of the snapshots, the newest first. A folder without a catalog only keeps shards for others."""
    names = [name.rstrip("/") for name in list_names(storage.join(dataset, snapshots.DIRECTORY))]
    for name in sorted(filter(snapshots.is_name, names), key=int, reverse=True):
        if catalog_lib.CATALOG_FILE in list_names(snapshots.folder_of(dataset, name)):
            yield name


def _list_names(folder: str) -> list[str]:
    return [entry.name for entry in storage.storage_of(folder).list_directory(folder)]
