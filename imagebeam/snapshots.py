"""Snapshots of a dataset that is kept up to date: where they are, which is the latest, and which records are removed.

```
DATASET/LATEST                    the name of the latest snapshot, such as 000003; moved last
DATASET/snapshots/000001/         a dataset: catalog.json, shards, index/, labels.txt, statistics.json, rejects.jsonl
DATASET/snapshots/000002/         the same, with the shards of what was new; its catalog names those of 000001, too
    catalog.json                  names "train-00000-of-00002.tfrecord" and "../000001/train-00000-of-00016.tfrecord"
    removed.bin                   the records that were removed or replaced, in all shards that the catalog names
    state/                        for the next update: the key and the version of each image, by shard
```

A snapshot never changes. Its folder is a dataset of its own: all that reads a dataset reads a snapshot.
"""

from __future__ import annotations

import array
import itertools
import operator
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from imagebeam import catalog as catalog_lib
from imagebeam import errors, records, storage

LATEST_FILE = "LATEST"
DIRECTORY = "snapshots"
REMOVED_FILE = "removed.bin"  # in a snapshot, and in the files of its catalog; missing if no record is removed

_INDEX_BYTES = 4  # an unsigned integer, little-endian
_MAX_NAMED = 8  # snapshots in an error
_NAME = re.compile(r"\d{6,}")


def is_name(text: str) -> bool:
    """Returns whether a text can be the name of a snapshot."""
    return _NAME.fullmatch(text) is not None


def folder_of(dataset: str, name: str) -> str:
    """Returns the folder of a snapshot."""
    return storage.join(dataset, DIRECTORY, name)


def name_after(name: str | None) -> str:
    """Returns the name of the snapshot that follows another; the first one follows None."""
    return f"{1 if name is None else int(name) + 1:06d}"


def latest_name(dataset: str, store: storage.Storage | None = None) -> str | None:
    """Returns the name of the latest snapshot of a dataset; None if it has no snapshots.

    Args:
        dataset: its address.
        store: the storage of the address, if it is not the one with default options.

    Raises:
        CatalogError: if the file that names it is damaged.
        OSError: if it cannot be read.
    """
    uri = storage.join(dataset, LATEST_FILE)
    try:
        text = (store or storage.storage_of(uri)).read(uri).decode("utf-8", "replace").strip()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not is_name(text):
        raise errors.CatalogError(
            "snapshot-latest-damaged",
            f"{uri} holds {text[:40]!r}, and should name a folder in {storage.join(dataset, DIRECTORY)}, such as "
            "000001: write the newest one into it that has a catalog.json",
        )
    return text


def move_latest(dataset: str, name: str) -> None:
    """Makes a snapshot the latest one, unless a newer one is.

    Raises:
        OSError: if the storage does not answer.
    """
    uri = storage.join(dataset, LATEST_FILE)
    store = storage.storage_of(uri)
    latest = latest_name(dataset)
    while latest is None or int(latest) < int(name):
        store.write_whole(uri, f"{name}\n".encode())
        store.sync(dataset)
        latest = name
        if _is_committed(dataset, name_after(name)):  # and its run may have written its name before this one did
            name = name_after(name)


def find_latest(dataset: str) -> str | None:
    """Returns the name of the newest snapshot that is committed; None if there is none.

    A run may have been killed after it committed a snapshot and before it became the latest one; it becomes that now.
    So does the newest one if no file names the latest.

    Raises:
        CatalogError: if the file that names the latest snapshot is damaged.
        OSError: if the storage does not answer.
    """
    latest = latest_name(dataset)
    newest = next(_committed_names(dataset), None)
    if newest is None or (latest is not None and int(newest) <= int(latest)):
        return latest
    move_latest(dataset, newest)
    return newest


def require_committed(dataset: str, latest: str) -> None:
    """Makes sure that the latest snapshot has a catalog.

    Raises:
        CatalogError: if it has none; names the snapshots that have one.
    """
    if not _is_committed(dataset, latest):
        raise errors.CatalogError(
            "snapshot-latest-missing",
            f"{storage.join(dataset, LATEST_FILE)} names {latest}, and {folder_of(dataset, latest)} holds no "
            f"{catalog_lib.CATALOG_FILE}: restore it, or write the name of another snapshot into {LATEST_FILE} "
            f"({', '.join(_committed_names(dataset)) or 'there is none'}), or write a whole new one with convert "
            "--update --overwrite",
        )


def folder_names(dataset: str, store: storage.Storage | None = None) -> list[str]:
    """Returns the names of the folders of snapshots, the newest first, also of those without a catalog."""
    folder = storage.join(dataset, DIRECTORY)
    try:
        names = [entry.name for entry in (store or storage.storage_of(folder)).list_directory(folder)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(filter(is_name, names), key=int, reverse=True)


def _committed_names(dataset: str, store: storage.Storage | None = None) -> Iterator[str]:
    """Yields the names of the snapshots, the newest first. A folder without a catalog only keeps shards for others."""
    return (name for name in folder_names(dataset, store) if _is_committed(dataset, name, store))


def _is_committed(dataset: str, name: str, store: storage.Storage | None = None) -> bool:
    uri = storage.join(folder_of(dataset, name), catalog_lib.CATALOG_FILE)
    return (store or storage.storage_of(uri)).exists(uri)


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
        "snapshot-bad-name",
        f'snapshot is {snapshot!r}; give the name of one, such as "000002", or its number, or None for the latest',
    )


def find(
    directory: str | os.PathLike[str], snapshot: str | int | None = None, store: storage.Storage | None = None
) -> Found:
    """Returns the catalog to read and the folder that it is in.

    A folder with a catalog costs one read, and so does a snapshot that is named. Otherwise the file LATEST names it.

    Args:
        directory: a path or an address.
        snapshot: name or number of a snapshot; None for the folder itself, or else the latest snapshot.
        store: the storage of the address, if it is not the one with default options.

    Raises:
        CatalogError: if there is no catalog, or it cannot be read.
        ConfigError: if there is no such snapshot.
    """
    dataset = storage.normalize(directory)
    if snapshot is not None:
        return _find_pinned(dataset, check_name(snapshot), store)
    if (catalog := catalog_lib.find_catalog(dataset, store)) is not None:
        return Found(dataset, catalog)
    latest = _readable_latest_name(dataset, store)
    if latest is None:
        raise catalog_lib.missing_catalog(dataset, store)
    folder = folder_of(dataset, latest)
    if (catalog := catalog_lib.find_catalog(folder, store)) is not None:
        return Found(folder, catalog)
    raise errors.CatalogError(
        "snapshot-latest-missing",
        f"{storage.join(dataset, LATEST_FILE)} names {latest}, and {folder} holds no {catalog_lib.CATALOG_FILE}: "
        "it was removed; restore it, or give one of the snapshots that are there: "
        f"{_describe_all(dataset, latest, store) or 'none'}",
    )


def _find_pinned(dataset: str, name: str, store: storage.Storage | None) -> Found:
    folder = folder_of(dataset, name)
    if (catalog := catalog_lib.find_catalog(folder, store)) is not None:
        return Found(folder, catalog)
    if others := _describe_all(dataset, _readable_latest_name(dataset, store), store):
        detail = f"; it has {others}"
    else:
        detail = ", which has no snapshots: leave snapshot out, or give the folder that imagebeam convert --update "
        detail += "writes to"
    raise errors.ConfigError("snapshot-unknown", f"there is no snapshot {name} in {dataset}{detail}")


def load_catalog(directory: str | os.PathLike[str], snapshot: str | int | None = None) -> catalog_lib.Catalog:
    """Reads the catalog of a dataset: that in its folder, else that of the latest snapshot.

    Names of shards are relative to the folder of the catalog: DIRECTORY, or DIRECTORY/snapshots/SNAPSHOT.

    Args:
        directory: a path or an address.
        snapshot: name or number of a snapshot, such as "000002" or 2; None for the latest.

    Raises:
        CatalogError: if there is no catalog, or it cannot be read.
        ConfigError: if there is no such snapshot.

    Examples:
        >>> catalog = imagebeam.load_catalog("shards")
        >>> {name: split.num_examples for name, split in catalog.splits.items()}
        {'train': 472, 'test': 128}
    """
    return find(directory, snapshot).catalog


def _readable_latest_name(dataset: str, store: storage.Storage | None) -> str | None:
    try:
        return latest_name(dataset, store)
    except OSError as e:
        raise catalog_lib.unreadable(storage.join(dataset, LATEST_FILE), e) from e


def _describe_all(dataset: str, latest: str | None, store: storage.Storage | None) -> str:
    """Returns the names of the newest snapshots as a text; "" if there are none, or they cannot be listed."""
    try:
        found = list(itertools.islice(_committed_names(dataset, store), _MAX_NAMED + 1))
    except (OSError, errors.ImagebeamError):  # this only adds detail to an error that is raised anyway
        return ""
    shown = [f"{name} (the latest)" if name == latest else name for name in found[:_MAX_NAMED]]
    return ", ".join([*(["..."] if len(found) > _MAX_NAMED else []), *reversed(shown)])


def load_removed(
    folder: str, catalog: catalog_lib.Catalog, store: storage.Storage | None = None
) -> Mapping[str, array.array[int]]:
    """Returns the removed records of a snapshot by the name of their shard: ascending indexes in it, uint32.

    Reads nothing if the catalog says that no record is removed.

    Args:
        folder: the folder of the catalog.
        catalog: of the snapshot.
        store: as for `find`.

    Raises:
        CatalogError: if the file that names them is missing, cannot be read, or is not that of the catalog.
    """
    if not any(shard.removed for split in catalog.splits.values() for shard in split.shards):
        return {}
    uri = storage.join(folder, REMOVED_FILE)
    try:
        data = (store or storage.storage_of(uri)).read(uri)
    except (FileNotFoundError, NotADirectoryError) as e:
        raise errors.CatalogError(
            "removed-records-missing",
            f"{uri} is missing, and the catalog beside it says that records are removed: restore it, or run imagebeam "
            "convert --update --overwrite, which writes a whole new snapshot",
        ) from e
    except OSError as e:
        raise catalog_lib.unreadable(uri, e) from e
    expected = catalog.files.get(REMOVED_FILE)
    if expected is not None and expected.crc32c not in (None, records.extend_crc(0, data)):
        raise _misfit(uri)
    return decode_removed(data, catalog, uri)


def encode_removed(removed: Iterable[Sequence[int]]) -> bytes:
    """Returns the content of `REMOVED_FILE`.

    Args:
        removed: for each shard of all splits, in the order of the catalog, ascending indexes of records in the shard.
    """
    return b"".join(_as_little_endian(array.array("I", indexes)).tobytes() for indexes in removed)


def decode_removed(data: bytes, catalog: catalog_lib.Catalog, where: str) -> Mapping[str, array.array[int]]:
    """Returns the removed records by the name of their shard: ascending indexes of records in it, uint32.

    Shards without removed records are left out.

    Args:
        data: content of `REMOVED_FILE`.
        catalog: of the snapshot.
        where: address of the file, for errors.

    Raises:
        CatalogError: if the file does not fit the catalog.
    """
    every = [shard for split in catalog.splits.values() for shard in split.shards]
    found, start = {}, 0
    for shard in every:
        if shard.removed:
            end = start + _INDEX_BYTES * shard.removed
            indexes = _as_little_endian(array.array("I", data[start:end] if end <= len(data) else b""))
            is_ascending = all(map(operator.lt, indexes, itertools.islice(indexes, 1, None)))
            if len(indexes) != shard.removed or not is_ascending or indexes[-1] >= shard.records:
                raise _misfit(where)
            found[shard.name], start = indexes, end
    if start != len(data):
        raise _misfit(where)
    return found


def _as_little_endian(indexes: array.array[int]) -> array.array[int]:
    if sys.byteorder == "big":
        indexes.byteswap()
    return indexes


def _misfit(where: str) -> errors.CatalogError:
    """Returns the error for a `REMOVED_FILE`, at an address, that is not that of its catalog."""
    return errors.CatalogError(
        "removed-records-damaged",
        f"{where} does not fit the catalog beside it: it was cut short or replaced; restore it, or run imagebeam "
        "convert --update --overwrite, which writes a whole new snapshot",
    )
