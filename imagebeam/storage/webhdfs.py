"""HDFS, through the WebHDFS REST API of its NameNodes or of a gateway (HttpFS, Knox)."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from imagebeam import errors
from imagebeam.storage import hadoop_files, interface, remote, webhdfs_client

_ADDRESS = re.compile(
    r"(?P<tls>s(?=web))?(?:web)?hdfs://(?:(?P<user>[^@/]+)@)?(?P<nodes>[^/@]+)(?P<path>/.*)?", re.DOTALL | re.IGNORECASE
)
_NODE = re.compile(r"(?:[^:/@,\[\]]+|\[[^]]+\]):\d+")
_INVALID = ("IllegalArgumentException", "UnsupportedOperationException", "InvalidPathException")
_DENIED = ("AccessControlException", "AuthorizationException", "SecurityException")


class Address(NamedTuple):
    """The parts of an hdfs:// address."""

    nodes: tuple[str, ...]  # http://HOST:PORT or https://HOST:PORT of each NameNode, with its port of WebHDFS
    user: str | None  # None if the address names none
    path: str
    nameservice: str  # "" if the address names NameNodes


class WebHdfsStorage(remote.RemoteStorage):
    """hdfs://[USER@]NAMENODE:PORT[,NAMENODE:PORT]/PATH with ports of WebHDFS, or hdfs://NAMESERVICE/PATH."""

    swaps_atomically = True  # the NameNode renames atomically

    def __init__(self, options: Mapping[str, Any] | None = None):
        """Checks the options. Connects to nothing yet.

        Args:
            options: see `webhdfs_client.OPTIONS`.

        Raises:
            ConfigError: if an option is not known, or two exclude each other.
        """
        self._options = dict(options or {})
        webhdfs_client.check_options(self._options)
        super().__init__()

    def rebuild(self) -> None:
        self._clients: dict[tuple[str, str | None], webhdfs_client.WebHdfsClient] = {}  # by root and login name

    def client(self, uri: str) -> webhdfs_client.WebHdfsClient:
        """Returns the client for an address; one for each root, login name and process.

        Raises:
            ConfigError: if the address does not name the cluster, or the login cannot be read.
        """
        key = interface.root_of(uri), os.environ.get("HADOOP_USER_NAME")
        found = self._clients.get(key)
        return found or self._clients.setdefault(key, self._connect(uri))

    def _connect(self, uri: str) -> webhdfs_client.WebHdfsClient:
        address = parse_hdfs(uri, bool(self._options.get("use_https")))
        return webhdfs_client.WebHdfsClient(address.nodes, address.user, self._options, address.nameservice)

    def lasting_error(self, error: Exception, uri: str) -> Exception | None:
        if isinstance(error, UnicodeEncodeError):
            return OSError(errno.EINVAL, f"{uri}: {error}")
        if not isinstance(error, webhdfs_client.RefusedError):
            return None
        kind, text = error.exception, str(error)
        if "already exists" in text:
            return interface.taken(uri)
        if kind in _INVALID or "Invalid path" in text:  # HDFS takes no such name
            return OSError(errno.EINVAL, f"{uri}: {text}")
        if kind == "FileNotFoundException":
            return FileNotFoundError(errno.ENOENT, f"there is no {uri}")
        return interface.denied(uri, text) if kind in _DENIED else None

    def make_directories(self, uri: str) -> None:
        self._retry(uri, lambda: self._call("MKDIRS", uri))

    def _list(self, uri: str) -> Iterator[list[interface.Entry]]:
        path = path_of(uri).rstrip("/")

        def request(last: str) -> tuple[list[interface.Entry], str]:
            """Returns the page after an entry, as long as the NameNode makes it, and its last entry."""
            # The documentation spells it startAfter, Hadoop 3.5 takes startafter.
            answer = self._call("LISTSTATUS_BATCH", uri, startAfter=last, startafter=last).json()
            listing = answer["DirectoryListing"]
            found = listing["partialListing"]["FileStatuses"]["FileStatus"]
            if found and last and found[0]["pathSuffix"] <= last:
                detail = f"{uri}: the NameNode gives the same page of a folder again"
                raise interface.UnavailableError(errno.EIO, detail)
            entries = [
                _entry(f"{path}/{each['pathSuffix']}", each)
                for each in found
                if each["pathSuffix"]  # empty where the address is that of a file
            ]
            return entries, found[-1]["pathSuffix"] if found and listing["remainingEntries"] else ""

        return remote.Pages(request)

    def _stat(self, uri: str) -> interface.Entry:
        return _entry(path_of(uri), self._call("GETFILESTATUS", uri).json()["FileStatus"])

    def _read(self, uri: str, offset: int, length: int, version: int) -> bytes:
        if length == 0:
            return b""
        data = self._read_range(uri, offset, length)
        self._require_version(uri, version)  # after the read, so that no change is missed
        return data

    def _read_range(self, uri: str, offset: int, length: int) -> bytes:
        wanted: dict[str, Any] = {} if length < 0 else {"length": length}
        try:
            answer = self._call("OPEN", uri, offset=offset, **wanted)
        except webhdfs_client.RefusedError as e:
            if "out of the range" in str(e):  # as at the end of any file
                return b""
            raise
        expected = answer.headers.get("Content-Length")
        if expected is not None and len(answer.content) != int(expected):
            raise ConnectionError(f"{len(answer.content)} of {expected} bytes came")
        return answer.content

    def _put(self, path: str, uri: str, must_be_new: bool) -> None:
        temporary = f"{uri}.tmp-{secrets.token_hex(4)}"  # under its own name, others would read a part of it
        try:
            self._call("CREATE", temporary, file=path, overwrite="true")
            self._move(temporary, uri, must_be_new)
        except BaseException:
            with contextlib.suppress(Exception):  # the first error is the one to report
                self._remove(temporary)
            raise

    def _move(self, source: str, target: str, must_be_new: bool) -> None:
        options = "NONE" if must_be_new else "OVERWRITE"  # either way, a rename that fails is an error
        if self._rename(source, target, options):
            return
        self._stat(source)  # it may be that which is missing
        if must_be_new:
            raise interface.taken(target)
        self._remove(target)
        if not self._rename(source, target, options):
            raise ConnectionError(f"it was not moved to {target}")

    def _rename(self, source: str, target: str, options: str) -> bool:
        """Returns False if HttpFS, which takes no options of a rename, has not done it: a file is in its place."""
        answer = self._call("RENAME", source, destination=path_of(target), renameoptions=options)
        return not answer.content or bool(answer.json()["boolean"])

    def _remove(self, uri: str) -> None:
        self._call("DELETE", uri, recursive="false")

    def _remove_tree(self, uri: str) -> None:
        self._call("DELETE", uri, recursive="true")

    def _call(self, operation: str, uri: str, file: str | None = None, **parameters: Any) -> Any:
        return self.client(uri).call(operation, path_of(uri), file, **parameters)


def path_of(uri: str) -> str:
    """Returns the path in HDFS of an address."""
    match = _ADDRESS.fullmatch(uri)
    return (match and match["path"]) or "/"


def parse_hdfs(uri: str, is_secure: bool = False) -> Address:
    """Returns the parts of an hdfs:// address.

    Args:
        uri: the address.
        is_secure: whether to use TLS; an address of swebhdfs:// always does.

    Raises:
        ConfigError: if the address names neither NameNodes with their WebHDFS ports nor a known nameservice.
    """
    match = _ADDRESS.fullmatch(uri)
    if match is not None:
        user = None if match["user"] is None else urllib.parse.unquote(match["user"])
        is_secure, path, nodes = is_secure or bool(match["tls"]), match["path"] or "/", match["nodes"].split(",")
        if all(_NODE.fullmatch(node) for node in nodes):
            scheme = "https" if is_secure else "http"
            return Address(tuple(f"{scheme}://{node}" for node in nodes), user, path, "")
        if found := hadoop_files.find_name_nodes(match["nodes"], is_secure):
            return Address(tuple(found), user, path, match["nodes"])
    raise errors.ConfigError(
        "address-no-namenode",
        f"address {uri!r} does not name a NameNode and its WebHDFS port: write hdfs://NAMENODE:9870/FOLDER, "
        "hdfs://NAMENODE:9870,NAMENODE:9870/FOLDER, or a nameservice of $HADOOP_CONF_DIR/hdfs-site.xml",
    )


def _entry(path: str, found: Mapping[str, Any]) -> interface.Entry:
    name = path.rstrip("/").rpartition("/")[2]
    version = int(found["modificationTime"]) * 1_000_000
    if found["type"] == "DIRECTORY":
        return interface.Entry(name, interface.DIRECTORY, 0, 0, interface.identity_of(path))
    if found["type"] != "FILE":
        return interface.Entry(name, interface.SPECIAL, 0, version, (0, 0))
    return interface.Entry(name, interface.FILE, int(found["length"]), version, (0, 0))
