"""Writes the file of a shard from its own memory, past the page cache where possible, and checks what was written."""

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

with contextlib.suppress(ImportError):  # there is none on Windows
    import fcntl

_BUFFER_BYTES = 4 << 20  # a multiple of _BLOCK_BYTES
# Of one shard. With two, a writer waits for the disk some 30 us an image, with three some 6, with four as long.
_NUM_BUFFERS = 3
_BLOCK_BYTES = 4096  # unit of memory, offset and length of a direct write; disks have blocks of 512 or 4096 bytes
_READ_BYTES = 1 << 20  # fits into the cache of a core
_CAN_ADVISE = hasattr(os, "posix_fadvise")
_DIRECT = getattr(os, "O_DIRECT", 0)  # 0 on macOS
_HUGE_PAGES = getattr(mmap, "MADV_HUGEPAGE", 0)

# Buffers for the next shard: memory that a virtual machine has not touched yet costs 4 to 10 us for each page.
_spare: list[mmap.mmap] = []


class ShardFile:
    """Takes the bytes of a new file. Full buffers are written on a thread while further ones are filled.

    The disk reads full buffers straight from this memory (O_DIRECT), as far as the file system can. The page cache
    takes six times as much processor time (27 us for 110 KB, with fadvise, instead of 4), and a sync at the end. Each
    buffer is checksummed after it was written, so the checksum is that of the very bytes which the disk got.

    A shard of less than a buffer, its last bytes, and any shard on other file systems go through the page cache, and
    are read back from there for the checksum. Pages of a long file are then dropped (POSIX_FADV_DONTNEED), so that it
    passes through some 8 MB of warm page cache. Asked to drop dirty pages, Linux begins to write them; asked again
    after that, it drops them. Source: generic_fadvise in mm/fadvise.c.

    Neither way shows what a disk does with the bytes later. `imagebeam verify` reads them from the disk.

    Not thread-safe. A context manager: at its end no thread writes to the file any more.
    """

    def __init__(self, descriptor: int, is_direct: bool = True):
        """Begins with an empty file.

        Args:
            descriptor: of the file, open for reading and writing.
            is_direct: whether the page cache may be avoided; pointless for a file that is read again at once.
        """
        self._descriptor = descriptor
        self._is_direct = is_direct and bool(_DIRECT)
        self._is_set_direct = False
        self._buffers = [_take_buffer()]  # all of this file
        self._buffer = self._buffers[0]  # that is being filled
        self._used = 0  # bytes of it
        self._offset = 0  # of it in the file
        self._thread: futures.ThreadPoolExecutor | None = None  # started once a buffer is full
        self._writing: collections.deque[tuple[futures.Future[None], mmap.mmap]] = collections.deque()  # oldest first
        self._kept = 0  # bytes before this offset are dropped from the page cache
        self._crc32c = 0  # of what was written

    def reserve(self, num_bytes: int) -> tuple[mmap.mmap, int] | None:
        """Returns the buffer and the position in it where the caller puts the next bytes; None if it has no room."""
        start = self._used
        if num_bytes > _BUFFER_BYTES - start:
            return None
        self._used += num_bytes
        return self._buffer, start

    def write(self, data: Any) -> int:
        """Copies all bytes of a buffer; returns their number."""
        rest = memoryview(data)
        while rest:
            taken = min(len(rest), _BUFFER_BYTES - self._used)
            self._buffer[self._used : self._used + taken] = rest[:taken]
            self._used += taken
            rest = rest[taken:]
            if self._used == _BUFFER_BYTES:
                self._hand_over()
        return len(data)

    def finish(self) -> tuple[int, int]:
        """Writes the rest; returns the size of the file in bytes, and the crc32c of the bytes that were written."""
        while self._writing:
            self._wait()
        self._store(self._buffer, self._used, self._offset)
        return os.fstat(self._descriptor).st_size, self._crc32c

    def __enter__(self) -> ShardFile:
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is not None:
            self._thread.shutdown()
        _spare.extend(self._buffers)
        self._buffers = []

    def _hand_over(self) -> None:
        """Has the full buffer written, and goes on with another one."""
        if self._thread is None:
            self._thread = futures.ThreadPoolExecutor(1, "imagebeam-shard")
        writing = self._thread.submit(self._store, self._buffer, self._used, self._offset)
        self._writing.append((writing, self._buffer))
        self._offset += self._used
        self._used = 0
        if len(self._buffers) < _NUM_BUFFERS:
            self._buffers.append(_take_buffer())
            self._buffer = self._buffers[-1]
        else:
            self._buffer = self._wait()

    def _wait(self) -> mmap.mmap:
        """Waits until the oldest full buffer is written, and returns it."""
        writing, buffer = self._writing[0]
        writing.result()
        self._writing.popleft()
        return buffer

    def _store(self, buffer: mmap.mmap, num_bytes: int, offset: int) -> None:
        with memoryview(buffer)[:num_bytes] as view:
            can_be_direct = self._is_direct and (offset > 0 or num_bytes == _BUFFER_BYTES)
            done = self._write_direct(view[: num_bytes - num_bytes % _BLOCK_BYTES], offset) if can_be_direct else 0
            self._crc32c = extend_crc(self._crc32c, view[:done])
            self._write_cached(view[done:], offset + done)

    def _write_direct(self, view: memoryview, offset: int) -> int:
        """Writes past the page cache; returns how many bytes, fewer than asked for where the file system cannot."""
        done = 0
        try:
            self._set_direct(True)
            while done < len(view):
                done += os.pwrite(self._descriptor, view[done:], offset + done)
        except OSError as e:
            if e.errno != errno.EINVAL:
                raise
            self._is_direct = False
        return done

    def _write_cached(self, view: memoryview, offset: int) -> None:
        self._set_direct(False)
        done = 0
        while done < len(view):
            done += os.pwrite(self._descriptor, view[done:], offset + done)
        end = offset + done
        self._read_back(offset, end)
        if _CAN_ADVISE and not self._is_set_direct and done == _BUFFER_BYTES:
            os.posix_fadvise(self._descriptor, self._kept, end - self._kept, os.POSIX_FADV_DONTNEED)
            self._kept = offset

    def _read_back(self, start: int, end: int) -> None:
        while start < end and (data := os.pread(self._descriptor, min(_READ_BYTES, end - start), start)):
            self._crc32c = records.extend_crc(self._crc32c, data)
            start += len(data)

    def _set_direct(self, value: bool) -> None:
        if value != self._is_set_direct:
            flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
            fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags | _DIRECT if value else flags & ~_DIRECT)
            self._is_set_direct = value


def _take_buffer() -> mmap.mmap:
    with contextlib.suppress(IndexError):
        return _spare.pop()
    buffer = mmap.mmap(-1, _BUFFER_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if _HUGE_PAGES:  # a direct write looks up each page
        with contextlib.suppress(OSError):  # a kernel without them
            buffer.madvise(_HUGE_PAGES)
    return buffer


def _extend_crc(crc: int, data: memoryview) -> int:
    """Returns the crc32c of the bytes before and of `data`, piece by piece: google-crc32c takes nothing but bytes."""
    for start in range(0, len(data), _READ_BYTES):
        crc = records.extend_crc(crc, bytes(data[start : start + _READ_BYTES]))
    return crc


extend_crc: Callable[[int, memoryview], int] = _extend_crc
with contextlib.suppress(ImportError):
    from imagebeam._writer import extend_crc
