"""Swaps of a small file by renames, among others that write the same file."""

from __future__ import annotations

import pathlib
import threading
from collections.abc import Callable

import pytest

from imagebeam import storage
from imagebeam.storage import remote

LOCAL = storage.LocalStorage()


class Interrupted(storage.LocalStorage):
    """A local disk on which something happens just before a file is moved, or before one is created."""

    def __init__(
        self, before_rename: Callable[[], None] = lambda: None, before_create: Callable[[], None] = lambda: None
    ):
        self._before_rename, self._before_create = before_rename, before_create

    def rename(self, source: str, target: str, version: int = 0) -> None:
        self._before_rename()
        super().rename(source, target, version)

    def create_new(self, uri: str, data: bytes) -> bool:
        self._before_create()
        return super().create_new(uri, data)


def names(folder: pathlib.Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


@pytest.mark.parametrize(
    ("content", "is_swapped", "left"),
    [
        pytest.param(b"old", True, b"new", id="as-read"),
        pytest.param(b"other", False, b"other", id="another-content"),
        pytest.param(None, False, None, id="no-file"),
    ],
)
def test_swap_replaces_the_content_that_was_read_and_no_other(
    tmp_path: pathlib.Path, content: bytes | None, is_swapped: bool, left: bytes | None
) -> None:
    path = tmp_path / "file"
    if content is not None:
        path.write_bytes(content)
    assert remote.swap_by_moving(LOCAL, str(path), b"old", b"new") == is_swapped
    assert names(tmp_path) == ([] if left is None else ["file"])
    assert left is None or path.read_bytes() == left


def test_swap_puts_back_what_was_written_after_the_look(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    store = Interrupted(before_rename=lambda: LOCAL.write_whole(str(path), b"renewed"))
    assert not remote.swap_by_moving(store, str(path), b"old", b"new")
    assert (names(tmp_path), path.read_bytes()) == (["file"], b"renewed")


def test_swap_gives_way_to_a_file_that_is_created_in_the_gap(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    store = Interrupted(before_create=lambda: LOCAL.write_whole(str(path), b"third"))
    assert not remote.swap_by_moving(store, str(path), b"old", b"new")
    assert (names(tmp_path), path.read_bytes()) == (["file"], b"third")


def test_one_of_many_swaps_at_once_succeeds(tmp_path: pathlib.Path) -> None:
    path, done = tmp_path / "file", []
    path.write_bytes(b"old")
    start = threading.Barrier(8)

    def replace(number: int) -> None:
        start.wait()
        done.append((LOCAL.replace(str(path), b"old", b"%d" % number), number))

    threads = [threading.Thread(target=replace, args=[number]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winners = [number for is_swapped, number in done if is_swapped]
    assert [b"%d" % number for number in winners] == [path.read_bytes()]
    assert names(tmp_path) == ["file"]
