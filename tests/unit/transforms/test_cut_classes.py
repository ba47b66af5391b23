from __future__ import annotations

import bisect
import itertools
import random
from collections.abc import Mapping, Sequence

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
from imagebeam.transforms.stratify_splits import CutClasses, Division
from tests.unit.transforms.small_batches import in_keyed_batches

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


# Of 500 or 300 references each pair of two settings; of one or none the two ends.
@pytest.mark.parametrize(
    ("num_refs", "num_classes", "num_intervals", "max_part_refs", "is_grouped"),
    [
        (0, 1, 1, 1000, False),
        (0, 1, 7, 3, True),
        (1, 1, 1, 40, True),
        (1, 1, 1024, 1000, False),
        (500, 1, 1, 1000, True),
        (500, 1, 1, 40, False),
        (500, 1, 7, 3, False),
        (500, 1, 7, 3, True),
        (500, 1, 1024, 1000, True),
        (500, 40, 1, 1000, False),
        (500, 40, 1, 40, True),
        (500, 40, 7, 3, True),
        (500, 40, 1024, 1000, False),
        (300, 300, 1, 1000, True),
        (300, 300, 1, 40, False),
        (300, 300, 7, 3, False),
        (300, 300, 1024, 1000, True),
    ],
)
def test_cut_classes_splits_like_a_plain_sort_of_each_class(
    monkeypatch: pytest.MonkeyPatch,
    num_refs: int,
    num_classes: int,
    num_intervals: int,
    max_part_refs: int,
    is_grouped: bool,
) -> None:
    monkeypatch.setattr(sort_intervals, "_MAX_PART_REFS", max_part_refs)
    monkeypatch.setattr(sort_intervals, "NUM_INTERVALS", num_intervals)
    monkeypatch.setattr(step, "MAX_PENDING", 30)
    order = HashOrder(1, b"imagebeam.split", "group" if is_grouped else "key")
    rng = random.Random(num_refs)
    refs = []
    for index in range(num_refs):
        name = index % num_classes  # a group is of one class
        group = f"{name}-{rng.randrange(9)}" if index % 10 else ""
        refs.append((ascii(f"class {name}\udcff"), ImageRef(f"{index}\udcff.jpg", f"/data/{index}.jpg", group=group)))
    expected = split_plainly(refs, order, is_grouped)
    rng.shuffle(refs)

    def check(found: Sequence[ImageRef]) -> None:
        assert sorted(ref._replace(split="") for ref in found) == sorted(ref for _, ref in refs)
        assert {ref.key: ref.split for ref in found} == expected

    with test_pipeline.TestPipeline(runner=fn_api_runner.FnApiRunner()) as pipeline:
        created = pipeline | beam.Create(in_keyed_batches(refs)).with_output_types(rank_references.KeyedRefs)
        assert_that(created | CutClasses(order, divide_by_thirds, is_grouped) | beam.FlatMap(list), check)


def test_no_step_yields_an_element_for_each_class_and_interval() -> None:
    rows = [(f"{index:05d}", 0, *ImageRef(f"{index}.jpg", "")) for index in range(3000)]
    packed = [(100, elements.pack_rows(rows[start : start + 100])) for start in range(0, 3000, 100)]
    found = list(stratify_splits._count((3, packed)))
    assert len(found) == 16
    assert sum(len(stratify_splits._add_up([counts])) for _, counts in found) == 3000
