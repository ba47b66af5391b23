"""Counts the duplicates of a run, and decides whether it may be committed. Imports no Beam.

Counts have the form of `Catalog.duplicates`: `{kind: {split: {split of the image that is repeated: images}}}`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from imagebeam import errors, plural
from imagebeam.transforms import elements
from imagebeam.transforms.shard import image_hashes

NUM_EXAMPLES = 3  # that an error names
Counts: TypeAlias = Mapping[str, Mapping[str, Mapping[str, int]]]
_WHAT = {"exact": "repeat the bytes of others", "near": "look like others"}


class StoredDuplicates(NamedTuple):
    """One file of duplicates in the staging folder."""

    name: str
    counts: Mapping[tuple[str, str, str], int]  # images by kind, their split, and the split of the image they repeat
    examples: tuple[elements.Duplicate, ...]  # the first of each kind


def count(settings: image_hashes.DuplicateSettings, stored: Sequence[StoredDuplicates]) -> Counts:
    """Returns the counts of all files, with an empty mapping for a kind of which there are none; {} if none is on."""
    totals: dict[str, dict[str, dict[str, int]]] = {
        kind: {} for kind, action in settings.actions.items() if action != "off"
    }
    for (kind, split, first_split), number in sorted(row for each in stored for row in each.counts.items()):
        by_split = totals[kind].setdefault(split, {})
        by_split[first_split] = by_split.get(first_split, 0) + number
    return totals


def total(by_split: Mapping[str, Mapping[str, int]]) -> int:
    """Returns the number of duplicates of one kind."""
    return sum(number for counts in by_split.values() for number in counts.values())


def describe(by_split: Mapping[str, Mapping[str, int]]) -> str:
    """Returns the counts of one kind: `12 images (train of test 3, within train 9)`, those across splits first."""
    pairs = [(split == first, split, first, n) for split, counts in by_split.items() for first, n in counts.items()]
    texts = [
        f"within {split} {number:,}" if is_same else f"{split} of {first} {number:,}"
        for is_same, split, first, number in sorted(pairs)
    ]
    return plural.count(total(by_split), "image") + (f" ({', '.join(texts)})" if texts else "")


def find_refusal(
    settings: image_hashes.DuplicateSettings, counts: Counts, stored: Sequence[StoredDuplicates] = ()
) -> errors.DuplicatesError | None:
    """Returns the error of a run that finds duplicates where there must be none; None if it may be committed.

    Args:
        settings: of the run.
        counts: of its duplicates.
        stored: the files, for examples.
    """
    found = [kind for kind in settings.only("fail").actions if settings.actions[kind] == "fail" and counts.get(kind)]
    if not found:
        return None
    kind = found[0]
    every = sorted(
        (example for each in stored for example in each.examples if example.kind == kind),
        key=lambda example: (example.split == example.first_split, ascii(example.key)),
    )
    examples = "; ".join(
        f"{example.key!r} of {example.split} repeats {example.first_key!r} of {example.first_split}"
        for example in every[:NUM_EXAMPLES]
    )
    return errors.DuplicatesError(
        "duplicates-found",
        f"{describe(counts[kind])} {_WHAT[kind]}, duplicates.{kind} is fail: nothing was committed"
        + (f"; such as {examples}" if examples else "")
        + f"; remove them from the input, or set duplicates.{kind}: drop or report",
    )
