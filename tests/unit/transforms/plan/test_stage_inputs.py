"""The step that writes into the staging folder what the dataset is made of."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.runners.portability import fn_api_runner
from apache_beam.testing import test_pipeline

from imagebeam.transforms.output import output_folder
from imagebeam.transforms.plan import plan_dataset
from tests.unit.transforms import small_dataset

INPUTS: dict[str, Any] = {"images": 3}


@pytest.mark.parametrize("action", ["write", "keep", "refuse"])
def test_inputs_are_recorded_only_of_a_dataset_that_will_be_written(action: str, tmp_path: pathlib.Path) -> None:
    settings = small_dataset.make_settings(tmp_path / "out")
    plan = small_dataset.make_plan({"train": []}, action=action, inputs=INPUTS)
    with test_pipeline.TestPipeline(runner=fn_api_runner.FnApiRunner()) as pipeline:
        _ = pipeline | beam.Create([plan]) | plan_dataset.StageInputs(settings)
    recorded = pathlib.Path(settings.paths.staging(plan.fingerprint)) / output_folder.INPUTS_FILE
    assert recorded.exists() == (action == "write")
    assert not recorded.exists() or json.loads(recorded.read_text()) == INPUTS
