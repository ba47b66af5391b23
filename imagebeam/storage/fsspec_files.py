"""Files at any address that fsspec reads and writes: az://, and the base of s3://."""

from __future__ import annotations

import contextlib
import datetime
import errno
import os
import secrets
from collections.abc import Iterator, Mapping
from typing import Any

from imagebeam import errors
from imagebeam.storage import interface, remote

_PAGE_ENTRIES = 1000
_AZURE = frozenset({"az", "abfs", "abfss"})
_UPLOADS_WHOLE = frozenset({"s3", "s3a", *_AZURE})  # others may show a part of a file that is written
_DENIED = (401, 403)
_DOWNLOAD_ATTEMPTS = 3  # at least: one attempt at a large file may take longer than the budget of an operation


class FsspecStorage(remote.RemoteStorage):
    """Addresses of one scheme, through the file system that fsspec has for it."""

    def __init__(self, scheme: str, options: Mapping[str, Any] | None = None):
        """Checks that fsspec knows the scheme. Connects to nothing yet.

        Args:
            scheme: of the interface.
            options: passed to fsspec's file system, such as credentials.

        Raises:
            ConfigError: if the scheme is not known, or fsspec is not installed.
        """
        try:
            from fsspec.registry import known_implementations, registry
        except ModuleNotFoundError as e:
            raise errors.missing_package_of_scheme(e, scheme) from e
        if scheme not in known_implementations and scheme not in registry:
            raise errors.ConfigError(
                "address-unknown-scheme",
                f"scheme {scheme!r} is not known; write a path, or gs://, hdfs://NAMENODE:9870/, s3:// or az://",
            )
        self._options = dict(options or {})
        super().__init__()

    def rebuild(self) -> None:
        self._filesystems: dict[str, Any] = {}  # by the root of an address, which may name an account or a host

    def filesystem(self, uri: str) -> Any:
        """Returns fsspec's file system for an address; one for each root and process.

        Raises:
            ConfigError: if it cannot be opened, or its package is not installed.
        """
        root = interface.root_of(uri)
        found = self._filesystems.get(root)
        return found or self._filesystems.setdefault(root, self._open(uri, root))

    def path_of(self, uri: str) -> str:
        """Returns the path by which the file system knows the file at an address."""
        return self.filesystem(uri)._strip_protocol(uri)

    def client_options(self) -> Mapping[str, Any]:
        """Returns the options for fsspec's file system; imports what they are made of."""
        return self._options

    def _open(self, uri: str, root: str) -> Any:
        import fsspec.core

        scheme = interface.scheme_of(uri)
        try:
            filesystem, _ = fsspec.core.url_to_fs(
                root, **{"use_listings_cache": False, "skip_instance_cache": True, **self.client_options()}
            )
        except ImportError as e:
            raise errors.missing_package_of_scheme(e, scheme) from e
        except (OSError, RuntimeError, TypeError, ValueError) as e:
            raise _cannot_open(uri, e) from e
        return filesystem

    def lasting_error(self, error: Exception, uri: str) -> Exception | None:
        if isinstance(error, FileNotFoundError):
            return FileNotFoundError(errno.ENOENT, f"there is no {uri}")
        if isinstance(error, PermissionError):
            return interface.denied(uri, error)
        if getattr(error, "status_code", 0) in _DENIED:  # of adlfs's client, whose text has lines of XML
            return interface.denied(uri, str(error).partition("\n")[0])
        if isinstance(error, TypeError):  # s3fs passes its options on when it connects
            return _cannot_open(uri, error)
        if isinstance(error, NotImplementedError):
            return OSError(errno.ENOTSUP, f"{uri}: fsspec's {interface.scheme_of(uri)}:// cannot do this ({error!r})")
        return None

    def download(self, uri: str, path: str) -> None:
        """Copies a file to the local `path`, over any file there. Its size is checked, its content is not.

        The file comes in one call: fsspec's clients stream, and resume what breaks.

        Raises:
            LocalDiskError: if the local disk fails.
        """

        def get() -> None:
            with remote.local_disk_errors(path):
                self._fresh(uri).get_file(self.path_of(uri), path)
                found = os.path.getsize(path)
            size = self._stat(uri).size
            if 0 <= size != found:
                raise ConnectionError(f"{found:,} of {size:,} bytes came")

        self._retry(uri, get, _DOWNLOAD_ATTEMPTS)

    def _list(self, uri: str) -> Iterator[list[interface.Entry]]:
        filesystem, path = self._fresh(uri), self.path_of(uri)
        itself = path.rstrip("/")  # some tools mark a folder with an empty object of its name
        found = filesystem.ls(path, detail=True)
        entries = [self._entry(each) for each in found if each["name"].rstrip("/") != itself]
        return iter([entries[start : start + _PAGE_ENTRIES] for start in range(0, len(entries), _PAGE_ENTRIES)])

    def _stat(self, uri: str) -> interface.Entry:
        return self._entry(self._fresh(uri).info(self.path_of(uri)))

    def _read(self, uri: str, offset: int, length: int, version: int) -> bytes:
        if length == 0:
            return b""
        data = self._read_range(uri, offset, offset + length if length > 0 else None)
        if version and self._stat(uri).version != version:  # after the read, so that no change is missed
            raise interface.ChangedError(errno.ESTALE, f"{uri} was replaced")
        return data

    def _read_range(self, uri: str, offset: int, end: int | None) -> bytes:
        try:
            return self._fresh(uri).cat_file(self.path_of(uri), start=offset or None, end=end)
        except Exception as e:  # adlfs raises errors of its own client
            if getattr(e, "status_code", 0) == 416:  # beyond the end of a file
                return b""
            raise

    def _put(self, path: str, uri: str, must_be_new: bool) -> None:
        if must_be_new and interface.scheme_of(uri) in _AZURE:  # one request, which fails if there is a file
            self._fresh(uri).put_file(path, self.path_of(uri), overwrite=False)
            return
        if interface.scheme_of(uri) in _UPLOADS_WHOLE:
            self._require_new(uri, must_be_new)
            self._send(path, uri)
            return
        temporary = f"{uri}.tmp-{secrets.token_hex(4)}"  # under its own name, others would read a part of it
        try:
            self._send(path, temporary)
            self._move(temporary, uri, must_be_new)
        except BaseException:
            with contextlib.suppress(Exception):  # the first error is the one to report
                self._remove(temporary)
            raise

    def _send(self, path: str, uri: str) -> None:
        """Uploads a local file, over any file there."""
        self._fresh(uri).put_file(path, self.path_of(uri))

    def _require_new(self, uri: str, must_be_new: bool) -> None:
        if must_be_new and self._fresh(uri).exists(self.path_of(uri)):  # two steps: these clients offer no condition
            raise interface.taken(uri)

    def _move(self, source: str, target: str, must_be_new: bool) -> None:
        self._require_new(target, must_be_new)
        filesystem = self._fresh(source)
        filesystem.cp_file(self.path_of(source), self.path_of(target))
        filesystem.rm_file(self.path_of(source))

    def _remove(self, uri: str) -> None:
        self._fresh(uri).rm_file(self.path_of(uri))

    def _remove_tree(self, uri: str) -> None:
        self._fresh(uri).rm(self.path_of(uri), recursive=True)

    def _fresh(self, uri: str) -> Any:
        """Returns the file system after it has dropped earlier listings: files may have been written since."""
        filesystem = self.filesystem(uri)
        filesystem.invalidate_cache()
        return filesystem

    def _entry(self, found: Mapping[str, Any]) -> interface.Entry:
        name = found["name"].rstrip("/").rpartition("/")[2]
        if found["type"] == "directory":
            return interface.Entry(name, interface.DIRECTORY, 0, 0, interface.identity_of(found["name"]))
        if found["type"] != "file":
            return interface.Entry(name, interface.SPECIAL, 0, _version_of(found), (0, 0))
        size = found.get("size")
        return interface.Entry(name, interface.FILE, -1 if size is None else int(size), _version_of(found), (0, 0))


def _version_of(found: Mapping[str, Any]) -> int:
    """Returns when a file was last changed, in ns since the epoch; 0 if the file system does not tell."""
    if "modificationTime" in found:
        return int(found["modificationTime"]) * 1_000_000
    changed = found.get("LastModified") or found.get("last_modified") or found.get("mtime")
    if isinstance(changed, datetime.datetime):
        return int(changed.timestamp() * 1_000_000) * 1000
    return int(changed * 1_000_000_000) if isinstance(changed, (int, float)) else 0


def _cannot_open(uri: str, error: Exception) -> errors.ConfigError:
    reason = str(error).partition("\n")[0]
    return errors.ConfigError(
        interface.CANNOT_OPEN,
        f"{uri}: fsspec cannot open {interface.scheme_of(uri)}:// here ({reason}): "
        "check the address, storage_options and the package that reads it",
    )
