"""HDFS through WebHDFS, and whatever else fsspec reads and writes: s3://, az://..."""

from __future__ import annotations

import contextlib
import datetime
import errno
import functools
import getpass
import os
import re
import secrets
import urllib.parse
from collections.abc import Iterator
from typing import Any

from imagebeam import errors, storage
from imagebeam.storage import remote

_TIMEOUT_SEC = (5.0, 60.0)  # to connect, and between two pieces of an answer
_PAGE_ENTRIES = 1000
_CONNECTIONS = 64
_PACKAGES = {"s3": "'imagebeam[s3]'", "s3a": "'imagebeam[s3]'", "az": "adlfs", "abfs": "adlfs", "abfss": "adlfs"}
_HDFS = re.compile(r"hdfs://(?:(?P<user>[^@/]+)@)?(?P<host>[^:/@]+|\[[^]]+\]):(?P<port>\d+)(?P<path>/.*)?", re.DOTALL)


class FsspecStorage(remote.RemoteStorage):
    """Addresses of a scheme that fsspec knows."""

    def __init__(self, scheme: str):
        """Looks whether the scheme is known; nothing is opened yet.

        Raises:
            ConfigError: if it is not, or fsspec is not installed.
        """
        try:
            from fsspec.registry import known_implementations, registry
        except ModuleNotFoundError as e:
            raise errors.ConfigError(f"fsspec is not installed, {scheme}:// needs it: pip install fsspec") from e
        if scheme not in known_implementations and scheme not in registry:
            raise errors.ConfigError(
                f"scheme {scheme!r} is not known; write a path, or gs://, hdfs://NAMENODE:9870/, s3:// or az://"
            )

    def filesystem(self, uri: str) -> Any:
        """The file system of an address: one for each process.

        Raises:
            ConfigError: if there is none, or its package is not installed.
        """
        return _filesystem(storage.scheme_of(uri))

    def path_of(self, uri: str) -> str:
        """What the file system calls the file at an address."""
        return uri

    def lasting_error(self, error: Exception, uri: str) -> Exception | None:
        if isinstance(error, FileNotFoundError):
            return FileNotFoundError(errno.ENOENT, f"there is no {uri}")
        if isinstance(error, PermissionError):
            return remote.denied(uri, error)
        return None

    def _list(self, uri: str) -> Iterator[list[storage.Entry]]:
        filesystem, path = self._fresh(uri), self.path_of(uri)
        itself = filesystem._strip_protocol(path).rstrip("/")  # some mark a folder with an empty object of its name
        found = filesystem.ls(path, detail=True)
        entries = [self._entry(info) for info in found if info["name"].rstrip("/") != itself]
        return iter([entries[start : start + _PAGE_ENTRIES] for start in range(0, len(entries), _PAGE_ENTRIES)])

    def _stat(self, uri: str) -> storage.Entry:
        return self._entry(self._fresh(uri).info(self.path_of(uri)))

    def _read(self, uri: str, offset: int, length: int, version: int) -> bytes:
        if length == 0:
            return b""
        data = self._read_range(uri, offset, offset + length if length > 0 else None)
        if version and self._stat(uri).mtime_ns != version:  # after the read, so that nothing is missed
            raise storage.ChangedError(errno.ESTALE, f"{uri} was replaced")
        return data

    def _read_range(self, uri: str, offset: int, end: int | None) -> bytes:
        return self._fresh(uri).cat_file(self.path_of(uri), start=offset or None, end=end)

    def _put(self, path: str, uri: str, must_be_new: bool) -> None:
        filesystem = self._fresh(uri)
        if must_be_new and filesystem.exists(self.path_of(uri)):  # in two steps: these stores know no other way
            raise remote.taken(uri)
        filesystem.put_file(path, self.path_of(uri))

    def _move(self, source: str, target: str, must_be_new: bool) -> None:
        filesystem = self._fresh(source)
        if must_be_new and filesystem.exists(self.path_of(target)):
            raise remote.taken(target)
        filesystem.cp_file(self.path_of(source), self.path_of(target))
        filesystem.rm_file(self.path_of(source))

    def _remove(self, uri: str) -> None:
        self._fresh(uri).rm_file(self.path_of(uri))

    def _remove_tree(self, uri: str) -> None:
        self._fresh(uri).rm(self.path_of(uri), recursive=True)

    def _fresh(self, uri: str) -> Any:
        """The file system without what it remembers of earlier listings."""
        filesystem = self.filesystem(uri)
        filesystem.invalidate_cache()
        return filesystem

    def _entry(self, info: dict[str, Any]) -> storage.Entry:
        name = info["name"].rstrip("/").rpartition("/")[2]
        if info["type"] == "directory":
            return storage.Entry(name, storage.DIRECTORY, 0, 0, remote.identity_of(info["name"]))
        kind = storage.FILE if info["type"] == "file" else storage.SPECIAL
        return storage.Entry(name, kind, int(info.get("size") or 0), _nanoseconds(info), (0, 0))


class WebHdfsStorage(FsspecStorage):
    """hdfs://[USER@]NAMENODE:PORT/PATH, where the port is that of WebHDFS."""

    def __init__(self) -> None:
        super().__init__("webhdfs")

    def filesystem(self, uri: str) -> Any:
        host, port, user, _ = parse_hdfs(uri)
        return _webhdfs(host, port, user)

    def path_of(self, uri: str) -> str:
        return parse_hdfs(uri)[3]

    def lasting_error(self, error: Exception, uri: str) -> Exception | None:
        text = str(error)
        if isinstance(error, RuntimeError) and "already exists" in text:
            return remote.taken(uri)
        if isinstance(error, ValueError) or "Invalid path" in text:  # HDFS takes no such name
            return OSError(errno.EINVAL, f"{uri}: {text}")
        return super().lasting_error(error, uri)

    def make_directories(self, uri: str) -> None:
        self._retry(uri, lambda: self._call(uri, "MKDIRS", "put"))

    def _list(self, uri: str) -> Iterator[list[storage.Entry]]:
        return _HdfsPages(self, uri)

    def _read_range(self, uri: str, offset: int, end: int | None) -> bytes:
        wanted: dict[str, Any] = {} if end is None else {"length": end - offset}
        try:
            answer = self._call(uri, "OPEN", "get", offset=offset, **wanted)
        except RuntimeError as e:
            if "out of the range" in str(e):  # as at the end of any file
                return b""
            raise
        expected = answer.headers.get("Content-Length")
        if expected is not None and len(answer.content) != int(expected):
            raise ConnectionError(f"{len(answer.content)} of {expected} bytes came")
        return answer.content

    def _put(self, path: str, uri: str, must_be_new: bool) -> None:
        """In one request to a DataNode; a file of that name appears only when all of it is there."""
        target = uri if must_be_new else f"{uri}.tmp-{secrets.token_hex(4)}"
        answer = self._call(target, "CREATE", "put", redirect=False, overwrite="false" if must_be_new else "true")
        try:
            with open(path, "rb") as file:
                headers = {"Content-Type": "application/octet-stream"}
                session = self.filesystem(uri).session
                answer = session.put(answer.headers["Location"], data=file, headers=headers)
            if answer.status_code == 403 and "FileAlreadyExistsException" in answer.text:
                raise remote.taken(uri)
            if answer.status_code == 403 and "AccessControlException" in answer.text:
                raise PermissionError(answer.text)
            answer.raise_for_status()
            if not must_be_new:
                self._move(target, uri, False)
        except BaseException:
            if not must_be_new:
                with contextlib.suppress(Exception):  # the first error is the one to tell
                    self._remove(target)
            raise

    def _move(self, source: str, target: str, must_be_new: bool) -> None:
        options = "NONE" if must_be_new else "OVERWRITE"  # with either, a rename that fails is an error
        self._call(source, "RENAME", "put", destination=self.path_of(target), renameoptions=options)

    def _remove(self, uri: str) -> None:
        self._call(uri, "DELETE", "delete", recursive="false")

    def _remove_tree(self, uri: str) -> None:
        self._call(uri, "DELETE", "delete", recursive="true")

    def _call(self, uri: str, operation: str, method: str, redirect: bool = True, **options: Any) -> Any:
        """A request of the WebHDFS REST API. Source: WebHDFS REST API, Hadoop 3.5."""
        return self.filesystem(uri)._call(operation, method, path=self.path_of(uri), redirect=redirect, **options)

    def _entry(self, info: dict[str, Any]) -> storage.Entry:
        return super()._entry({**info, "type": info["type"].lower()})


class _HdfsPages(Iterator[list[storage.Entry]]):
    """Pages of a directory; the NameNode says how many entries one holds. One that fails can be asked for again."""

    def __init__(self, store: WebHdfsStorage, uri: str):
        self._store = store
        self._uri = uri
        self._after = ""
        self._is_over = False

    def __next__(self) -> list[storage.Entry]:
        if self._is_over:
            raise StopIteration
        # As documented, and as Hadoop 3.5 takes it.
        after: dict[str, Any] = {"startAfter": self._after, "startafter": self._after}
        answer = self._store._call(self._uri, "LISTSTATUS_BATCH", "get", **after).json()
        listing = answer["DirectoryListing"]
        found = listing["partialListing"]["FileStatuses"]["FileStatus"]
        if found and self._after and found[0]["pathSuffix"] <= self._after:
            raise storage.UnavailableError(
                errno.EIO, f"{self._uri}: the NameNode gives the same page of a folder again"
            )
        self._is_over = not listing["remainingEntries"] or not found
        self._after = found[-1]["pathSuffix"] if found else ""
        path = self._store.path_of(self._uri)
        return [
            self._store._entry({**each, "name": f"{path}/{each['pathSuffix']}", "size": each["length"]})
            for each in found
            if each["pathSuffix"]  # empty where the address is that of a file
        ]


def parse_hdfs(uri: str) -> tuple[str, int, str, str]:
    """Host, port, user and path of an hdfs:// address. The user is the address', $HADOOP_USER_NAME or the login name.

    Raises:
        ConfigError: if the address does not say where WebHDFS is.
    """
    match = _HDFS.fullmatch(uri)
    if match is None:
        raise errors.ConfigError(
            f"address {uri!r} does not name a NameNode and its WebHDFS port: write hdfs://NAMENODE:9870/FOLDER"
        )
    user = match["user"] or os.environ.get("HADOOP_USER_NAME") or getpass.getuser()
    return match["host"], int(match["port"]), urllib.parse.unquote(user), match["path"] or "/"


@functools.cache
def _webhdfs(host: str, port: int, user: str) -> Any:
    try:
        import requests.adapters
        from fsspec.implementations import webhdfs
    except ModuleNotFoundError as e:
        raise errors.ConfigError(f"{e.name} is not installed, hdfs:// needs it: pip install 'imagebeam[hdfs]'") from e
    filesystem = webhdfs.WebHDFS(host, port, user=user, skip_instance_cache=True)
    filesystem.session.mount("http://", requests.adapters.HTTPAdapter(pool_maxsize=_CONNECTIONS))
    filesystem.session.request = functools.partial(filesystem.session.request, timeout=_TIMEOUT_SEC)
    return filesystem


@functools.cache
def _filesystem(scheme: str) -> Any:
    import fsspec

    try:
        return fsspec.filesystem(scheme, use_listings_cache=False, skip_instance_cache=True)
    except ImportError as e:
        package = _PACKAGES.get(scheme, "what fsspec names")
        raise errors.ConfigError(f"a package that reads {scheme}:// is missing ({e}): pip install {package}") from e


def _nanoseconds(info: dict[str, Any]) -> int:
    """When a file was last changed, since the epoch; 0 where the file system does not say."""
    if "modificationTime" in info:
        return int(info["modificationTime"]) * 1_000_000
    changed = info.get("LastModified") or info.get("last_modified") or info.get("mtime")
    if isinstance(changed, datetime.datetime):
        return int(changed.timestamp() * 1_000_000) * 1000
    return int(changed * 1_000_000_000) if isinstance(changed, (int, float)) else 0


def _forget() -> None:
    _webhdfs.cache_clear()
    _filesystem.cache_clear()


os.register_at_fork(after_in_child=_forget)  # connections are not to be shared
