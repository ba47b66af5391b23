"""Files at any address, behind one interface. A new scheme is added here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from imagebeam import errors
from imagebeam.storage.interface import (
    BROKEN_LINK,
    DIRECTORY,
    FILE,
    SPECIAL,
    ChangedError,
    Entry,
    LocalDiskError,
    PendingFile,
    RangeLister,
    RequestError,
    Storage,
    UnavailableError,
    is_fault,
    join,
    join_relative,
    normalize,
    root_of,
    scheme_of,
)
from imagebeam.storage.local import LocalStorage

__all__ = [
    "BROKEN_LINK",
    "DIRECTORY",
    "FILE",
    "SPECIAL",
    "ChangedError",
    "Entry",
    "LocalDiskError",
    "LocalStorage",
    "PendingFile",
    "RangeLister",
    "RequestError",
    "Storage",
    "UnavailableError",
    "is_fault",
    "join",
    "join_relative",
    "normalize",
    "root_of",
    "scheme_of",
    "storage_of",
]

Options: TypeAlias = Mapping[str, Any]

_LOCAL = LocalStorage()


def _gcs(scheme: str, options: Options) -> Storage:
    from imagebeam.storage import gcs

    return gcs.GcsStorage(options)


def _webhdfs(scheme: str, options: Options) -> Storage:
    from imagebeam.storage import webhdfs

    return webhdfs.WebHdfsStorage(options)


def _http(scheme: str, options: Options) -> Storage:
    from imagebeam.storage import http

    return http.HttpStorage(scheme, options)


def _fsspec(scheme: str, options: Options) -> Storage:
    from imagebeam.storage import fsspec_files

    return fsspec_files.FsspecStorage(scheme, options)


# Imported at the first address of the scheme: a reader of local files needs none of these packages.
_BY_SCHEME: dict[str, Callable[[str, Options], Storage]] = {
    "gs": _gcs,
    "gcs": _gcs,
    "hdfs": _webhdfs,
    "webhdfs": _webhdfs,
    "http": _http,
    "https": _http,
}
_opened: dict[tuple[str, Any], Storage] = {}  # by scheme and options: connections are shared


def storage_of(uri: str, options: Options | None = None) -> Storage:
    """Returns the storage that holds `uri`; the same one for the same scheme and options.

    Args:
        uri: a path or an address.
        options: credentials and other options of the scheme's client, such as {"token": "anon"} for gs:// (see
            docs/storage.md). A local path takes none: they are ignored.

    Raises:
        ConfigError: if the scheme or an option is not known, or the package of the scheme is not installed.
    """
    scheme = scheme_of(uri)
    if scheme == "file":
        return _LOCAL
    key = scheme, _hashable(options or {})
    found = _opened.get(key)
    if found is None:
        try:
            found = _opened.setdefault(key, _BY_SCHEME.get(scheme, _fsspec)(scheme, dict(options or {})))
        except errors.ConfigError as e:
            raise errors.ConfigError(f"address {uri!r}: {e}") from e
    return found


def _hashable(value: Any) -> Any:
    """Returns a key that is equal for equal options. Objects that cannot be hashed count by their identity."""
    if isinstance(value, Mapping):
        return frozenset((name, _hashable(each)) for name, each in value.items())
    if isinstance(value, (list, tuple)):
        return tuple(_hashable(each) for each in value)
    try:
        hash(value)
    except TypeError:
        return "id", id(value)  # stays taken: the storage that is kept under this key keeps its options
    return type(value), value  # True and 1 are different options
