"""Open files of all datasets of a process: bounded in number, and closed when their dataset is gone.

A shelf holds the open files of one dataset by name. One bound applies to all shelves together: beyond it, the file used
longest ago is removed from its shelf. A file is closed when it has been removed, or its shelf has been closed or
garbage collected, and no read uses it any more.

TensorFlow keeps every function that a pipeline calls until the process ends, and the shelf with it. So a shelf cannot
wait for its garbage collection: it is closed with the dataset, to which the function holds no reference (`Lifetime`).
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import os
import resource
import threading
import weakref
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

try:
    from imagebeam import _native
except ImportError:  # installed without a compiler, or without libjpeg-turbo
    _native = None  # type: ignore[assignment]

if TYPE_CHECKING:
    import numpy as np

_MAX_OPEN = 256
_MIN_OPEN = 16


def max_open() -> int:
    """Returns how many files may be open at once: at most a quarter of the limit of the process."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _MAX_OPEN
    return min(_MAX_OPEN, max(_MIN_OPEN, soft // 4))


class OpenFile:
    """A file open for reading, closed with its last reference. Readable until then even if removed from the disk."""

    def __init__(self, path: str):
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self, start: int, stop: int) -> bytes:
        """Returns bytes `start` to `stop`, fewer if the file ends early."""
        return os.pread(self.descriptor, stop - start, start)

    def read_records(self, starts: np.ndarray, stops: np.ndarray) -> list[bytes | None]:
        """Returns the contents of records, at bytes `starts` to `stops`; None where no checksum was found right.

        Python's lock is not held: reading and checksum, of 100 KB, take 20 us.
        """
        return [None] * len(starts) if _native is None else _native.read_records(self.descriptor, starts, stops)

    # Defaults, because the names of modules are gone when the process ends.
    def __del__(
        self,
        close: Callable[[int], None] = os.close,
        suppress: Callable[..., contextlib.AbstractContextManager[None]] = contextlib.suppress,
    ) -> None:
        with suppress(AttributeError, OSError):
            close(self.descriptor)


_File = TypeVar("_File", bound=OpenFile)
_Key = tuple[int, Hashable]  # number of a shelf, name of a file on it


class _Uses:
    """The files of all shelves in the order of their last use."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        # Weak references, so that a shelf and its files can be garbage collected while they are listed here.
        self.order: collections.OrderedDict[_Key, weakref.ref[Shelf[Any]]] = collections.OrderedDict()


_USES = _Uses()
_NUMBERS = itertools.count()


def _begin_after_fork() -> None:
    """Makes a new lock after fork(): a thread that held the old one does not exist in the child."""
    _USES.lock = threading.Lock()


os.register_at_fork(after_in_child=_begin_after_fork)


class Lifetime:
    """Held by a dataset and all its iterators and sources; when it is garbage collected, their files are closed."""

    def __init__(self, close: Callable[[], None]):
        """Takes the function to call then. Any thread may call it at any moment, so it must not wait for a lock."""
        weakref.finalize(self, close).atexit = False

    def __reduce__(self) -> tuple[Any, ...]:
        return Lifetime, (_do_nothing,)  # a pickle holds no open files


def _do_nothing() -> None:
    pass


class Shelf(Generic[_File]):
    """Open files by name. Thread-safe."""

    def __init__(self) -> None:
        self._number = next(_NUMBERS)
        self._files: dict[Hashable, _File] = {}
        self._is_closed = False

    def find(self, name: Hashable) -> _File | None:
        """Returns the open file of a name, or None; counts as a use."""
        with _USES.lock:
            file = self._files.get(name)
            # After a fork in the middle of `put`, the order lacks it.
            if file is not None and (self._number, name) in _USES.order:
                _USES.order.move_to_end((self._number, name))
            return file

    def put(self, name: Hashable, file: _File) -> None:
        """Keeps an open file, which replaces one of the same name; does nothing if the shelf is closed."""
        if self._is_closed:
            return
        bound = max_open()
        removed = []  # closed after the lock is released
        with _USES.lock:
            removed.append(self._files.get(name))
            self._files[name] = file
            _USES.order[self._number, name] = weakref.ref(self)
            _USES.order.move_to_end((self._number, name))
            while len(_USES.order) > bound:
                (_, oldest), owner = _USES.order.popitem(last=False)
                shelf = owner()
                if shelf is not None:
                    removed.append(shelf._files.pop(oldest, None))
        if self._is_closed:  # another thread closed it since the first line
            self.close()

    def close(self) -> None:
        """Keeps no file from now on, without waiting for a lock. A file that is being read is closed after the read."""
        self._is_closed = True
        self._files = {}

    def remove_unlinked(self) -> None:
        """Closes files that were removed from the disk, which frees their space."""
        removed = []
        with _USES.lock:
            for name, file in list(self._files.items()):
                if os.fstat(file.descriptor).st_nlink == 0:
                    removed.append(self._files.pop(name))
                    _USES.order.pop((self._number, name), None)
