from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import resource
import socket
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imagebeam import concurrency, storage
from imagebeam.storage import BROKEN_LINK, DIRECTORY, FILE, SPECIAL, LocalStorage
from tests import case_tables

LOCAL = LocalStorage()


# Directories


def test_list_directory_names_every_kind(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
    (tmp_path / "to-file").symlink_to("file")
    (tmp_path / "to-folder").symlink_to("folder")
    (tmp_path / "to-nothing").symlink_to("nothing")
    (tmp_path / "to-below-a-file").symlink_to("file/x")
    (tmp_path / "to-itself").symlink_to("to-itself")
    (tmp_path / "to-a-long-name").symlink_to("x" * 300)
    entries = {entry.name: entry for entry in LOCAL.list_directory(str(tmp_path))}

    assert {name: (entry.kind, entry.size) for name, entry in entries.items()} == {
        "file": (FILE, 5),
        "folder": (DIRECTORY, 0),
        "pipe": (SPECIAL, 0),
        "socket": (SPECIAL, 0),
        "to-file": (FILE, 5),
        "to-folder": (DIRECTORY, 0),
        "to-nothing": (BROKEN_LINK, 0),
        "to-below-a-file": (BROKEN_LINK, 0),
        "to-itself": (BROKEN_LINK, 0),
        "to-a-long-name": (BROKEN_LINK, 0),
    }
    assert entries["to-folder"].identity == entries["folder"].identity != entries["file"].identity
    assert entries["file"] == LOCAL.stat(str(tmp_path / "file"))
    assert entries["file"].version == (tmp_path / "file").stat().st_mtime_ns


def test_list_directory_leaves_out_only_what_was_removed_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    for number in [errno.ENOENT, errno.EACCES, errno.EIO, errno.ENAMETOOLONG, errno.ESTALE]:
        entry = mock.Mock(is_symlink=lambda: False)
        entry.stat.side_effect = OSError(number, os.strerror(number))
        monkeypatch.setattr(os, "scandir", lambda uri, entry=entry: contextlib.nullcontext([entry]))
        is_gone = number == errno.ENOENT
        expected = contextlib.nullcontext() if is_gone else pytest.raises(OSError, match=os.strerror(number))
        with case_tables.named(number), expected:
            assert list(LOCAL.list_directory("/x")) == []


def test_list_directory_of_no_directory_raises(tmp_path: pathlib.Path) -> None:
    for name, error in [("missing", FileNotFoundError), ("file", NotADirectoryError)]:
        with case_tables.named(name, error):
            (tmp_path / "file").touch()
            with pytest.raises(error, match=name):
                list(LOCAL.list_directory(str(tmp_path / name)))


def test_directories_are_made_and_removed_once_and_again(tmp_path: pathlib.Path) -> None:
    folder = str(tmp_path / "a/b")
    for _ in range(2):
        LOCAL.make_directories(folder)
    assert LOCAL.exists(folder)
    (tmp_path / "a/b/file").touch()
    for _ in range(2):
        LOCAL.remove(f"{folder}/file")
        assert not LOCAL.exists(f"{folder}/file")
    for _ in range(2):
        LOCAL.remove_tree(str(tmp_path / "a"))
        assert not LOCAL.exists(str(tmp_path / "a"))


# Reading


CONTENT = bytes(range(100))


def test_read_to_the_end_is_whole_whatever_the_size_hint(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_bytes(CONTENT)
    for size_hint in [-1, 0, 1, 99, 100, 101, 5000]:
        for offset in [0, 1, 99, 100, 101, 300]:
            assert LOCAL.read(str(tmp_path / "file"), offset, size_hint=size_hint) == CONTENT[offset:]
    for offset, length in [(0, 0), (0, 100), (10, 5), (90, 50), (100, 1), (200, 5)]:  # ends at the end of the file
        assert LOCAL.read(str(tmp_path / "file"), offset, length) == CONTENT[offset : offset + length]


@settings(deadline=None)
@given(size=st.integers(0, 3 << 20), hint=st.integers(-1, 4 << 20), offset=st.integers(0, 4 << 20))
def test_read_of_a_large_file_is_whole_whatever_the_size_hint(
    tmp_path_factory: pytest.TempPathFactory, size: int, hint: int, offset: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "large"
    path.write_bytes(CONTENT * (size // 100) + CONTENT[: size % 100])
    assert LOCAL.read(str(path), offset, size_hint=hint) == path.read_bytes()[offset:]


def test_read_of_a_growing_file_takes_what_was_added(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"old")

    def grow_and_stat(descriptor: int) -> os.stat_result:
        status = os.stat(descriptor)
        path.write_bytes(b"old and new")
        return status

    monkeypatch.setattr(os, "fstat", grow_and_stat)
    assert LOCAL.read(str(path)) == b"old and new"


@pytest.mark.skipif(not os.path.exists("/proc/self"), reason="needs Linux")
def test_read_of_a_file_without_a_size_is_whole() -> None:
    assert LOCAL.stat("/proc/self/cmdline").size == 0
    assert LOCAL.read("/proc/self/cmdline") == pathlib.Path("/proc/self/cmdline").read_bytes() != b""


# Writing


def test_write_whole_replaces_and_leaves_nothing_beside(tmp_path: pathlib.Path) -> None:
    for data in (b"first", b"", b"second" * 100_000):
        LOCAL.write_whole(str(tmp_path / "file"), data)
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"file": data}


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_write_whole_that_fails_keeps_what_was_there(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    (tmp_path / "file").write_bytes(b"old")
    monkeypatch.setattr(os, failing, mock.Mock(side_effect=OSError(errno.EIO, "Input/output error")))
    with pytest.raises(OSError, match="Input/output error"):
        LOCAL.write_whole(str(tmp_path / "file"), b"new")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"file": b"old"}


def test_write_whole_to_a_full_disk_raises(tmp_path: pathlib.Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, hard))  # as a disk with room for a part
    try:
        with pytest.raises(OSError, match="File too large"):
            LOCAL.write_whole(str(tmp_path / "file"), bytes(5001))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


def test_write_whole_syncs_file_and_folder_if_durable(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for durable, num_syncs in [(True, 2), (False, 0)]:
        monkeypatch.setattr(os, "fsync", fsync := mock.Mock())
        LOCAL.write_whole("file", b"data", durable)
        assert (tmp_path / "file").read_bytes() == b"data"
        assert fsync.call_count == num_syncs


def test_write_whole_by_many_threads_leaves_one_of_theirs(tmp_path: pathlib.Path) -> None:
    contents = [bytes([index]) * 5000 for index in range(8)]
    concurrency.call_each(lambda data: LOCAL.write_whole(str(tmp_path / "file"), data), contents * 10, 8)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() in contents


def test_rename_moves_over_what_is_there(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "new").write_bytes(b"new")
    (tmp_path / "old").write_bytes(b"old")
    LOCAL.rename(str(tmp_path / "new"), str(tmp_path / "old"))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"old": b"new"}
    monkeypatch.chdir(tmp_path)
    LOCAL.rename("old", "moved")
    assert [path.name for path in tmp_path.iterdir()] == ["moved"]


def test_written_file_appears_when_it_is_whole(tmp_path: pathlib.Path) -> None:
    with pytest.raises(RuntimeError), LOCAL.write_file(str(tmp_path / "file")) as pending:
        pending.file.write(b"data")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    with LOCAL.write_file(str(tmp_path / "file")) as pending:
        pending.file.write(b"data")
        assert not (tmp_path / "file").exists()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"file": b"data"}


# Conditions


def test_file_of_another_version_is_not_read_moved_or_removed(tmp_path: pathlib.Path) -> None:
    source, target = str(tmp_path / "source"), str(tmp_path / "target")
    LOCAL.write_whole(source, b"one")
    version = LOCAL.stat(source).version
    other = version + 1
    with pytest.raises(storage.ChangedError, match=f"{source} was written"):
        LOCAL.read(source, version=other)
    with pytest.raises(storage.ChangedError, match=f"{source} was written"):
        LOCAL.rename(source, target, other)
    with pytest.raises(storage.ChangedError, match=f"{source} was written"):
        LOCAL.remove(source, version=other)
    assert LOCAL.read(source, version=version) == b"one"
    LOCAL.rename(source, target, version)
    for _ in range(2):
        LOCAL.remove(target, version=version)
        assert not LOCAL.exists(target)


@pytest.mark.parametrize("has_links", [True, False], ids=["hard-links", "no-hard-links"])
def test_publish_moves_a_file_and_refuses_a_taken_path(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, has_links: bool
) -> None:
    if not has_links:
        refusal = PermissionError(errno.EPERM, "Operation not permitted")
        monkeypatch.setattr(os, "link", mock.Mock(side_effect=refusal))
    source, target = tmp_path / "source", tmp_path / "target"
    for content in (b"one", b"two"):
        source.write_bytes(content)
        if content == b"one":
            LOCAL.publish(str(source), str(target))
            assert not source.exists()
        else:
            with pytest.raises(FileExistsError):
                LOCAL.publish(str(source), str(target))
            assert source.read_bytes() == b"two"
    assert target.read_bytes() == b"one"


def test_new_file_is_never_seen_without_its_content(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link, seen = os.link, []

    def link_and_look(source: str, target: str) -> None:
        seen.append(os.path.exists(target))
        link(source, target)
        seen.append(pathlib.Path(target).read_bytes())

    monkeypatch.setattr(os, "link", link_and_look)
    assert LOCAL.create_new(str(tmp_path / "file"), b"all")
    assert seen == [False, b"all"]
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
