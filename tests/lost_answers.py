"""Operations of a storage of which each answer is lost in turn, and what must be there afterwards."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import fsspec
from fsspec.implementations import memory

from imagebeam import storage
from tests import case_tables
from tests.servers import faults


class Losses:
    """Counts calls, and fails after one of them was done."""

    def __init__(self) -> None:
        self.left = -1  # number of calls before the one whose answer is lost
        self._depth = 0
        self.was_lost = False

    def wrap(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def lossy(*args: Any, **keywords: Any) -> Any:
            self._depth += 1
            try:
                found = method(*args, **keywords)
            finally:
                self._depth -= 1
            if self._depth == 0:  # a request that is made of others is one
                self.left -= 1
                if self.left == -1:
                    self.was_lost = True
                    raise ConnectionError("lost")
            return found

        return lossy

    def lose(self, number: int) -> None:
        self.left, self.was_lost, self._depth = number, False, 0


LOSSES = Losses()


class LossyMemory(memory.MemoryFileSystem):
    """Moves in two steps, and shows a part of a file that is written."""

    protocol = "lossymemory"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return memory.MemoryFileSystem._strip_protocol(path.replace("lossymemory://", "memory://"))


for request in ("cat_file", "info", "put_file", "cp_file", "rm_file", "exists"):
    setattr(LossyMemory, request, LOSSES.wrap(getattr(LossyMemory, request)))
fsspec.register_implementation(LossyMemory.protocol, LossyMemory, clobber=True)


class Operation(NamedTuple):
    """One operation, on the files of a folder."""

    act: Callable[[storage.Storage, str], Any]  # with the address of the folder
    before: Mapping[str, bytes]
    after: Mapping[str, bytes]
    result: Any = None


def _version(store: storage.Storage, uri: str) -> int:
    return store.stat(uri).version


OLD = {"a": b"old"}
OPERATIONS = {
    "replace": Operation(lambda store, at: store.replace(f"{at}/a", b"old", b"new"), OLD, {"a": b"new"}, True),
    "replace-another": Operation(lambda store, at: store.replace(f"{at}/a", b"x", b"new"), OLD, OLD, False),
    "create": Operation(lambda store, at: store.create_new(f"{at}/b", b"new"), OLD, {**OLD, "b": b"new"}, True),
    "create-taken": Operation(lambda store, at: store.create_new(f"{at}/a", b"new"), OLD, OLD, False),
    "write": Operation(lambda store, at: store.write_whole(f"{at}/a", b"new"), OLD, {"a": b"new"}),
    "rename": Operation(lambda store, at: store.rename(f"{at}/a", f"{at}/b"), OLD, {"b": b"old"}),
    "rename-over": Operation(
        lambda store, at: store.rename(f"{at}/a", f"{at}/b"), {**OLD, "b": b"older"}, {"b": b"old"}
    ),
    "rename-version": Operation(
        lambda store, at: store.rename(f"{at}/a", f"{at}/b", _version(store, f"{at}/a")), OLD, {"b": b"old"}
    ),
    "publish": Operation(lambda store, at: store.publish(f"{at}/a", f"{at}/b"), OLD, {"b": b"old"}),
    "remove": Operation(lambda store, at: store.remove(f"{at}/a"), {**OLD, "b": b""}, {"b": b""}),
    "remove-version": Operation(
        lambda store, at: store.remove(f"{at}/a", _version(store, f"{at}/a")), {**OLD, "b": b""}, {"b": b""}
    ),
}


def files_in(store: storage.Storage, folder: str) -> dict[str, bytes]:
    """Returns the files of a folder by name."""
    return {entry.name: store.read(f"{folder}/{entry.name}") for entry in store.list_directory(folder)}


def check(
    store: storage.Storage, folder: str, operation: Operation, lose: Callable[[int], None], was_lost: Callable[[], bool]
) -> int:
    """Loses the answer of each request of an operation in turn; returns how many there were.

    Args:
        store: the storage.
        folder: address of a folder for the files.
        operation: what is done.
        lose: makes the answer of the request with this index be lost, counted from now; -1 for none.
        was_lost: returns whether it was.
    """
    for number in itertools.count():
        at = f"{folder}/{number}"
        store.make_directories(at)
        lose(-1)
        for name, content in operation.before.items():
            store.write_whole(f"{at}/{name}", content)
        lose(number)
        result = operation.act(store, at)
        is_last = not was_lost()
        lose(-1)
        assert (result, files_in(store, at)) == (operation.result, dict(operation.after)), number
        store.remove_tree(at)
        if is_last:
            return number
    raise AssertionError


def check_server(store: storage.Storage, folder: str, proxy: faults.FaultyProxy, replaces_at_once: bool = True) -> None:
    """Loses each answer of a server in turn, for every operation; a file that is replaced is never read in part."""
    for name, operation in OPERATIONS.items():
        with case_tables.named(name):
            assert check(store, f"{folder}/{name}", operation, proxy.lose, lambda: proxy.counts["lost"] > 0) > 0
    if replaces_at_once:
        check_reads(store, f"{folder}/reads", num_writes=30)


def check_reads(store: storage.Storage, folder: str, num_writes: int) -> None:
    """Reads a small file all the time while it is written and replaced."""
    uri, contents = f"{folder}/lock", [b"first" * 100, b"second" * 1000]
    assert store.create_new(uri, contents[0])

    def write() -> None:
        for number in range(num_writes):
            store.write_whole(uri, contents[number % 2])

    writing = threading.Thread(target=write)
    writing.start()
    seen = set()
    while writing.is_alive():
        seen.add(store.read(uri))
    writing.join()
    assert seen <= set(contents)
