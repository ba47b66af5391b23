from __future__ import annotations

import os
import pathlib

import pytest

from imagebeam import errors, records, storage
from imagebeam.transforms.elements import Committed
from imagebeam.transforms.output import output_folder
from tests import races
from tests.unit.transforms import small_dataset


@pytest.fixture
def output(tmp_path: pathlib.Path) -> str:
    """A committed dataset."""
    output = str(tmp_path / "out")
    races.commit_earlier(output, small_dataset.make_refs(tmp_path / "in"))
    return output


def test_catalog_is_found_with_its_version_and_bytes(output: str) -> None:
    path = pathlib.Path(output, "catalog.json")
    found = output_folder.find_catalog(output)
    assert found is not None and found.catalog is not None and found.error is None
    data = path.read_bytes()
    assert found.record == Committed("f0", path.stat().st_mtime_ns, len(data), records.extend_crc(0, data))
    assert output_folder.has_bytes_of(str(path), found.record)
    path.write_bytes(data.replace(b"f0", b"f9"))
    assert not output_folder.has_bytes_of(str(path), found.record)
    other = output_folder.find_catalog(output)
    assert other is not None and other.record != found.record
    assert isinstance(other.error, errors.CatalogError) and other.record.fingerprint == ""


def test_folder_without_a_catalog_has_none(tmp_path: pathlib.Path) -> None:
    for folder in ["nothing", "file/below"]:
        (tmp_path / "file").touch()
        assert output_folder.find_catalog(str(tmp_path / folder)) is None
        assert not output_folder.has_bytes_of(str(tmp_path / folder), Committed("f", 1))


def test_catalog_that_may_not_be_read_is_recorded_by_its_version(output: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(storage.LocalStorage, "read", refuse)
    found = output_folder.find_catalog(output)
    path = pathlib.Path(output, "catalog.json")
    assert found is not None and found.record == Committed("", path.stat().st_mtime_ns)
    assert str(found.error) == f"{path} cannot be read (Permission denied); grant read access to it"
    assert output_folder.has_bytes_of(str(path), found.record)


@pytest.mark.parametrize("replacements", [1, 4, 5])
def test_catalog_that_is_replaced_while_it_is_read_is_read_again(
    output: str, monkeypatch: pytest.MonkeyPatch, replacements: int
) -> None:
    path, stat, left = pathlib.Path(output, "catalog.json"), storage.LocalStorage.stat, [replacements]

    def stat_and_replace(self: storage.LocalStorage, uri: str) -> storage.Entry:
        entry = stat(self, uri)
        if left[0]:
            left[0] -= 1
            os.utime(path, ns=(0, entry.version + 1))
        return entry

    monkeypatch.setattr(storage.LocalStorage, "stat", stat_and_replace)
    if replacements == 5:
        with pytest.raises(storage.ChangedError):
            output_folder.find_catalog(output)
    else:
        found = output_folder.find_catalog(output)
        assert found is not None and found.record.version == path.stat().st_mtime_ns


def test_storage_that_fails_is_no_missing_catalog(output: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> bytes:
        raise storage.UnavailableError(5, "no answer")

    monkeypatch.setattr(storage.LocalStorage, "read", fail)
    with pytest.raises(storage.UnavailableError):
        output_folder.find_catalog(output)
