"""Sources on a local disk. test_filter.py tests filters by label, tests/integration tests gs://."""

from __future__ import annotations

import pathlib
import pickle
import re
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import imagebeam
from imagebeam import errors, records
from imagebeam.reader import dataset_source, selection
from tests.unit.imagebeam.reader import far_dataset

NUM_SHARDS, NUM_RECORDS = 4, 3


@pytest.fixture(scope="module", params=["none", "gzip"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("sets") / "set"
    return far_dataset.write_dataset(path, NUM_SHARDS, NUM_RECORDS, 100, compression=request.param)


@pytest.fixture(scope="module")
def expected(folder: pathlib.Path) -> list[bytes]:
    """The records of "train" in order."""
    compression = dataset_source.LocalSource(str(folder)).load_catalog().compression
    found = []
    for shard in far_dataset.shards_of(folder):
        with open(folder / shard.name, "rb") as file:
            found += [record.data for record in records.read_records(file, compression)]
    assert len(found) == NUM_SHARDS * NUM_RECORDS
    return found


@settings(deadline=None, max_examples=30)
@given(bounds=st.lists(st.integers(0, NUM_SHARDS * NUM_RECORDS), min_size=2, max_size=2, unique=True))
def test_records_of_a_selection_are_fetched(folder: pathlib.Path, expected: list[bytes], bounds: list[int]) -> None:
    start, stop = sorted(bounds)
    source = dataset_source.LocalSource(str(folder))
    catalog = source.load_catalog()
    selected = selection.select(catalog, f"train[{start}:{stop}]")
    located = selected.records_at(np.arange(len(selected)))
    assert located.tolist() == list(range(start, stop))
    assert list(selected.shard_sizes) == np.histogram(located, np.arange(0, 13, NUM_RECORDS))[0].tolist()
    assert list(source.fetcher(catalog, "train").fetch(located)) == expected[start:stop]
    source.close()


def test_selection_of_a_whole_split_keeps_no_list_of_its_records(folder: pathlib.Path) -> None:
    selected = selection.select(dataset_source.LocalSource(str(folder)).load_catalog(), "train")
    assert (selected.chosen, selected.shard_sizes, selected.split_size) == (None, (NUM_RECORDS,) * NUM_SHARDS, 12)


def test_fetcher_of_a_split_is_made_once_but_not_shared_with_a_pickled_source(folder: pathlib.Path) -> None:
    source = dataset_source.LocalSource(str(folder))
    catalog = source.load_catalog()
    fetcher = source.fetcher(catalog, "train")
    assert source.fetcher(catalog, "train") is fetcher
    assert source.fetcher(catalog, "test") is not fetcher
    assert pickle.loads(pickle.dumps(source)).fetcher(catalog, "train") is not fetcher


def test_labels_of_a_dataset_without_classes_are_refused(folder: pathlib.Path) -> None:
    dataset = imagebeam.open_dataset(folder)
    with pytest.raises(errors.ConfigError, match=f"^{re.escape(str(folder))} has no classes to filter by$"):
        dataset._read_labels("train")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ("remove", r"is missing \(No such file or directory\): run imagebeam verify, then convert again"),
        ("cut", r"has 10 bytes, the catalog says .*: it was cut short or replaced; run imagebeam verify"),
    ],
)
def test_shard_that_is_not_whole_is_refused(tmp_path: pathlib.Path, change: str, complaint: str) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set")
    path = folder / far_dataset.name_of(1)
    if change == "cut":
        path.write_bytes(path.read_bytes()[:10])
    else:
        path.unlink()
    source = dataset_source.LocalSource(str(folder))
    with pytest.raises(errors.ShardError, match=f"^shard {re.escape(str(path))} {complaint}"):
        source.check_shards(source.load_catalog())


def test_dataset_at_gs_without_tensorflow_names_the_extra_and_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    complaint = (
        "tensorflow is not installed, reading gs:// in place needs it: pip install 'imagebeam[tf]', "
        "or give cache_dir, which needs 'imagebeam[gcs]' instead"
    )
    with pytest.raises(errors.ConfigError, match=f"^{re.escape(complaint)}$"):
        imagebeam.open_dataset("gs://b/x")
