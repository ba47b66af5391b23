from __future__ import annotations

import pytest

from imagebeam.transforms.html_report import label_section


@pytest.mark.parametrize(
    ("counts", "ratio", "median", "effective"),
    [
        pytest.param([7], 1, 7, 1, id="one"),
        pytest.param([5, 5, 5, 5], 1, 5, 4, id="equal"),
        pytest.param([1, 3], 3, 2, 1.7548, id="two"),
        pytest.param([1, 10**9], 10**9, 500_000_000.5, 1, id="all-but-one"),
    ],
)
def test_balance_of_counts(counts: list[int], ratio: float, median: float, effective: float) -> None:
    balance = label_section.balance_of(counts)
    assert (balance.ratio, balance.median) == (ratio, median)
    assert balance.effective == pytest.approx(effective, rel=1e-4)


def test_few_classes_are_all_listed_the_most_frequent_first() -> None:
    page = label_section.label_section({"train": {"cat": 2, "dog": 30}, "test": {"dog": 1}}, ["cat", "dog", "emu"])
    assert page.index("<bdi>dog") < page.index("<bdi>cat")
    assert "15.5 : 1" in page and "very unequal" in page
    assert "1 class without an image: <bdi>emu</bdi>" in page
    assert ">train</th>" in page and ">test</th>" in page and "<svg class=curve" not in page


@pytest.mark.parametrize("count", [41, 1_000, 22_000])
def test_many_classes_are_shown_by_a_curve_and_both_ends(count: int) -> None:
    counts = {f"class {index:05d}": count - index for index in range(count)}
    page = label_section.label_section({"train": counts}, list(counts))
    assert len(page) < 40_000
    assert page.count("<tr><th") - 2 == 30 and 'class="curve"' in page
    assert f"{count - 30:,} classes between them" in page
    assert "class 00000<" in page and f"class {count - 1:05d}<" in page and "class 00020<" not in page


def test_dataset_without_classes_has_no_section() -> None:
    assert label_section.label_section({}, []) == label_section.label_section({"train": {"a": 0}}, ["a"]) == ""
