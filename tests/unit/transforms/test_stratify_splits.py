from __future__ import annotations

import bisect
import collections
import itertools
import random
from collections.abc import Callable, Iterable, Mapping, Sequence

import apache_beam as beam
import pytest
from apache_beam.runners.portability import fn_api_runner
from apache_beam.testing import test_pipeline
from apache_beam.testing.util import assert_that
from hypothesis import given
from hypothesis import strategies as st

from imagebeam.transforms import elements, rank_references, sort_intervals, step, stratify_splits
from imagebeam.transforms.elements import ImageRef
from imagebeam.transforms.sort_intervals import HashOrder
from imagebeam.transforms.sources.reference_rules import SplitRule
from imagebeam.transforms.stratify_splits import CutClasses, Division
from tests.unit.transforms.small_batches import create, in_batches, in_keyed_batches

EIGHTY_TWENTY = (("train", 0.8), ("test", 0.2))
THREE = (("train", 0.7), ("validation", 0.2), ("test", 0.1))

fractions = st.lists(st.integers(1, 20), min_size=2, max_size=4).map(
    lambda shares: tuple((f"split{index}", share / sum(shares)) for index, share in enumerate(shares))
)


def ref(key: str, **fields: object) -> ImageRef:
    return ImageRef(key, f"/data/{key}", **fields)


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


# ---- cut classes


COUNTS = st.dictionaries(st.integers(0, 20), st.integers(1, 5), min_size=1, max_size=8).map(
    lambda by: sorted(by.items())
)


@given(COUNTS, st.lists(st.integers(0, 45), max_size=4).map(sorted))
def test_cuts_give_each_image_the_split_of_its_rank(counts: list[tuple[int, int]], starts: list[int]) -> None:
    division = Division(tuple(starts), tuple(f"split{index}" for index in range(len(starts) + 1)))
    cuts = stratify_splits.find_cuts(list(itertools.chain.from_iterable(counts)), division)
    places = [(interval, offset) for interval, count in counts for offset in range(count)]
    expected = [division.splits[bisect.bisect_right(starts, rank)] for rank in range(len(places))]
    assert [cuts.split_in(interval)(offset) for interval, offset in places] == expected


def divide_by_thirds(sizes: Mapping[str, int]) -> dict[str, Division]:
    return {name: Division((size // 3, 2 * size // 3), ("a", "b", "c")) for name, size in sizes.items()}


def split_plainly(refs: Sequence[tuple[str, ImageRef]], order: HashOrder, is_grouped: bool) -> dict[str, str]:
    """Returns the split of each key, from a plain sort of each class."""
    classes: dict[str, list[ImageRef]] = {}
    for name, ref in sorted(refs, key=lambda keyed: (*order.values([keyed[1]]), keyed[1].key)):
        classes.setdefault(name, []).append(ref)
    splits: dict[str, str] = {}
    divisions = divide_by_thirds({name: len(members) for name, members in classes.items()})
    for name, members in classes.items():
        of_group: dict[str, str] = {}
        for rank, ref in enumerate(members):
            split = divisions[name].splits[bisect.bisect_right(divisions[name].starts, rank)]
            unit = ref.group if is_grouped and ref.group else ref.key
            splits[ref.key] = of_group.setdefault(unit, split)
    return splits


def in_classes() -> list[tuple[str, ImageRef]]:
    """Returns 500 references of a class of many images, of some of a few, and of many of one."""
    rng, refs = random.Random(0), []
    for index, name in enumerate([*[0] * 200, *[*range(1, 21)] * 10, *range(21, 121)]):
        group = f"{name}-{rng.randrange(9)}" if index % 10 else ""  # a group is of one class
        refs.append((ascii(f"class {name}\udcff"), ImageRef(f"{index}\udcff.jpg", f"/data/{index}.jpg", group=group)))
    return refs


def are(expected: Sequence[ImageRef]) -> Callable[[Sequence[ImageRef]], None]:
    def check(found: Sequence[ImageRef]) -> None:
        assert sorted(found) == sorted(expected)

    return check


def test_cut_classes_splits_like_a_plain_sort_of_each_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "MAX_PENDING", 30)
    for num_refs, num_intervals, max_part_refs in [
        (0, 7, 3),
        (1, 1024, 40),
        (500, 1, 1000),
        (500, 1, 40),
        (500, 7, 3),
        (500, 1024, 1000),
    ]:
        monkeypatch.setattr(sort_intervals, "_MAX_PART_REFS", max_part_refs)
        monkeypatch.setattr(sort_intervals, "NUM_INTERVALS", num_intervals)
        refs = random.Random(num_refs).sample(in_classes(), num_refs)
        with test_pipeline.TestPipeline(runner=fn_api_runner.FnApiRunner()) as pipeline:
            created = pipeline | beam.Create(in_keyed_batches(refs)).with_output_types(rank_references.KeyedRefs)
            for field in ("key", "group"):
                order = HashOrder(1, b"imagebeam.split", field)
                splits = split_plainly(refs, order, field == "group")
                cut = created | f"Cut{field}" >> CutClasses(order, divide_by_thirds, field == "group")
                expected = [each._replace(split=splits[each.key]) for _, each in refs]
                assert_that(cut | f"Flatten{field}" >> beam.FlatMap(list), are(expected), label=f"Check{field}")


def test_no_step_yields_an_element_for_each_class_and_interval() -> None:
    rows = [(f"{index:05d}", 0, *ImageRef(f"{index}.jpg", "")) for index in range(3000)]
    packed = [(100, elements.pack_rows(rows[start : start + 100])) for start in range(0, 3000, 100)]
    found = list(stratify_splits._count((3, packed)))
    assert len(found) == 16
    assert sum(len(stratify_splits._add_up([counts])) for _, counts in found) == 3000
