from __future__ import annotations

import pathlib
import re
import sys
import time
from collections.abc import Callable
from typing import Any

import fsspec
import fsspec.core
import google_crc32c
import pytest

from imagebeam import errors
from imagebeam.reader.shard_cache import cached_source
from tests.unit.imagebeam.reader import far_dataset

pytestmark = pytest.mark.usefixtures("far")


def test_damaged_download_is_tried_again_after_the_waits(
    tmp_path: pathlib.Path, far: type[far_dataset.FarFileSystem]
) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set")
    content = far_dataset.content_of(folder, 0)
    far.faults[far_dataset.name_of(0)] = [content[:-1], b"!" + content[1:]]
    place = far_dataset.open_place(folder, tmp_path / "cache", retry_waits_sec=(0.1, 0.2))

    begin = time.monotonic()
    assert place.read(0, 0, far_dataset.WHOLE) == content
    assert time.monotonic() - begin >= 0.3
    assert far_dataset.settle(folder) == [0, 0, 0]


@pytest.mark.parametrize("change", [lambda content: content[:1000], lambda content: b"!" + content[1:]])
def test_shard_that_stays_damaged_is_told_with_both_values(
    tmp_path: pathlib.Path, change: Callable[[bytes], bytes]
) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set")
    content = far_dataset.content_of(folder, 0)
    (folder / far_dataset.name_of(0)).write_bytes(change(content))
    found = change(content)
    complaint = (
        f"shard far://{folder}/{far_dataset.name_of(0)} comes as {len(found):,} bytes with crc32c "
        f"{google_crc32c.value(found):08x}, the catalog says 3,048 bytes with {google_crc32c.value(content):08x}: "
        "it was cut short or replaced; "
        "run imagebeam verify, convert again with --overwrite"
    )
    with pytest.raises(errors.ShardError, match=re.escape(complaint)):
        far_dataset.open_place(folder, tmp_path / "cache").read(0, 0, 1)

    assert far_dataset.settle(folder) == [0, 0, 0]
    assert far_dataset.files_in(tmp_path / "cache") == {}


def test_shard_that_cannot_be_reached_is_told_after_all_attempts(
    tmp_path: pathlib.Path, far: type[far_dataset.FarFileSystem]
) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set")
    place = far_dataset.open_place(folder, tmp_path / "cache")
    far.faults[far_dataset.name_of(0)] = [ConnectionError("reset"), RuntimeError("503"), TimeoutError("slow")]
    complaint = (
        f"shard far://{folder}/{far_dataset.name_of(0)} cannot be downloaded in 3 attempts (TimeoutError: slow): "
        "see that its address can be reached from here, and run again; what was downloaded is kept"
    )
    with pytest.raises(errors.ShardError, match=re.escape(complaint)):
        place.read(0, 0, 1)
    assert far_dataset.settle(folder) == [0, 0, 0]
    assert far_dataset.files_in(tmp_path / "cache") == {}

    assert place.read(0, 0, far_dataset.WHOLE) == far_dataset.content_of(folder, 0)


@pytest.mark.parametrize(
    ("fault", "complaint"),
    [
        (FileNotFoundError("no such object"), "is missing (no such object): run imagebeam verify, convert again"),
        (PermissionError("denied"), "cannot be read (denied): grant read access to it"),
    ],
    ids=["missing", "denied"],
)
def test_shard_that_is_refused_is_told_at_once(
    tmp_path: pathlib.Path, far: type[far_dataset.FarFileSystem], fault: OSError, complaint: str
) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set")
    far.faults[far_dataset.name_of(0)] = [fault]
    with pytest.raises(
        errors.ShardError, match=re.escape(f"shard far://{folder}/{far_dataset.name_of(0)} {complaint}")
    ):
        far_dataset.open_place(folder, tmp_path / "cache").read(0, 0, 1)
    assert far_dataset.settle(folder) == [0]


def test_catalog_that_cannot_be_reached_is_told_with_the_error_of_the_client(
    tmp_path: pathlib.Path, far: type[far_dataset.FarFileSystem]
) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set")
    far.faults["catalog.json"] = [RuntimeError("503"), TimeoutError("slow"), RuntimeError("gone\nfor long")]
    with pytest.raises(
        errors.CatalogError, match=r"catalog.json cannot be read \(RuntimeError: gone\nfor long\); grant"
    ):
        far_dataset.open_source(folder, tmp_path / "cache")
    far.faults["catalog.json"] = [RuntimeError("503"), TimeoutError("slow")]
    assert far_dataset.open_source(folder, tmp_path / "cache").load_catalog().name == "noise"


# What can be opened


@pytest.mark.parametrize(
    ("uri", "raised", "complaint"),
    [
        ("gs://b/x", ImportError("no gcsfs"), "is missing (no gcsfs): pip install 'imagebeam[gcs]'"),
        ("s3://b/x", ImportError("Install s3fs"), "is missing (Install s3fs): pip install s3fs"),
        ("az://b/x", ImportError("Install adlfs"), "is missing (Install adlfs): install the package that reads az://"),
        (
            "hdfs://b/x",
            OSError("Unable to load libjvm\ndlopen(..."),
            "fsspec cannot open hdfs:// here (Unable to load libjvm): it needs Java and Hadoop's libraries here; "
            "hdfs://NAMENODE:9870/... needs neither",
        ),
        (
            "nope://b/x",
            None,
            "fsspec cannot open nope:// here (Protocol not known: nope): "
            "check the address and the package that reads it",
        ),
    ],
    ids=lambda value: value.partition(":")[0] if isinstance(value, str) else "",
)
def test_address_that_cannot_be_opened_is_told_with_what_to_install(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, uri: str, raised: Exception | None, complaint: str
) -> None:
    def refuse(uri: str) -> None:
        assert raised is not None
        raise raised

    if raised is not None:
        monkeypatch.setattr(fsspec.core, "url_to_fs", refuse)
    with pytest.raises(errors.ConfigError, match=f"^{re.escape(uri)}: .*{re.escape(complaint)}$"):
        cached_source.CachedSource(uri, str(tmp_path / "cache"), far_dataset.UNBOUNDED)


def test_missing_fsspec_is_told(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    monkeypatch.delitem(sys.modules, "fsspec.core")
    complaint = "s3://b/x: fsspec is not installed, which reads s3://: pip install s3fs"
    with pytest.raises(errors.ConfigError, match=f"^{re.escape(complaint)}$"):
        cached_source.CachedSource("s3://b/x", str(tmp_path / "cache"), far_dataset.UNBOUNDED)


def test_storage_options_reach_the_file_system(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []
    url_to_fs = fsspec.core.url_to_fs

    def record(uri: str, **options: Any) -> Any:
        seen.append(options)
        return url_to_fs(uri)

    monkeypatch.setattr(fsspec.core, "url_to_fs", record)
    folder = far_dataset.write_dataset(tmp_path / "set")
    far_dataset.open_place(folder, tmp_path / "cache", storage_options={"token": "t"}).read(0, 0, 1)
    assert seen and all(options == {"token": "t"} for options in seen)
