"""HDFS, through the WebHDFS REST API."""

from __future__ import annotations

import errno
import functools
import getpass
import os
import re
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Any

from imagebeam import errors
from imagebeam.storage import fsspec_files, interface, remote

_TIMEOUT_SEC = (5.0, 60.0)  # to connect, and between two pieces of an answer
_CONNECTIONS = 64
_ADDRESS = re.compile(
    r"(?:web)?hdfs://(?:(?P<user>[^@/]+)@)?(?P<host>[^:/@]+|\[[^]]+\]):(?P<port>\d+)(?P<path>/.*)?",
    re.DOTALL | re.IGNORECASE,
)
_IDENTIFIES_THE_USER = ("user", "token", "kerberos")  # options with which WebHDFS takes no other user


class WebHdfsStorage(fsspec_files.FsspecStorage):
    """hdfs://[USER@]NAMENODE:PORT/PATH, where the port is that of WebHDFS."""

    swaps_atomically = True  # the NameNode renames atomically

    def __init__(self, options: Mapping[str, Any] | None = None):
        """Checks that fsspec is installed. Connects to nothing yet.

        Args:
            options: of fsspec's WebHDFS, such as user, token, kerberos, use_https.

        Raises:
            ConfigError: if fsspec is not installed.
        """
        super().__init__("hdfs", options)

    def filesystem(self, uri: str) -> Any:
        host, port, user, _ = parse_hdfs(uri)
        if user is None and not any(self._options.get(name) for name in _IDENTIFIES_THE_USER):
            user = os.environ.get("HADOOP_USER_NAME") or getpass.getuser()
        root = f"{user or ''}@{host}:{port}"
        found = self._filesystems.get(root)
        return found or self._filesystems.setdefault(root, self._connect(host, port, user))

    def path_of(self, uri: str) -> str:
        return parse_hdfs(uri)[3]

    def _connect(self, host: str, port: int, user: str | None) -> Any:
        try:
            import requests.adapters
            from fsspec.implementations import webhdfs
        except ModuleNotFoundError as e:
            raise errors.missing_package_of_scheme(e, "hdfs") from e
        options = {"skip_instance_cache": True, **self._options, **({} if user is None else {"user": user})}
        try:
            filesystem = webhdfs.WebHDFS(host, port, **options)
        except ModuleNotFoundError as e:
            text = f"{e.name} is not installed, storage_options ask for it: install it"
            raise errors.ConfigError("package-missing", text) from e
        except (TypeError, ValueError) as e:
            text = f"hdfs://{host}:{port} cannot be opened ({e}): change storage_options"
            raise errors.ConfigError("storage-cannot-open", text) from e
        for scheme in ("http://", "https://"):
            filesystem.session.mount(scheme, requests.adapters.HTTPAdapter(pool_maxsize=_CONNECTIONS))
        filesystem.session.request = functools.partial(filesystem.session.request, timeout=_TIMEOUT_SEC)
        return filesystem

    def lasting_error(self, error: Exception, uri: str) -> Exception | None:
        text = str(error)
        if isinstance(error, RuntimeError) and "already exists" in text:
            return interface.taken(uri)
        if isinstance(error, ValueError) or "Invalid path" in text:  # HDFS takes no such name
            return OSError(errno.EINVAL, f"{uri}: {text}")
        return super().lasting_error(error, uri)

    def make_directories(self, uri: str) -> None:
        self._retry(uri, lambda: self._call(uri, "MKDIRS", "put"))

    def download(self, uri: str, path: str) -> None:
        """Copies a file to the local `path` in ranges: fsspec's WebHDFS would begin again after any fault."""
        remote.RemoteStorage.download(self, uri, path)

    def _list(self, uri: str) -> Iterator[list[interface.Entry]]:
        path = self.path_of(uri)

        def request(last: str) -> tuple[list[interface.Entry], str]:
            """Returns the page after an entry, as long as the NameNode makes it, and its last entry."""
            # The documentation spells it startAfter, Hadoop 3.5 takes startafter.
            answer = self._call(uri, "LISTSTATUS_BATCH", "get", startAfter=last, startafter=last).json()
            listing = answer["DirectoryListing"]
            found = listing["partialListing"]["FileStatuses"]["FileStatus"]
            if found and last and found[0]["pathSuffix"] <= last:
                detail = f"{uri}: the NameNode gives the same page of a folder again"
                raise interface.UnavailableError(errno.EIO, detail)
            entries = [
                self._entry({**each, "name": f"{path}/{each['pathSuffix']}", "size": each["length"]})
                for each in found
                if each["pathSuffix"]  # empty where the address is that of a file
            ]
            return entries, found[-1]["pathSuffix"] if found and listing["remainingEntries"] else ""

        return remote.Pages(request)

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

    def _send(self, path: str, uri: str) -> None:
        """Uploads a file in one request to a DataNode, over any file there."""
        answer = self._call(uri, "CREATE", "put", redirect=False, overwrite="true")
        with open(path, "rb") as file:
            headers = {"Content-Type": "application/octet-stream"}
            answer = self.filesystem(uri).session.put(answer.headers["Location"], data=file, headers=headers)
        if answer.status_code == 403 and "AccessControlException" in answer.text:
            raise PermissionError(answer.text)
        answer.raise_for_status()

    def _move(self, source: str, target: str, must_be_new: bool) -> None:
        options = "NONE" if must_be_new else "OVERWRITE"  # either way, a rename that fails is an error
        self._call(source, "RENAME", "put", destination=self.path_of(target), renameoptions=options)

    def _remove(self, uri: str) -> None:
        self._call(uri, "DELETE", "delete", recursive="false")

    def _remove_tree(self, uri: str) -> None:
        self._call(uri, "DELETE", "delete", recursive="true")

    def _call(self, uri: str, operation: str, method: str, redirect: bool = True, **options: Any) -> Any:
        """Sends one request of the REST API and returns the answer.

        fsspec's own methods lack conditions, pages and upload in one request. Its private `_call` has the
        authentication and the errors; tests/unit/imagebeam/storage/test_http.py pins what is used of it.

        Source: WebHDFS REST API, Hadoop 3.5.
        """
        return self.filesystem(uri)._call(operation, method, path=self.path_of(uri), redirect=redirect, **options)

    def _entry(self, found: Mapping[str, Any]) -> interface.Entry:
        return super()._entry({**found, "type": found["type"].lower()})


def parse_hdfs(uri: str) -> tuple[str, int, str | None, str]:
    """Returns host, port, user and path of an hdfs:// address. The user is None if the address names none.

    Raises:
        ConfigError: if the address does not name the NameNode and its WebHDFS port.
    """
    match = _ADDRESS.fullmatch(uri)
    if match is None:
        raise errors.ConfigError(
            "address-no-namenode",
            f"address {uri!r} does not name a NameNode and its WebHDFS port: write hdfs://NAMENODE:9870/FOLDER",
        )
    user = None if match["user"] is None else urllib.parse.unquote(match["user"])
    return match["host"], int(match["port"]), user, match["path"] or "/"
