"""Addresses, the interface that every storage implements, and the values and errors that cross it.

An address is a local path, or SCHEME://REST on a network.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import io
import os
import re
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple, Protocol, runtime_checkable

from imagebeam import errors

CANNOT_OPEN = "storage-cannot-open"  # code of the error for an address whose file system cannot be opened
FILE, DIRECTORY, SPECIAL, BROKEN_LINK = "file", "directory", "special", "broken link"

_OUT_OF_RESOURCES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})  # this machine has no more files or memory
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
_FILE_SCHEME = re.compile(r"^file://(localhost)?(?=/)", re.IGNORECASE)


def scheme_of(uri: str) -> str:
    """Returns `gs` for `gs://bucket/x`, and `file` for a path."""
    if uri.startswith("/"):  # asked for each image
        return "file"
    match = _SCHEME.match(uri)
    return match[1].lower() if match else "file"


def root_of(uri: str) -> str:
    """Returns the start of a network address: the scheme and the bucket, or the scheme, the host and its port."""
    scheme, _, rest = uri.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}"


def normalize(uri: str | os.PathLike[str]) -> str:
    """Makes a local path absolute and keeps its links; returns any other address without a slash at its end.

    Raises:
        ConfigError: if a `file://` address names a host.
    """
    uri = os.fspath(uri)
    if scheme_of(uri) != "file":
        return uri.rstrip("/")
    path = _FILE_SCHEME.sub("", uri)
    if _SCHEME.match(path):
        raise errors.ConfigError(
            "address-file-host", f"address {uri!r} names a host after file://; write file:///path, or the path alone"
        )
    return os.path.abspath(os.path.expanduser(path))


def join(directory: str, *names: str) -> str:
    """Returns the address of `names` below `directory`; no name may start with a slash."""
    return "/".join((directory.rstrip("/"), *names))  # called for each image: four times as fast as posixpath.join


def join_relative(directory: str, name: str) -> str:
    """Returns the address of a file that is named relative to `directory`; each leading "../" leaves a directory."""
    directory = directory.rstrip("/")
    while name.startswith("../"):
        directory, name = directory.rpartition("/")[0], name[3:]
    return f"{directory}/{name}"


class Entry(NamedTuple):
    """One entry of a directory. Symbolic links are followed."""

    name: str  # "" and SPECIAL: a folder in a bucket whose name is empty, because two slashes follow each other
    kind: str  # FILE, DIRECTORY, SPECIAL (a pipe, a device, a socket) or BROKEN_LINK
    size: int  # bytes; 0 for anything but a file; -1 for a file whose size the storage does not tell
    version: int  # changes with the content: GCS generation; elsewhere the change time in ns; 0 if unknown
    identity: tuple[int, int]  # device and inode, or their equivalent: detects loops of links


class ChangedError(OSError):
    """A file is not the version that was asked for."""


class LocalDiskError(OSError):
    """The local disk failed while a file was downloaded to it; the storage is not at fault."""


class UnavailableError(OSError):
    """A storage did not answer, however often it was asked."""


class RequestError(OSError):
    """A web server refused a request, failed, or gave no answer in time.

    Attributes:
        cause: "http_403" (401 too), "http_4xx", "http_5xx", "timeout", "dns", "robots", "too_large", or "" for any
            other failure.
    """

    cause: str = ""


def is_fault(error: OSError) -> bool:
    """Returns whether the storage or this machine failed. The file itself may be fine: another run may read it."""
    return isinstance(error, UnavailableError) or error.errno in _OUT_OF_RESOURCES


@dataclasses.dataclass
class PendingFile:
    """A file that is being written. It appears at its address once it is complete."""

    file: io.FileIO  # on the local disk, open for reading and writing, unbuffered
    checksum: tuple[int, int] | None = None  # size and crc32c of what was written; if set, the stored file must match


class Storage(Protocol):
    """The file operations that imagebeam needs. Paths are full addresses; errors are OSErrors or ConfigErrors."""

    is_local: bool  # whether files have descriptors and locks, and reads wait for no network
    swaps_atomically: bool  # whether only one of several `replace` of a file at once succeeds
    replaces_in_place: bool  # whether, in addition, there is a file at every moment of a `replace`

    def list_directory(self, uri: str) -> Iterator[Entry]: ...
    def stat(self, uri: str) -> Entry: ...
    def exists(self, uri: str) -> bool: ...
    def read(self, uri: str, offset: int = 0, length: int = -1, size_hint: int = -1, version: int = 0) -> bytes: ...
    def open_read(self, uri: str) -> BinaryIO: ...
    def stored_checksum(self, uri: str) -> tuple[int, int] | None: ...
    def download(self, uri: str, path: str) -> None: ...
    def write_file(self, uri: str) -> contextlib.AbstractContextManager[PendingFile]: ...
    def write_whole(self, uri: str, data: bytes, durable: bool = True) -> None: ...
    def create_new(self, uri: str, data: bytes) -> bool: ...
    def replace(self, uri: str, old: bytes, new: bytes) -> bool: ...
    def sync(self, uri: str) -> None: ...
    def rename(self, source: str, target: str, version: int = 0) -> None: ...
    def publish(self, source: str, target: str) -> None: ...
    def make_directories(self, uri: str) -> None: ...
    def remove(self, uri: str, version: int = 0) -> None: ...
    def remove_tree(self, uri: str) -> None: ...


@runtime_checkable
class RangeLister(Protocol):
    """A storage that can list a part of a directory, so that several workers can share a large one.

    Names are compared by code points. A range begins with the name `start` and ends before the name `end`; "" is no
    bound. A bound has no slash in it, so a subdirectory and all that is in it are on one side of it.
    """

    def list_range(self, uri: str, start: str, end: str) -> Iterator[list[Entry]]:
        """Yields the entries of a directory in a range of names, in pages, in the order of the names.

        A page may name later subdirectories too early, and again in the next page.
        """

    def first_name(self, uri: str, start: str, end: str) -> str | None:
        """Returns the first name in a range, with a slash after that of a subdirectory; None if there is none."""


def denied(uri: str, detail: object) -> PermissionError:
    """Returns the error for an address that may not be read or written."""
    return PermissionError(errno.EACCES, f"{uri}: access denied ({detail}); docs/storage.md lists what is needed")


def taken(uri: str) -> FileExistsError:
    """Returns the error for a file that must be new and exists."""
    return FileExistsError(errno.EEXIST, f"{uri} was written by another run at this moment")


def identity_of(uri: str) -> tuple[int, int]:
    """Returns an identity for a directory. A network has no links, so it follows from the address."""
    return 0, int.from_bytes(hashlib.blake2b(uri.encode("utf-8", "surrogateescape"), digest_size=8).digest(), "big")
