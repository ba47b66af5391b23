from __future__ import annotations

import dataclasses
import pathlib

import pytest

from imagebeam import errors
from imagebeam.transforms import summaries
from imagebeam.transforms.dataset_settings import Sizing
from imagebeam.transforms.output import run_report
from imagebeam.transforms.plan import decide_plan
from tests.unit.transforms import small_dataset


def test_report_holds_the_plan_and_the_error(tmp_path: pathlib.Path) -> None:
    settings = small_dataset.make_settings(tmp_path / "out", sizing=Sizing(num_shards=5))
    ranking = small_dataset.make_ranking({"train": 10, "test": 3}, labels=("caf\udce9", "train"))
    plan = decide_plan.make_plan(settings, ranking, summaries.Tally(13, {}, ()), summaries.RejectSummary({}, 0, None))
    assert plan.notes
    report = run_report.RunReport(
        "refused", plan, error=errors.DriftError("labels-drift", "why \udcff"), rejected={"x": 1}
    )
    report.write(str(tmp_path / "report.json"))
    found = run_report.read_report(str(tmp_path / "report.json"))
    assert found is not None and found.error is not None
    assert errors.to_fields(found.error) == {"class": "DriftError", "code": "labels-drift", "text": "why \udcff"}
    assert found == dataclasses.replace(report, error=found.error)


def test_read_report_returns_the_last_one_written_and_none_before(tmp_path: pathlib.Path) -> None:
    uri, plan = str(tmp_path / "report.json"), small_dataset.make_plan({"train": []})
    assert run_report.read_report(uri) is None
    for report in (run_report.RunReport("planned", plan), run_report.RunReport("kept", plan, "why")):
        report.write(uri)
        assert run_report.read_report(uri) == report


def test_report_without_an_address_is_not_written(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_report.RunReport("planned", small_dataset.make_plan({"train": []})).write("")
    assert list(tmp_path.iterdir()) == []
