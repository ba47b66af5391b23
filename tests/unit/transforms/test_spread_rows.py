"""Rows that wait for others of their interval."""

from __future__ import annotations

from collections.abc import Iterator
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


def test_rows_are_in_the_block_of_their_key_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for make_fn, has_count in [
        (drop_duplicates._SpreadFn, False),  # drop-duplicates
        (lambda: compare_with_snapshot._SpreadListedFn(False, by_content=False), True),  # compare
    ]:
        for max_pending, batch_refs in [
            (1, 7),  # each-batch
            (10, 4),  # some-batches
            (1000, 7),  # at-the-end-of-the-bundle
        ]:
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
