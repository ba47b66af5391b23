from __future__ import annotations

import dataclasses
import errno
import json
import os
import pathlib
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imagebeam import catalog as catalog_lib
from imagebeam import storage
from imagebeam.catalog import Catalog, Counts, File, Shard, Split
from imagebeam.features import BYTES, INT64, Feature
from tests import case_tables, error_texts

CATALOG = Catalog(
    name="cats",
    fingerprint="0123abcd",
    compression="none",
    splits={
        "train": Split((Shard("train-0.tfrecord", 3, 300, 7), Shard("train-1.tfrecord", 2, 200, 2**32 - 1))),
        "test": Split((Shard("test-0.tfrecord", 1, 100, 0),)),
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
shards = st.builds(
    Shard, names, counts, counts, counts, st.none() | crcs, counts, st.integers(1, 99), crcs, st.none() | crcs
) | st.builds(Shard, names, counts, counts, counts)


def few(elements: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(elements, max_size=3).map(tuple)


def write(folder: pathlib.Path, text: str) -> str:
    (folder / "catalog.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    return str(folder)


@settings(deadline=None)
@given(
    name=names,
    labels=few(names),
    keypoints=few(names),
    splits=st.dictionaries(names, few(shards).map(Split), max_size=3),
    features=few(st.builds(Feature, names, names, names, st.booleans(), st.none() | few(counts))),
    config=st.dictionaries(names, st.none() | st.booleans() | counts | st.floats(allow_nan=False) | names, max_size=4),
    rejected=st.dictionaries(names, counts, max_size=3),
    files=st.dictionaries(names, st.builds(File, counts, st.none() | crcs), max_size=3),
    object_classes=st.dictionaries(counts, names, max_size=3),
    indexed=st.dictionaries(names, names, max_size=1),
)
def test_any_catalog_round_trips(rejected: dict[str, int], **fields: Any) -> None:
    catalog = dataclasses.replace(CATALOG, counts=Counts(1, 0, rejected, {}), **fields)
    assert Catalog.from_json(catalog.to_json(), "x") == catalog


def test_reformatted_catalog_and_one_with_later_fields_are_read() -> None:
    fields = json.loads(CATALOG.to_json())
    assert Catalog.from_json(json.dumps(dict(sorted(fields.items())), ensure_ascii=True), "x") == CATALOG
    del fields["checksum"]
    assert Catalog.from_json(json.dumps(catalog_lib.with_checksum(fields | {"later": 1})), "x") == CATALOG


def test_catalog_of_other_folders_or_removed_records_or_another_tool_is_not_read_by_older_versions() -> None:
    for format_version, changes in [
        (1, {}),
        (2, {"splits": {"train": Split((Shard("../000001/a", 3, 1, 1),))}}),
        (2, {"splits": {"train": Split((Shard("a", 3, 1, 1, None, removed=1),))}}),
        (3, {"indexed": {"left_out": []}}),
    ]:
        catalog = dataclasses.replace(CATALOG, **changes)
        assert json.loads(catalog.to_json())["format_version"] == format_version
        assert Catalog.from_json(catalog.to_json(), "x") == catalog


def test_text_that_is_no_whole_catalog_is_refused(tmp_path: pathlib.Path) -> None:
    written = CATALOG.to_json()
    fields = json.loads(written)
    indexed = json.loads(dataclasses.replace(CATALOG, indexed={"left_out": []}).to_json())
    for code, text in [
        ("catalog-edited", json.dumps(fields | {"label_base": 0})),
        ("catalog-edited", json.dumps(fields | {"labels": ["dog", "cat", "ünï", "caf\udce9"]})),
        ("catalog-edited", json.dumps(fields | {"checksum": None})),
        ("catalog-edited", json.dumps(fields | {"more": 1})),
        ("catalog-edited", json.dumps(indexed | {"name": "dogs"})),
        ("catalog-other-format", json.dumps(fields | {"format_version": 5})),
        ("catalog-damaged", json.dumps(fields | {"format_version": "1"})),
        ("catalog-damaged", json.dumps(fields | {"format_version": 0})),
        ("catalog-damaged", ""),
        ("catalog-damaged", written[:100]),
        ("catalog-damaged", "[]"),
        ("catalog-damaged", "{}"),
        ("catalog-damaged", "\udcff"),
        ("catalog-damaged", "[" * 100_000),
    ]:
        with case_tables.named(code, text), error_texts.raises(code):
            catalog_lib.load_catalog(write(tmp_path, text))


def test_fields_that_are_not_known_are_skipped_at_every_level(tmp_path: pathlib.Path) -> None:
    written = dataclasses.replace(CATALOG, files={"labels.txt": File(8, 5)})
    fields = json.loads(written.to_json())
    del fields["checksum"]
    for each in (
        *(fields, fields["counts"], fields["splits"]["train"], fields["splits"]["train"]["shards"][0]),
        *(fields["features"][0], fields["files"]["labels.txt"]),
    ):
        each["added later"] = {"one": 1}
    text = json.dumps(catalog_lib.with_checksum(fields))
    assert catalog_lib.load_catalog(write(tmp_path, text)) == written


def test_folder_without_a_catalog_holds_no_dataset(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").touch()
    for below in ["", "missing", "file/below"]:
        with case_tables.named(below), error_texts.raises("catalog-missing"):
            catalog_lib.load_catalog(tmp_path / below)
    (tmp_path / "cats.tfrecord").touch()
    for below in ("", "cats.tfrecord"):
        with error_texts.raises("catalog-missing-for-tfrecords"):
            catalog_lib.load_catalog(tmp_path / below)


def test_unfinished_work_in_a_folder_is_told(tmp_path: pathlib.Path) -> None:
    staged = tmp_path / ".imagebeam" / "staging-indexing-1"
    staged.mkdir(parents=True)
    with error_texts.raises("catalog-unfinished"):
        catalog_lib.load_catalog(tmp_path)
    (tmp_path / ".imagebeam" / "publishing").write_text('{"fingerprint": "indexing-1"}')
    for changes in ({}, {"indexed": {"left_out": []}}):
        write(staged, dataclasses.replace(CATALOG, **changes).to_json())
        with error_texts.raises("catalog-unfinished"):
            catalog_lib.load_catalog(tmp_path)
    (tmp_path / ".imagebeam" / "publishing").unlink()
    staged.rename(tmp_path / ".imagebeam" / "staging-0123abcd")
    with error_texts.raises("catalog-unfinished"):
        catalog_lib.load_catalog(tmp_path)


def test_catalog_that_cannot_be_read_is_an_error(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for error in [
        PermissionError(errno.EACCES, "Permission denied"),
        OSError(errno.EMFILE, "Too many open files"),
        storage.UnavailableError(errno.EIO, "hdfs://h:9870/d/catalog.json: no answer (tried for 5 s)"),
    ]:
        monkeypatch.setattr(storage.LocalStorage, "read", mock.Mock(side_effect=error))
        with case_tables.named(error):
            for load in (catalog_lib.load_catalog, catalog_lib.load_statistics):
                with error_texts.raises("dataset-unreadable"):
                    load(tmp_path)


def test_damaged_statistics_are_an_error_with_the_remedy(tmp_path: pathlib.Path) -> None:
    assert catalog_lib.load_statistics(tmp_path) == {}
    for text in (
        "[1, 2]",
        '{"train": 5}',
        '{"train": {"formats": ["jpeg"]}}',
        '{"train": {"height": {"max": "5"}}}',
        '{"train": {"pixels": {"images": 3}}}',
        '{"train": {"pixels": {"images": 3, "mean": [1, 2], "std": [1]}}}',
        "[" * 100_000,
    ):
        (tmp_path / "statistics.json").write_text(text)
        with case_tables.named(text), error_texts.raises("statistics-damaged"):
            catalog_lib.load_statistics(tmp_path)


def test_catalog_is_found_by_any_form_of_its_address(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, CATALOG.to_json())
    monkeypatch.setenv("HOME", str(tmp_path.parent))
    monkeypatch.chdir(tmp_path.parent)
    for address in (f"file://{tmp_path}", f"{tmp_path}/", os.path.join("~", tmp_path.name), tmp_path.name):
        assert catalog_lib.load_catalog(address) == CATALOG
