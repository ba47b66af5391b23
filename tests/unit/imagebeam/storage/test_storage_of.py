"""The scheme and the options of an address decide its storage."""

from __future__ import annotations

import sys
from typing import Any
from unittest import mock

import fsspec.core
import pytest

from imagebeam import storage
from imagebeam.storage import fsspec_files, gcs, webhdfs
from tests import error_texts


@pytest.fixture(autouse=True)
def opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Starts each test with no storage opened."""
    monkeypatch.setattr(storage, "_opened", {})


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


@pytest.mark.parametrize(
    ("uri", "raised", "code"),
    [
        ("s3://b/x", ImportError("Install s3fs"), "package-missing"),
        ("az://b/x", ImportError("Install adlfs"), "package-missing"),
        ("ftp://b/x", ImportError("Install x"), "package-missing"),
        ("s3://b/x", ValueError("bad option\nmore"), "storage-cannot-open"),
    ],
)
def test_address_that_cannot_be_opened_is_refused_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, uri: str, raised: Exception, code: str
) -> None:
    monkeypatch.setattr(fsspec.core, "url_to_fs", mock.Mock(side_effect=raised))
    with error_texts.raises(code):
        storage.storage_of(uri).read(uri)


@pytest.mark.parametrize(
    ("uri", "package"),
    [
        ("s3://b/x", "fsspec"),
        ("hdfs://h:1/x", "fsspec"),
        ("hdfs://h:1/x", "requests"),
        ("hdfs://h:1/kerberos", "requests_kerberos"),
        ("gs://b/x", "google.auth"),
    ],
)
def test_missing_package_is_refused_with_the_extra_that_brings_it(
    monkeypatch: pytest.MonkeyPatch, uri: str, package: str
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
    options = {"kerberos": True} if uri.endswith("kerberos") else {}
    with error_texts.raises("package-missing"):
        storage.storage_of(uri, options).read(uri)
