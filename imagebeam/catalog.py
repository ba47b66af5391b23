"""The catalog: the commit record of a written dataset. No `catalog.json`, no dataset."""

from __future__ import annotations

import json
import os
import posixpath
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from imagebeam import errors, storage
from imagebeam.catalog_format import (
    CATALOG_FILE,
    COMMIT_LOCK_FILE,
    DAMAGE,
    DUPLICATES_FILE,
    FORMAT_VERSION,
    INDEX_DIRECTORY,
    INDEXING_PREFIX,
    LABELS_FILE,
    MASK_LABELS_FILE,
    METADATA_DIRECTORY,
    REJECTS_FILE,
    REPORT_PAGE_FILE,
    STAGING_PREFIX,
    STATE_DIRECTORY,
    STATE_SUFFIX,
    STATISTICS_FILE,
    Catalog,
    Counts,
    File,
    Shard,
    Split,
)

__all__ = [
    "CATALOG_FILE",
    "COMMIT_LOCK_FILE",
    "DUPLICATES_FILE",
    "FORMAT_VERSION",
    "INDEXING_PREFIX",
    "INDEX_DIRECTORY",
    "LABELS_FILE",
    "MASK_LABELS_FILE",
    "METADATA_DIRECTORY",
    "REJECTS_FILE",
    "REPORT_PAGE_FILE",
    "STAGING_PREFIX",
    "STATE_DIRECTORY",
    "STATE_SUFFIX",
    "STATISTICS_FILE",
    "Catalog",
    "Counts",
    "File",
    "Shard",
    "Split",
    "find_catalog",
    "load_catalog",
    "load_statistics",
    "missing_catalog",
    "unreadable",
]

_LIKE_TFRECORD = re.compile(r"\.tfrec|tfrecord|-\d{5,}-of-\d{5,}", re.IGNORECASE)


def load_catalog(
    directory: str | os.PathLike[str],
    read: Callable[[str], bytes] | None = None,
    list_names: Callable[[str], Iterable[str]] | None = None,
) -> Catalog:
    """Reads the catalog of the dataset in `directory`.

    Args:
        directory: a path or an address.
        read: returns all bytes of the file at an address; by default the storage of the address does.
        list_names: returns the names of the files at an address; by default the storage of the address does.

    Raises:
        CatalogError: if there is no catalog, or it cannot be read.
    """
    found = find_catalog(directory, read)
    if found is None:
        raise missing_catalog(directory, read, list_names)
    return found


def find_catalog(directory: str | os.PathLike[str], read: Callable[[str], bytes] | None = None) -> Catalog | None:
    """Reads the catalog of the dataset in `directory`; returns None if there is none.

    Args:
        directory: a path or an address.
        read: as for `load_catalog`.

    Raises:
        CatalogError: if the catalog cannot be read.
    """
    uri = storage.join(storage.normalize(directory), CATALOG_FILE)
    try:
        text = (read or storage.storage_of(uri).read)(uri).decode("utf-8", "replace")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as e:
        raise unreadable(uri, e) from e
    return Catalog.from_json(text, uri)


def missing_catalog(
    directory: str | os.PathLike[str],
    read: Callable[[str], bytes] | None = None,
    list_names: Callable[[str], Iterable[str]] | None = None,
) -> errors.CatalogError:
    """Returns the error for a folder without a catalog; it says why there is none. Arguments as of `load_catalog`."""
    other = _name_of_another_tool(storage.normalize(directory), list_names)
    if other:
        return errors.CatalogError(
            f"{directory} holds no {CATALOG_FILE}: {other!r} is a TFRecord file that another tool wrote; "
            f"imagebeam index {directory} makes such files readable where they are, and imagebeam convert --config "
            f"tfrecord --input {directory} --output OUTPUT makes a dataset of them"
        )
    return errors.CatalogError(
        f"{directory} holds no {CATALOG_FILE}: {_why_there_is_none(storage.normalize(directory), read)}"
    )


def _why_there_is_none(directory: str, read: Callable[[str], bytes] | None) -> str:
    """Returns why a folder holds no catalog, and what to do."""
    metadata = storage.join(directory, METADATA_DIRECTORY)
    read_file = read or storage.storage_of(directory).read
    try:
        fingerprint = json.loads(read_file(storage.join(metadata, COMMIT_LOCK_FILE)))["fingerprint"]
        staged = storage.join(metadata, f"{STAGING_PREFIX}{fingerprint}", CATALOG_FILE)
        catalog = Catalog.from_json(read_file(staged).decode("utf-8", "replace"), staged)
    except (OSError, errors.CatalogError, *DAMAGE):
        pass
    else:
        if catalog.indexed:
            return f"an index of it was cut short while it was committed; run imagebeam index {directory} again"
        source = (catalog.config.get("source") or {}).get("uri")
        return (
            f"the commit of a dataset of {catalog.counts.written:,} images was cut short; run the same convert command "
            f"again (--input {source}), which finishes it"
        )
    try:
        names = [] if read else [entry.name for entry in storage.storage_of(metadata).list_directory(metadata)]
    except OSError:
        names = []
    if any(name.startswith(STAGING_PREFIX + INDEXING_PREFIX) for name in names):
        return f"an index of it is unfinished; wait for it, or run imagebeam index {directory} again to resume"
    if any(name.startswith(STAGING_PREFIX) for name in names):
        return "a conversion into it is unfinished; wait for it, or run the same convert command again to resume"
    return "no dataset was committed there; give the --output of a successful convert command"


def _name_of_another_tool(directory: str, list_names: Callable[[str], Iterable[str]] | None) -> str:
    """Returns a TFRecord file of another tool in a folder, or at the address itself; "" if there is none."""
    if _LIKE_TFRECORD.search(posixpath.basename(directory)) and storage.scheme_of(directory) == "file":
        return posixpath.basename(directory) if os.path.isfile(directory) else ""
    try:
        if list_names is None:
            entries = storage.storage_of(directory).list_directory(directory)
            names = sorted(entry.name for entry in entries)
        else:
            names = sorted(name.rstrip("/") for name in list_names(directory))
    except (OSError, errors.ImagebeamError):  # this only adds detail to an error that is raised anyway
        return ""
    if not {INDEX_DIRECTORY, METADATA_DIRECTORY}.isdisjoint(names):
        return ""
    return next((name for name in names if _LIKE_TFRECORD.search(name)), "")


def unreadable(uri: str, error: OSError) -> errors.CatalogError:
    """Returns the error for a small file of a dataset that is there and cannot be read."""
    reason = error.strerror or error
    if isinstance(error, storage.UnavailableError):  # its text names the address
        return errors.CatalogError(f"{reason}: check the address, and that it can be reached from here, and run again")
    if storage.is_fault(error):
        return errors.CatalogError(
            f"{uri} cannot be read ({reason}): this machine has no open files or no memory left; free some, and run "
            "again"
        )
    return errors.CatalogError(f"{uri} cannot be read ({reason}); grant read access to it")


def load_statistics(directory: str | os.PathLike[str], read: Callable[[str], bytes] | None = None) -> Mapping[str, Any]:
    """Reads the writer's statistics, by split. Returns {} if the file is missing: a dataset can be read without it.

    Args:
        directory: a path or an address.
        read: as for `load_catalog`.

    Raises:
        CatalogError: if the file is damaged, or cannot be read.
    """
    uri = storage.join(storage.normalize(directory), STATISTICS_FILE)
    try:
        found = json.loads((read or storage.storage_of(uri).read)(uri))
        _check_statistics(found)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as e:
        raise unreadable(uri, e) from e
    except DAMAGE as e:
        raise errors.CatalogError(
            f"{uri} is damaged ({type(e).__name__}: {e}): run the same convert command again with --overwrite, "
            "or remove the file, without which the dataset can be read"
        ) from e
    return found


def _check_statistics(found: Any) -> None:
    """Raises TypeError, or another error of DAMAGE, if a field that readers use has another shape."""
    for split, counted in found.items():
        for name in ("formats", "height", "width"):
            if not isinstance(counted.get(name, {}), dict):
                raise TypeError(f"{name} of {split!r} is {counted[name]!r}")
        for name in ("height", "width"):
            if not isinstance(counted.get(name, {}).get("max", 0), int):
                raise TypeError(f"{name} of {split!r} is {counted[name]!r}")
        pixels = counted.get("pixels")
        for name in ("mean", "std") if pixels else ():
            if len([float(each) for each in pixels[name]]) not in (1, 3):
                raise TypeError(f"{name} of {split!r} is {pixels[name]!r}")
        if pixels and not isinstance(pixels["images"], int):
            raise TypeError(f"images of {split!r} is {pixels['images']!r}")
