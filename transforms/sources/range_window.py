"""Reads many small ranges of a file, most of them one after the other, with few requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from imagebeam import storage


class ReadSizes(NamedTuple):
    """Numbers of bytes to read at once."""

    least: int
    most: int
    near: int  # a gap up to this size is read, not skipped


LOCAL = ReadSizes(4 << 10, 128 << 10, 16 << 10)
REMOTE = ReadSizes(64 << 10, 4 << 20, 1 << 20)  # a request takes as long as reading about 1 MB


class RangeWindow:
    """Reads ahead further while what is read is near, so that one read covers many headers; less otherwise."""

    def __init__(self, read: Callable[[int, int], bytes], ahead: ReadSizes):
        self._read = read
        self._ahead = ahead
        self._num_bytes = ahead.least
        self._start, self._data = 0, b""

    def read(self, offset: int, length: int) -> bytes:
        """Returns `length` bytes from `offset`; fewer at the end of the file."""
        first = offset - self._start
        if first < 0 or first + length > len(self._data):
            is_near = abs(first - len(self._data)) <= self._ahead.near
            wanted = self._num_bytes * 2 if is_near else self._num_bytes // 2
            self._num_bytes = min(max(wanted, self._ahead.least), self._ahead.most)
            self._start, self._data, first = offset, self._read(offset, max(length, self._num_bytes)), 0
        return self._data[first : first + length]


def open_window(uri: str, size: int, version: int) -> RangeWindow:
    """Returns a window on a file of `size` bytes, as it was listed."""
    store = storage.storage_of(uri)

    def read(offset: int, length: int) -> bytes:
        length = min(length, size - offset)
        return store.read(uri, offset, length, version=version) if length > 0 else b""

    return RangeWindow(read, LOCAL if store.is_local else REMOTE)
