from __future__ import annotations

import dataclasses
import errno
import json
import os
import pathlib
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imagebeam import catalog as catalog_lib
from imagebeam import errors, storage
from imagebeam.catalog import Catalog, Counts, File, Shard, Split
from imagebeam.features import BYTES, INT64, Feature

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
    counts=Counts(listed=7, written=6, rejected={"corrupt": 1}, passed_over={"hidden": 2}),
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


def test_catalog_round_trips_through_its_file(tmp_path: pathlib.Path) -> None:
    assert catalog_lib.load_catalog(write(tmp_path, CATALOG.to_json())) == CATALOG


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


def test_checksums_are_beside_the_fields_of_a_shard() -> None:
    shard = dataclasses.replace(CATALOG.splits["test"].shards[0], index_crc32c=5)
    catalog = dataclasses.replace(CATALOG, splits={"test": Split((shard,))}, files={"labels.txt": File(8, 9)})
    fields = json.loads(catalog.to_json())
    assert fields["format_version"] == 1
    assert fields["splits"]["test"]["shards"] == [{"name": shard.name, "records": 1, "bytes": 100, "crc32c": 0}]
    assert fields["splits"]["test"]["index_crc32c"] == [5]
    assert fields["files"] == {"labels.txt": {"bytes": 8, "crc32c": 9}}


def test_reformatted_catalog_is_still_whole() -> None:
    fields = json.loads(CATALOG.to_json())
    text = json.dumps(dict(sorted(fields.items())), ensure_ascii=True, indent=None)
    assert Catalog.from_json(text, "x") == CATALOG


def test_split_sums_up_its_shards() -> None:
    assert (CATALOG.splits["train"].num_examples, CATALOG.splits["train"].num_bytes) == (5, 500)
    assert (Split(()).num_examples, Split(()).num_bytes) == (0, 0)


def test_index_name_replaces_the_suffix() -> None:
    for name in ("train-00000-of-00016.tfrecord", "train-00000-of-00016"):
        assert Shard(name, 0, 0, 0).index_name == "index/train-00000-of-00016.index"


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"label_base": 0}, id="value"),
        pytest.param({"labels": ["dog", "cat", "ünï", "caf\udce9"]}, id="order-of-labels"),
        pytest.param({"checksum": "sha256:0"}, id="checksum"),
        pytest.param({"checksum": None}, id="no-checksum"),
        pytest.param({"more": 1}, id="one-more-field"),
    ],
)
def test_edited_catalog_is_refused(tmp_path: pathlib.Path, fields: dict[str, Any]) -> None:
    directory = write(tmp_path, edit(**fields))
    with pytest.raises(
        errors.CatalogError,
        match=rf"{re.escape(directory)}/catalog.json was edited after it was written: its checksum is "
        r"(sha256:\w+|None), its content has sha256:\w{64}; restore it, or run the same convert command again",
    ):
        catalog_lib.load_catalog(directory)


@pytest.mark.parametrize("version", [4, "1", None, 1.5], ids=repr)
def test_catalog_of_another_format_is_refused(tmp_path: pathlib.Path, version: object) -> None:
    directory = write(tmp_path, edit(format_version=version))
    complaint = f"catalog.json has format version {version!r}, this imagebeam reads up to 3: update imagebeam"
    with pytest.raises(errors.CatalogError, match=re.escape(complaint)):
        catalog_lib.load_catalog(directory)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        pytest.param("", "JSONDecodeError: Expecting value: line 1", id="empty"),
        pytest.param(CATALOG.to_json()[:100], "JSONDecodeError: ", id="cut-short"),
        pytest.param("[]", "TypeError: list indices must be integers", id="list"),
        pytest.param("{}", "KeyError: 'format_version'", id="another-object"),
        pytest.param("\udcff", "JSONDecodeError: ", id="not-utf8"),
    ],
)
def test_text_that_is_no_catalog_is_refused(tmp_path: pathlib.Path, text: str, complaint: str) -> None:
    (tmp_path / "catalog.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    expected = rf"catalog.json is not a catalog \({complaint}.*\); run the same convert command again with --overwrite"
    with pytest.raises(errors.CatalogError, match=expected):
        catalog_lib.load_catalog(str(tmp_path))


@pytest.mark.parametrize("below", ["", "missing", "file/below"], ids=["no-catalog", "no-folder", "below-a-file"])
def test_folder_without_a_catalog_holds_no_dataset(tmp_path: pathlib.Path, below: str) -> None:
    (tmp_path / "file").touch()
    directory = str(tmp_path / below)
    with pytest.raises(
        errors.CatalogError,
        match=f"^{re.escape(directory)} holds no catalog.json: no dataset was committed there; give the --output of",
    ):
        catalog_lib.load_catalog(directory)


@pytest.mark.parametrize(
    ("error", "complaint"),
    [
        pytest.param(
            PermissionError(errno.EACCES, "Permission denied"),
            "{catalog} cannot be read (Permission denied); grant read access to it",
            id="permission",
        ),
        pytest.param(
            OSError(errno.EMFILE, "Too many open files"),
            "{catalog} cannot be read (Too many open files): this machine has no open files or no memory left; free",
            id="open-files",
        ),
        pytest.param(
            storage.UnavailableError(errno.EIO, "hdfs://h:9870/d/catalog.json: no answer (tried for 5 s)"),
            "hdfs://h:9870/d/catalog.json: no answer (tried for 5 s): check the address, and that it can be reached",
            id="no-answer",
        ),
    ],
)
def test_catalog_that_cannot_be_read_is_an_error(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, error: OSError, complaint: str
) -> None:
    def fail(*_: object) -> bytes:
        raise error

    monkeypatch.setattr(storage.LocalStorage, "read", fail)
    expected = complaint.format(catalog=tmp_path / "catalog.json")
    with pytest.raises(errors.CatalogError, match=f"^{re.escape(expected)}"):
        catalog_lib.load_catalog(str(tmp_path))


def test_catalog_is_found_by_any_form_of_its_address(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, CATALOG.to_json())
    monkeypatch.setenv("HOME", str(tmp_path.parent))
    monkeypatch.chdir(tmp_path.parent)
    for address in (f"file://{tmp_path}", f"{tmp_path}/", os.path.join("~", tmp_path.name), tmp_path.name):
        assert catalog_lib.load_catalog(address) == CATALOG
