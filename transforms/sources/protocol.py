"""What every source yields: batches of references, and what became of the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple, Protocol

from imagebeam.transforms import elements, kept_features

MAX_REFS = 10_000  # in one listing: some 0.4 MB packed, so that a worker never holds much more than it works on


class Listing(NamedTuple):
    """Part of what a source holds."""

    packed_refs: bytes
    num_refs: int
    rejects: tuple[elements.Reject, ...]
    passed_over: Mapping[str, int]  # by kind; not among the listed
    problems: tuple[str, ...]  # what makes the whole run impossible
    features: kept_features.FeatureSurvey = kept_features.NO_FEATURES  # of the records that images come in


class Source(Protocol):
    """What images can be listed from; hashable and picklable."""

    def list_all(self) -> Iterator[Listing]:
        """Yields all that the source holds."""


def list_whole(source: Source) -> list[Listing]:
    """All that a source holds, listed by the process that this is called in."""
    return list(source.list_all())


class ListingBuilder:
    """Gathers what a source finds; `take` yields a listing whenever enough has come together."""

    def __init__(self) -> None:
        self.refs: list[elements.ImageRef] = []
        self.rejects: list[elements.Reject] = []
        self.passed_over: Counter[str] = Counter()
        self.problems: list[str] = []
        self.features = kept_features.NO_FEATURES

    def add(self, found: elements.ImageRef | elements.Reject) -> None:
        """Takes in what became of an image."""
        if isinstance(found, elements.Reject):
            self.rejects.append(found)
        else:
            self.refs.append(found)

    @property
    def is_full(self) -> bool:
        return len(self.refs) + len(self.rejects) >= MAX_REFS

    def take(self) -> Listing:
        """What was gathered so far; the builder starts anew."""
        listing = Listing(
            elements.pack_refs(self.refs),
            len(self.refs),
            tuple(self.rejects),
            dict(self.passed_over),
            tuple(self.problems),
            self.features,
        )
        self.__init__()  # type: ignore[misc]
        return listing
