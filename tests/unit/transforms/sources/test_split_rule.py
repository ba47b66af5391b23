from __future__ import annotations

import collections

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagebeam.transforms.elements import ImageRef
from imagebeam.transforms.sources.reference_rules import SplitRule

EIGHTY_TWENTY = (("train", 0.8), ("test", 0.2))
THREE = (("train", 0.7), ("validation", 0.2), ("test", 0.1))

HELD_OUT = SplitRule(
    "source",
    holdout=(("validation", "train", 1000),),
    rename=(("t10k", "test"),),
    declared=("train", "test", "validation"),
)

names = st.text(st.characters(exclude_categories=()), min_size=1)
fractions = st.lists(st.integers(1, 20), min_size=2, max_size=4).map(
    lambda shares: tuple((f"split{index}", share / sum(shares)) for index, share in enumerate(shares))
)


def ref(key: str, **fields: object) -> ImageRef:
    return ImageRef(key, f"/data/{key}", **fields)


@pytest.mark.parametrize(
    ("rule", "image", "expected"),
    [
        pytest.param(SplitRule("none"), ref("1.jpg"), "train", id="none"),
        pytest.param(SplitRule("none", name="all"), ref("1.jpg"), "all", id="none-named"),
        pytest.param(SplitRule("directory"), ref("test/cat/1.jpg"), "test", id="directory"),
        pytest.param(SplitRule("column"), ref("1.jpg", split="test"), "test", id="column"),
        pytest.param(
            SplitRule("directory", rename=(("val", "validation"),)), ref("val/1.jpg"), "validation", id="renamed"
        ),
        pytest.param(SplitRule("column", rename=(("", "rest"),)), ref("1.jpg"), "rest", id="nothing-renamed"),
        pytest.param(
            SplitRule("directory", rename=(("val", "dev"),), declared=("train", "dev")), ref("val/1.jpg"), "dev",
            id="declared-under-its-new-name",
        ),
        pytest.param(SplitRule("source"), ref("train/00000", split="train"), "train", id="source"),
        pytest.param(
            SplitRule("source", rename=(("t10k", "test"),), declared=("train", "test")), ref("1", split="t10k"), "test",
            id="source-renamed",
        ),
        pytest.param(HELD_OUT, ref("train/00999", split="train", position=999), "validation", id="held-out-last"),
        pytest.param(HELD_OUT, ref("train/01000", split="train", position=1000), "train", id="held-out-no-more"),
        pytest.param(HELD_OUT, ref("test/00000", split="t10k"), "test", id="held-out-from-another"),
        pytest.param(SplitRule("hash", fractions=EIGHTY_TWENTY), ref("cat/1.jpg"), "train", id="hash"),
        pytest.param(SplitRule("hash", fractions=EIGHTY_TWENTY), ref("cat/3.jpg"), "test", id="hash-of-another"),
        pytest.param(SplitRule("hash", fractions=EIGHTY_TWENTY, seed=5), ref("cat/3.jpg"), "train", id="other-seed"),
    ],
)  # fmt: skip
def test_apply_gives_the_split_and_changes_nothing_else(rule: SplitRule, image: ImageRef, expected: str) -> None:
    assert rule.apply(image) == image._replace(split=expected)


@pytest.mark.parametrize(
    ("rule", "image", "message"),
    [
        pytest.param(
            SplitRule("directory"),
            ref("1.jpg"),
            r"^'1\.jpg' is in no folder; expected split/image or split/label/image$",
            id="no-folder",
        ),
        pytest.param(
            SplitRule("directory"),
            ref("my data/1.jpg"),
            r"^split 'my data' must consist of letters, digits, '_', '\.' and '-'; set split\.rename$",
            id="bad-name",
        ),
        pytest.param(SplitRule("column"), ref("1.jpg"), r"^split '' must consist of letters", id="empty-column"),
        pytest.param(
            SplitRule("column"), ref("1.jpg", split="\u0664"), r"must consist of letters", id="digit-elsewhere"
        ),
        pytest.param(
            HELD_OUT,
            ref("1", split="extra"),
            r"^split 'extra' is not among the declared ones, train, test, validation$",
            id="source-not-declared",
        ),
        pytest.param(
            SplitRule("column", declared=("train", "test")),
            ref("1.jpg", split="dev"),
            r"^split 'dev' is not among the declared ones, train, test$",
            id="not-declared",
        ),
    ],
)
def test_apply_without_usable_split_says_why(rule: SplitRule, image: ImageRef, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rule.apply(image)


@given(fractions, st.integers(1, 3000))
def test_at_gives_each_split_its_fraction_rounded(shares: tuple[tuple[str, float], ...], total: int) -> None:
    rule = SplitRule("hash", fractions=shares)
    counts = collections.Counter(rule.at(position, total) for position in range(total))
    reached, before = 0.0, 0
    for name, share in shares[:-1]:
        reached += share
        assert counts[name] == round(reached * total) - before
        before = round(reached * total)
    assert counts[shares[-1][0]] == total - before  # no position is lost to the error of a sum of floats


@given(fractions)
def test_of_hash_of_the_outermost_hashes_is_the_first_and_the_last_split(shares: tuple[tuple[str, float], ...]) -> None:
    rule = SplitRule("hash", fractions=shares)
    assert (rule.of_hash(0), rule.of_hash(2**64 - 1)) == (shares[0][0], shares[-1][0])


@given(names, st.integers(-(2**63), 2**63 - 1), st.floats(0.01, 0.98), st.floats(0, 1))
def test_apply_with_a_larger_training_fraction_takes_no_image_out_of_training(
    key: str, seed: int, fraction: float, more: float
) -> None:
    larger = fraction + (0.99 - fraction) * more
    small = SplitRule("hash", fractions=(("train", fraction), ("test", 1 - fraction)), seed=seed).apply(ref(key))
    large = SplitRule("hash", fractions=(("train", larger), ("test", 1 - larger)), seed=seed).apply(ref(key))
    assert large.split == "train" or small.split == "test"


def test_apply_by_hash_of_many_images_comes_near_the_fractions() -> None:
    rule = SplitRule("hash", fractions=THREE)
    counts = collections.Counter(rule.apply(ref(f"cat/{index}.jpg")).split for index in range(10_000))
    assert {name: round(count / 10_000, 2) for name, count in counts.items()} == dict(THREE)


@given(st.lists(names, min_size=2, max_size=20), names, fractions)
def test_apply_by_group_keeps_the_whole_group_together(
    keys: list[str], group: str, shares: tuple[tuple[str, float], ...]
) -> None:
    rule = SplitRule("hash", fractions=shares, grouped=True)
    assert len({rule.apply(ref(key, group=group)).split for key in keys}) == 1


def test_apply_by_group_to_images_without_one_splits_each_by_its_key() -> None:
    grouped, alone = SplitRule("hash", fractions=THREE, grouped=True), SplitRule("hash", fractions=THREE)
    refs = [ref(f"{index}.jpg") for index in range(100)]
    assert [grouped.apply(each) for each in refs] == [alone.apply(each) for each in refs]


@given(st.sets(names, min_size=1), st.sets(names), fractions)
def test_split_of_an_image_never_changes_when_others_are_added(
    first: set[str], more: set[str], shares: tuple[tuple[str, float], ...]
) -> None:
    rule = SplitRule("hash", fractions=shares)
    before = {key: rule.apply(ref(key)).split for key in first}
    after = {key: rule.apply(ref(key)).split for key in first | more}
    assert before.items() <= after.items()


def test_rows_go_to_splits_by_their_number() -> None:
    rule = SplitRule("index", counts=(("train", 3), ("test", None)))
    assert [rule.apply(ref("1.jpg", position=row)).split for row in range(5)] == ["train"] * 3 + ["test"] * 2


def test_row_after_all_counts_is_told_how_to_be_taken() -> None:
    rule = SplitRule("index", counts=(("train", 3), ("test", 1)))
    assert rule.apply(ref("1.jpg", position=3)).split == "test"
    with pytest.raises(ValueError, match=r"row 4 comes after the 4 that split\.counts names; give the last split null"):
        rule.apply(ref("1.jpg", position=4))


@pytest.mark.parametrize("by", ["source", "column", "index"])
def test_first_rows_of_a_split_are_held_out(by: str) -> None:
    counts = (("train", None),) if by == "index" else ()
    rule = SplitRule(by, counts=counts, holdout=(("validation", "train", 2),))
    found = [rule.apply(ref("1.jpg", position=row, split="train")).split for row in range(4)]
    assert found == ["validation", "validation", "train", "train"]
    if by != "index":
        assert rule.apply(ref("1.jpg", position=0, split="test")).split == "test"
