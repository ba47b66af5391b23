from __future__ import annotations

import bisect
import collections
import random
from collections.abc import Callable, Iterable, Sequence

import apache_beam as beam
from apache_beam.runners.portability import fn_api_runner
from apache_beam.testing import test_pipeline
from apache_beam.testing.util import assert_that
from hypothesis import given
from hypothesis import strategies as st

from imagebeam.transforms import stratify_splits
from imagebeam.transforms.elements import ImageRef
from imagebeam.transforms.sources.reference_rules import SplitRule
from tests.unit.transforms.small_batches import create, in_batches

EIGHTY_TWENTY = (("train", 0.8), ("test", 0.2))
THREE = (("train", 0.7), ("validation", 0.2), ("test", 0.1))

fractions = st.lists(st.integers(1, 20), min_size=2, max_size=4).map(
    lambda shares: tuple((f"split{index}", share / sum(shares)) for index, share in enumerate(shares))
)


def ref(key: str, **fields: object) -> ImageRef:
    return ImageRef(key, f"/data/{key}", **fields)


def test_stratify_splits_passes_references_on_that_have_theirs() -> None:
    batch = [ref("1.jpg", split="train"), ref("2.jpg", split="no split's name")]
    with test_pipeline.TestPipeline(runner=fn_api_runner.FnApiRunner()) as pipeline:
        refs = pipeline | create(batch)
        assert refs | stratify_splits.StratifySplits(SplitRule("directory")) is refs


def test_majority_label_of_group_is_the_most_frequent() -> None:
    for labels, expected in [
        (["cat", "dog", "dog"], "dog"),  # majority
        (["dog", "cat", "cow"], "cat"),  # first-among-equals
        (["caf\udce9"], "caf\udce9"),  # undecodable
    ]:
        assert (
            stratify_splits.majority_label(ref(str(index), label=label) for index, label in enumerate(labels))
            == expected
        )


def assign(rule: SplitRule, refs: Sequence[ImageRef], check: Callable[[dict[str, str]], None]) -> None:
    """Runs the transform, and `check` on the split of each key."""

    def check_images(images: Iterable[ImageRef]) -> None:
        splits = {image.key: image.split for image in images}
        assert sorted(image._replace(split="") for image in images) == sorted(refs)
        check(splits)

    with test_pipeline.TestPipeline(runner=fn_api_runner.FnApiRunner()) as pipeline:
        assigned = pipeline | create(*in_batches(refs)) | stratify_splits.StratifySplits(rule)
        assert_that(assigned | beam.FlatMap(list), check_images)


def test_stratify_splits_gives_each_label_its_fractions_within_one_image() -> None:
    sizes = {"ant": 100, "bee": 15, "caf\udce9": 5, "dog": 2, "eel": 1}
    refs = [ref(f"{name}/{index}.jpg", label=name) for name, size in sizes.items() for index in range(size)]
    random.Random(0).shuffle(refs)

    def check(splits: dict[str, str]) -> None:
        for name, size in sizes.items():
            counts = collections.Counter(splits[f"{name}/{index}.jpg"] for index in range(size))
            assert all(abs(counts[split] - share * size) < 1 + 1e-9 for split, share in THREE)
            assert name != "ant" or counts == {"train": 70, "validation": 20, "test": 10}
        counts = collections.Counter(splits.values())
        assert all(abs(counts[split] - share * 123) < 1 for split, share in THREE)

    assign(SplitRule("hash", fractions=THREE, stratify=True), refs, check)


def test_stratify_splits_of_small_classes_gives_every_split_its_share() -> None:
    refs = [ref(f"{name}/{index}.jpg", label=f"{name:03}") for name in range(100) for index in range(4)]

    def check(splits: dict[str, str]) -> None:
        assert collections.Counter(splits.values()) == {"train": 320, "validation": 40, "test": 40}

    shares = (("train", 0.8), ("validation", 0.1), ("test", 0.1))
    assign(SplitRule("hash", fractions=shares, stratify=True), refs, check)


def test_stratified_classes_of_few_groups_give_every_split_about_its_share() -> None:
    for num_groups in [1, 2, 3]:
        rule = SplitRule("hash", fractions=THREE, stratify=True, grouped=True)
        sizes = {f"{name:04}": 4 * num_groups for name in range(1000)}
        counts: collections.Counter[str] = collections.Counter()
        for division in stratify_splits.divide_classes(rule, sizes).values():
            counts.update(split_of_rank(rule, 4 * group, division) for group in range(num_groups))
        assert all(abs(counts[name] - share * 1000 * num_groups) <= 5 * num_groups for name, share in THREE)


def split_of_rank(rule: SplitRule, position: int, division: stratify_splits.ClassDivision) -> str:
    """Returns the split of an image, or of a group that starts with it, by its rank in its class."""
    if rule.grouped:
        turned = (position << 64) // division.num_images + division.phase
        return rule.of_hash(turned % (1 << 64))
    return rule.fractions[bisect.bisect_right(division.ends, position)][0]


@given(fractions, st.integers(1, 300), st.integers(0, 50), st.booleans())
def test_divide_gives_every_rank_the_split_that_it_has_alone(
    shares: tuple[tuple[str, float], ...], size: int, index: int, grouped: bool
) -> None:
    rule = SplitRule("hash", fractions=shares, stratify=True, grouped=grouped)
    sizes = {f"{name:03}": size if name == index else 1 for name in range(index + 1)}
    division = stratify_splits.divide_classes(rule, sizes)[f"{index:03}"]
    starts, splits = stratify_splits.divide_class(rule, division)
    assert list(starts) == sorted(starts)
    found = [splits[bisect.bisect_right(starts, rank)] for rank in range(size)]
    assert found == [split_of_rank(rule, rank, division) for rank in range(size)]


def test_stratify_splits_by_group_has_no_group_in_two_splits() -> None:
    rng = random.Random(1)
    refs = []
    for index in range(300):
        group = f"patient {rng.randrange(60)}\udcff" if index % 10 else ""
        refs.append(ref(f"{index}\udcff.png", label=rng.choice(["healthy", "ill"]), group=group))
    groups = collections.defaultdict(list)
    for each in refs:
        groups[each.group or each.key].append(each)
    totals = collections.Counter(stratify_splits.majority_label(group) for group in groups.values() for _ in group)

    def check(splits: dict[str, str]) -> None:
        trained: collections.Counter[str] = collections.Counter()
        for group in groups.values():
            (name,) = {splits[each.key] for each in group}
            trained[stratify_splits.majority_label(group)] += len(group) if name == "train" else 0
        largest = max(map(len, groups.values()))
        for name, total in totals.items():  # a group is not cut, so a fraction is met to within one group
            assert abs(trained[name] - 0.8 * total) < largest

    assign(SplitRule("hash", fractions=EIGHTY_TWENTY, stratify=True, grouped=True), refs, check)
