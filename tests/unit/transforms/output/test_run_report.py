from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.runners.portability import fn_api_runner
from apache_beam.testing import test_pipeline

from imagebeam import errors
from imagebeam.transforms import summaries
from imagebeam.transforms.dataset_settings import Sizing
from imagebeam.transforms.output import run_report
from imagebeam.transforms.plan import decide_plan, plan_dataset
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


@pytest.mark.parametrize("action", ["write", "keep", "refuse"])
def test_inputs_are_recorded_only_of_a_dataset_that_will_be_written(action: str, tmp_path: pathlib.Path) -> None:
    settings = small_dataset.make_settings(tmp_path / "out")
    plan = small_dataset.make_plan({"train": []}, action=action, inputs={"images": 3})
    with test_pipeline.TestPipeline(runner=fn_api_runner.FnApiRunner()) as pipeline:
        _ = pipeline | beam.Create([plan]) | plan_dataset.StageInputs(settings)
    staging = settings.paths.staging(plan.fingerprint)
    assert run_report.read_inputs(staging) == ({"images": 3} if action == "write" else run_report.NO_INPUTS)


def describe(config: dict[str, Any], others: dict[str, Any], listed: int = 0, version: int = 1) -> dict[str, Any]:
    identity = json.dumps([config, others])
    return json.loads(json.dumps(run_report.describe_inputs(identity, version, None, listed, {}, 0)))


NONE = describe({}, {})
MANY = describe({"columns": {name: 1 for name in "abcdefg"}}, {})
SECOND = {"split": {"seed": 1, "fractions": {"train": 0.8}}, "output": {"num_shards": 4}}


def test_differences_of_configs_and_of_the_number_of_images_are_named() -> None:
    for before, now, expected in [
        (describe({}, {}, 9), describe({}, {}, 10), "10 images listed, 9 then"),
        (
            describe({"output": {"num_shards": 3}}, {}),
            describe(SECOND, {}),
            "output.num_shards was 3, is 4; split.fractions.train was not set, is 0.8; split.seed was not set, is 1",
        ),
        (MANY, NONE, "; ".join(f"columns.{name} was 1, is not set" for name in "abcde") + "; 2 more keys"),
        (describe({}, {"pillow": "12.0"}), describe({}, {"pillow": "12.1"}), 'pillow was "12.0", is "12.1"'),
        (describe({}, {"x": "y" * 99}), NONE, f'x was "{"y" * 79}..., is not set'),
        (NONE, describe({}, {}, version=2), "this version of imagebeam writes other bytes"),
        (NONE, NONE, "images, or their labels or columns, differ"),
        (run_report.NO_INPUTS, NONE, "config or images differ"),
    ]:
        assert run_report.compare_inputs(before, now) == expected


def test_update_goes_on_with_newer_libraries_and_a_newer_writer_and_with_nothing_else_that_differs() -> None:
    now = describe({}, {"libraries": {"pillow": "12.1"}}, version=2)
    assert run_report.compare_configs(describe({}, {"libraries": {"pillow": "12.0"}}), now) == ""
    assert run_report.compare_configs(describe({}, {"raw_shape": [2]}), now) == "raw_shape was [2], is not set"
