from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from imagebeam.transforms import sort_intervals
from imagebeam.transforms.elements import ImageRef
from imagebeam.transforms.sort_intervals import ListedOrder


def ref(key: str, position: int = 0, **fields: object) -> ImageRef:
    return ImageRef(key, f"/data/{key}", size=100, position=position, **fields)


def test_listed_order_ranks_by_row_and_then_by_key() -> None:
    refs = [ref("b", 0), ref("a", 1), ref("c", 0), ref("a\udcff", 1)]
    order = ListedOrder()
    assert [each.key for each in sorted(refs, key=lambda each: order.values([each]))] == ["b", "c", "a", "a\udcff"]


@given(st.lists(st.tuples(st.integers(0, 2**63 - 1), st.tuples(st.integers(0, 9), st.binary(max_size=2)))))
def test_listed_order_puts_the_chosen_values_into_existing_intervals_in_order(
    chosen: list[tuple[int, tuple[int, bytes]]],
) -> None:
    order = ListedOrder()
    boundaries = order.boundaries(chosen)
    intervals = order.intervals(sorted(value for _, value in chosen), boundaries)
    assert intervals == sorted(intervals)
    assert all(0 <= interval < sort_intervals.NUM_INTERVALS for interval in intervals)


def test_listed_order_spreads_any_number_of_chosen_values_evenly() -> None:
    for num_chosen in [0, 1, 2, 1023, 1024, 1025, 5000, 16_384]:
        order = ListedOrder()
        boundaries = order.boundaries([(0, (row, b"")) for row in range(num_chosen)])
        intervals = order.intervals([(row, b"") for row in range(num_chosen)], boundaries)
        most = max(map(intervals.count, set(intervals)), default=0)
        assert most == -(-num_chosen // sort_intervals.NUM_INTERVALS)
        assert max(intervals, default=0) < sort_intervals.NUM_INTERVALS
