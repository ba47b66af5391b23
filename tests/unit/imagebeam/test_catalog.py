from __future__ import annotations

import dataclasses
import errno
import json
import os
import pathlib
import re
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imagebeam import catalog as catalog_lib
from imagebeam import errors, storage
from imagebeam.catalog import Catalog, Counts, File, Shard, Split
from imagebeam.features import BYTES, INT64, Feature
from tests import cases

CATALOG = Catalog(
    name="cats",
    fingerprint="0123abcd",
    compression="none",
    splits={
        "train": Split(
            (
                Shard("train-00000-of-00002.tfrecord", 3, 300, 7),
                Shard("train-00001-of-00002.tfrecord", 2, 200, 2**32 - 1),
            )
        ),
        "test": Split((Shard("test-00000-of-00001.tfrecord", 1, 100, 0),)),
    },
    labels=("cat", "dog", "ünï", "caf\udce9"),
    label_kind="class",
    label_base=1,
    features=(Feature("image/class/label", "image/class/label", INT64), Feature("raw", "image/encoded", BYTES)),
    config={"split": {"fractions": {"train": 0.8, "test": 0.2}, "group": None}, "source": {"include": ["**/*"]}},
    counts=Counts(listed=7, written=6, rejected={"corrupt": 1}, skipped={"hidden": 2}),
    versions={"imagebeam": "0.1.0"},
    created="2026-01-02T03:04:05Z",
)

names = st.text(max_size=20)
counts = st.integers(0, 2**63)
crcs = st.integers(0, 2**32 - 1)


def few(elements: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(elements, max_size=3).map(tuple)


def write(folder: pathlib.Path, text: str) -> str:
    (folder / "catalog.json").write_text(text)
    return str(folder)


def edit(**fields: Any) -> str:
    """The text of CATALOG with some fields changed by hand."""
    return json.dumps(json.loads(CATALOG.to_json()) | fields)


@settings(deadline=None)
@given(
    name=names,
    labels=few(names),
    splits=st.dictionaries(
        names, few(st.builds(Shard, names, counts, counts, counts, st.none() | crcs)).map(Split), max_size=3
    ),
    features=few(st.builds(Feature, names, names, names)),
    config=st.dictionaries(names, st.none() | st.booleans() | counts | st.floats(allow_nan=False) | names, max_size=4),
    rejected=st.dictionaries(names, counts, max_size=3),
    files=st.dictionaries(names, st.builds(File, counts, st.none() | crcs), max_size=3),
)
def test_any_catalog_round_trips(rejected: dict[str, int], **fields: Any) -> None:
    catalog = dataclasses.replace(CATALOG, counts=Counts(1, 0, rejected, {}), **fields)
    assert Catalog.from_json(catalog.to_json(), "x") == catalog


def test_reformatted_catalog_is_still_whole() -> None:
    fields = json.loads(CATALOG.to_json())
    text = json.dumps(dict(sorted(fields.items())), ensure_ascii=True, indent=None)
    assert Catalog.from_json(text, "x") == CATALOG


def test_edited_catalog_is_refused(tmp_path: pathlib.Path) -> None:
    for fields in [
        {"label_base": 0},
        {"labels": ["dog", "cat", "ünï", "caf\udce9"]},
        {"checksum": "sha256:0"},
        {"checksum": None},
        {"more": 1},
    ]:
        with cases.named(fields):
            directory = write(tmp_path, edit(**fields))
            with pytest.raises(
                errors.CatalogError,
                match=rf"{re.escape(directory)}/catalog.json was edited after it was written: its checksum is "
                r"(sha256:\w+|None), its content has sha256:\w{64}; restore it, or run the same convert command again",
            ):
                catalog_lib.load_catalog(directory)


def test_catalog_of_another_format_is_refused(tmp_path: pathlib.Path) -> None:
    for version in [4, "1", None, 1.5]:
        with cases.named(version):
            directory = write(tmp_path, edit(format_version=version))
            complaint = f"catalog.json has format version {version!r}, this imagebeam reads up to 3: update imagebeam"
            with pytest.raises(errors.CatalogError, match=re.escape(complaint)):
                catalog_lib.load_catalog(directory)


def test_text_that_is_no_catalog_is_refused(tmp_path: pathlib.Path) -> None:
    for text, complaint in [
        ("", "JSONDecodeError: Expecting value: line 1"),
        (CATALOG.to_json()[:100], "JSONDecodeError: "),
        ("[]", "TypeError: list indices must be integers"),
        ("{}", "KeyError: 'format_version'"),
        ("\udcff", "JSONDecodeError: "),
    ]:
        with cases.named(text, complaint):
            (tmp_path / "catalog.json").write_bytes(text.encode("utf-8", "surrogateescape"))
            expected = (
                rf"catalog.json is not a catalog \({complaint}.*\); run the same convert command again with --overwrite"
            )
            with pytest.raises(errors.CatalogError, match=expected):
                catalog_lib.load_catalog(str(tmp_path))


def test_folder_without_a_catalog_holds_no_dataset(tmp_path: pathlib.Path) -> None:
    for below in ["", "missing", "file/below"]:
        with cases.named(below):
            (tmp_path / "file").touch()
            directory = str(tmp_path / below)
            complaint = "holds no catalog.json: no dataset was committed there; give the --output of"
            with pytest.raises(errors.CatalogError, match=f"^{re.escape(directory)} {complaint}"):
                catalog_lib.load_catalog(directory)


def test_catalog_that_cannot_be_read_is_an_error(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for error, complaint in [
        (
            PermissionError(errno.EACCES, "Permission denied"),
            "{catalog} cannot be read (Permission denied); grant read access to it",
        ),
        (
            OSError(errno.EMFILE, "Too many open files"),
            "{catalog} cannot be read (Too many open files): this machine has no open files or no memory left; free",
        ),
        (
            storage.UnavailableError(errno.EIO, "hdfs://h:9870/d/catalog.json: no answer (tried for 5 s)"),
            "hdfs://h:9870/d/catalog.json: no answer (tried for 5 s): check the address, and that it can be reached",
        ),
    ]:
        with cases.named(error, complaint):
            monkeypatch.setattr(storage.LocalStorage, "read", mock.Mock(side_effect=error))
            expected = complaint.format(catalog=tmp_path / "catalog.json")
            with pytest.raises(errors.CatalogError, match=f"^{re.escape(expected)}"):
                catalog_lib.load_catalog(str(tmp_path))


def test_catalog_is_found_by_any_form_of_its_address(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, CATALOG.to_json())
    monkeypatch.setenv("HOME", str(tmp_path.parent))
    monkeypatch.chdir(tmp_path.parent)
    for address in (f"file://{tmp_path}", f"{tmp_path}/", os.path.join("~", tmp_path.name), tmp_path.name):
        assert catalog_lib.load_catalog(address) == CATALOG
