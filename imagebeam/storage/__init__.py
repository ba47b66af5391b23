"""Files at any address, behind one interface. A new scheme is added here."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from imagebeam import errors
from imagebeam.storage import given_options
from imagebeam.storage.given_options import Options as Options
from imagebeam.storage.interface import BROKEN_LINK as BROKEN_LINK
from imagebeam.storage.interface import CANNOT_OPEN as CANNOT_OPEN
from imagebeam.storage.interface import DIRECTORY as DIRECTORY
from imagebeam.storage.interface import FILE as FILE
from imagebeam.storage.interface import SPECIAL as SPECIAL
from imagebeam.storage.interface import ChangedError as ChangedError
from imagebeam.storage.interface import Entry as Entry
from imagebeam.storage.interface import LocalDiskError as LocalDiskError
from imagebeam.storage.interface import PendingFile as PendingFile
from imagebeam.storage.interface import RangeLister as RangeLister
from imagebeam.storage.interface import RequestError as RequestError
from imagebeam.storage.interface import Storage as Storage
from imagebeam.storage.interface import UnavailableError as UnavailableError
from imagebeam.storage.interface import is_fault as is_fault
from imagebeam.storage.interface import join as join
from imagebeam.storage.interface import join_relative as join_relative
from imagebeam.storage.interface import normalize as normalize
from imagebeam.storage.interface import root_of as root_of
from imagebeam.storage.interface import scheme_of as scheme_of
from imagebeam.storage.local import LocalStorage as LocalStorage

_LOCAL = LocalStorage()


_opened: dict[tuple[str, Any], Storage] = {}  # by scheme and options: connections are shared
_opened_with_secrets: set[tuple[str, Any]] = set()  # keys of those whose options name variables or files


@contextlib.contextmanager
def using(table: given_options.Table) -> Iterator[None]:
    """Makes every function of imagebeam open the addresses of a table with its options, until the block ends.

    What references name, {"env": NAME} or {"file": PATH}, is read again by the first block with this table.

    Args:
        table: options of a storage by address, such as {"s3://bucket": {"endpoint_url": "https://minio:9000"}}: for all
            addresses below it, unless a longer one is there.

    Raises:
        ConfigError: if another thread's block has other options for one of the addresses.
    """
    if any(given_options.has_references(options) for options in table.values()) and not given_options.holds(table):
        for key in list(_opened_with_secrets):  # a secret may be another one now
            _opened.pop(key, None)
    with given_options.using(table):
        yield


def storage_of(uri: str, options: Options | None = None) -> Storage:
    """Returns the storage that holds `uri`; the same one for the same scheme and options.

    Args:
        uri: a path or an address.
        options: credentials and other options of the scheme's client, such as {"token": "anon"} for gs:// (see
            docs/storage.md), on top of those that `using` gives the address. A local path takes none: they are ignored.

    Raises:
        ConfigError: if the scheme or an option is not known, or the package of the scheme is not installed.
    """
    scheme = scheme_of(uri)
    if scheme == "file":
        return _LOCAL
    options = {**given_options.options_of(uri), **(options or {})}
    key = scheme, _hashable(options)
    found = _opened.get(key)
    if found is None:
        try:
            found = _opened.setdefault(key, _open(scheme, given_options.resolve(options)))
            if given_options.has_references(options):
                _opened_with_secrets.add(key)
        except errors.ConfigError as e:
            raise errors.ConfigError(e.code, f"address {uri!r}: {e}") from e
    return found


def _open(scheme: str, options: Options) -> Storage:
    """Imports the storage of a scheme: a reader of local files needs none of these packages."""
    if scheme in ("gs", "gcs"):
        from imagebeam.storage import gcs

        return gcs.GcsStorage(options)
    if scheme in ("hdfs", "webhdfs", "swebhdfs"):
        from imagebeam.storage import webhdfs

        return webhdfs.WebHdfsStorage(options)
    if scheme in ("http", "https"):
        from imagebeam.storage import http

        return http.HttpStorage(scheme, options)
    if scheme in ("s3", "s3a"):
        from imagebeam.storage import s3

        return s3.S3Storage(scheme, options)
    from imagebeam.storage import fsspec_files

    return fsspec_files.FsspecStorage(scheme, options)


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
