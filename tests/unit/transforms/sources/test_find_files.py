from __future__ import annotations

import errno
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagebeam import errors, storage
from imagebeam.transforms.sources import find_files
from tests.listed_bucket import Bucket

NAMES = st.text(st.sampled_from("ab ./\x01é"), min_size=1, max_size=4).filter(lambda name: name.strip("/") == name)


@given(
    st.sets(NAMES), st.lists(NAMES.filter(lambda name: "/" not in name), max_size=30), st.integers(1, 5), st.booleans()
)
def test_what_a_listing_decides_is_what_a_look_at_each_file_finds(
    names: set[str], wanted: list[str], page_entries: int, early_folders: bool
) -> None:
    bucket = Bucket([f"all/{name}" for name in names], page_entries, early_folders)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage, "storage_of", lambda _: bucket)
        patch.setattr(find_files, "_MIN_FILES", 2)
        patch.setattr(find_files, "_FILES_PER_PAGE", 1)
        found = find_files.find_together(f"stub://b/all/{name}" for name in wanted)
    for uri, entry in found.items():
        try:
            expected = bucket.stat(uri).kind
        except FileNotFoundError:
            expected = None
        assert (entry and entry.kind) == expected


def test_dense_folder_is_listed_and_a_sparse_one_only_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = Bucket([f"all/{index:06d}.jpg" for index in range(20_000)], 100)
    monkeypatch.setattr(storage, "storage_of", lambda _: bucket)
    dense = [f"stub://b/all/{index:06d}.jpg" for index in range(5000, 6000)]
    assert set(find_files.find_together(dense)) == set(dense)
    assert bucket.num_pages <= 11
    bucket.num_pages = 0
    sparse = [f"stub://b/all/{index:06d}.jpg" for index in random.Random(0).sample(range(20_000), 100)]
    assert len(find_files.find_together(sparse)) < 20
    assert bucket.num_pages == 5


@pytest.mark.parametrize(
    "uris",
    [
        pytest.param([f"/data/{index}.jpg" for index in range(100)], id="local"),
        pytest.param([f"stub://b/{index}/1.jpg" for index in range(100)], id="a-folder-each"),
        pytest.param([], id="none"),
        pytest.param(["stub://b", "stub://b/", "stub://"], id="no-names"),
    ],
)
def test_nothing_is_listed_for_files_that_share_no_folder_of_a_bucket(
    monkeypatch: pytest.MonkeyPatch, uris: list[str]
) -> None:
    bucket = Bucket([], 1)
    monkeypatch.setattr(storage, "storage_of", lambda _: bucket)
    assert find_files.find_together(uris) == {}
    assert bucket.num_pages == 0


def test_files_of_an_unknown_scheme_are_left_to_a_look() -> None:
    assert find_files.find_together(f"nfs://host/all/{index}.jpg" for index in range(100)) == {}


@pytest.mark.parametrize(
    ("error", "is_fault"),
    [
        pytest.param(storage.UnavailableError(errno.EIO, "down"), True, id="down"),
        pytest.param(PermissionError(errno.EACCES, "denied"), False, id="denied"),
        pytest.param(errors.ConfigError("a-code", "no credentials"), False, id="no-credentials"),
    ],
)
def test_folder_that_may_not_be_listed_leaves_its_files_to_a_look_and_a_fault_ends_it(
    monkeypatch: pytest.MonkeyPatch, error: Exception, is_fault: bool
) -> None:
    bucket = Bucket([], 1)

    def refuse(*_: str) -> None:
        raise error

    monkeypatch.setattr(bucket, "list_range", refuse)
    monkeypatch.setattr(storage, "storage_of", lambda _: bucket)
    uris = [f"stub://b/all/{index}.jpg" for index in range(100)]
    if is_fault:
        with pytest.raises(storage.UnavailableError, match="down"):
            find_files.find_together(uris)
    else:
        assert find_files.find_together(uris) == {}
