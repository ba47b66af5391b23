"""Reads the catalog that is committed in an output, and recognizes it later by its version and its bytes."""

from __future__ import annotations

from typing import NamedTuple

from imagebeam import catalog as catalog_lib
from imagebeam import errors, plural, records, storage
from imagebeam.transforms import elements

_ATTEMPTS = 5  # a catalog may be replaced while it is read


class FoundCatalog(NamedTuple):
    """A `catalog.json`, as one read found it."""

    record: elements.Committed
    catalog: catalog_lib.Catalog | None  # None if it cannot be read
    error: errors.CatalogError | None  # why it cannot be read


def find_catalog(output: str) -> FoundCatalog | None:
    """Returns the catalog in the folder `output`; None if there is none.

    Raises:
        OSError: if the storage does not answer.
    """
    uri = storage.join(output, catalog_lib.CATALOG_FILE)
    store = storage.storage_of(uri)
    for attempt in range(_ATTEMPTS):
        try:
            version = store.stat(uri).version
            data = store.read(uri, version=version)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except storage.ChangedError:
            if attempt == _ATTEMPTS - 1:
                raise
            continue
        except OSError as e:
            if storage.is_fault(e):
                raise
            problem = errors.CatalogError(f"{uri} cannot be read ({e.strerror or e}); grant read access to it")
            return FoundCatalog(elements.Committed("", version), None, problem)
        return _describe(uri, version, data)
    raise AssertionError("the last attempt returns or raises")


def _describe(uri: str, version: int, data: bytes) -> FoundCatalog:
    catalog, error = None, None
    try:
        catalog = catalog_lib.Catalog.from_json(data.decode("utf-8", "replace"), uri)
    except errors.CatalogError as e:
        error = e
    fingerprint = "" if catalog is None else catalog.fingerprint
    record = elements.Committed(fingerprint, version, len(data), records.extend_crc(0, data))
    return FoundCatalog(record, catalog, error)


def has_bytes_of(uri: str, record: elements.Committed) -> bool:
    """Returns whether the file at `uri` exists and holds the bytes of the catalog that was recorded."""
    try:
        data = storage.storage_of(uri).read(uri)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except PermissionError:
        return record.bytes < 0
    return record.bytes in (-1, len(data)) and record.crc32c in (-1, records.extend_crc(0, data))


def describe(catalog: catalog_lib.Catalog | None) -> str:
    """Returns text such as `pets, 100 images, written 2026-01-31T12:00:00+00:00`; None is a catalog that is damaged."""
    if catalog is None:
        return "a catalog that cannot be read"
    return f"{catalog.name}, {plural.count(catalog.counts.written, 'image')}, written {catalog.created}"
