from __future__ import annotations

import errno
import os
import pathlib

import pytest

from imagebeam.storage import interface
from tests import cases, error_texts


def test_fault_is_of_the_storage_or_the_machine_and_not_of_the_file() -> None:
    for error, expected in [
        (interface.UnavailableError(errno.EIO, "no answer"), True),
        (OSError(errno.EMFILE, "too many open files"), True),
        (OSError(errno.ENFILE, "too many open files"), True),
        (OSError(errno.ENOMEM, "no memory"), True),
        (FileNotFoundError(errno.ENOENT, "missing"), False),
        (PermissionError(errno.EACCES, "denied"), False),
        (interface.ChangedError(errno.ESTALE, "replaced"), False),
        (OSError(errno.EIO, "broken sector"), False),
        (OSError("no number"), False),
    ]:
        assert interface.is_fault(error) == expected, error


def test_scheme_of_an_address() -> None:
    for uri, scheme in [
        ("gs://bucket/x", "gs"),
        ("HDFS://host:1/x", "hdfs"),
        ("s3a://b", "s3a"),
        ("file:///x", "file"),
        ("/x", "file"),
        ("x", "file"),
        ("", "file"),
        ("c://x", "file"),
        ("x/gs://y", "file"),
        ("gs:/x", "file"),
    ]:
        assert interface.scheme_of(uri) == scheme


def test_normalize_makes_local_paths_absolute_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for uri, expected in [
        ("/a/b/", "/a/b"),
        ("/a/../b/./c", "/b/c"),
        ("x", "/work/x"),
        ("", "/work"),
        ("~/x", "/home/me/x"),
        ("file:///a b/%20", "/a b/%20"),
        ("FILE://localhost/a", "/a"),
        ("gs://bucket/a//../b/", "gs://bucket/a//../b"),
    ]:
        monkeypatch.setenv("HOME", "/home/me")
        monkeypatch.setattr(os, "getcwd", lambda: "/work")
        assert interface.normalize(uri) == expected
        assert interface.normalize(expected) == expected


def test_normalize_of_a_file_address_with_a_host_is_refused() -> None:
    for uri in ["file://data/x", "file://host", "file://", "FILE://localhost"]:
        with cases.named(uri), error_texts.raises("address-file-host"):
            interface.normalize(uri)


def test_normalize_keeps_links(tmp_path: pathlib.Path) -> None:
    (tmp_path / "link").symlink_to("/")
    assert interface.normalize(f"{tmp_path}/link") == f"{tmp_path}/link"


def test_join_puts_one_slash_between() -> None:
    for parts, expected in [
        (("/a", "b", "c"), "/a/b/c"),
        (("/a/", "b"), "/a/b"),
        (("gs://bucket", "a b/c"), "gs://bucket/a b/c"),
        (("/", "a"), "/a"),
        (("/a",), "/a"),
    ]:
        assert interface.join(*parts) == expected


def test_relative_name_leaves_the_directory() -> None:
    for directory, name, expected in [
        ("gs://b/d/000002", "a", "gs://b/d/000002/a"),
        ("gs://b/d/000002/", "../000001/a", "gs://b/d/000001/a"),
        ("/d/000002", "../../a/../b", "/a/../b"),
    ]:
        assert interface.join_relative(directory, name) == expected


def test_root_of_an_address_is_its_bucket_or_host() -> None:
    for uri, root in [
        ("gs://bucket/a/b", "gs://bucket"),
        ("gs://bucket", "gs://bucket"),
        ("hdfs://me@host:9870/a", "hdfs://me@host:9870"),
        ("memory:///a", "memory://"),
    ]:
        assert interface.root_of(uri) == root
