"""Splits images inside of each label: the share of each split holds for every label."""

import collections
import dataclasses
import functools
import itertools
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import apache_beam as beam
from apache_beam.typehints import decorators

from imagebeam.transforms import (
    cut_classes,
    elements,
    hashing,
    rank_references,
    ref_batches,
    reference_order,
    step,
)
from imagebeam.transforms.classes import split_shares
from imagebeam.transforms.sources import split_rule

_GOLDEN_TURN = 11_400_714_819_323_198_485  # 2**64 / golden ratio: its multiples, modulo 2**64, are spread evenly


def majority_label(refs: Iterable[elements.ImageRef]) -> str:
    """Returns the most frequent label of a group; of equally frequent ones, the first in the alphabet."""
    counts = collections.Counter(str(ref.label) for ref in refs)
    return min(counts, key=lambda label: (-counts[label], label))


# Beam sends keys as UTF-8, which cannot hold the undecodable bytes of a file name: hence ascii().
def _label_of(ref: elements.ImageRef) -> str:
    return ascii(ref.label)


def _group_of(ref: elements.ImageRef) -> str:
    return ascii(ref.group or ref.key)


def _with_majority_label(element: tuple[str, Iterable[ref_batches.RefBatch]]) -> rank_references.KeyedRefs:
    refs = ref_batches.RefBatch(itertools.chain.from_iterable(element[1]))
    return ascii(majority_label(refs)), refs


class ClassDivision(NamedTuple):
    """Division of the images of one class by rank."""

    num_images: int
    ends: tuple[int, ...]  # for each split, the rank after its last image
    phase: int  # for whole groups: where rank 0 is in the range of hashes


def divide_classes(rule: split_rule.SplitRule, sizes: Mapping[str, int]) -> dict[str, ClassDivision]:
    """Returns how each class is divided, given the number of images in each class.

    Groups stay whole, so the excess of one class cannot be balanced with single images of the next. Instead, the splits
    form a circle and each class starts at another point of it. So, of many classes with one group each, every split
    gets its share; with a common start, all of these groups would go to the first split.
    """
    counts = split_shares.share_out(sizes, [fraction for _, fraction in rule.fractions])
    return {
        name: ClassDivision(sizes[name], tuple(itertools.accumulate(counts[name])), index * _GOLDEN_TURN)
        for index, name in enumerate(sorted(sizes))
    }


def divide_class(rule: split_rule.SplitRule, division: ClassDivision) -> cut_classes.Division:
    """Returns which ranks of a class go to each split; a group goes where its first image goes."""
    names = tuple(name for name, _ in rule.fractions)
    if not rule.grouped:
        return cut_classes.Division(division.ends[:-1], names)
    whole, phase = 1 << hashing.HASH_BITS, division.phase % (1 << hashing.HASH_BITS)
    bounds = [round(reached * whole) for reached in itertools.accumulate(share for _, share in rule.fractions[:-1])]
    turns = [*bounds, whole, *(whole + bound for bound in bounds)]  # hashes at which the next split begins
    following = (*names[1:], names[0], *names[1:])
    reached = [(turn, name) for turn, name in zip(turns, following) if phase < turn < phase + whole]
    starts = tuple(-((phase - turn) * division.num_images // whole) for turn, _ in reached)
    return cut_classes.Division(starts, (rule.of_hash(phase), *(name for _, name in reached)))


def _divide(sizes: Mapping[str, int], rule: split_rule.SplitRule) -> dict[str, cut_classes.Division]:
    return {name: divide_class(rule, division) for name, division in divide_classes(rule, sizes).items()}


@decorators.with_input_types(ref_batches.RefBatch)
@dataclasses.dataclass
class StratifySplits(step.Step):
    """Gives references their splits by their rank among those of their label, if the rule is stratified.

    References of other rules have their splits already, and stay as they are.
    """

    rule: split_rule.SplitRule

    def expand(self, refs: beam.PCollection[ref_batches.RefBatch]) -> beam.PCollection[ref_batches.RefBatch]:
        if not self.rule.stratify:
            return refs
        if self.rule.grouped:
            groups = rank_references.key_by(refs, "KeyByGroup", _group_of) | "Group" >> beam.GroupByKey()
            with_label = beam.Map(_with_majority_label).with_output_types(rank_references.KeyedRefs)
            labelled = groups | "MajorityLabel" >> with_label  # (label, RefBatch) from (group, [RefBatch])
            keyed = ref_batches.typed(labelled, rank_references.KeyedRefs)
        else:
            keyed = rank_references.key_by(refs, "KeyByLabel", _label_of)
        field = "group" if self.rule.grouped else "key"
        order = reference_order.HashOrder(self.rule.seed, split_rule.PURPOSE, field)
        divide = functools.partial(_divide, rule=self.rule)
        return keyed | "CutClasses" >> cut_classes.CutClasses(order, divide, self.rule.grouped)
