from __future__ import annotations

import pytest

from imagebeam.transforms.html_report import dataset_facts


def test_balance_of_counts() -> None:
    for counts, ratio, median, effective in [
        ([7], 1, 7, 1),  # one
        ([5, 5, 5, 5], 1, 5, 4),  # equal
        ([1, 3], 3, 2, 1.7548),  # two
        ([1, 10**9], 10**9, 500_000_000.5, 1),  # all-but-one
    ]:
        balance = dataset_facts.balance_of(counts)
        assert (balance.ratio, balance.median) == (ratio, median)
        assert balance.effective == pytest.approx(effective, rel=1e-4)


def test_curve_has_a_bounded_number_of_points_inside_its_box() -> None:
    for count in [2, 199, 200, 22_000]:
        points = dataset_facts.curve(list(range(count, 0, -1)))
        assert len(points) <= 200
        assert all(0 <= x <= 400 and 0 <= y <= 64 for x, y in points)


def test_dataset_without_classes_has_none() -> None:
    assert dataset_facts.describe({}, []) is dataset_facts.describe({"train": {"a": 0}}, ["a"]) is None
