"""Rules that are applied to every image that a source lists: what its path says, and which list names it."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping

from imagebeam.transforms import elements
from imagebeam.transforms.sources import image_source, path_pattern, split_lists, table_rows

_NUM_SHOWN = 3  # paths in an error


@dataclasses.dataclass(frozen=True)
class ListingRules:
    """The rules of a config; without any, listings stay as they are."""

    pattern: path_pattern.PathPattern | None = None
    lists: split_lists.SplitLists | None = None

    def apply(self, listing: image_source.Listing) -> image_source.Listing:
        """Returns the listing with what the rules say of its images; a rule that cannot be applied is a problem."""
        if self == NO_RULES or not listing.num_refs:
            return listing
        found = image_source.ListingBuilder()
        found.rejects.extend(listing.rejects)
        found.skipped.update(listing.skipped)
        found.problems.extend(listing.problems)
        refs = elements.unpack_refs(listing.packed_refs)
        try:
            if self.lists is not None:
                for listed in self.lists.apply_all(refs):
                    if listed is None:
                        found.skipped[split_lists.UNLISTED] += 1
                    else:
                        found.add(listed)
                refs, found.refs = found.refs, []
            for ref in refs:
                found.add(ref if self.pattern is None else self.pattern.apply(ref))
        except table_rows.MissingValueError as e:
            found.problems.append(str(e))
        except (OSError, ValueError) as e:
            found.problems.append(f"split.lists cannot be read: {e}")
        return found.take()._replace(features=listing.features)


NO_RULES = ListingRules()


@dataclasses.dataclass(frozen=True)
class Advisor:
    """Looks for what is wrong with a source of which no image can be used."""

    source: image_source.ImageSource
    rules: ListingRules = NO_RULES

    def advise(self, reason: str) -> str:
        """Returns what to do if every image is rejected or skipped for this reason; "" if there is no advice."""
        if self.rules.lists is not None and reason == split_lists.UNLISTED:
            return self.rules.lists.advise(list(self._first_keys()))
        if reason == elements.Reason.NO_MATCH.value:
            return f"the first paths are {', '.join(map(repr, self._first_keys()))}"
        return self.source.advise(elements.Reason(reason))

    def notes(self, found: Mapping[str, int]) -> list[str]:
        """Returns notes on a source some of whose images can be used.

        Args:
            found: number of images by split.
        """
        if self.rules.lists is None:
            return []
        named = self.rules.lists.count_names()
        return [
            f"split.lists names {named[split]:,} images of {split}, and {found.get(split, 0):,} were found"
            for split in named
            if found.get(split, 0) < named[split]
        ]

    def _first_keys(self) -> Iterator[str]:
        refs = (ref for each in self.source.list_all() for ref in elements.unpack_refs(each.packed_refs))
        return (ref.key for ref in itertools.islice(refs, _NUM_SHOWN))
