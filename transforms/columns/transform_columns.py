"""Transforms the columns of a table by tf.Transform, which analyses references and never an image.

This step comes after references are placed in shards: the raw values decide the fingerprint of the dataset, and a run
that has nothing to write analyses nothing.

Each shard's values are analysed where they are, and no worker sees all of them. So that the same input gives the same
numbers on every runner, nothing that is computed from all values depends on their order: tf.Transform counts strings
and finds minimum and maximum, analyze_values computes mean, variance and quantiles.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import apache_beam as beam

from imagebeam.transforms import dataset_settings, elements, step, write_shards
from imagebeam.transforms.elements import ColumnTransform
from imagebeam.transforms.output import output_folder

_BATCH_ROWS = 1024  # each batch is one call of TensorFlow


class Saved(Protocol):
    """A loaded transform: column_preprocessing.SavedTransform."""

    def apply(self, values: Sequence[Sequence[Any]]) -> list[list[Any]]:
        """Returns the transformed values of columns."""


def _take_values(
    element: write_shards.PlacedShard, transforms: Sequence[ColumnTransform], analyze: str | None
) -> Iterator[list[tuple[Any, ...]]]:
    """A placed shard -> batches of its raw values, column by column; none if its split is not analysed."""
    (split, _), runs = element
    for refs in _batches(_refs_of(runs)) if analyze in ("all", split) else ():
        columns = list(zip(*(ref.columns for ref in refs)))
        yield [columns[transform.position] for transform in transforms]


def _stage(
    _: bytes, settings: dataset_settings.DatasetSettings, scratch: str, plan: elements.DatasetPlan, analysed: Any
) -> Iterator[str]:
    """Copies tf.Transform's output next to the staged shards; yields the folder it was written to."""
    if plan.action == "write":
        output_folder.stage(scratch, settings.paths.staging(plan.fingerprint))
    yield scratch


class _ApplyFn(beam.DoFn):
    """A placed shard -> the same shard, its references with transformed columns."""

    def __init__(self, transforms: Sequence[ColumnTransform]):
        self._transforms = transforms
        self._saved: Saved | None = None

    def process(self, element: write_shards.PlacedShard, folder: str) -> Iterator[write_shards.PlacedShard]:
        from imagebeam.transforms.columns import column_preprocessing

        if self._saved is None:
            self._saved = column_preprocessing.SavedTransform(folder, self._transforms)
        key, runs = element
        runs = sorted(runs)
        rank, transformed = runs[0][0], []
        for refs in _batches(_refs_of(runs)):
            changed = apply(self._transforms, self._saved, refs)
            transformed.append((rank, elements.pack_refs(changed)))
            rank += len(refs)
        yield key, transformed or runs


def apply(
    transforms: Sequence[ColumnTransform], saved: Saved, refs: Sequence[elements.ImageRef]
) -> list[elements.ImageRef]:
    """Returns the references with transformed columns; transforms each column of all references at once."""
    columns = list(zip(*(ref.columns for ref in refs)))
    values = saved.apply([columns[transform.position] for transform in transforms])
    for transform, changed in zip(transforms, values):
        columns[transform.position] = tuple(changed)
    return [ref._replace(columns=row) for ref, row in zip(refs, zip(*columns))]


def _refs_of(runs: Iterable[write_shards.PackedRun]) -> Iterator[elements.ImageRef]:
    for _, packed in sorted(runs):
        yield from elements.unpack_refs(packed)


def _batches(rows: Iterable[Any]) -> Iterator[list[Any]]:
    """Yields lists of `_BATCH_ROWS` rows, the last one shorter."""
    rest = iter(rows)
    while batch := list(itertools.islice(rest, _BATCH_ROWS)):
        yield batch


@dataclasses.dataclass
class TransformColumns(step.Step):
    """Transforms the columns in placed shards; yields them once tf.Transform's output is staged."""

    transforms: tuple[ColumnTransform, ...]  # () changes nothing and imports no TensorFlow
    plan: beam.PCollection[elements.DatasetPlan]  # one element
    settings: dataset_settings.DatasetSettings
    scratch: str  # a folder that TensorFlow can write to on every worker

    def expand(self, shards: beam.PCollection[write_shards.PlacedShard]) -> beam.PCollection[write_shards.PlacedShard]:
        if not self.transforms:
            return shards
        settings, snapshot, analysed = self.settings, self.settings.snapshot, ()
        if snapshot is not None and snapshot.base:  # one dataset has one transform, whose numbers each snapshot keeps
            folder = snapshot.base_folder
        else:
            from imagebeam.transforms.columns import column_preprocessing

            take = beam.FlatMap(_take_values, transforms=self.transforms, analyze=settings.analyze)
            batches = shards | "TakeValues" >> take.with_output_types(Any)
            done = batches | "Analyze" >> column_preprocessing.AnalyzeColumns(self.transforms, self.scratch)
            folder, analysed = self.scratch, beam.pvalue.AsIter(done)
        plan = beam.pvalue.AsSingleton(self.plan)
        stage = beam.FlatMap(_stage, settings=settings, scratch=folder, plan=plan, analysed=analysed)
        staged = shards.pipeline | "StartStaging" >> beam.Impulse() | "Stage" >> stage.with_output_types(str)
        change = beam.ParDo(_ApplyFn(self.transforms), folder=beam.pvalue.AsSingleton(staged))
        return shards | "Apply" >> change.with_output_types(write_shards.PlacedShard)
