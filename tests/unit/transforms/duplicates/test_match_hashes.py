from __future__ import annotations

import functools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imagebeam.transforms.duplicates import find_duplicates
from imagebeam.transforms.shard import image_hashes

DISTANCES = range(image_hashes.MAX_DISTANCE + 1)


@functools.cache
def clusters(seed: int, num_centers: int, num_around: int) -> tuple[int, ...]:
    """Returns hashes in crowds: centers, and hashes around each that differ from it in up to 8 bits."""
    rng = random.Random(seed)
    hashes = set()
    for center in (rng.getrandbits(64) for _ in range(num_centers)):
        hashes.add(center)
        for _ in range(num_around):
            hashes.add(center ^ sum(1 << bit for bit in rng.sample(range(64), rng.randint(1, 8))))
    return tuple(hashes)


def find_all(ranked: np.ndarray, distance: int) -> dict[int, int]:
    """Returns the first near hash of each hash that has one before it, by the tables."""
    matches = [find_duplicates.find_firsts(ranked, mask, distance) for mask in find_duplicates.masks_of(distance)]
    found = find_duplicates.first_of_each(np.concatenate([*matches, np.empty(0, find_duplicates.MATCH)]))
    return dict(zip(found["hash"].tolist(), found["first"].tolist()))


def find_plainly(hashes: list[int], distance: int) -> dict[int, int]:
    """Returns the same by comparing all pairs; `hashes` are in the order of their ranks."""
    found = {}
    for index, one in enumerate(hashes):
        first = next((other for other in hashes[:index] if (one ^ other).bit_count() <= distance), None)
        if first is not None:
            found[one] = first
    return found


def ranked(hashes: list[int]) -> np.ndarray:
    return np.array([(value, rank) for rank, value in enumerate(hashes)], dtype=find_duplicates.RANKED)


@settings(max_examples=40)
@given(st.integers(0, 5), st.sampled_from(DISTANCES), st.randoms(use_true_random=False))
def test_tables_find_what_comparing_all_pairs_finds(seed: int, distance: int, rng: random.Random) -> None:
    hashes = list(clusters(seed, 12, 8))
    rng.shuffle(hashes)
    rows = ranked(hashes)
    rng.shuffle(order := list(range(len(rows))))
    expected = find_plainly(hashes, distance) if distance else {}
    assert find_all(rows[order], distance) == expected


def test_crowd_larger_than_a_short_run_finds_the_same_firsts() -> None:
    for distance in [2, 4, 6]:
        hashes = sorted(clusters(0, 2, 400), key=lambda value: value % 1009)
        assert find_all(ranked(hashes), distance) == find_plainly(hashes, distance)


def test_hashes_that_differ_in_so_many_bits_agree_in_a_table() -> None:
    for distance in DISTANCES[1:]:
        masks = find_duplicates.masks_of(distance)
        assert len(set(masks)) == len(masks)
        assert all(mask.bit_count() >= 16 for mask in masks)
        rng = random.Random(distance)
        for _ in range(200):
            differing = sum(1 << bit for bit in rng.sample(range(64), distance))
            assert any(not differing & mask for mask in masks)


def test_part_of_a_table_depends_on_the_key_alone() -> None:
    mask = find_duplicates.masks_of(4)[3]
    hashes = np.array(clusters(1, 500, 1), dtype=np.uint64)
    parts = find_duplicates.parts_of(hashes, mask, 64)
    assert set(parts.tolist()) == set(range(64))
    others = hashes ^ np.uint64(~mask & (1 << 64) - 1)
    assert (find_duplicates.parts_of(others, mask, 64) == parts).all()


def test_bits_are_counted_without_numpys_function(monkeypatch: pytest.MonkeyPatch) -> None:
    hashes = list(clusters(2, 5, 8))
    expected = find_all(ranked(hashes), 4)
    monkeypatch.delattr(np, "bitwise_count", raising=False)
    assert find_all(ranked(hashes), 4) == expected
