"""The interface that every storage implements, and the values and errors that cross it."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import io
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple, Protocol

FILE, DIRECTORY, SPECIAL, BROKEN_LINK = "file", "directory", "special", "broken link"

_OUT_OF_RESOURCES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})  # of this machine: open files, memory


class Entry(NamedTuple):
    """One entry of a directory. Symbolic links are followed."""

    name: str
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

    def list_directory(self, uri: str) -> Iterator[Entry]: ...
    def stat(self, uri: str) -> Entry: ...
    def exists(self, uri: str) -> bool: ...
    def read(self, uri: str, offset: int = 0, length: int = -1, size_hint: int = -1, version: int = 0) -> bytes: ...
    def open_read(self, uri: str) -> BinaryIO: ...
    def download(self, uri: str, path: str) -> None: ...
    def write_file(self, uri: str) -> contextlib.AbstractContextManager[PendingFile]: ...
    def write_whole(self, uri: str, data: bytes, durable: bool = True) -> None: ...
    def create_new(self, uri: str, data: bytes) -> bool: ...
    def sync(self, uri: str) -> None: ...
    def rename(self, source: str, target: str) -> None: ...
    def publish(self, source: str, target: str) -> None: ...
    def make_directories(self, uri: str) -> None: ...
    def remove(self, uri: str) -> None: ...
    def remove_tree(self, uri: str) -> None: ...
