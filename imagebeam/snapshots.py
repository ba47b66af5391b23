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
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence

from imagebeam import catalog as catalog_lib
from imagebeam import errors, storage

LATEST_FILE = "LATEST"
DIRECTORY = "snapshots"
REMOVED_FILE = "removed.bin"  # in a snapshot, and in the files of its catalog; missing if no record is removed

_INDEX_BYTES = 4  # an unsigned integer, little-endian
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


def latest_name(dataset: str, read: Callable[[str], bytes] | None = None) -> str | None:
    """Returns the name of the latest snapshot of a dataset; None if it has no snapshots.

    Args:
        dataset: its address.
        read: returns all bytes of the file at an address; by default the storage of the address does.

    Raises:
        CatalogError: if the file that names it is damaged.
        OSError: if it cannot be read.
    """
    uri = storage.join(dataset, LATEST_FILE)
    try:
        text = (read or storage.storage_of(uri).read)(uri).decode("utf-8", "replace").strip()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not _NAME.fullmatch(text):
        raise errors.CatalogError(
            f"{uri} holds {text[:40]!r}, and should name a folder in {storage.join(dataset, DIRECTORY)}, such as "
            "000001: write the newest one into it that has a catalog.json"
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
    for name in folder_names(dataset):
        if latest is not None and int(name) <= int(latest):
            break
        if _is_committed(dataset, name):
            move_latest(dataset, name)
            return name
    return latest


def require_committed(dataset: str, latest: str) -> None:
    """Makes sure that the latest snapshot has a catalog.

    Raises:
        CatalogError: if it has none; names the snapshots that have one.
    """
    if not _is_committed(dataset, latest):
        others = [name for name in folder_names(dataset) if _is_committed(dataset, name)]
        raise errors.CatalogError(
            f"{storage.join(dataset, LATEST_FILE)} names {latest}, and {folder_of(dataset, latest)} holds no "
            f"{catalog_lib.CATALOG_FILE}: restore it, or write the name of another snapshot into {LATEST_FILE} "
            f"({', '.join(others) or 'there is none'}), or write a whole new one with convert --update --overwrite"
        )


def folder_names(dataset: str) -> list[str]:
    """Returns the names of the folders of snapshots, the newest first, also of those without a catalog."""
    folder = storage.join(dataset, DIRECTORY)
    try:
        names = [entry.name for entry in storage.storage_of(folder).list_directory(folder)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(filter(is_name, names), key=int, reverse=True)


def _is_committed(dataset: str, name: str) -> bool:
    uri = storage.join(folder_of(dataset, name), catalog_lib.CATALOG_FILE)
    return storage.storage_of(uri).exists(uri)


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
                raise misfit(where)
            found[shard.name], start = indexes, end
    if start != len(data):
        raise misfit(where)
    return found


def _as_little_endian(indexes: array.array[int]) -> array.array[int]:
    if sys.byteorder == "big":
        indexes.byteswap()
    return indexes


def misfit(where: str) -> errors.CatalogError:
    """Returns the error for a `REMOVED_FILE`, at an address, that is not that of its catalog."""
    return errors.CatalogError(
        f"{where} does not fit the catalog beside it: it was cut short or replaced; restore it, or run imagebeam "
        "convert --update --overwrite, which writes a whole new snapshot"
    )
