"""Memory for batches, reused when a batch is gone: the kernel would have to clear new memory each time."""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Sequence

import numpy as np

_ALIGNMENT = 64  # bytes: TensorFlow and JAX use an array aligned so without a copy, and copy any other
_MAX_FREE = 4  # buffers that wait for a batch; a reader in motion has one or two


class BatchBuffers:
    """Makes arrays. Thread-safe."""

    def __init__(self) -> None:
        self._free: list[bytearray] = []  # appended to and popped from by any thread

    def make(self, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
        """Returns an array whose memory nobody else has, until it and all views of it are gone."""
        size = math.prod(shape) * dtype.itemsize
        memory = None
        with contextlib.suppress(IndexError):
            memory = self._free.pop()
        if memory is None or len(memory) < size + _ALIGNMENT:
            memory = bytearray(size + _ALIGNMENT)
        # Its base is no array, so NumPy makes this array the base of all views of it: it lives as long as they do.
        whole: np.ndarray = np.frombuffer(memory, np.uint8)
        weakref.finalize(whole, self._take_back, memory).atexit = False
        start = -whole.ctypes.data % _ALIGNMENT
        return whole[start : start + size].view(dtype).reshape(shape)

    def _take_back(self, memory: bytearray) -> None:
        if len(self._free) < _MAX_FREE:  # else the memory is freed
            self._free.append(memory)
