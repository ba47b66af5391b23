"""Rows that wait for others of their interval."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from imagebeam.transforms import drop_duplicates, elements, step
from imagebeam.transforms.updates import compare_with_snapshot

REFS = [elements.ImageRef(f"{number}.jpg", f"/in/{number}.jpg", 9, number) for number in range(40)]


def blocks_of(fn: step.SpreadRowsFn, batch_refs: int) -> Iterator[tuple[int, Any]]:
    """Yields what a bundle of the references becomes, in batches of `batch_refs`."""
    fn.start_bundle()
    for start in range(0, len(REFS), batch_refs):
        yield from fn.process(step.RefBatch(REFS[start : start + batch_refs]))
    yield from (each.value for each in fn.finish_bundle())


@pytest.mark.parametrize(
    ("make_fn", "has_count"),
    [
        pytest.param(drop_duplicates._SpreadFn, False, id="drop-duplicates"),
        pytest.param(lambda: compare_with_snapshot._SpreadListedFn(False, by_content=False), True, id="compare"),
    ],
)
@pytest.mark.parametrize(
    ("max_pending", "batch_refs"),
    [
        pytest.param(1, 7, id="each-batch"),
        pytest.param(10, 4, id="some-batches"),
        pytest.param(1000, 7, id="at-the-end-of-the-bundle"),
    ],
)
def test_rows_are_in_the_block_of_their_key_once(
    make_fn: Callable[[], step.SpreadRowsFn],
    has_count: bool,
    max_pending: int,
    batch_refs: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(step, "MAX_PENDING", max_pending)
    found, intervals = [], []
    for interval, block in blocks_of(make_fn(), batch_refs):
        count, packed = block if has_count else (None, block)
        rows = list(elements.unpack_rows(packed))
        assert count in (None, len(rows))
        assert {step.interval_of_key(row[0]) for row in rows} == {interval}
        found += [row[0] for row in rows]
        intervals.append(interval)
    assert sorted(found) == sorted(ref.key for ref in REFS)
    if max_pending > len(REFS):
        assert len(intervals) == len(set(intervals))
