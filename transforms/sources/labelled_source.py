"""A source whose listing has labels and splits already.

The launcher's writer processes have nothing to do while it imports Beam. One of them lists the source then, and finds
the labels and splits too, which takes as long as everything else that the launcher does with a reference.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator

from imagebeam.transforms import elements
from imagebeam.transforms.classes import labels_by_index
from imagebeam.transforms.sources import image_source, label_rule, listing_rules, split_rule

_MAX_PLAIN_REFS = 100_000  # that are not compressed: 15 MB, a tenth of a second


@dataclasses.dataclass(frozen=True)
class LabelledSource:
    """Lists the images of `source` with what the rules find for each; what they reject, it lists as rejects."""

    source: image_source.ImageSource
    rules: listing_rules.ListingRules
    label: label_rule.LabelRule
    split: split_rule.SplitRule | None  # None if splits depend on all images

    def __hash__(self) -> int:  # not of the rules, which hold mappings
        return hash(self.source)

    def list_all(self) -> Iterator[image_source.Listing]:
        lists = self.label.names.lists
        num_refs = 0
        for listing in map(self.rules.apply, self.source.list_all()):
            surveyor = labels_by_index.ListSurveyor(lists) if lists else None
            refs, rejects = label_rule.label_all(self.label, elements.unpack_refs(listing.packed_refs), surveyor)
            if self.split is not None:
                refs, without_split = split_rule.assign_all(self.split, refs)
                rejects += without_split
            num_refs += len(refs)
            max_plain_bytes = sys.maxsize if num_refs <= _MAX_PLAIN_REFS else elements.MAX_PLAIN_BYTES
            yield listing._replace(
                packed_refs=elements.pack_refs(refs, max_plain_bytes),
                num_refs=len(refs),
                rejects=(*listing.rejects, *rejects),
                lists=labels_by_index.NO_LISTS if surveyor is None else surveyor.survey,
            )
