from __future__ import annotations

import bisect
import itertools
import random
import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagebeam import storage
from imagebeam.transforms import elements
from imagebeam.transforms.sources import files, image_source
from tests.listed_bucket import Bucket

# Few characters, so that names share beginnings; among them the neighbours of the slash, and of the surrogates.
NAMES = st.text(st.sampled_from("ab./0 \x01\ud7ff\ue000\U0010ffff"), min_size=1, max_size=6)
PATHS = NAMES.map(lambda name: re.sub("/+", "/", name).strip("/")).filter(bool)
BOUNDS = st.text(st.sampled_from("ab.0\ud7ff\U0010ffff"), max_size=3)


@given(st.sets(PATHS), BOUNDS, BOUNDS, st.integers(1, 40))
def test_cut_yields_ascending_bounds_inside_of_the_range(
    names: set[str], start: str, end: str, num_wanted: int
) -> None:
    bucket = Bucket(sorted(names), 10)
    bounds = files.cut_names(lambda *bounds: bucket.first_name("stub://b", *bounds), start, end, num_wanted)
    assert bounds == sorted(set(bounds))
    assert all(bound > start and (not end or bound < end) and "/" not in bound for bound in bounds)
    for first, last in itertools.pairwise((start, *bounds, end)):  # no part is empty, unless all are
        assert not bounds or bucket.first_name("stub://b", first, last) is not None


@pytest.mark.parametrize(
    "names",
    [
        pytest.param([f"{index:08d}.jpg" for index in range(5000)], id="numbers-with-zeros"),
        pytest.param([f"img_{index}.jpg" for index in range(5000)], id="numbers"),
        pytest.param([f"{random.Random(index).getrandbits(128):032x}.png" for index in range(5000)], id="hex"),
        pytest.param([f"{'x' * 60}{index:05d}-{'y' * 60}" for index in range(5000)], id="long-shared-beginning"),
    ],
)
def test_cut_makes_parts_that_are_small_beside_the_whole_with_few_requests(names: list[str]) -> None:
    bucket = Bucket(names, 1000)
    bounds = files.cut_names(lambda *bounds: bucket.first_name("stub://b", *bounds), "", "", 32)
    sizes = Counter(bisect.bisect_right(bounds, name) for name in names)
    assert len(bounds) >= 31
    assert bucket.num_probes <= 32 * 11
    assert max(sizes.values()) < len(names) / 8


def list_everything(bucket: Bucket, recursive: bool, monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], int]:
    """Returns the keys that are found, and the number of ranges and folders that were listed."""
    monkeypatch.setattr(storage, "storage_of", lambda _: bucket)
    source = files.FilesSource("stub://b")
    keys: list[str] = []
    waiting = [source.start()]
    num_listed = 0
    while waiting:
        num_listed += 1
        for found in source.list_directory(waiting.pop(), recursive):
            if isinstance(found, files.Directory):
                waiting.append(found)
            else:
                assert isinstance(found, image_source.Listing)
                assert not found.problems
                keys += [ref.key for ref in elements.unpack_refs(found.packed_refs)] if found.num_refs else []
    return keys, num_listed


@given(st.sets(PATHS, max_size=80), st.integers(1, 4), st.booleans(), st.booleans())
def test_every_object_is_listed_once_however_a_folder_is_cut(
    names: set[str], page_entries: int, early_folders: bool, recursive: bool
) -> None:
    names = {name for name in names if not any(other.startswith(f"{name}/") for other in names)}
    names = {f"{name}.jpg" for name in names if not any(part.startswith(".") for part in name.split("/"))}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "_PAGES_AND_RANGES", ((1, 3), (1, 4)))
        keys, _ = list_everything(Bucket(sorted(names), page_entries, early_folders), recursive, patch)
    assert sorted(keys) == sorted(names)


@pytest.mark.parametrize("recursive", [False, True])
def test_objects_behind_two_slashes_are_a_problem(recursive: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["//1.jpg", "a//2.jpg", "a//b/3.jpg", "a/4.jpg", "c/a///5.jpg"]
    monkeypatch.setattr(storage, "storage_of", lambda _: Bucket(names, 2))
    source = files.FilesSource("stub://b")
    waiting, problems, keys = [source.start()], [], []
    while waiting:
        for found in source.list_directory(waiting.pop(), recursive):
            if isinstance(found, files.Directory):
                waiting.append(found)
            else:
                problems += found.problems
                keys += [ref.key for ref in elements.unpack_refs(found.packed_refs)] if found.num_refs else []
    assert keys == ["a/4.jpg"]
    assert sorted(problem.split(": ")[0] for problem in problems) == [
        "folder stub://b//", "folder stub://b/a//", "folder stub://b/c/a//"
    ]  # fmt: skip


def test_flat_folder_is_cut_into_ranges_and_a_small_one_costs_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    large = Bucket([f"flat/{index:07d}.jpg" for index in range(30_000)], 100)
    keys, num_listed = list_everything(large, False, monkeypatch)
    assert len(keys) == len(set(keys)) == 30_000
    assert num_listed > 10
    assert large.num_pages + large.num_probes < 300 + 200
    small = Bucket([f"flat/{index:07d}.jpg" for index in range(100)], 100)
    assert len(list_everything(small, False, monkeypatch)[0]) == 100
    assert (small.num_pages, small.num_probes) == (2, 0)  # the root, and the folder


def test_objects_created_during_the_listing_hide_and_repeat_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_PAGES_AND_RANGES", ((1, 4),))
    bucket = Bucket([f"{index:04d}.jpg" for index in range(0, 2000, 2)], 20)
    created = iter(range(1, 2000, 2))
    ask = bucket.first_name

    def create_and_ask(uri: str, start: str, end: str) -> str | None:
        bucket.names = sorted([*bucket.names, *(f"{next(created):04d}.jpg" for _ in range(3))])
        return ask(uri, start, end)

    monkeypatch.setattr(bucket, "first_name", create_and_ask)
    keys, _ = list_everything(bucket, False, monkeypatch)
    assert len(keys) == len(set(keys))
    assert {f"{index:04d}.jpg" for index in range(0, 2000, 2)} <= set(keys)
