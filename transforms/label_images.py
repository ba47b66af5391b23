"""Gives every reference its label."""

import collections
import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.transforms import window
from apache_beam.typehints import decorators

from imagebeam.transforms import counters, elements, ref_batches, summaries
from imagebeam.transforms.classes import labels_by_index
from imagebeam.transforms.sources import label_rule


class _LabelFn(beam.DoFn):
    def __init__(self, rule: label_rule.LabelRule):
        self._rule = rule
        self._surveyor: labels_by_index.ListSurveyor | None = None
        self._rejected: collections.Counter[str] = collections.Counter()

    def start_bundle(self) -> None:
        self._rejected.clear()
        lists = self._rule.names.lists
        self._surveyor = labels_by_index.ListSurveyor(lists) if lists else None

    def process(self, refs: ref_batches.RefBatch) -> Iterator[Any]:
        if self._rule == label_rule.LABELLED:
            yield refs
            return
        labelled, rejects = label_rule.label_all(self._rule, refs, self._surveyor)
        for reject in rejects:
            self._rejected[reject.reason.value] += 1
            yield beam.pvalue.TaggedOutput("rejects", reject)
        if labelled:
            yield ref_batches.RefBatch(labelled)

    def finish_bundle(self) -> Iterator[Any]:
        counters.count_rejects(self._rejected)
        if self._surveyor is not None:
            tally = summaries.Tally(0, {}, (), self._surveyor.survey)
            yield beam.pvalue.TaggedOutput("tallies", window.GlobalWindows.windowed_value(tally))


class LabelledImages(NamedTuple):
    """The outputs of LabelImages."""

    images: beam.PCollection[ref_batches.RefBatch]
    rejects: beam.PCollection[elements.Reject]
    tallies: "beam.PCollection[summaries.Tally] | None"  # how the images fit label.lists; None without lists


@decorators.with_input_types(ref_batches.RefBatch)
@dataclasses.dataclass
class LabelImages(beam.PTransform):
    """Gives references their labels; references without one become rejects."""

    rule: label_rule.LabelRule

    def __post_init__(self) -> None:
        super().__init__()

    @decorators.no_annotations  # Beam warns of an output that is a NamedTuple
    def expand(self, refs: beam.PCollection[ref_batches.RefBatch]) -> LabelledImages:
        tags = ("rejects", "tallies") if self.rule.names.lists else ("rejects",)
        labelled = refs | "Label" >> beam.ParDo(_LabelFn(self.rule)).with_output_types(
            ref_batches.RefBatch, rejects=elements.Reject, tallies=summaries.Tally
        ).with_outputs(*tags, main="images")
        tallies = labelled.tallies if "tallies" in tags else None
        return LabelledImages(ref_batches.typed(labelled.images), labelled.rejects, tallies)
