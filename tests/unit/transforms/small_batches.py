"""Batches of references for the steps of the pipeline, of uneven sizes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import apache_beam as beam

from imagebeam.transforms import elements, rank_references
from imagebeam.transforms.sort_intervals import Order
from imagebeam.transforms.step import RefBatch

SetAndRef = tuple[str, elements.ImageRef]
Ranked = dict[str, list[elements.ImageRef]]  # by set, in the order of ranks
_BATCH_REFS = 3


def in_batches(refs: Sequence[elements.ImageRef]) -> list[RefBatch]:
    """Returns the references in batches."""
    return [RefBatch(refs[start : start + _BATCH_REFS]) for start in range(0, len(refs), _BATCH_REFS)]


def create(*batches: list[elements.ImageRef]) -> beam.PTransform:
    """Returns the transform that creates these batches."""
    return beam.Create(map(RefBatch, batches)).with_output_types(RefBatch)


def in_keyed_batches(refs: Sequence[SetAndRef]) -> list[rank_references.KeyedRefs]:
    """Returns the references of several sets in batches of one set each."""
    batches = []
    for start in range(0, len(refs), _BATCH_REFS):
        some = refs[start : start + _BATCH_REFS]
        for name in dict.fromkeys(name for name, _ in some):
            batches.append((name, RefBatch(ref for each, ref in some if each == name)))
    return batches


def rank_plainly(refs: Iterable[SetAndRef], order: Order) -> Ranked:
    """Returns what RankReferences must yield, from a plain sort."""
    ranked: Ranked = {}
    for set_name, each in sorted(refs, key=lambda keyed: (*order.values([keyed[1]]), keyed[1].key)):
        ranked.setdefault(set_name, []).append(each)
    return ranked
