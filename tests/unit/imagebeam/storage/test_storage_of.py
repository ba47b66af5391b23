"""The scheme and the options of an address decide its storage."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any

import fsspec.core
import pytest

from imagebeam import errors, storage
from imagebeam.storage import fsspec_files, gcs, webhdfs


@pytest.fixture(autouse=True)
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Starts each test with no storage opened."""
    monkeypatch.setattr(storage, "_opened", {})
    yield


def test_scheme_decides_the_storage() -> None:
    for uri, expected in [
        ("/x", storage.LocalStorage),
        ("relative", storage.LocalStorage),
        ("gs://b/x", gcs.GcsStorage),
        ("gcs://b/x", gcs.GcsStorage),
        ("hdfs://host:1/x", webhdfs.WebHdfsStorage),
        ("webhdfs://host:1/x", webhdfs.WebHdfsStorage),
        ("memory://x", fsspec_files.FsspecStorage),
    ]:
        assert type(storage.storage_of(uri)) is expected


def test_unknown_scheme_is_refused_with_the_known_ones() -> None:
    complaint = (
        "address 'nfs://host/x': scheme 'nfs' is not known; write a path, or gs://, hdfs://NAMENODE:9870/, s3://"
    )
    with pytest.raises(errors.ConfigError, match=re.escape(complaint)):
        storage.storage_of("nfs://host/x")


class Unhashable:
    __hash__ = None  # type: ignore[assignment]


TOKEN = Unhashable()


@pytest.mark.parametrize(
    ("first", "second", "is_same"),
    [
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
    ],
)
def test_storage_is_shared_by_equal_options_alone(first: Any, second: Any, is_same: bool) -> None:
    one, other = (storage.storage_of("memory://x", options) for options in (first, second))
    assert (one is other) == is_same
    assert one is not storage.storage_of("s3://x", first)


@pytest.mark.parametrize(
    ("uri", "raised", "complaint"),
    [
        ("s3://b/x", ImportError("Install s3fs"), "is missing (Install s3fs): pip install 'imagebeam[s3]'"),
        ("az://b/x", ImportError("Install adlfs"), "is missing (Install adlfs): pip install adlfs"),
        (
            "ftp://b/x",
            ImportError("Install x"),
            "a package that reads ftp:// is missing (Install x): install the package that reads ftp://",
        ),
        (
            "s3://b/x",
            ValueError("bad option\nmore"),
            "s3://b/x: fsspec cannot open s3:// here (bad option): check the address, storage_options and the package "
            "that reads it",
        ),
    ],
)
def test_address_that_cannot_be_opened_is_refused_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, uri: str, raised: Exception, complaint: str
) -> None:
    def refuse(uri: str, **_: Any) -> None:
        raise raised

    monkeypatch.setattr(fsspec.core, "url_to_fs", refuse)
    with pytest.raises(errors.ConfigError, match=f"{re.escape(complaint)}$"):
        storage.storage_of(uri).read(uri)


@pytest.mark.parametrize(
    ("uri", "package", "complaint"),
    [
        ("s3://b/x", "fsspec", "fsspec is not installed, s3:// needs it: pip install 'imagebeam[s3]'"),
        ("hdfs://h:1/x", "fsspec", "fsspec is not installed, hdfs:// needs it: pip install 'imagebeam[hdfs]'"),
        ("hdfs://h:1/x", "requests", "requests is not installed, hdfs:// needs it: pip install 'imagebeam[hdfs]'"),
        ("gs://b/x", "google.auth", "google.auth is not installed, gs:// needs it: pip install 'imagebeam[gcs]'"),
    ],
)
def test_missing_package_is_refused_with_the_extra_that_brings_it(
    monkeypatch: pytest.MonkeyPatch, uri: str, package: str, complaint: str
) -> None:
    class Uninstalled:
        """Finds no such package, as if it were not installed."""

        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None) -> None:
            if name == package:
                raise ModuleNotFoundError(f"No module named {package!r}", name=package)

    for name in [name for name in sys.modules if f"{name}.".startswith(f"{package}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Uninstalled, *sys.meta_path])
    with pytest.raises(errors.ConfigError, match=f"{re.escape(complaint)}$"):
        storage.storage_of(uri).read(uri)
