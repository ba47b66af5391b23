"""Writes what the dataset is made of into the staging folder; `recorded_inputs` has the format."""

import dataclasses
from collections.abc import Iterator

import apache_beam as beam

from imagebeam.transforms import dataset_settings, elements, step
from imagebeam.transforms.output import recorded_inputs


class _StageInputsFn(beam.DoFn):
    def __init__(self, settings: dataset_settings.DatasetSettings):
        self._settings = settings

    def process(self, plan: elements.DatasetPlan) -> Iterator[None]:
        if plan.action == "write":
            recorded_inputs.write_inputs(self._settings.paths.staging(plan.fingerprint), plan)
        yield from ()


@dataclasses.dataclass
class StageInputs(step.Step):
    """Writes into the staging folder what the dataset is made of, before the first shard is written."""

    settings: dataset_settings.DatasetSettings

    def expand(self, plan: beam.PCollection[elements.DatasetPlan]) -> beam.PCollection[None]:
        return plan | "Write" >> beam.ParDo(_StageInputsFn(self.settings))
