"""Rules that find the split of an image. Imports no Beam: a writer process applies them too."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable

from imagebeam import records
from imagebeam.transforms import elements

PURPOSE = b"imagebeam.split"


@dataclasses.dataclass(frozen=True)
class SplitRule:
    """Rule that finds the split of a reference."""

    by: str  # directory, column, hash, index, source or none
    name: str = "train"  # for none
    fractions: tuple[tuple[str, float], ...] = ()  # for hash: in the order of the config
    counts: tuple[tuple[str, int | None], ...] = ()  # for index: rows of each split; None is all that follow
    holdout: tuple[tuple[str, str, int], ...] = ()  # new split, split to take rows from, how many of its first rows
    stratify: bool = False
    grouped: bool = False
    seed: int = 0
    rename: tuple[tuple[str, str], ...] = ()
    declared: tuple[str, ...] | None = None

    def of_hash(self, value: int) -> str:
        """Returns the split of a hash. An image never changes its split when others are added or removed."""
        return self.at(value, 1 << elements.HASH_BITS)

    def at(self, position: int, total: int) -> str:
        """Returns the split that holds `position` of `total` when the splits follow each other."""
        reached = 0.0
        for name, fraction in self.fractions:
            reached += fraction
            if position < round(reached * total):
                return name
        return self.fractions[-1][0]

    def of_row(self, position: int) -> str:
        """Returns the split of a row of the table.

        Raises:
            ValueError: if the row comes after all splits.
        """
        end = 0
        for name, count in self.counts:
            end += count if count is not None else position - end + 1
            if position < end:
                return name
        raise ValueError(f"row {position} comes after the {end:,} that split.counts names; give the last split null")

    def apply(self, ref: elements.ImageRef) -> elements.ImageRef:
        """Returns `ref` with its split, for rules that need no other reference.

        Raises:
            ValueError: if there is no split for it.
        """
        split = self._find(ref)
        for name, taken_from, first in self.holdout:
            if split == taken_from and ref.position < first:
                split = name
                break
        return ref if split == ref.split else ref.with_split(split)

    def _find(self, ref: elements.ImageRef) -> str:
        if self.by == "index":
            return self.of_row(ref.position)
        if self.by == "none":
            return self.name
        if self.by == "hash":
            value = elements.hash64((self.grouped and ref.group) or ref.key, self.seed, PURPOSE)
            return self.of_hash(value)
        given = ref.key.split("/")[0] if self.by == "directory" else ref.split
        if self.by == "directory" and given == ref.key:
            raise ValueError(f"{ref.key!r} is in no folder; expected split/image or split/label/image")
        found = self._found.get(given)
        if found is None:
            found = self._found[given] = self._name_of(given)
        return found

    @functools.cached_property
    def _found(self) -> dict[str, str]:
        """The splits of the names met before: there are few, and each is checked once."""
        return {}

    def _name_of(self, given: str) -> str:
        """Returns the split that the source names `given`.

        Raises:
            ValueError: if it is not allowed.
        """
        name = dict(self.rename).get(given, given)
        if not records.SPLIT_NAME.fullmatch(name):
            raise ValueError(f"split {name!r} must consist of letters, digits, '_', '.' and '-'; set split.rename")
        if self.declared is not None and name not in self.declared:
            raise ValueError(f"split {name!r} is not among the declared ones, {', '.join(self.declared)}")
        return name


def assign_all(
    rule: SplitRule, refs: Iterable[elements.ImageRef]
) -> tuple[list[elements.ImageRef], list[elements.Reject]]:
    """Returns the references with their splits, and rejects in place of those that fit no split."""
    assigned, rejects = [], []
    for ref in refs:
        try:
            assigned.append(rule.apply(ref))
        except ValueError as e:
            rejects.append(elements.Reject(ref.key, ref.uri, "split", elements.Reason.BAD_SPLIT, str(e)))
    return assigned, rejects
