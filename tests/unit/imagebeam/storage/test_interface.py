"""Addresses, errors, and the storage that the scheme and the options of an address decide."""

from __future__ import annotations

import errno
import os
import pathlib
import sys
from typing import Any
from unittest import mock

import fsspec.core
import pytest

from imagebeam import storage
from imagebeam.storage import fsspec_files, gcs, interface, webhdfs
from tests import case_tables, error_texts


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
        with case_tables.named(uri), error_texts.raises("address-file-host"):
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


# The storage of an address


@pytest.fixture(autouse=True)
def unopened(monkeypatch: pytest.MonkeyPatch) -> None:
    """No storage was opened before."""
    monkeypatch.setattr(storage, "_opened", {})


def test_scheme_decides_the_storage_and_an_unknown_one_is_refused() -> None:
    for uri, expected in [
        ("/x", storage.LocalStorage),
        ("relative", storage.LocalStorage),
        ("gs://b/x", gcs.GcsStorage),
        ("gcs://b/x", gcs.GcsStorage),
        ("hdfs://host:1/x", webhdfs.WebHdfsStorage),
        ("webhdfs://host:1/x", webhdfs.WebHdfsStorage),
        ("swebhdfs://host:1/x", webhdfs.WebHdfsStorage),
        ("memory://x", fsspec_files.FsspecStorage),
    ]:
        assert type(storage.storage_of(uri)) is expected
    with error_texts.raises("address-unknown-scheme"):
        storage.storage_of("nfs://host/x")


class Unhashable:
    __hash__ = None  # type: ignore[assignment]


TOKEN = Unhashable()


def test_storage_is_shared_by_equal_options_alone() -> None:
    pairs: list[tuple[Any, Any, bool]] = [
        (None, {}, True),
        ({"a": 1}, {"a": 1}, True),
        ({"a": 1, "b": [1, {"c": 2}]}, {"b": [1, {"c": 2}], "a": 1}, True),
        ({"a": TOKEN}, {"a": TOKEN}, True),
        ({"a": 1}, {"a": 2}, False),
        ({"a": 1}, {"a": True}, False),
        ({"a": 1}, {"b": 1}, False),
        ({"a": {"b": 1}}, {"a": {"b": 2}}, False),
        ({"a": TOKEN}, {"a": Unhashable()}, False),
        (None, {"a": 1}, False),
    ]
    for first, second, is_same in pairs:
        one, other = (storage.storage_of("memory://x", options) for options in (first, second))
        assert (one is other) == is_same, (first, second)
        assert one is not storage.storage_of("s3://x", first)


def test_address_that_cannot_be_opened_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    for uri, raised, code in [
        ("s3://b/x", ImportError("Install s3fs"), "package-missing"),
        ("az://b/x", ImportError("Install adlfs"), "package-missing"),
        ("ftp://b/x", ImportError("Install x"), "package-missing"),
        ("s3://b/x", ValueError("bad option\nmore"), "storage-cannot-open"),
    ]:
        monkeypatch.setattr(fsspec.core, "url_to_fs", mock.Mock(side_effect=raised))
        with case_tables.named(uri, raised), error_texts.raises(code):
            storage.storage_of(uri).read(uri)


@pytest.mark.parametrize(
    ("uri", "package"),
    [
        ("s3://b/x", "fsspec"),
        ("hdfs://h:1/x", "requests"),
        ("gs://b/x", "google.auth"),
    ],
)
def test_missing_package_is_refused_with_its_extra(monkeypatch: pytest.MonkeyPatch, uri: str, package: str) -> None:
    class Uninstalled:
        """Finds no such package, as if it were not installed."""

        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None) -> None:
            if name == package:
                raise ModuleNotFoundError(f"No module named {package!r}", name=package)

    for name in [name for name in sys.modules if f"{name}.".startswith(f"{package}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Uninstalled, *sys.meta_path])
    with error_texts.raises("package-missing"):
        storage.storage_of(uri).read(uri)
