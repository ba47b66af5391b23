"""Open files of all datasets of a process: a bounded number of them, and none of a dataset that is gone.

A shelf holds open files of one dataset by name. The bound is common to all shelves: beyond it the file used longest ago
is taken off its shelf. A file is closed when it was taken off, or its shelf was closed or collected, and no read uses
it any more.

TensorFlow keeps every function that a pipeline calls until the process ends, and with it the shelf, so a shelf cannot
wait for its collection: it is closed with the dataset, of which the function knows nothing (`Lifetime`).
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
from typing import Any, Generic, TypeVar

_MAX_OPEN = 256
_MIN_OPEN = 16


def max_open() -> int:
    """How many files may be open at once: a quarter of what the process may have, for it opens others too."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _MAX_OPEN
    return min(_MAX_OPEN, max(_MIN_OPEN, soft // 4))


class OpenFile:
    """A file open for reading, closed when nobody holds it any more; one that was removed stays readable until then."""

    def __init__(self, path: str):
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self, start: int, stop: int) -> bytes:
        """Bytes `start` to `stop`, fewer where the file ends early."""
        return os.pread(self.descriptor, stop - start, start)

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, OSError):
            os.close(self.descriptor)


_File = TypeVar("_File", bound=OpenFile)
_Key = tuple[int, Hashable]  # the number of a shelf, the name of a file on it


class _Uses:
    """Which files were used last, over all shelves."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        # Weak references: a shelf's files are closed with it, whatever is listed here.
        self.order: collections.OrderedDict[_Key, weakref.ref[Shelf[Any]]] = collections.OrderedDict()


_USES = _Uses()
_NUMBERS = itertools.count()


def _begin_after_fork() -> None:
    """Another thread may have held the lock, and stayed behind."""
    _USES.lock = threading.Lock()


os.register_at_fork(after_in_child=_begin_after_fork)


class Lifetime:
    """Held by a dataset and all that it gives out; when it is collected, what was opened for them is closed."""

    def __init__(self, close: Callable[[], None]):
        """`close` may be called in the middle of any statement, by any thread: it must wait for no lock."""
        weakref.finalize(self, close).atexit = False

    def __reduce__(self) -> tuple[Any, ...]:
        return Lifetime, (_do_nothing,)  # what is pickled holds no open files


def _do_nothing() -> None:
    pass


class Shelf(Generic[_File]):
    """Open files by name. Thread-safe."""

    def __init__(self) -> None:
        self._number = next(_NUMBERS)
        self._files: dict[Hashable, _File] = {}
        self._is_closed = False

    def find(self, name: Hashable) -> _File | None:
        """The open file of a name, which counts as a use."""
        with _USES.lock:
            file = self._files.get(name)
            if file is not None and (self._number, name) in _USES.order:  # not after a fork in the middle of `put`
                _USES.order.move_to_end((self._number, name))
            return file

    def put(self, name: Hashable, file: _File) -> None:
        """Keeps an open file, in the place of what has its name, unless the shelf is closed."""
        if self._is_closed:
            return
        bound = max_open()
        removed = []  # closed after the lock was let go
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
        if self._is_closed:  # since the first line
            self.close()

    def close(self) -> None:
        """Keeps no file from now on. Waits for no lock; one that is read from is closed after the read."""
        self._is_closed = True
        self._files = {}

    def remove_unlinked(self) -> None:
        """Lets go of files that were removed from the disk, so that it gets their space back."""
        removed = []
        with _USES.lock:
            for name, file in list(self._files.items()):
                if os.fstat(file.descriptor).st_nlink == 0:
                    removed.append(self._files.pop(name))
                    _USES.order.pop((self._number, name), None)
