"""The record at each position: permutations, shards in order, and blocks; and the state of a job."""

from __future__ import annotations

import collections
import dataclasses
import json
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagebeam.reader import record_order
from imagebeam.reader.record_order import BlockOrder, Deal, GlobalOrder, JobOrder, ReaderState, ShardOrder
from imagebeam.reader.record_selection import RecordSelection, Share
from tests import case_tables, error_texts
from tests.unit.imagebeam.reader import restarts

OrderOfEpochs = GlobalOrder | BlockOrder | ShardOrder | JobOrder


def share(*runs: tuple[int, int]) -> Share:
    starts, stops = zip(*runs)
    return Share(np.array(starts), np.array(stops), "records")


def select(start: int, stop: int) -> RecordSelection:
    """Returns the selection of a part of a split with one shard."""
    whole = restarts.select_all([stop - start])
    return whole if start == 0 else dataclasses.replace(whole, chosen=np.arange(start, stop), split_size=stop)


def num_positions(records_order: OrderOfEpochs, num_epochs: int) -> int:
    if isinstance(records_order, JobOrder):
        places = num_positions(records_order.order, num_epochs) * records_order.repeats
        return records_order.deal.count(places - records_order.start)
    return num_epochs * len(records_order.selection if isinstance(records_order, GlobalOrder) else records_order.share)


def read_all(records_order: OrderOfEpochs, num_epochs: int = 1) -> list[int]:
    positions = np.arange(num_positions(records_order, num_epochs))
    return records_order.locate(positions)[0].tolist()


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 16, 17, 1000, 65_537])
def test_permute_is_a_permutation(size: int) -> None:
    moved = record_order.permute(np.arange(size), size, record_order.make_key("test", size))
    assert sorted(moved.tolist()) == list(range(size))


def test_permute_with_another_key_is_another_permutation_and_no_neighbours_stay_together() -> None:
    first = record_order.permute(np.arange(10_000), 10_000, record_order.make_key(0))
    second = record_order.permute(np.arange(10_000), 10_000, record_order.make_key(1))
    assert (first == second).mean() < 0.01
    assert (np.abs(np.diff(first)) == 1).mean() < 0.01
    assert abs(np.corrcoef(first, np.arange(10_000))[0, 1]) < 0.05


def test_permutations_of_three_come_out_equally_often() -> None:
    seen = collections.Counter(
        tuple(record_order.permute(np.arange(3), 3, record_order.make_key(seed))) for seed in range(6000)
    )
    assert len(seen) == 6
    assert all(850 < count < 1150 for count in seen.values())


def test_order_is_the_same_in_every_release() -> None:
    """A state saved by one release is resumed by the next."""
    whole = select(0, 10)
    assert read_all(GlobalOrder(whole, seed=0)) == [9, 2, 7, 6, 8, 0, 3, 1, 4, 5]
    assert read_all(BlockOrder(share((0, 10)), 0, block_records=2, window_blocks=2)) == [1, 9, 8, 0, 6, 4, 5, 7, 3, 2]


def test_uniforms_depend_on_record_round_and_key_alone_and_fill_the_unit_interval() -> None:
    records, epochs = np.arange(1000), np.zeros(1000, np.int64)
    numbers = record_order.uniforms(records, epochs, record_order.make_key(0), 5)
    assert numbers.shape == (1000, 5) and numbers.dtype == np.float32
    assert 0 <= numbers.min() < 0.01 and 0.99 < numbers.max() < 1
    assert abs(numbers.mean() - 0.5) < 0.02
    some = record_order.uniforms(records[[5, 900]], epochs[[5, 900]], record_order.make_key(0), 5)
    assert (some == numbers[[5, 900]]).all()
    for other in (
        record_order.uniforms(records, epochs + 1, record_order.make_key(0), 5),
        record_order.uniforms(records, epochs, record_order.make_key(1), 5),
    ):
        assert (other == numbers).mean() < 0.001


@given(
    st.integers(1, 60), st.integers(1, 9), st.integers(1, 7), st.integers(0, 3), st.integers(0, 200), st.integers(1, 3)
)
def test_global_order_over_processes_is_one_order(
    size: int, process_count: int, rows: int, num_epochs: int, start: int, repeats: int
) -> None:
    """The batches of all processes, of `rows` examples each, are one after the other the common order."""
    whole = select(100, 100 + size)
    once = read_all(GlobalOrder(whole, 7), num_epochs)
    common = [record for record in once for _ in range(repeats)]
    start = min(start, len(common))
    deals = [Deal(index, process_count, rows) for index in range(process_count)]
    orders = [JobOrder(GlobalOrder(whole, 7), start, deal, repeats=repeats) for deal in deals]
    parts = [read_all(each, num_epochs) for each in orders]
    dealt = [part[first : first + rows] for first in range(0, len(parts[0]) + 1, rows) for part in parts]
    assert [record for batch in dealt for record in batch] == common[start:]
    for epoch in range(num_epochs):
        assert sorted(once[epoch * size : (epoch + 1) * size]) == list(range(100, 100 + size))


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 30)), min_size=1, max_size=6),
    st.integers(1, 8),
    st.integers(1, 5),
    st.booleans(),
)
def test_block_order_reads_every_record_once_an_epoch(
    runs: list[tuple[int, int]], block_records: int, window_blocks: int, in_sequence: bool
) -> None:
    starts = np.cumsum([gap + (runs[index - 1][1] if index else 0) for index, (gap, _) in enumerate(runs)])
    mine = share(*((int(start), int(start) + size) for start, (_, size) in zip(starts, runs)))
    blocks = BlockOrder(mine, 3, block_records, window_blocks, in_sequence)
    first, second = np.split(np.array(read_all(blocks, 2)), 2)
    expected = sorted(record for start, stop in zip(mine.starts, mine.stops) for record in range(start, stop))
    assert sorted(first.tolist()) == sorted(second.tolist()) == expected
    positions = np.arange(num_positions(blocks, 2))
    assert blocks.locate(positions[5:])[0].tolist() == np.concatenate([first, second])[5:].tolist()


@pytest.mark.parametrize("in_sequence", [False, True])
def test_block_order_is_the_same_whether_the_permutation_of_a_window_is_kept_or_not(
    in_sequence: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for max_kept in (1 << 20, 90, 0):  # records: all windows, the last one alone, none
        monkeypatch.setattr(record_order, "_MAX_KEPT", max_kept)
        blocks = BlockOrder(share((0, 400), (500, 1097)), 5, 10, 10, in_sequence)
        positions = np.arange(3 * len(blocks.share))
        found.append(np.hstack([blocks.locate(each)[0] for each in np.split(positions, [1, 64, 70, 700, 1500])]))
    assert (found[0] == found[1]).all()
    assert (found[0] == found[2]).all()


def test_block_order_mixes_the_records_of_a_window_and_differs_in_the_next_epoch() -> None:
    blocks = BlockOrder(share((0, 1000)), 0, block_records=10, window_blocks=10)
    first, second = np.split(np.array(read_all(blocks, 2)), 2)
    assert (first == second).mean() < 0.02
    window = first[:100]
    assert len({record // 10 for record in window.tolist()}) == 10
    assert (np.diff(window) == 1).mean() < 0.1
    assert len({record // 10 for record in window[:20].tolist()}) >= 7


def test_block_order_in_sequence_reads_each_run_from_front_to_back_but_for_a_window() -> None:
    blocks = BlockOrder(share((0, 100), (100, 200), (200, 300)), 0, 10, window_blocks=3, in_sequence=True)
    read = np.array(read_all(blocks))
    for start in (0, 100, 200):
        places = np.flatnonzero((read >= start) & (read < start + 100))
        of_blocks = (read[places] - start) // 10
        assert (np.maximum.accumulate(of_blocks) - of_blocks).max() <= 1


def test_global_order_that_deals_again_begins_each_time_with_the_first_process() -> None:
    whole = select(0, 7)
    once = [JobOrder(GlobalOrder(whole, 3), deal=Deal(index, 2, rows=2)) for index in range(2)]
    again = [dataclasses.replace(each, turn=len(whole)) for each in once]
    for first, second in zip(once, again):
        size = num_positions(first, 1)
        records, epochs = second.locate(np.arange(3 * size))
        assert records[:size].tolist() == read_all(first)
        assert epochs.tolist() == [0] * size + [1] * size + [2] * size
    sizes = [num_positions(each, 1) for each in again]
    parts = [each.locate(np.arange(size, 2 * size))[0].tolist() for each, size in zip(again, sizes)]
    assert sorted(parts[0] + parts[1]) == list(range(7))


@pytest.mark.parametrize(
    "records_order",
    [
        pytest.param(JobOrder(GlobalOrder(select(0, 997), 5), 0, Deal(1, 3, 4)), id="global"),
        pytest.param(JobOrder(GlobalOrder(select(0, 97), 5), 7, Deal(1, 3, 4), 97 * 3, 3), id="global-repeated"),
        pytest.param(BlockOrder(share((0, 400), (500, 1097)), 5, 7, 4), id="stream"),
        pytest.param(BlockOrder(share((0, 400), (500, 1097)), 5, 7, 4, in_sequence=True), id="stream-in-sequence"),
        pytest.param(ShardOrder(share((0, 400), (500, 1097))), id="shards"),
    ],
)
def test_order_from_any_position_goes_on_as_the_uninterrupted_one(records_order: OrderOfEpochs) -> None:
    """An order finds the record at a position without having located any position before."""
    positions = np.arange(num_positions(records_order, 3))
    records, epochs = records_order.locate(positions)
    for start in np.random.default_rng(0).integers(0, len(positions), 300).tolist():
        fresh = dataclasses.replace(records_order)
        found, found_epochs = fresh.locate(positions[start : start + 50])
        assert (found == records[start : start + 50]).all()
        assert (found_epochs == epochs[start : start + 50]).all()


STATE = ReaderState(
    seed=3,
    epoch=1,
    position=5,
    shuffle="stream",
    process_count=2,
    fingerprint="f",
    selection="train[0:9]",
    block_records=4,
    window_blocks=2,
)


def test_state_of_a_snapshot_survives_and_any_other_has_the_fields_of_earlier_releases() -> None:
    of_snapshot = dataclasses.replace(STATE, snapshot="000002")
    assert ReaderState.from_dict(json.loads(json.dumps(of_snapshot.to_dict()))) == of_snapshot
    assert of_snapshot.to_dict() == {**STATE.to_dict(), "snapshot": "000002"}


def test_state_of_another_snapshot_of_a_mixture_is_refused() -> None:
    mixed = dataclasses.replace(STATE, snapshot="000001 none")
    with error_texts.raises("state-mismatch"):
        mixed.check(dataclasses.replace(mixed, snapshot="000002 none", fingerprint="g"))


DAMAGED_STATES = {
    "no state": None,
    "list": [],
    "text of JSON": json.dumps(STATE.to_dict()),
    "no field": {},
    "without two fields": {name: value for name, value in STATE.to_dict().items() if name not in ("seed", "version")},
    "dict that holds it": {"reader": STATE.to_dict()},
    "unknown field": STATE.to_dict() | {"lanes": 3},
    "unknown field of a later release": STATE.to_dict() | {"lanes": 3, "imagebeam": "99.0.0"},
    "version that is text": STATE.to_dict() | {"version": "1"},
    "number that is no text": STATE.to_dict() | {"map_id": 7},
}
WRONG_VALUES = {
    "seed": ["0", 0.0, False, None],
    "epoch": [-1, 1.5, True, "3", 10**25],
    "position": [-1, 1.5, True, "3", 10**30],
    "shuffle": ["random", 0],
    "process_count": [0, "1", None],
    "block_records": [0, 1.5],
    "num_epochs": [0, "x"],
    "repeats": [True],
    "carried": [-1, "x"],
}


def test_state_that_is_damaged_is_refused() -> None:
    for name, state in DAMAGED_STATES.items():
        with case_tables.named(name), error_texts.raises("state-unreadable"):
            ReaderState.from_dict(cast(Any, state))
    for name, values in WRONG_VALUES.items():
        for value in values:
            with case_tables.named(name, value), error_texts.raises("state-unreadable"):
                ReaderState.from_dict(STATE.to_dict() | {name: value})


def test_state_of_numbers_of_numpy_has_plain_values() -> None:
    numbers = {name: np.int64(value) if isinstance(value, int) else value for name, value in STATE.to_dict().items()}
    state = ReaderState.from_dict(numbers)
    assert state == STATE and json.dumps(state.to_dict()) == json.dumps(STATE.to_dict())
