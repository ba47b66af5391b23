"""A source whose listing has labels and splits already, and ranks where nothing else decides them.

The launcher's writer processes have nothing to do while it imports Beam. One of them lists the source then, and finds
the labels and splits too, which takes as long as everything else that the launcher does with a reference. If the
references are few enough to be sorted at once, it ranks them.
"""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence

from imagebeam.transforms import elements, reference_order, sort_intervals
from imagebeam.transforms.classes import labels_by_index
from imagebeam.transforms.sources import image_source, label_rule, listing_rules, split_rule

_MAX_PLAIN_REFS = 100_000  # that are not compressed: 15 MB, a tenth of a second
_MAX_WHOLE_BYTES = 24 << 20  # of packed references that are ranked here: with many boxes, or long captions, fewer
_SAMPLE_REFS = 100  # of a listing, by which its bytes are estimated


@dataclasses.dataclass(frozen=True)
class LabelledSource:
    """Lists the images of `source` with what the rules find for each; what they reject, it lists as rejects."""

    source: image_source.ImageSource
    rules: listing_rules.ListingRules
    label: label_rule.LabelRule
    split: split_rule.SplitRule | None  # None if splits depend on all images
    order: reference_order.HashOrder | None = None  # in which the images are ranked in their splits; None: not here

    def __hash__(self) -> int:  # not of the rules, which hold mappings
        return hash(self.source)

    def list_all(self) -> Iterator[image_source.Listing]:
        listings = self._label_all()
        if self.order is not None:
            first, are_all = _take_first(listings)
            if are_all:
                yield from _rank(first, self.order)
                return
            listings = itertools.chain(first, listings)
        yield from _pack(listings)

    def _label_all(self) -> Iterator[image_source.Listing]:
        """Yields listings with labels and splits, whose references are not packed yet."""
        lists = self.label.names.lists
        for listing in map(self.rules.apply, self.source.list_all()):
            surveyor = labels_by_index.ListSurveyor(lists) if lists else None
            refs, rejects = label_rule.label_all(self.label, elements.unpack_refs(listing.packed_refs), surveyor)
            if self.split is not None:
                refs, without_split = split_rule.assign_all(self.split, refs)
                rejects += without_split
            yield listing._replace(
                packed_refs=elements.UnpackedRefs(refs),
                num_refs=len(refs),
                rejects=(*listing.rejects, *rejects),
                lists=labels_by_index.NO_LISTS if surveyor is None else surveyor.survey,
            )


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


def _rank(listings: Sequence[image_source.Listing], order: reference_order.HashOrder) -> Iterator[image_source.Listing]:
    """Yields the listings without their references, and one with the ranks of them all."""
    refs = itertools.chain.from_iterable(elements.unpack_refs(listing.packed_refs) for listing in listings)
    ranked = sort_intervals.sort_whole(refs, order)
    for listing in listings:
        yield listing._replace(packed_refs=b"")
    yield image_source.Listing(b"", 0, (), {}, (), ranked=ranked)


def _pack(listings: Iterable[image_source.Listing]) -> Iterator[image_source.Listing]:
    num_refs = 0
    for listing in listings:
        num_refs += listing.num_refs
        max_plain_bytes = sys.maxsize if num_refs <= _MAX_PLAIN_REFS else elements.MAX_PLAIN_BYTES
        refs = elements.unpack_refs(listing.packed_refs)
        yield listing._replace(packed_refs=elements.pack_refs(refs, max_plain_bytes))
