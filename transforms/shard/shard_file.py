"""Writes a shard from its own memory, past the page cache where possible, and checksums what was written."""

from __future__ import annotations

import collections
import contextlib
import errno
import mmap
import os
from collections.abc import Callable
from concurrent import futures
from typing import Any

from imagebeam import records

with contextlib.suppress(ImportError):  # Windows has none
    import fcntl

_BUFFER_BYTES = 4 << 20  # a multiple of _BLOCK_BYTES
_NUM_BUFFERS = 3  # with two, a writer waits for the disk some 30 us an image; with three some 6, with four as long
_BLOCK_BYTES = 4096  # unit of memory, offset and length of a direct write; disks have blocks of 512 or 4096 bytes
_READ_BYTES = 1 << 20  # fits into the cache of a core
_DIRECT = getattr(os, "O_DIRECT", 0)  # macOS has none


class ShardFile:
    """Takes the bytes of a new file. Full buffers are written on a thread while others are filled.

    The disk reads full buffers straight from this memory (O_DIRECT) where the file system can do so: the page cache
    takes six times as much processor time. The checksum is computed from the same memory after the write, so it is that
    of the bytes which the disk was given.

    A shard of less than a buffer, the last bytes of any shard, and all shards on other file systems go through the page
    cache, and are read back from there for the checksum. A long file is then dropped from it (POSIX_FADV_DONTNEED), so
    that it passes through some 8 MB of warm page cache. Asked to drop dirty pages, Linux begins to write them; asked
    again after that, it drops them. Source: generic_fadvise in mm/fadvise.c.

    What a disk does with the bytes later, `imagebeam verify` finds. Not thread-safe. A context manager: at its end no
    thread writes to the file any more.
    """

    def __init__(self, descriptor: int, is_direct: bool = True, buffer_bytes: int = _BUFFER_BYTES):
        """Begins with an empty file.

        Args:
            descriptor: of the file, open for reading and writing.
            is_direct: whether to try direct writes; pointless for a file that is read again at once.
            buffer_bytes: size of each buffer, a multiple of 4096.
        """
        self._descriptor = descriptor
        self._is_direct = is_direct and bool(_DIRECT)
        self._buffer_bytes = buffer_bytes
        self._buffer = self._new_buffer()  # is being filled
        self._used = 0  # bytes of the buffer
        self._offset = 0  # where the buffer begins in the file
        self._thread = futures.ThreadPoolExecutor(1, "imagebeam-shard")  # starts with its first task
        self._writing: collections.deque[futures.Future[mmap.mmap]] = collections.deque()  # oldest first
        self._kept = 0  # bytes before this offset are dropped from the page cache
        self._crc32c = 0  # checksum of what was written

    def reserve(self, num_bytes: int) -> tuple[mmap.mmap, int] | None:
        """Returns the buffer and the position in it where the caller puts the next bytes; None if it has no room."""
        start = self._used
        if num_bytes > self._buffer_bytes - start:
            return None
        self._used += num_bytes
        return self._buffer, start

    def write(self, data: Any) -> int:
        """Copies all bytes of a buffer; returns their number."""
        rest = memoryview(data)
        while rest:
            taken = min(len(rest), self._buffer_bytes - self._used)
            self._buffer[self._used : self._used + taken] = rest[:taken]
            self._used += taken
            rest = rest[taken:]
            if self._used == self._buffer_bytes:
                self._hand_over()
        return len(data)

    def finish(self) -> tuple[int, int]:
        """Writes the rest; returns the size of the file in bytes, and the crc32c of the bytes that were written."""
        while self._writing:
            self._writing.popleft().result()
        self._store(self._buffer, self._used, self._offset)
        return os.fstat(self._descriptor).st_size, self._crc32c

    def __enter__(self) -> ShardFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()

    def _new_buffer(self) -> mmap.mmap:
        buffer = mmap.mmap(-1, self._buffer_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):  # a direct write looks up each page
            with contextlib.suppress(OSError):  # a kernel without huge pages
                buffer.madvise(mmap.MADV_HUGEPAGE)
        return buffer

    def _hand_over(self) -> None:
        """Has the full buffer written, and goes on with another one."""
        self._writing.append(self._thread.submit(self._store, self._buffer, self._used, self._offset))
        self._offset += self._used
        self._used = 0
        is_last = len(self._writing) == _NUM_BUFFERS or self._writing[0].done()
        self._buffer = self._writing.popleft().result() if is_last else self._new_buffer()

    def _store(self, buffer: mmap.mmap, num_bytes: int, offset: int) -> mmap.mmap:
        with memoryview(buffer)[:num_bytes] as view:
            is_full = num_bytes == self._buffer_bytes
            if is_full and self._is_direct and self._write_direct(view, offset):
                self._crc32c = extend_crc(self._crc32c, view)
                return buffer
            self._set_direct(False)
            self._write(view, offset)
        start, end = offset, offset + num_bytes
        while start < end and (data := os.pread(self._descriptor, min(_READ_BYTES, end - start), start)):
            self._crc32c = records.extend_crc(self._crc32c, data)
            start += len(data)
        if is_full and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._descriptor, self._kept, end - self._kept, os.POSIX_FADV_DONTNEED)
            self._kept = offset
        return buffer

    def _write_direct(self, view: memoryview, offset: int) -> bool:
        """Writes past the page cache; returns False if the file system cannot, whatever was written until then."""
        try:
            self._set_direct(True)
            self._write(view, offset)
        except OSError as e:
            if e.errno != errno.EINVAL:
                raise
            self._is_direct = False
        return self._is_direct

    def _write(self, view: memoryview, offset: int) -> None:
        done = 0
        while done < len(view):
            done += os.pwrite(self._descriptor, view[done:], offset + done)

    def _set_direct(self, value: bool) -> None:
        if _DIRECT:
            flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
            fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags | _DIRECT if value else flags & ~_DIRECT)


def _extend_crc(crc32c: int, data: memoryview) -> int:
    """Returns the crc32c of the bytes before and of `data`, piece by piece: google-crc32c takes nothing but bytes."""
    for start in range(0, len(data), _READ_BYTES):
        crc32c = records.extend_crc(crc32c, bytes(data[start : start + _READ_BYTES]))
    return crc32c


extend_crc: Callable[[int, memoryview], int] = _extend_crc
with contextlib.suppress(ImportError):
    from imagebeam._writer import extend_crc
