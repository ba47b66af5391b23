"""A binary file on top of anything that returns the bytes at a position."""

from __future__ import annotations

import abc
import io


class SeekableReader(io.RawIOBase, abc.ABC):
    """A read-only file of `size` bytes with a position. Wrap it in `io.BufferedReader`."""

    def __init__(self, size: int):
        self._size = size
        self._position = 0

    @abc.abstractmethod
    def _read_at(self, position: int, length: int) -> bytes:
        """Returns 1 to `length` bytes from `position`, which is before the end."""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        if self._position >= self._size:
            return 0
        data = self._read_at(self._position, len(buffer))
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)
