from __future__ import annotations

import collections
import pathlib

import pytest

from imagebeam.transforms import step, summaries
from imagebeam.transforms.elements import Reason, Reject
from imagebeam.transforms.plan import plan_dataset
from imagebeam.transforms.summaries import RepeatedKey, Tally
from tests.unit.transforms import small_dataset


def test_stock_of_rejects_does_not_depend_on_their_order_and_names_the_first_unknown_label() -> None:
    rejects = [Reject(key, f"/{key}", "label", Reason.UNKNOWN_LABEL, "cow") for key in ("b", "a\udcff", "c")]
    rejects.append(Reject("0", "/0", "label", Reason.NO_LABEL, "none"))
    add_up = step.AddUpBundleFn(plan_dataset._Stock)

    def take(*bundles: list[Reject]) -> tuple[Tally, summaries.RejectSummary]:
        stocks = []
        for bundle in bundles:
            add_up.start_bundle()
            for reject in bundle:
                add_up.process(reject)
            stocks += [each.value for each in add_up.finish_bundle()]
        return plan_dataset._merge_stocks(stocks)

    _, summary = together = take(rejects)
    assert take(rejects[2:], [], rejects[1::-1]) == together
    assert (summary.counts, summary.first_unknown_label) == ({"no_label": 1, "unknown_label": 3}, rejects[1])
    assert take(rejects[1:])[1].digest != summary.digest


class Table:
    """A table whose rows can be described, or cannot be read any more."""

    def __init__(self, error: Exception | None = None):
        self._error = error

    def describe_rows(self, positions: tuple[int, ...]) -> list[str]:
        if self._error:
            raise self._error
        return [f"line {position + 2} of m.csv" for position in positions]


def test_describe_repeated_rows_names_the_rows_of_the_first_key_where_they_can_be_read() -> None:
    for table, has_duplicates, rows in [
        (Table(), True, ["line 5 of m.csv", "line 7 of m.csv"]),  # table
        (Table(), False, ()),  # no-repeated-key
        (None, True, ()),  # no-table
        (Table(OSError("gone")), True, ()),  # unreadable
        (Table(ValueError("changed")), True, ()),  # changed
    ]:
        repeated = (RepeatedKey("1", ("/a", "/b"), (3, 5)), RepeatedKey("2", ("/c", "/d"), (7, 9)))
        assert plan_dataset.describe_repeated_rows(table, repeated if has_duplicates else ()) == rows


@pytest.mark.parametrize("run_id", ["f00d", ""], ids=["launched", "from-a-template"])
def test_plan_names_its_run_or_a_new_one_each_time(tmp_path: pathlib.Path, run_id: str) -> None:
    settings = small_dataset.make_settings(tmp_path / "out", run_id=run_id)
    plan_fn, stock = plan_dataset._PlanFn(settings, None), plan_dataset._Stock()
    stock.add(Tally(3, {}, ()))
    counts, num_bytes = {"train": collections.Counter({7: 3})}, collections.Counter(train=3000)
    rankings = summaries.PartialRanking(counts, num_bytes, {"train": set()}, digest=1)
    plans = []
    for _ in range(2):
        plan, ranking = plan_fn.process(b"", [rankings], [stock], [])
        assert ranking.value == rankings.result()
        plans.append(plan)
    ids = {plan.run_id for plan in plans}
    assert ids == {"f00d"} if run_id else len(ids) == 2 and all(len(each) == 16 for each in ids)
