"""Label, split and rank of the images that a source lists, as far as no other image decides them. Imports no Beam.

A worker applies the rules to each listing. The launcher of a local job has a writer process list the whole source
instead, which applies the same rules; if the references are few enough to be sorted at once, it ranks them, too.
"""

from __future__ import annotations

import dataclasses
import gc
import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from imagebeam.transforms import elements, sort_intervals
from imagebeam.transforms.classes import label_names
from imagebeam.transforms.sources import image_source, label_rule, listing_rules, split_rule

_MAX_PLAIN_REFS = 100_000  # that are not compressed: 15 MB, a tenth of a second
_MAX_WHOLE_BYTES = 24 << 20  # of packed references that are ranked here: with many boxes, or long captions, fewer
_SAMPLE_REFS = 100  # of a listing, by which its bytes are estimated
_GC_THRESHOLD = 300_000  # new objects before garbage is collected: references are in no cycle, and stay


@dataclasses.dataclass(frozen=True)
class ReferenceRules:
    """The rules of a config for every image that its source lists; without any, listings stay as they are."""

    listing: listing_rules.ListingRules = listing_rules.NO_RULES
    label: label_rule.LabelRule | None = None
    split: split_rule.SplitRule | None = None  # None if splits depend on all images

    def apply(self, listing: image_source.Listing) -> image_source.Listing:
        """Returns the listing with the labels and splits of its images. What a rule rejects is among its rejects."""
        listing = self.listing.apply(listing)
        refs = elements.unpack_refs(listing.packed_refs)
        rejects, survey = list(listing.rejects), label_names.NO_LISTS
        if self.label is not None:
            lists = self.label.names.lists
            surveyor = label_names.ListSurveyor(lists) if lists else None
            refs, unlabelled = label_rule.label_all(self.label, refs, surveyor)
            rejects += unlabelled
            survey = survey if surveyor is None else surveyor.survey
        if self.split is not None:
            refs, without_split = split_rule.assign_all(self.split, refs)
            rejects += without_split
        return listing._replace(
            packed_refs=elements.UnpackedRefs(refs), num_refs=len(refs), rejects=tuple(rejects), lists=survey
        )


NO_RULES = ReferenceRules()


class ListingTask(NamedTuple):
    """What one process lists by itself."""

    source: image_source.ImageSource
    rules: ReferenceRules
    order: sort_intervals.HashOrder | None = None  # in which images are ranked in their splits; None: not here


def list_whole(task: ListingTask) -> list[image_source.Listing]:
    """Lists a source completely in the calling process, which should do nothing else meanwhile."""
    thresholds = gc.get_threshold()
    gc.set_threshold(_GC_THRESHOLD, *thresholds[1:])
    try:
        listings: Iterator[image_source.Listing] = map(task.rules.apply, task.source.list_all())
        if task.order is not None:
            first, are_all = _take_first(listings)
            if are_all:
                return _rank(first, task.order)
            listings = itertools.chain(first, listings)
        return list(_pack(listings))
    finally:
        gc.set_threshold(*thresholds)


def _take_first(listings: Iterator[image_source.Listing]) -> tuple[list[image_source.Listing], bool]:
    """Takes listings until their references are too many to be sorted at once; returns whether these are all."""
    taken, num_refs, num_bytes = [], 0, 0.0
    for listing in listings:
        taken.append(listing)
        num_refs += listing.num_refs
        sample = elements.unpack_refs(listing.packed_refs)[:: -(-listing.num_refs // _SAMPLE_REFS) or 1]
        num_bytes += len(elements.pack_refs(sample, sys.maxsize)) * listing.num_refs / (len(sample) or 1)
        if num_refs > sort_intervals.MAX_WHOLE or num_bytes > _MAX_WHOLE_BYTES:
            return taken, False
    return taken, True


def _rank(listings: Sequence[image_source.Listing], order: sort_intervals.HashOrder) -> list[image_source.Listing]:
    """Returns the listings without their references, and one with the ranks of them all."""
    refs = itertools.chain.from_iterable(elements.unpack_refs(listing.packed_refs) for listing in listings)
    ranked = sort_intervals.sort_whole(refs, order)
    without = [listing._replace(packed_refs=b"") for listing in listings]
    return [*without, image_source.Listing(b"", 0, (), {}, (), ranked=ranked)]


def _pack(listings: Iterable[image_source.Listing]) -> Iterator[image_source.Listing]:
    num_refs = 0
    for listing in listings:
        num_refs += listing.num_refs
        max_plain_bytes = sys.maxsize if num_refs <= _MAX_PLAIN_REFS else elements.MAX_PLAIN_BYTES
        refs = elements.unpack_refs(listing.packed_refs)
        yield listing._replace(packed_refs=elements.pack_refs(refs, max_plain_bytes))
