from __future__ import annotations

import collections
import fractions as fractions_lib
from collections.abc import Mapping

from hypothesis import example, given, settings
from hypothesis import strategies as st

from imagebeam.transforms import stratify_splits

Sizes = Mapping[str, int]

sizes_of_classes = st.dictionaries(st.text(max_size=3), st.integers(1, 5) | st.integers(1, 2000), min_size=1)
weights = st.lists(st.integers(1, 100), min_size=2, max_size=6)
HARD = {f"{index:02}": size for index, size in enumerate([5, 9, 3, 17, 8, 2, 26, 11, 14, 6, 9, 31, 4, 4, 21] * 3)}


def totals(counts: Mapping[str, tuple[int, ...]]) -> list[int]:
    return [sum(column) for column in zip(*counts.values())]


@settings(max_examples=400, deadline=None)
@given(sizes_of_classes, weights)
@example(HARD, [5, 21, 5, 18, 21, 5])
@example(HARD, [26, 63, 26, 98, 98, 1])
def test_every_class_and_every_split_comes_within_one_image_of_its_share(sizes: Sizes, parts: list[int]) -> None:
    counts = stratify_splits.share_out(sizes, [part / sum(parts) for part in parts])
    exact = [fractions_lib.Fraction(part, sum(parts)) for part in parts]
    assert counts.keys() == sizes.keys()
    for name, row in counts.items():
        assert sum(row) == sizes[name]
        assert all(abs(count - sizes[name] * share) < 1 + 1e-9 and count >= 0 for count, share in zip(row, exact))
    whole = sum(sizes.values())
    assert all(abs(total - whole * share) < 1 + 1e-9 for total, share in zip(totals(counts), exact))


@settings(deadline=None)
@given(sizes_of_classes, weights)
def test_order_of_the_classes_does_not_count(sizes: Sizes, parts: list[int]) -> None:
    fractions = [part / sum(parts) for part in parts]
    assert stratify_splits.share_out(dict(reversed(sizes.items())), fractions) == stratify_splits.share_out(
        sizes, fractions
    )


def test_many_small_classes_give_each_split_its_share() -> None:
    for fractions, expected in [
        ([0.85, 0.15], [340, 60]),  # two
        ([0.8, 0.1, 0.1], [320, 40, 40]),  # three
        ([0.7, 0.1, 0.1, 0.1], [280, 40, 40, 40]),  # four
    ]:
        counts = stratify_splits.share_out({f"{index:03}": 4 for index in range(100)}, fractions)
        assert totals(counts) == expected
        assert len(collections.Counter(counts.values())) > 1  # not every class is rounded alike


def test_split_that_is_owed_a_whole_image_gets_it_by_way_of_another() -> None:
    for sign in [1, -1]:
        exact = [[15, 15, 10], [20, 15, 15]]  # in tenths: no class has the first and the last split rounded
        counts = [[1, 2, 1], [2, 1, 2]] if sign > 0 else [[2, 1, 1], [2, 2, 1]]
        owed = [sign * 11, sign * 4, sign * -15]
        stratify_splits._settle(counts, exact, owed, 10)
        assert owed == [sign * 1, sign * 4, sign * -5]
        assert counts == ([[2, 1, 1], [2, 2, 1]] if sign > 0 else [[1, 2, 1], [2, 1, 2]])
