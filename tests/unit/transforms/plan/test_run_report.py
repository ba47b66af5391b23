from __future__ import annotations

import json
import pathlib

import pytest

from imagebeam.transforms import summaries
from imagebeam.transforms.dataset_settings import Sizing
from imagebeam.transforms.plan import decide_plan, run_report
from tests.unit.transforms import small_dataset


def test_report_holds_the_plan(tmp_path: pathlib.Path) -> None:
    settings = small_dataset.make_settings(tmp_path / "out", sizing=Sizing(num_shards=5))
    ranking = small_dataset.make_ranking({"train": 10, "test": 3}, labels=("caf\udce9", "train"))
    plan = decide_plan.make_plan(settings, ranking, summaries.Tally(13, {}, ()), summaries.RejectSummary({}, 0, None))
    assert plan.notes
    fields = json.loads(run_report.encode_report("refused", plan, "why \udcff", 3))
    assert (fields["state"], fields["message"], fields["exit_code"]) == ("refused", "why \udcff", 3)
    assert run_report.decode_plan(fields["plan"]) == plan


def test_read_report_returns_the_last_one_written_and_none_before(tmp_path: pathlib.Path) -> None:
    uri, plan = str(tmp_path / "report.json"), small_dataset.make_plan({"train": []})
    assert run_report.read_report(uri) is None
    run_report.write_report(uri, "planned", plan)
    run_report.write_report(uri, "refused", plan, "why", 2)
    report = run_report.read_report(uri)
    assert report is not None
    assert (report["state"], report["message"], report["exit_code"]) == ("refused", "why", 2)
    assert run_report.decode_plan(report["plan"]) == plan


def test_write_report_without_an_address_writes_nothing(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_report.write_report("", "planned", small_dataset.make_plan({"train": []}))
    assert list(tmp_path.iterdir()) == []
